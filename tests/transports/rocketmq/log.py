"""The log of a broker, made up: which message lies where in its queues, and where in the log; and what was read of it."""

from __future__ import annotations

import struct
from collections.abc import Callable

from framework.errors import FrameworkError
from framework.transports.rocketmq.queues import Place
from framework.transports.rocketmq.trail import Trail
from framework.transports.rocketmq.wire.codes import Answer, Request
from framework.transports.rocketmq.wire.frames import Frame
from tests.transports.rocketmq.canned import Canned
from tests.transports.rocketmq.group import Answered
from tests.transports.rocketmq.paper import NODE, TOPIC

HERE, THERE = Place(TOPIC, NODE, 0), Place(TOPIC, NODE, 1)
BORN = 1_700_000_000_000_000_000
"""When all of them were published, in ns."""


def id_of(number: int) -> bytes:
    return b"%032X" % number


class Log:
    """A session to a broker whose queues have these messages: numbers, and places in its log that are ten times as far."""

    def __init__(self, here: range | list[int], there: range | list[int] = (), *, begins: int = 0) -> None:  # type: ignore[assignment]
        self.queues = {0: list(here), 1: list(there)}
        self.begins = begins
        """What lies before has expired."""
        self.physical: Callable[[int, int], int] = lambda queue, at: 10 * at
        self.offset: str | None = None
        """How far the group is."""
        self.refuses: dict[int, Frame | FrameworkError] = {}
        self.error: FrameworkError | None = None
        self.asked: list[tuple[int, dict[str, str]]] = []

    def ask(self, code: int, fields: dict[str, str], body: bytes = b"") -> Frame:
        return self.question(code, fields).wait()

    def question(self, code: int, fields: dict[str, str], body: bytes = b"") -> Answered:
        self.asked.append((code, fields))
        if code in self.refuses:
            return Answered(self.refuses[code])
        if code == Request.PULL_MESSAGE:
            return Answered(self._lies(int(fields["queueId"]), int(fields["queueOffset"])))
        if code == Request.QUERY_CONSUMER_OFFSET:
            return Answered(Frame(Answer.QUERY_NOT_FOUND) if self.offset is None else Frame(0, fields={"offset": self.offset}))
        return Answered(Frame(0))

    def _lies(self, queue: int, at: int) -> Frame:
        some = self.queues[queue]
        ends = {"minOffset": str(self.begins), "maxOffset": str(len(some))}
        if not self.begins <= at < len(some):
            return Frame(Answer.PULL_OFFSET_MOVED, fields=ends | {"nextBeginOffset": str(len(some))})
        one = Canned._stored(None, TOPIC, queue, at, 1)  # type: ignore[arg-type]
        one = one.replace(id_of(at * 4 + queue), id_of(some[at]))
        body = one[:28] + struct.pack(">q", self.physical(queue, at)) + one[36:]
        return Frame(0, fields=ends | {"nextBeginOffset": str(at + 1)}, body=body)

    def said(self, code: int) -> list[dict[str, str]]:
        return [fields for one, fields in self.asked if one == code]


def trail_of(*points: int) -> Trail:
    """Of a queue whose messages had the numbers of their offsets."""
    trail = Trail()
    for at in points:
        trail.add(at, id_of(at), BORN)
    return trail


def cut(numbers: int, kept: int, new: int) -> list[int]:
    """``numbers`` messages, of which those from ``kept`` on were lost, and others came: so many there are."""
    return [*range(min(kept, numbers)), *range(1000, 1000 + new - kept)]

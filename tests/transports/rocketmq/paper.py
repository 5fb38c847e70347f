"""A session that only writes down what it is asked, messages as a broker stores them, and connections over it, by PULL and by
POP: what is said and counted, one change at a time."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any, NamedTuple
from unittest.mock import patch

from framework.errors import FrameworkError
from framework.message import Message
from framework.testing.conformance.receiver import StrictReceiver
from framework.transports.contract import Limits
from framework.transports.rocketmq import pulling
from framework.transports.rocketmq.connection import PopConnection
from framework.transports.rocketmq.delivery import APART
from framework.transports.rocketmq.heartbeat import Subscription
from framework.transports.rocketmq.pulling import PullConnection
from framework.transports.rocketmq.queues import Past, Place, Reading
from framework.transports.rocketmq.set_back import SetBack
from framework.transports.rocketmq.urls import Options
from framework.transports.rocketmq.wire.codes import Answer
from framework.transports.rocketmq.wire.codes import Request as Codes
from framework.transports.rocketmq.wire.frames import Frame
from tests.transports.rocketmq.canned import Canned

TOPIC, GROUP, NODE = "t", "g", "b"


class Request(NamedTuple):
    """As it was put."""

    code: int
    fields: dict[str, str]
    then: Callable[[Frame | FrameworkError, float], None]
    wait: float
    body: bytes


class Paper:
    """``session.Session`` for one owner. ``turn`` is one of the hub's, ``flush`` the socket's taking of all that was said."""

    def __init__(self) -> None:
        self.error: FrameworkError | None = None
        self.leaving = self.signs = False
        self.owner: Any = None
        self.has_left = False
        self.asked: list[Request] = []
        self.told: list[tuple[int, dict[str, str]]] = []
        """What wants no answer."""
        self.wanted = self.brought = 0
        self._marks: list[Callable[[], None]] = []

    def attach(self, owner: Any) -> None:
        self.owner = owner

    def leave(self, owner: Any) -> None:
        self.has_left = True

    def wants_to_speak(self, owner: Any) -> None:
        self.wanted += 1

    def brings(self, owner: Any) -> None:
        self.brought += 1

    def rescued(self) -> None: ...

    def tell(self, code: int, fields: dict[str, str]) -> None:
        self.told.append((code, fields))

    def put(
        self, owner: Any, code: int, fields: dict[str, str], then: Any, *, body: bytes = b"", wait: float = 0.0,
        anywhere: bool = False,
    ) -> int:  # fmt: skip
        self.asked.append(Request(code, fields, then, wait, body))
        return len(self.asked)

    def mark(self, owner: Any, then: Callable[[], None]) -> None:
        self._marks.append(then)

    def turn(self) -> list[Request]:
        """What it says in this turn, if it wants to say something."""
        self.asked = []
        if self.wanted:
            self.wanted = 0
            self.owner.turn()
            self.owner.collect()
        return self.asked

    def flush(self) -> None:
        marks, self._marks = self._marks, []
        for then in marks:
            then()


class Member:
    """``membership.Membership``: which queues it has is said by the test."""

    has_queues = True
    rejected = None

    def __init__(self, *_: Any, **__: Any) -> None:
        self.looks = 0
        self.broke: bool | None = None
        """As it was stopped."""

    def look(self) -> None:
        self.looks += 1

    def await_first(self) -> None: ...

    def stop(self, *, broke: bool) -> None:
        assert self.broke is None, "stopped twice"
        self.broke = broke


def refused(code: int = Answer.SYSTEM_ERROR) -> Frame:
    return Frame(code, remark="no")


def stored(*offsets: int, tags: dict[int, bytes] | None = None) -> bytes:
    """The messages at ``offsets`` of queue 0, one behind the other; ``tags``: those of four letters that some have."""
    found = b""
    for offset in offsets:
        one = Canned._stored(None, TOPIC, 0, offset, 1)  # type: ignore[arg-type]
        found += one.replace(b"WAIT\x01true", b"TAGS\x01" + tags[offset]) if tags and offset in tags else one
    return found


class Reader:
    """A ``PullConnection`` over paper that reads queue 0 from offset 0 on; ``Member`` is its membership."""

    def __init__(self, *, dlq: bool = False, tags: str = "", max_grant: int = 1000, membership: Any = Member) -> None:
        self.paper = Paper()
        self.receiver = StrictReceiver()
        self.receiver.most_granted = max_grant
        session: Any = self.paper
        with patch.object(pulling, "Membership", membership):
            self.connection = PullConnection(
                session, (NODE, TOPIC, "billing"), Subscription(TOPIC, GROUP, tags, pulls=True), self.receiver,
                limits=Limits(0.0, 0.0, max_grant), options=Options(dlq=dlq), ended=lambda session: None,
                places=lambda topic: (), pasts={},
            )  # fmt: skip
        self.member: Any = self.connection._member
        self.reading = self.adds(0)

    def adds(self, number: int, *, topic: str = TOPIC) -> Reading:
        reading = self.connection.readings[place] = Reading(place := Place(topic, NODE, number), 0)
        return reading

    def turn(self, code: int) -> list[Request]:
        """What it says of this kind in one turn."""
        return [one for one in self.paper.turn() if one.code == code]

    def pulls(self) -> Request:
        """The one PULL of this turn."""
        (pull,) = [one for one in self.paper.turn() if "queueOffset" in one.fields]
        return pull

    def brings(self, pull: Request, *offsets: int, end: int = 1000, following: int | None = None, **more: Any) -> None:
        """The answer with these messages; it is opened in the same turn."""
        self.answers(pull, *offsets, end=end, following=following, **more)
        self.connection.arrive()

    def answers(self, pull: Request, *offsets: int, end: int = 1000, following: int | None = None, **more: Any) -> None:
        """Not opened yet. ``end``: of the queue; ``following``: where it goes on, behind the last unless said."""
        behind = offsets[-1] + 1 if following is None else following
        fields = {"nextBeginOffset": str(behind), "minOffset": "0", "maxOffset": str(end)}
        pull.then(Frame(Answer.SUCCESS, fields=fields, body=stored(*offsets, **more)), 0.0)

    def taken(self, count: int, *, granted: int = 100, more: bool = False) -> list[Message]:
        """Messages of offset 0 and on, in flight. ``more``: there are others behind them."""
        self.connection.grant(granted)
        self.brings(self.pulls(), *range(count), end=1000 if more else count)
        return self.receiver.taken

    def done(self) -> list[int]:
        """What is committed in this turn, by itself or with a PULL."""
        asked = self.paper.turn()
        commits = [one for one in asked if one.code == Codes.UPDATE_CONSUMER_OFFSET or one.fields.get("sysFlag") == "7"]
        return [int(one.fields["commitOffset"]) for one in commits]


class Popper:
    """A ``PopConnection`` over paper."""

    def __init__(self, *, max_grant: int = 1000, lease: float = 60.0, **options: Any) -> None:
        self.paper = Paper()
        self.receiver = StrictReceiver()
        self.receiver.most_granted = max_grant
        session: Any = self.paper
        self.left: list[Any] = []
        self.past = Past()
        given = Options(**{"lease": lease, "poll": 2.0, **options})
        what = Subscription(TOPIC, GROUP, given.tags)
        self.connection = PopConnection(
            session, (NODE, TOPIC, "billing"), what, self.receiver,
            limits=Limits(lease, 600.0, max_grant), options=given, ended=self.left.append, past=self.past,
            back=SetBack(session, NODE, what, self.past, lambda _: ()),
        )  # fmt: skip

    def turn(self, code: int) -> list[Request]:
        """What it says of this kind in one turn."""
        return [one for one in self.paper.turn() if one.code == code]

    def pops(self) -> Request:
        """The one POP of this turn."""
        (pop,) = self.turn(Codes.POP_MESSAGE)
        return pop

    def answers(
        self, pop: Request, *offsets: int, rest: int = 0, at: float | None = None, body: bytes = b"", **more: Any
    ) -> None:
        """Not opened yet. ``body``: in place of the messages."""
        now = monotonic() if at is None else at
        fields = {
            "popTime": str(round(now * 1000)), "invisibleTime": "60000", "reviveQid": "0", "restNum": str(rest),
            "startOffsetInfo": f"0 0 {offsets[0]}", "msgOffsetInfo": f"0 0 {','.join(map(str, offsets))}",
        }  # fmt: skip
        pop.then(Frame(Answer.SUCCESS, fields=fields, body=body or stored(*offsets, **more)), now)

    def brings(self, pop: Request, *offsets: int, **more: Any) -> None:
        """The answer with these messages; it is opened in the same turn."""
        self.answers(pop, *offsets, **more)
        self.connection.arrive()

    def taken(self, count: int, *, granted: int = 32) -> list[Message]:
        """Messages of offset 0 and on, in flight, as many as are granted or fewer. Their leases may be changed by now."""
        self.connection.grant(granted)
        self.brings(self.pops(), *range(count), at=monotonic() - 5 * APART)
        return self.receiver.taken

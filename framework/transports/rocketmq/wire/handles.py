"""POP handles: what a broker must be told to find the one delivery that an ACK or a new lease is about. No I/O here.

    ckQueueOffset popTime invisibleTime reviveQid retryFlag brokerName queueId msgQueueOffset

Source: ExtraInfoUtil and KeyBuilder of RocketMQ 5.3.3.
"""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from framework.errors import ProtocolError
from framework.transports.rocketmq.wire.frames import garbage, time_in
from framework.transports.rocketmq.wire.stored import Record

NORMAL, RETRY_V1, RETRY_V2 = 0, 1, 2
_RETRY = "%RETRY%"


class Handle(msgspec.Struct, gc=False):
    """One delivery. Times in milliseconds: ``pop_time`` since 1970, by the broker's clock."""

    start: int
    """ckQueueOffset: where in its queue the POP began, or the message itself after a change."""
    pop_time: int
    invisible: int
    revive_queue: int
    retry: int
    """Where it lies: NORMAL in its topic, else in one of the two retry topics of its group."""
    broker: str
    queue: int
    offset: int
    """Its number in its queue."""

    def __str__(self) -> str:
        lease = f"{self.pop_time} {self.invisible} {self.revive_queue}"
        return f"{self.start} {lease} {self.retry} {self.broker} {self.queue} {self.offset}"

    def of(self, offset: int) -> Handle:
        """Of another message of the same POP and queue."""
        return Handle(
            self.start, self.pop_time, self.invisible, self.revive_queue, self.retry, self.broker, self.queue, offset
        )  # fmt: skip

    def changed(self, pop_time: int, invisible: int, revive_queue: int) -> Handle:
        """After CHANGE_MESSAGE_INVISIBLETIME, whose answer has these."""
        return Handle(self.offset, pop_time, invisible, revive_queue, self.retry, self.broker, self.queue, self.offset)

    def topic(self, topic: str, group: str) -> str:
        """Where the broker looks for it: ``topic``, or a retry topic of ``group``."""
        return topic if self.retry == NORMAL else retry_topic(topic, group, self.retry)


def retry_topic(topic: str, group: str, version: int) -> str:
    """The topic that keeps what is delivered again; ``version``: RETRY_V1 or RETRY_V2."""
    return f"{_RETRY}{group}{'_' if version == RETRY_V1 else '+'}{topic}"


def kind_of(stored_topic: str, topic: str, group: str) -> int:
    """Where a message lies that came with ``stored_topic``, and was asked for in ``topic``. Raises ProtocolError."""
    for kind in (RETRY_V1, RETRY_V2):
        if stored_topic == retry_topic(topic, group, kind):
            return kind
    if stored_topic != topic:
        raise garbage(f"a message of {stored_topic!r} in an answer for {topic!r}", b"", 0)
    return NORMAL


def parse(text: str) -> Handle:
    """As ``str`` writes it. Raises ProtocolError."""
    parts = text.split(" ")
    if len(parts) != 8:
        raise garbage("a handle that has not eight parts", text.encode(), 0)
    try:
        start, pop_time, invisible, revive_queue, retry = map(int, parts[:5])
        return Handle(start, pop_time, invisible, revive_queue, retry, parts[5], int(parts[6]), int(parts[7]))
    except ValueError:
        raise garbage("a handle with a number that is none", text.encode(), 0) from None


class Popped:
    """What the answer to a POP says of all messages in it. Raises ProtocolError where it does not say it."""

    __slots__ = ("_broker", "_said", "_starts", "invisible", "pop_time", "rest", "revive_queue")

    def __init__(self, fields: Mapping[str, str], broker: str) -> None:
        self._broker = broker
        try:
            self.pop_time, self.invisible = time_in(fields, "popTime"), time_in(fields, "invisibleTime")
            self.revive_queue = int(fields["reviveQid"])
            self.rest = int(fields.get("restNum", "0"))
            """About how many messages are left to pop."""
            self._starts = _starts(fields.get("startOffsetInfo", ""))
            self._said = fields.get("msgOffsetInfo", "")
        except (KeyError, ValueError) as error:
            raise garbage(f"an answer to a POP without what it needs ({error})", repr(fields).encode(), 0) from None

    def handle(self, retry: int, queue: int, offset: int) -> Handle:
        """Of the message that lies there. Raises ProtocolError for a queue that the answer does not name."""
        start = self._starts.get((retry, queue))
        if start is None:
            raise garbage(f"a message of queue {queue} ({retry}), of which the answer says nothing", b"", 0)
        return Handle(start, self.pop_time, self.invisible, self.revive_queue, retry, self._broker, queue, offset)

    def written(self, text: str, queue: int, offset: int, *, again: bool) -> Handle:
        """Of the message that lies there, and has the handle ``text`` among its properties. A broker writes it into what it
        delivers again, with the topic that was asked for as its own. It does so only where there is none: a publisher may have
        copied one, or given anything. ``again``: it was delivered before. Raises ProtocolError."""
        try:
            found = parse(text)
        except ProtocolError:
            pass
        else:
            if (found.pop_time, found.broker, found.queue, found.offset) == (self.pop_time, self._broker, queue, offset):
                return found
        kinds = [kind for kind in (NORMAL, RETRY_V1, RETRY_V2) if offset in self._offsets(kind, queue)]
        return self.handle(kinds[-1 if again else 0] if kinds else NORMAL, queue, offset)

    def put_in_place(self, found: Sequence[tuple[Record, Any, Any]]) -> bool:
        """Have the records of the answer name their places, where they name others: a broker that has lost a part of its index
        puts what comes after it before the place that it gave it. An ACK of that place would be one of another message. Whether
        they are known. Raises ProtocolError."""
        if not found or not self._said:
            return False
        first, last = found[0][0], found[-1][0]
        in_order = last.queue_offset - first.queue_offset == len(found) - 1 and last.queue_id == first.queue_id
        # Of two queues of one number, one of which has what comes again, one may say that it goes on where the other one ends.
        if in_order and len(self._starts) == 1 and (first.queue_id, first.queue_offset) in self._first_places:
            return True
        places, records, known = defaultdict[int, list[int]](list), defaultdict[int, list[Record]](list), True
        for _, queue, offsets in self._entries():
            places[queue] += offsets
        for record, _, _ in found:
            records[record.queue_id].append(record)
        for queue, some in records.items():
            if len(some) != len(places[queue]):
                known = False
            elif {one.queue_offset for one in some} != set(places[queue]):
                for record, place in zip(some, places[queue], strict=True):
                    record.queue_offset = place
        return known

    @property
    def _first_places(self) -> list[tuple[int, int]]:
        return [(queue, start) for (_, queue), start in self._starts.items()]

    def _offsets(self, retry: int, queue: int) -> set[int]:
        """Of the messages of that queue. Raises ProtocolError."""
        of_queue = [offsets for flag, number, offsets in self._entries() if (flag, number) == (retry, queue)]
        return {offset for offsets in of_queue for offset in offsets}

    def _entries(self) -> list[tuple[int, int, list[int]]]:
        """Flag, queue and offsets of msgOffsetInfo, ``flag queue offset,offset;...``, in the order of the messages. Raises
        ProtocolError."""
        try:
            entries = [entry.split(" ") for entry in self._said.split(";") if entry]
            return [(int(flag), int(queue), [int(one) for one in offsets.split(",")]) for flag, queue, offsets in entries]
        except ValueError:
            raise garbage("an answer to a POP with offsets that cannot be read", self._said.encode(), 0) from None


def _starts(text: str) -> dict[tuple[int, int], int]:
    """startOffsetInfo, ``flag queue start;...``."""
    found = {}
    for entry in filter(None, text.split(";")):
        flag, queue, start = entry.split(" ")
        found[int(flag), int(queue)] = int(start)
    return found


# --- many at once ------------------------------------------------------------------------------------------


def batch_entry(first: Handle, behind: Sequence[int], topic: str, group: str) -> dict[str, object]:
    """One of the ``acks`` of a BATCH_ACK_MESSAGE: messages of the POP and queue of ``first``, by how far they lie behind its
    start."""
    return {
        "c": group, "t": topic, "r": str(first.retry), "so": first.start, "q": first.queue, "rq": first.revive_queue,
        "pt": first.pop_time, "it": first.invisible, "b": bitset(behind),
    }  # fmt: skip


def batch_body(broker: str, acks: list[dict[str, object]]) -> bytes:
    """The body of a BATCH_ACK_MESSAGE."""
    return msgspec.json.encode({"brokerName": broker, "acks": acks})


def bitset(behind: Sequence[int]) -> str:
    """As Java's BitSet is written: base64 of its bytes, the lowest first. Raises ProtocolError for one below 0."""
    bits, first = 0, behind[0] if behind else 0
    if first >= 0 and behind == list(range(first, first + len(behind))):  # all that a POP brought of a queue, mostly
        bits = (1 << len(behind)) - 1 << first
    else:
        for one in behind:
            if one < 0:
                raise ProtocolError(f"no offset is {-one} before the first of its POP")
            bits |= 1 << one
    return base64.b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()

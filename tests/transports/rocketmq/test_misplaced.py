"""Messages that say of themselves that they lie elsewhere in their queue than they do: a broker that has lost parts of its index,
as on a disk that was full, goes on so. What counts is where they lie. Here with a broker whose answers are made up."""

from __future__ import annotations

import base64
import json
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest

from framework.errors import BrokerUnreachable
from framework.testing.conformance.receiver import Held
from framework.transports import open_transports
from framework.transports.rocketmq import sameness
from framework.transports.rocketmq.wire.codes import Answer, Request
from framework.transports.rocketmq.wire.frames import Frame
from tests.transports.rocketmq.canned import NAME, QUEUES, Canned
from tests.transports.rocketmq.kit import until
from tests.transports.rocketmq.test_ahead import settle_at_once

EACH = 200
Said = Callable[[int], int]
"""Where a message lies -> where it says that it does."""
SHIFTS: list[Said] = [
    lambda place: place + 31, lambda place: place - 7, lambda place: place + (31 if place >= 50 else 0),
    lambda place: place - (7 if place >= 50 else 0), lambda place: place + (2 if place >= 101 else 0),
    lambda place: place + place // 9,
]  # fmt: skip


class Shifted(Canned):
    """Its messages say ``said(place)``."""

    def __init__(self, said: Said, messages: int = EACH) -> None:
        super().__init__(messages)
        self._of = said
        self.acks: dict[int, list[int]] = defaultdict(list)
        """By POP, of each queue: what was acknowledged, by where it lies."""

    def _stored(self, topic: str, queue: int, first: int, count: int) -> bytes:
        found = b""
        for place in range(first, first + count):
            one = super()._stored(topic, queue, place, 1)
            found += one[:20] + struct.pack(">q", self._of(place)) + one[28:]
        return found

    def _said(self, asked: Frame) -> Any:
        if asked.code == Request.ACK_MESSAGE:
            self.acks[int(asked.fields["queueId"])].append(int(asked.fields["offset"]))
        elif asked.code == Request.BATCH_ACK_MESSAGE:
            for one in json.loads(asked.body)["acks"]:
                bits = int.from_bytes(base64.b64decode(one["b"]), "little")
                self.acks[one["q"]] += [one["so"] + at for at in range(bits.bit_length()) if bits >> at & 1]
        return super()._said(asked)


@pytest.fixture
def closing() -> Iterator[list[Any]]:
    found: list[Any] = []
    yield found
    for one in reversed(found):
        one.close()


def held_by(transport: Any, server: Canned, closing: list[Any]) -> Held:
    one = Held(lambda receiver: transport.connect(NAME, server.topic, "billing", receiver))
    closing.append(one.connection)
    return one


def opened(server: Canned, mode: str, closing: list[Any]) -> Any:
    (transport,) = open_transports([f"rocketmq://{server.address}?mode={mode}&poll=200ms"])
    closing.extend([server, transport])
    return transport


@pytest.mark.parametrize("said", SHIFTS)
def test_by_pull_each_comes_once_and_the_place_of_the_last_is_committed(said: Said, closing: list[Any]) -> None:
    server = Shifted(said)
    held = held_by(opened(server, "pull", closing), server, closing)
    settle_at_once(held)
    held.grant(1000)
    until(lambda: server.committed == dict.fromkeys(range(QUEUES), EACH))
    assert sorted(int(message.id, 16) for message in held.taken) == list(range(QUEUES * EACH))


@pytest.mark.parametrize("said", SHIFTS)
def test_by_pull_nothing_is_committed_before_it_is_settled(said: Said, closing: list[Any]) -> None:
    server = Shifted(said)
    held = held_by(opened(server, "pull", closing), server, closing)
    held.grant(QUEUES * EACH)
    until(lambda: len(held.taken) == QUEUES * EACH)
    kept = {queue: 60 + queue for queue in range(QUEUES)}
    for message in list(held.connection.in_flight):
        place, queue = divmod(int(message.id, 16), QUEUES)
        if place != kept[queue]:
            held.connection.finish(message)
    until(lambda: server.committed == kept)


@pytest.mark.parametrize("said", SHIFTS)
def test_by_pull_the_queue_is_known_again_by_who_has_read_it(
    said: Said, closing: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it is read again and again, for ever."""
    monkeypatch.setattr(sameness, "LOOKED", 0.0)
    server = Shifted(said)
    transport = opened(server, "pull", closing)
    held = held_by(transport, server, closing)
    settle_at_once(held)
    held.grant(1000)
    until(lambda: server.committed == dict.fromkeys(range(QUEUES), EACH))
    for _ in range(3):
        held.connection._member.look()  # type: ignore[attr-defined]
        gevent.sleep(0.05)
    assert not held.receiver.closings
    held.connection.lost(BrokerUnreachable("broken"))  # type: ignore[attr-defined]
    server.offsets = dict.fromkeys(range(QUEUES), EACH)
    again = held_by(transport, server, closing)
    again.grant(1000)
    until(lambda: again.connection.readings and not any(one.astray for one in again.connection.readings.values()))  # type: ignore[attr-defined]
    gevent.sleep(0.2)
    assert not again.taken


@pytest.mark.parametrize("said", SHIFTS)
def test_by_pop_what_is_acknowledged_is_the_one_that_was_handled(said: Said, closing: list[Any]) -> None:
    server = Shifted(said, 400)
    held = held_by(opened(server, "pop", closing), server, closing)
    held.grant(1000)
    until(lambda: len(held.taken) == 400)
    done = [message for message in held.taken if int(message.id, 16) // QUEUES % 3]
    for message in done:
        held.connection.finish(message)
    wanted: dict[int, list[int]] = defaultdict(list)
    for message in done:
        place, queue = divmod(int(message.id, 16), QUEUES)
        wanted[queue].append(place)
    until(lambda: sum(map(len, server.acks.values())) == len(done))
    assert {queue: sorted(places) for queue, places in server.acks.items()} == {q: sorted(p) for q, p in wanted.items()}


class OfTwoQueues(Shifted):
    """Its one answer to a POP has messages of two queues, and of a retry topic."""

    def _popped(self, asked: Any) -> Any:
        if self._given:
            return None
        self._given, again = 1, f"%RETRY%{asked['consumerGroup']}_{self.topic}"
        fields = {"startOffsetInfo": "0 1 5;1 1 9;0 0 3", "msgOffsetInfo": "0 1 5,6,8;1 1 9,10;0 0 3", "popTime": "1700000000000"}
        fields |= {"invisibleTime": asked["invisibleTime"], "reviveQid": "0", "restNum": "0"}
        parts = (self.topic, 1, 5, 2), (self.topic, 1, 8, 1), (again, 1, 9, 2), (self.topic, 0, 3, 1)
        return Answer.SUCCESS, fields, b"".join(self._stored(*part) for part in parts)


@pytest.mark.parametrize("said", [*SHIFTS, lambda place: place])
def test_by_pop_those_of_several_queues_are_told_apart(said: Said, closing: list[Any]) -> None:
    server = OfTwoQueues(said, 10)
    held = held_by(opened(server, "pop", closing), server, closing)
    settle_at_once(held)
    held.grant(10)
    until(lambda: sum(map(len, server.acks.values())) == 6)
    assert {queue: sorted(places) for queue, places in server.acks.items()} == {0: [3], 1: [5, 6, 8, 9, 10]}


class OfTwoTopics(Shifted):
    """Its one answer has what comes again, and then what says that it follows on that: both of a queue 0."""

    def __init__(self) -> None:
        super().__init__(lambda place: place + self.further)
        self.further = 0

    def _popped(self, asked: Any) -> Any:
        if self._given:
            return None
        self._given, again = 1, f"%RETRY%{asked['consumerGroup']}_{self.topic}"
        fields = {"startOffsetInfo": "1 0 3;0 0 12", "msgOffsetInfo": "1 0 3;0 0 12,13", "popTime": "1700000000000"}
        fields |= {"invisibleTime": asked["invisibleTime"], "reviveQid": "0", "restNum": "0"}
        body = self._stored(again, 0, 3, 1)
        self.further = 4 - 12
        return Answer.SUCCESS, fields, body + self._stored(self.topic, 0, 12, 2)


def test_by_pop_one_that_seems_to_follow_on_what_comes_again_is_acknowledged_where_it_lies(closing: list[Any]) -> None:
    server = OfTwoTopics()
    held = held_by(opened(server, "pop", closing), server, closing)
    settle_at_once(held)
    held.grant(10)
    until(lambda: sum(map(len, server.acks.values())) == 3)
    assert sorted(server.acks[0]) == [3, 12, 13]

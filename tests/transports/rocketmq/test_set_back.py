"""By POP a broker keeps how far a group is. Where it lost the end of its log, that lies behind what has come since: a worker that
read the lost part sets its group back. Here with a broker whose answers are made up."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from framework.errors import BrokerUnreachable
from framework.testing.conformance.receiver import Held
from framework.transports import open_transports
from framework.transports.rocketmq import sameness, set_back
from framework.transports.rocketmq.queues import Past, Place
from framework.transports.rocketmq.set_back import note
from framework.transports.rocketmq.wire.codes import Answer, Request
from framework.transports.rocketmq.wire.frames import Frame
from framework.transports.rocketmq.wire.stored import Record
from tests.transports.rocketmq.canned import NAME, QUEUES, Canned
from tests.transports.rocketmq.kit import until

READ = 64
"""Messages of queue 0 that came by two POPs."""


class Broker(Canned):
    """One queue of it has messages. From ``kept`` on they are others than they were, and there are ``end`` of them."""

    def __init__(self) -> None:
        super().__init__(READ)
        self.kept = self.end = self.offset = READ
        """The last: how far it says that its group is."""
        self.others = 0
        """As ``offset``, of the other queues."""
        self.deleted = 0
        """Where its POPs go on in each queue of a topic that was deleted and made anew."""
        self.set: list[tuple[int, int, str]] = []
        """Queue, offset and request of what set the group back."""
        self.denies: Collection[int] = ()
        self.blank: Collection[int] = ()
        """Places that it cannot read."""
        self.silent: Collection[int] = ()
        """Codes of what it does not answer."""
        self.groups: set[str] = set()
        """In whose names it was asked for messages that are where they are."""

    def _said(self, asked: Frame) -> tuple[int, Mapping[str, str], bytes] | None:
        if asked.code in self.silent:
            return None
        if asked.code in self.denies:
            return Answer.NO_PERMISSION, {}, b""
        match asked.code:
            case Request.QUERY_CONSUMER_OFFSET:
                queue = int(asked.fields["queueId"])
                if self.deleted:
                    return Answer.QUERY_NOT_FOUND, {}, b""
                return Answer.SUCCESS, {"offset": str(self.others if queue else self.offset)}, b""
            case Request.GET_CONSUME_STATS:
                place = '{"brokerName":"b","queueId":%d,"topic":"bench-1"}'
                said = '{"brokerOffset":9,"consumerOffset":0,"lastTimestamp":0,"pullOffset":%d}'
                table = ",".join(f"{place % queue}:{said % self.deleted}" for queue in range(QUEUES))
                return Answer.SUCCESS, {}, b'{"consumeTps":0.0,"offsetTable":{%b}}' % table.encode()
            case Request.INVOKE_BROKER_TO_RESET_OFFSET:
                self.set.append((int(asked.fields["queueId"]), int(asked.fields["offset"]), "reset"))
            case Request.UPDATE_CONSUMER_OFFSET:
                self.set.append((int(asked.fields["queueId"]), int(asked.fields["commitOffset"]), "commit"))
        return super()._said(asked)

    def _pulled(self, asked: Mapping[str, str]) -> tuple[int, Mapping[str, str], bytes]:
        self.groups.add(asked["consumerGroup"])
        at, ends = int(asked["queueOffset"]), {"minOffset": "0", "maxOffset": str(self.end)}
        if at >= self.end:
            return Answer.PULL_OFFSET_MOVED, {**ends, "nextBeginOffset": str(self.end)}, b""
        if at in self.blank:
            return Answer.PULL_RETRY_IMMEDIATELY, {**ends, "nextBeginOffset": str(self.end)}, b""
        body = self._stored(asked["topic"], 0, at, 1)
        if at >= self.kept:
            body = body.replace(b"%032X" % (at * QUEUES), b"%032X" % (10**6 + at))
        return Answer.SUCCESS, {**ends, "nextBeginOffset": str(at + 1)}, body


@pytest.fixture
def server() -> Iterator[Broker]:
    made = Broker()
    yield made
    made.close()


@pytest.fixture
def transport(server: Broker) -> Iterator[Any]:
    (made,) = open_transports([f"rocketmq://{server.address}?mode=pop&poll=200ms"])
    yield made
    made.close()


def connected(transport: Any, server: Broker) -> Held:
    return Held(lambda receiver: transport.connect(NAME, server.topic, "billing", receiver))


@pytest.fixture
def read(server: Broker, transport: Any) -> None:
    """All of it, by a connection that broke."""
    held = connected(transport, server)
    held.grant(READ)
    until(lambda: len(held.taken) == READ)
    assert not server.set
    held.connection.lost(BrokerUnreachable("broken"))  # type: ignore[attr-defined]


@pytest.mark.usefixtures("read")
@pytest.mark.parametrize(
    ("there", "wanted"),
    [
        ((READ, READ, READ), []),
        ((READ, 90, 80), []),
        ((READ, READ, 30), []),
        ((50, READ, READ), [32]),
        ((50, 500, READ), [32]),
        ((50, 50, READ), [32]),
        ((20, READ, READ), [1]),
        ((0, READ, READ), [0]),
        ((50, READ, 20), []),
        ((READ, 70, 80), [READ]),
    ],
    ids=[
        "nothing is lost", "others have read on", "it forgot what it was told last", "others are there", "more than before",
        "nothing is there", "one of the first answer is left", "it was made anew", "it goes on before that anyway",
        "what others read is lost",
    ],
)  # fmt: skip
def test_a_group_goes_on_where_its_queue_ceases_to_be_the_one_that_was_read(
    server: Broker, transport: Any, there: tuple[int, int, int], wanted: list[int]
) -> None:
    """``there``: how many are as they were, how many there are, and how far the group is."""
    server.kept, server.end, server.offset = there
    held = connected(transport, server)
    assert server.set == [(0, one, "reset") for one in wanted]
    held.connection.close()


@pytest.mark.usefixtures("read")
@pytest.mark.parametrize(
    ("blank", "end", "wanted"),
    [(range(50), 90, [50]), (range(READ), 90, []), (range(20, 50), 90, [1]), (range(50), 50, [50]), (range(50), 0, [0])],
)
def test_it_does_not_go_on_at_a_place_that_cannot_be_read(
    server: Broker, transport: Any, blank: Collection[int], end: int, wanted: list[int]
) -> None:
    """From there a broker would pass over what can be."""
    server.kept, server.end, server.blank = min(blank), end, blank
    held = connected(transport, server)
    assert server.set == [(0, one, "reset") for one in wanted]
    held.connection.close()


@pytest.mark.usefixtures("read")
@pytest.mark.parametrize("blank", [(), range(32, 40)], ids=["read on", "some of it cannot be read"])
def test_no_message_is_looked_at_in_the_name_of_the_group(server: Broker, transport: Any, blank: Collection[int]) -> None:
    """Where that group reads by POP, the broker would go on behind it."""
    server.kept, server.end, server.blank = 50, 90, blank
    held = connected(transport, server)
    assert server.set
    assert server.groups == {"TOOLS_CONSUMER"}
    held.connection.close()


@pytest.mark.usefixtures("read")
def test_who_may_not_reset_commits(server: Broker, transport: Any) -> None:
    server.kept, server.denies = 50, {Request.INVOKE_BROKER_TO_RESET_OFFSET}
    held = connected(transport, server)
    assert server.set == [(0, 32, "commit")]
    held.connection.close()


@pytest.mark.usefixtures("read")
@pytest.mark.parametrize("denied", [Request.PULL_MESSAGE, Request.QUERY_CONSUMER_OFFSET, Request.UPDATE_CONSUMER_OFFSET])
def test_who_may_not_even_ask_reads_on(server: Broker, transport: Any, denied: int) -> None:
    server.kept, server.denies = 50, {Request.INVOKE_BROKER_TO_RESET_OFFSET, denied}
    held = connected(transport, server)
    assert not server.set
    held.connection.close()


@pytest.mark.usefixtures("read")
@pytest.mark.parametrize("silent", [Request.PULL_MESSAGE, Request.QUERY_CONSUMER_OFFSET])
def test_a_broker_that_does_not_say_what_it_has_is_read_on(
    server: Broker, transport: Any, silent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in sameness, set_back:
        monkeypatch.setattr(module, "PATIENCE", 0.05)
    server.kept, server.silent = 50, {silent}
    held = connected(transport, server)
    assert not server.set
    held.connection.close()


@pytest.mark.parametrize(("end", "wanted"), [(READ, []), (50, [0]), (0, [0])], ids=["it is there", "it is not", "it is empty"])
def test_a_queue_that_nobody_here_has_read_begins_anew_where_it_has_less_than_its_group_has_read(
    server: Broker, transport: Any, end: int, wanted: list[int]
) -> None:
    """It was made anew, with its topic: of 600 messages that were published to it before a worker was started none came."""
    server.kept, server.end, server.others = READ, end, READ
    server.offset = 0
    held = connected(transport, server)
    assert server.set == [(queue, one, "reset") for one in wanted for queue in (1, 2, 3)]
    held.connection.close()


@pytest.mark.parametrize("deleted", [30, 80])
@pytest.mark.parametrize("here", [True, False], ids=["a worker that read it", "a worker that was started since"])
def test_a_topic_that_was_deleted_in_kv_mode_begins_anew(
    server: Broker, transport: Any, request: pytest.FixtureRequest, deleted: int, here: bool
) -> None:
    """There its POPs go on in each new queue where they were in the old one, and it says that it knows of no offset. Of 100
    messages none came."""
    if here:
        request.getfixturevalue("read")
    server.kept, server.end, server.deleted = 0, 50, deleted
    held = connected(transport, server)
    assert sorted(server.set) == [(queue, 0, "reset") for queue in range(QUEUES)]
    held.connection.close()


@pytest.mark.parametrize(
    ("kept", "looked"), [(READ, 0.0), (0, 0.0), (0, 1.0)], ids=["not made anew", "made anew", "made anew, and nothing has come"]
)
def test_a_connection_ends_where_a_queue_is_another_while_it_reads(
    server: Broker, transport: Any, monkeypatch: pytest.MonkeyPatch, kept: int, looked: float
) -> None:
    """POPs that wait at its broker are answered from the new queue, and of 230 messages 192 never came."""
    monkeypatch.setattr(set_back, "EVERY", 0.1)
    held = connected(transport, server)
    held.grant(READ)
    until(lambda: len(held.taken) == READ)
    gevent.sleep(looked)
    server.kept = kept
    if kept:
        gevent.sleep(1.0)
        assert not held.receiver.closings
        held.connection.close()
        return
    until(lambda: held.receiver.closings)
    server.end, server.offset = 500, READ + 1
    held = connected(transport, server)
    assert server.set == [(0, 0, "reset")]
    held.connection.close()


@pytest.mark.usefixtures("read")
def test_a_broker_that_names_an_end_that_no_queue_has_is_not_asked_for_ever(
    server: Broker, transport: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker asked for each place before it, and read nothing any more."""
    monkeypatch.setattr(set_back, "SEARCH", 2.0)
    server.kept, server.end, server.offset, server.others, server.blank = 0, 2**62, 2**62, 2**62 + 1, range(2**62)
    with gevent.Timeout(6):  # 2 s for all queues together
        held = connected(transport, server)
    assert sorted(server.set) == [(queue, 0, "reset") for queue in range(QUEUES)]
    held.connection.close()


def test_what_comes_again_is_of_another_queue_and_tells_nothing() -> None:
    past = Past()

    def came(queue: int, offset: int, *, again: bool = False) -> tuple[Record, Any, None]:
        return Record("orders", queue, offset, 0, b"", int(again)), _Message(b"%d" % offset, 1), None

    note(past, NAME, "orders", [came(0, 3, again=True), came(0, 10), came(0, 11), came(1, 5), came(1, 6, again=True)])
    note(past, NAME, "orders", [came(0, 8), came(0, 9)])  # of a POP whose answer was slower
    note(past, NAME, "orders", [came(2, 7, again=True)])
    assert {place: trail.points for place, trail in past.trails.items()} == {
        Place("orders", NAME, 0): [10, 11], Place("orders", NAME, 1): [5],
    }  # fmt: skip


class _Message:
    def __init__(self, id: bytes, timestamp: int) -> None:
        self.id, self.timestamp = id, timestamp


def came(*some: tuple[int, int], again: int = 0, topic: str = "t") -> list[Any]:
    """Queue and offset of each; ``again``: how often it was delivered before."""
    return [
        (Record(topic, queue, offset, 0, b"", again), SimpleNamespace(id=b"%d" % offset, timestamp=7), None)
        for queue, offset in some
    ]


def noted(past: Past) -> dict[int, list[int]]:
    return {place.number: trail.points for place, trail in past.trails.items() if place[:2] == ("t", "b")}


@pytest.mark.parametrize(("some", "points"), [
    ([(0, 5)], {0: [5]}), ([(0, 5), (0, 6)], {0: [5, 6]}), ([(0, 5), (0, 6), (0, 7), (0, 8)], {0: [5, 8]}),
    ([(0, 5), (0, 6), (1, 3), (1, 4), (1, 5)], {0: [5, 6], 1: [3, 5]}), ([(0, 5), (1, 3), (0, 6)], {0: [5, 6]}),
    ([], {}),
])  # fmt: skip
def test_of_each_queue_in_an_answer_the_first_and_the_last_are_remembered(
    some: list[tuple[int, int]], points: dict[int, list[int]]
) -> None:
    """Where the answer begins and ends in one queue, what lies between is not looked at."""
    past = Past()
    note(past, "b", "t", came(*some))
    assert noted(past) == points


def test_what_came_again_or_cannot_be_read_or_lies_elsewhere_is_not_remembered() -> None:
    past = Past()
    note(past, "b", "t", came((0, 5), again=1))
    note(past, "b", "t", came((0, 5), topic="%RETRY%g+t"))
    note(past, "b", "t", [(record, None, about) for record, _, about in came((0, 5))])
    assert noted(past) == {}
    note(past, "b", "t", came((0, 5), (0, 6)) + came((0, 7), again=1))
    assert noted(past) == {0: [5, 6]}


def test_an_answer_that_is_overtaken_by_another_is_not_remembered() -> None:
    past = Past()
    note(past, "b", "t", came((0, 5), (0, 9)))
    note(past, "b", "t", came((0, 6), (0, 7)))
    note(past, "b", "t", came((0, 8), (0, 9)))
    assert noted(past) == {0: [5, 9]}
    note(past, "b", "t", came((0, 10), (0, 12)))
    assert noted(past) == {0: [5, 9, 12]}

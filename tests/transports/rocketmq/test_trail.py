"""What is remembered of a queue that was read, and how far it is still the same: against a model, and a canned broker."""

from __future__ import annotations

import itertools
import json
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any

import gevent
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.transports import open_transports
from framework.transports.rocketmq import membership
from framework.transports.rocketmq.queues import Place, Reading
from framework.transports.rocketmq.trail import MOST, Found, Trail, behind, follows, same_of
from framework.transports.rocketmq.wire.codes import Answer, Request
from framework.transports.rocketmq.wire.frames import Frame
from tests.transports.rocketmq.canned import NAME, QUEUES, Canned
from tests.transports.rocketmq.kit import Sink, until


def trail_of(*offsets: int) -> Trail:
    made = Trail()
    for offset in offsets:
        made.add(offset, b"id %d" % offset, offset, offset * 100)
    return made


@given(st.lists(st.integers(1, 40), min_size=1, max_size=3000), st.data())
def test_few_points_are_kept_and_the_further_back_the_further_apart(steps: list[int], data: st.DataObject) -> None:
    """As a reader makes them: what is handled again is a small part of what was lost, or an answer or two."""
    offsets, at = [], -1
    for step in steps:
        offsets.append(at := at + step)
    trail = trail_of(*offsets)
    points = trail.points
    assert len(points) <= MOST
    assert (points[0], points[-1]) == (offsets[0], offsets[-1])
    lost_from = data.draw(st.sampled_from(offsets))
    last = max((one for one in points if one < lost_from), default=0)
    lost = len([one for one in offsets if one >= lost_from])
    again = len([one for one in offsets if last < one < lost_from])
    assert again <= 1 + lost


def test_a_point_knows_its_message_by_id_and_time_and_what_is_read_again_takes_its_place() -> None:
    trail = trail_of(3, 9)
    assert trail.is_same(9, b"id 9", 9)
    assert not trail.is_same(9, b"id 9", 10), "an id that was given out again"
    assert not trail.is_same(9, b"id 8", 9)
    trail.add(5, b"id 5", 5, 500)
    assert (trail.points, trail.most) == ([3, 5], 10), "it was read further once"


def test_the_last_message_of_each_answer_is_a_point_and_the_first_one_of_all() -> None:
    trail = Trail()
    for taken in ([], [3, 3], [4, 9], [10, 20]):
        trail.note([(offset, b"id", offset, 0) for offset in taken])
    assert trail.points == [3, 9, 20]
    trail = Trail()
    trail.note([(3, b"id", 3, 0), (9, b"id", 9, 0)])
    assert trail.points == [3, 9]


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))
def test_the_points_that_are_the_same_are_found_by_few_looks(expired: int, same: int, other: int) -> None:
    looks: list[int] = []

    def look(at: int) -> Found:
        looks.append(at)
        return Found.EXPIRED if at < expired else Found.SAME if at < expired + same else Found.OTHER

    points = range(expired + same + other)
    assert same_of(points, look) == expired + same
    assert len(looks) == len(set(looks)) <= 8
    if not other:
        assert len(looks) <= 1, "what mostly is costs one"


@given(st.lists(st.integers(0, 50), unique=True).map(sorted), st.integers(0, 40), st.integers(0, 45), st.integers(-1, 51))
def test_the_first_message_behind_a_place_in_the_log_is_found(log: list[int], expired: int, offset: int, kept: int) -> None:
    """Of a queue that has a message at each of ``log``, and lost the first of them, and what is behind the last."""

    def look(at: int) -> int:
        return -1 if at < expired else log[at] if at < len(log) else sys.maxsize

    first = next((at for at in range(expired, len(log)) if log[at] > kept), max(expired, len(log)))
    assert behind(kept, offset, look) == min(offset, first)


def test_a_queue_that_ends_earlier_is_not_read_until_it_is_known_how_far_it_is_the_same() -> None:
    trail = trail_of(9)
    reading = Reading(Place("t", "b", 0), 10, trail)
    assert (reading.astray, reading.room) == (True, 0)
    reading.goes_on_at(10)
    assert not reading.astray
    assert reading.moved(0)
    assert (reading.astray, reading.next, reading.room) == (True, 10, 0)
    reading.goes_on_at(6)
    assert (reading.astray, reading.next, reading.ahead, reading.mark, reading.told) == (False, 6, 6, 6, 10)
    assert not Reading(Place("t", "b", 0), 10).astray


STEPS = ("publish", "read", "read others'", "saved", "lost")


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(1, 12), st.integers(0, 12), st.booleans()), max_size=40))
def test_nothing_that_was_not_read_is_passed_by_when_the_end_of_a_queue_is_lost(steps: list[tuple[str, int, int, bool]]) -> None:
    """Its messages are numbers, each of which there is once. A broker that lost the end says a group is where it was, or where
    it was when that was saved; what is published until it is asked lies at the offsets that were lost."""
    queue, seen, reading = list[int](), set[int](), Reading(Place("t", "b", 0), 0)
    trail, saved, numbers = reading.trail, 0, itertools.count()

    def look(at: int) -> tuple[Found, int]:
        if at >= len(queue):
            return Found.OTHER, len(queue)
        return Found.SAME if trail.is_same(at, b"id", queue[at]) else Found.OTHER, len(queue)

    for what, count, then, forgets in steps:
        if what == "publish":
            queue += itertools.islice(numbers, count)
        elif what == "saved":
            saved = reading.next
        elif what != "lost":
            first, reading.next = reading.next, min(len(queue), reading.next + count)
            seen.update(queue[first : reading.next])
            if what == "read" and first < reading.next:
                trail.add(reading.next - 1, b"id", queue[reading.next - 1], 0)
        else:
            reading.ended()
            said = reading.next = saved if forgets else reading.next
            del queue[len(queue) - min(count, len(queue)) :]
            queue += itertools.islice(numbers, then)
            if trail:
                reading.goes_on_at(follows(trail, said, look))
                assert set(queue[: reading.next]) <= seen
                saved = min(saved, reading.next)
            else:  # nothing was for us
                seen.update(queue[:said])


def test_where_nothing_was_lost_it_goes_on_where_its_broker_says() -> None:
    def same(at: int) -> tuple[Found, int]:
        return Found.SAME, 30

    assert follows(trail_of(4, 9), 10, same) == 10
    assert follows(trail_of(4, 9), 7, same) == 7, "what its broker has forgotten comes again"
    assert follows(trail_of(4, 9), 25, same) == 25, "another member has read on"
    assert follows(trail_of(4, 9), 31, same) == 10, "which was lost since"
    trail = trail_of(4, 9)
    assert follows(trail, 10, lambda at: (Found.SAME if at == 4 else Found.OTHER, 30)) == 5
    assert (trail.points, trail.most) == ([4], 10), "up to there nobody else has read what came since"


class Again(Canned):
    """Says of each queue how far its group is, and refuses the looks at single messages of queue 2."""

    def __init__(self, messages: int, refusal: int) -> None:
        super().__init__(messages)
        self.looks: list[tuple[int, int]] = []
        self.refusal = refusal

    def _said(self, asked: Frame) -> Any:
        if asked.code == Request.QUERY_CONSUMER_OFFSET and not asked.fields["topic"].startswith("%RETRY%"):
            return Answer.SUCCESS, {"offset": str(self.committed[int(asked.fields["queueId"])])}, b""
        if asked.code == Request.PULL_MESSAGE and asked.fields["sysFlag"] == "4":
            self.looks.append((queue := int(asked.fields["queueId"]), int(asked.fields["queueOffset"])))
            if queue == 2 and self.refusal:
                return self.refusal, {}, b""
        return super()._said(asked)

    def _commit(self, asked: Mapping[str, str]) -> None:
        if not asked["topic"].startswith("%RETRY%"):
            super()._commit(asked)


@pytest.mark.parametrize("refusal", [0, Answer.NO_PERMISSION, Answer.SYSTEM_ERROR])
def test_a_queue_that_is_read_again_is_looked_at_once_and_one_that_nobody_may_look_at_holds_up_no_other(refusal: int) -> None:
    server = Again(40, refusal)
    (transport,) = open_transports([f"rocketmq://{server.address}?mode=pull"])

    @contextmanager
    def reading() -> Iterator[Sink]:
        sink: Any = Sink()
        connection = transport.connect(NAME, server.topic, "billing", sink)
        connection.grant(200)
        yield sink
        until(lambda: server.committed.total() == server.messages * QUEUES)
        connection.close()
        until(lambda: sink.closings)

    with reading() as sink:
        until(lambda: sink.bodies.total() == 40 * QUEUES)
    assert server.looks == []
    server.messages = 60
    with reading() as sink:
        if refusal == Answer.SYSTEM_ERROR:  # it is asked again, a second later
            until(lambda: sink.bodies.total() == 20 * (QUEUES - 1))
            server.refusal = 0
        until(lambda: sink.bodies.total() == 20 * QUEUES)
    assert set(server.looks) == {(queue, 39) for queue in range(QUEUES)}
    assert refusal == Answer.SYSTEM_ERROR or len(server.looks) == QUEUES
    transport.close()
    server.close()


class Shared(Canned):
    """The group has further members. ``cut`` breaks all connections to it."""

    def __init__(self) -> None:
        super().__init__(10)
        self.members: list[str] = ["~"]  # behind any other
        self.holders: list[str] | None = []
        """None: it does not tell."""
        self.unlocked: dict[str, int] = {}
        """Client -> how many queues, of others."""
        self._clients: list[socket.socket] = []

    def cut(self) -> None:
        clients, self._clients = self._clients, []
        for client in clients:
            with suppress(OSError):  # it was closed
                client.shutdown(socket.SHUT_RDWR)

    def _serve(self, client: socket.socket) -> None:
        self._clients.append(client)
        super()._serve(client)

    def _said(self, asked: Frame) -> Any:
        if asked.code == Request.GET_CONSUMER_LIST_BY_GROUP:
            return Answer.SUCCESS, {}, json.dumps({"consumerIdList": [self._client, *self.members]}).encode()
        if asked.code == Request.GET_PRODUCER_CONNECTION_LIST and self.holders is None:
            return Answer.NO_PERMISSION, {}, b""
        if asked.code == Request.GET_PRODUCER_CONNECTION_LIST:
            holders = [{"clientId": one} for one in (self._client, *self.holders)]
            return Answer.SUCCESS, {}, json.dumps({"connectionSet": holders}).encode()
        if asked.code == Request.UNLOCK_BATCH_MQ and (said := json.loads(asked.body))["clientId"] != self._client:
            self.unlocked[said["clientId"]] = len(said["mqSet"])
        return super()._said(asked)


def test_a_member_whose_connection_broke_leaves_the_queues_of_others_to_them_for_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not back yet. Another would not know where their queues cease to be the same."""
    server = Shared()
    (transport,) = open_transports([f"rocketmq://{server.address}?mode=pull"])

    def read() -> set[int]:
        """By a new connection; breaks it."""
        sink: Any = Sink()
        connection: Any = transport.connect(NAME, server.topic, "billing", sink)
        connection.grant(200)
        until(lambda: len(connection.readings) in (expected, QUEUES + 1))
        gevent.sleep(0.3)
        found = {place.number for place in connection.readings if place.topic == server.topic}
        server.cut()
        until(lambda: sink.closings)
        return found

    expected = 3  # one is of the topic of what comes again
    assert read() == {0, 1}
    server.members.clear()
    monkeypatch.setattr(membership, "HELD", 600.0)
    assert read() == {0, 1}
    server.refuses, expected = [Request.QUERY_CONSUMER_OFFSET], 0
    assert read() == set()
    server.refuses, expected = [], 3
    assert read() == {0, 1}, "it broke again before it had them"
    monkeypatch.setattr(membership, "HELD", 0.2)
    expected = QUEUES + 1
    assert read() == {0, 1, 2, 3}, "they did not come back"
    server.members.append("~")
    expected = 3
    assert read() == {0, 1}
    server.members.clear()
    monkeypatch.setattr(membership, "HELD", 600.0)
    assert read() == {0, 1}, "what was its own once is theirs"
    monkeypatch.setattr(membership, "HELD", 0.2)
    server.members, expected = ["!0", "!1", "!2", "!3"], 0  # before any other
    assert read() == set(), "there are as many others as queues"
    server.members = []
    monkeypatch.setattr(membership, "HELD", 600.0)
    assert read() == set(), "it had none"
    monkeypatch.setattr(membership, "HELD", 0.2)
    expected = QUEUES + 1
    assert read() == {0, 1, 2, 3}, "they did not come back"
    transport.close()
    server.close()


def test_a_member_that_left_of_itself_takes_what_is_left_at_once_when_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Shared()
    (transport,) = open_transports([f"rocketmq://{server.address}?mode=pull"])
    monkeypatch.setattr(membership, "HELD", 600.0)
    for expected in (3, QUEUES + 1):  # one is of the topic of what comes again
        sink: Any = Sink()
        connection: Any = transport.connect(NAME, server.topic, "billing", sink)
        connection.grant(200)
        until(lambda expected=expected, connection=connection: len(connection.readings) == expected)
        connection.close()
        until(lambda sink=sink: sink.closings)
        server.members.clear()
    transport.close()
    server.close()


def test_a_member_whose_connection_breaks_again_and_again_takes_what_is_left_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time began anew with each break: the queues of one that was killed were never read while it did every 12 s."""
    server, passed = Shared(), 0.0
    (transport,) = open_transports([f"rocketmq://{server.address}?mode=pull"])
    monkeypatch.setattr(membership, "monotonic", lambda: monotonic() + passed)

    def read() -> int:
        """By a new connection, which breaks; how many queues. The next one is made 19 s later."""
        nonlocal passed
        sink: Any = Sink()
        connection: Any = transport.connect(NAME, server.topic, "billing", sink)
        connection.grant(200)
        until(lambda: len(connection.readings) >= 3)
        found = len(connection.readings)
        server.cut()
        until(lambda: sink.closings)
        passed += membership.HELD - 1.0
        return found

    assert read() == 3, "one is of the topic of what comes again"
    server.members.clear()
    assert [read() for _ in range(4)] == [3, 3, 3, QUEUES + 1]
    transport.close()
    server.close()


def test_what_one_that_was_killed_has_locked_is_unlocked_for_it_once_it_would_be_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lock lasts for a minute: for so long nobody read its queues. One that is there, or drains what it had, keeps it."""
    monkeypatch.setattr(membership, "HELD", 0.2)
    server = Shared()
    server.members = ["~drains", "~gone", "~stays"]
    server.holders = None
    (transport,) = open_transports([f"rocketmq://{server.address}?mode=pull"])
    sink: Any = Sink()
    connection: Any = transport.connect(NAME, server.topic, "billing", sink)
    connection.grant(200)
    until(lambda: connection.readings)
    server.members.remove("~gone")
    server.members.remove("~drains")
    asked = server.asked[Request.GET_PRODUCER_CONNECTION_LIST]
    connection.others_changed(connection.subscription.group)
    until(lambda: server.asked[Request.GET_PRODUCER_CONNECTION_LIST] > asked)
    gevent.sleep(0.2)
    assert server.unlocked == {}, "who is there cannot be told"
    server.holders = ["~drains", "~stays"]
    until(lambda: server.unlocked)
    gevent.sleep(0.5)
    assert server.unlocked == {"~gone": QUEUES + 1}
    connection.close()
    until(lambda: sink.closings)
    transport.close()
    server.close()


class Cut(Shared):
    """Its group is as far in each queue as ``committed``. It has lost its log from a message of each queue on."""

    def __init__(self) -> None:
        super().__init__()
        self.messages, self.lost_from = 40, 100
        self.committed.update(dict.fromkeys(range(QUEUES), 0))

    def _said(self, asked: Frame) -> Any:
        if asked.code == Request.QUERY_CONSUMER_OFFSET and not asked.fields["topic"].startswith("%RETRY%"):
            return Answer.SUCCESS, {"offset": str(self.committed[int(asked.fields["queueId"])])}, b""
        return super()._said(asked)

    def _commit(self, asked: Mapping[str, str]) -> None:
        if not asked["topic"].startswith("%RETRY%"):
            super()._commit(asked)

    def _stored(self, topic: str, queue: int, first: int, count: int) -> bytes:
        stored = [super(Cut, self)._stored(topic, queue, offset, 1) for offset in range(first, first + count)]
        new = max(0, self.lost_from - first)
        return b"".join(stored[:new] + [one.replace(b"UNIQ_KEY\x010", b"UNIQ_KEY\x01F") for one in stored[new:]])


@pytest.mark.parametrize(
    ("lost_from", "own", "later", "others"),
    [(35, 32, 0.0, 32), (35, 32, membership.CUT, 40), (0, 0, 0.0, 40)],
    ids=["soon", "when others are back or gone", "nothing that it had read is left, as of a topic that was made anew"],
)
def test_where_the_end_of_the_log_was_lost_what_others_had_read_begins_before_it(
    monkeypatch: pytest.MonkeyPatch, lost_from: int, own: int, later: float, others: int
) -> None:
    """Of two members one is killed with the broker. By what the other finds of its own queues it knows how far the log is the
    same, and so where those of the first cease to be. It had read messages up to 31, and up to the last, by two answers."""
    server, passed = Cut(), 0.0
    (transport,) = open_transports([f"rocketmq://{server.address}?mode=pull"])
    monkeypatch.setattr(membership, "monotonic", lambda: monotonic() + passed)
    sink: Any = Sink()
    transport.connect(NAME, server.topic, "billing", sink).grant(200)
    until(lambda: [server.committed[queue] for queue in range(QUEUES)] == [40, 40, 0, 0])
    server.committed.update(dict.fromkeys((2, 3), 40))  # by the other
    server.cut()
    until(lambda: sink.closings)
    server.members.clear()
    server.messages, server.lost_from = 60, lost_from
    sink = Sink()
    connection: Any = transport.connect(NAME, server.topic, "billing", sink)
    connection.grant(200)
    until(lambda: [server.committed[queue] for queue in range(QUEUES)] == [60, 60, 40, 40])
    assert sink.bodies.total() == 2 * (60 - own)
    passed = max(later, membership.HELD)
    connection.others_changed(connection.subscription.group)
    until(lambda: [server.committed[queue] for queue in range(QUEUES)] == [60] * QUEUES)
    assert sink.bodies.total() == 2 * (60 - own) + 2 * (60 - others)
    connection.close()
    transport.close()
    server.close()

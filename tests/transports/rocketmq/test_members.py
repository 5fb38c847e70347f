"""A member of a group by PULL whose connection breaks, and others that are killed: which queues it takes, when, from where on."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic
from typing import Any

import gevent
import pytest

from framework.transports import open_transports
from framework.transports.rocketmq import membership, sameness
from framework.transports.rocketmq.wire.codes import Answer, Request
from framework.transports.rocketmq.wire.frames import Frame
from tests.transports.rocketmq.canned import NAME, QUEUES, Canned
from tests.transports.rocketmq.kit import Sink, until


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
    [(35, 32, 0.0, 32), (35, 32, sameness.CUT, 40), (20, 1, 0.0, 1), (0, 0, 0.0, 40)],
    ids=[
        "soon",
        "when others are back or gone",
        "only the first that it had read is left, with which the log begins",
        "nothing that it had read is left, as of a topic that was made anew",
    ],
)
def test_where_the_end_of_the_log_was_lost_what_others_had_read_begins_before_it(
    monkeypatch: pytest.MonkeyPatch, lost_from: int, own: int, later: float, others: int
) -> None:
    """Of two members one is killed with the broker. By what the other finds of its own queues it knows how far the log is the
    same, and so where those of the first cease to be. It had read messages up to 31, and up to the last, by two answers."""
    server, passed = Cut(), 0.0
    (transport,) = open_transports([f"rocketmq://{server.address}?mode=pull"])
    for one in (membership, sameness):
        monkeypatch.setattr(one, "monotonic", lambda: monotonic() + passed)
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


def test_one_whose_queues_are_all_with_others_now_knows_by_them_how_far_the_log_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which queues are whose is decided by the names of the members. It had the first two, and has the last two then."""
    server = Cut()
    (transport,) = open_transports([f"rocketmq://{server.address}?mode=pull"])
    sink: Any = Sink()
    transport.connect(NAME, server.topic, "billing", sink).grant(200)
    until(lambda: [server.committed[queue] for queue in range(QUEUES)] == [40, 40, 0, 0])
    server.committed.update(dict.fromkeys((2, 3), 40))  # by the other
    monkeypatch.setattr(membership, "HELD", 0.2)
    server.cut()
    until(lambda: sink.closings)
    server.members, server.messages, server.lost_from = ["!"], 60, 35  # before any other
    sink = Sink()
    connection: Any = transport.connect(NAME, server.topic, "billing", sink)
    connection.grant(200)
    until(lambda: [server.committed[queue] for queue in range(QUEUES)] == [40, 40, 60, 60])
    assert sink.bodies.total() == 2 * (60 - 32)
    connection.close()
    transport.close()
    server.close()


class Waits(Cut):
    """``wake`` answers the PULLs that wait."""

    def __init__(self) -> None:
        super().__init__()
        self.members.clear()
        self._waiting: list[tuple[socket.socket, Frame]] = []
        self._here = threading.local()

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for self._here.client, asked in waiting:
            self._here.client.sendall(self._answer(asked))

    def _serve(self, client: socket.socket) -> None:
        self._here.client = client
        super()._serve(client)

    def _answer(self, asked: Frame) -> bytes:
        if not (answer := super()._answer(asked)) and asked.code == Request.PULL_MESSAGE:
            self._waiting.append((self._here.client, asked))
        return answer


def test_a_queue_that_was_made_anew_and_has_passed_where_it_is_read_is_read_from_its_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A PULL that waited there is answered with what its new queue has there, by which nothing shows."""
    monkeypatch.setattr(membership, "BALANCE", 0.2)
    monkeypatch.setattr(sameness, "LOOKED", 0.1)
    server = Waits()
    (transport,) = open_transports([f"rocketmq://{server.address}?mode=pull"])
    sink: Any = Sink()
    connection: Any = transport.connect(NAME, server.topic, "billing", sink)
    connection.grant(200)
    until(lambda: server.committed.total() == 40 * QUEUES)
    gevent.sleep(0.5)
    assert not sink.closings, "nothing has changed"
    server.messages, server.lost_from = 60, 0
    server.wake()
    until(lambda: sink.closings)
    assert sink.bodies.total() == 60 * QUEUES, "what it was answered with"
    connection = transport.connect(NAME, server.topic, "billing", sink)
    connection.grant(500)
    until(lambda: sink.bodies.total() == 120 * QUEUES)
    gevent.sleep(0.5)
    assert (sink.closings, sink.bodies.total()) == (1, 120 * QUEUES)
    connection.close()
    transport.close()
    server.close()

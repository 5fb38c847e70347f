"""A channel without sockets: whom it gives what waits, and how much at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import gevent
import pytest
from gevent import socket

from framework.nsqd import broker as brokers
from framework.nsqd import channel as channels
from framework.nsqd import delivery
from framework.nsqd.bodies import Bodies
from framework.nsqd.broker import Broker
from framework.nsqd.channel import Channel
from framework.nsqd.client_connection import ClientConnection
from framework.nsqd.options import parse
from framework.nsqd.store import Batch, Entry, Store
from framework.nsqd.topic import Topic
from framework.nsqd.underway import Memory
from tests.nsqd.storing import payload
from tests.nsqd.taking import Taker


@pytest.fixture
def topic(folder: Path) -> Iterator[Topic]:
    broker = Broker(Store(folder), parse([f"--data-path={folder}"]), lambda level, words: None)
    yield broker.topic("t")
    broker.stop()


def channel(topic: Topic, name: str = "c") -> Channel:
    made = topic.channel(name)
    topic.settle()
    return made


def publish(topic: Topic, count: int) -> None:
    group = topic.port.publish([(topic, Entry(topic.id, payload(*(b"%d" % at for at in range(count))), count))])
    assert group is not None
    group.wait()


def wait_until(what: Callable[[], bool]) -> None:
    with gevent.Timeout(10):
        while not what():
            gevent.sleep(0.002)


def test_more_than_one_turns_worth_comes_without_a_word_of_the_client(topic: Topic) -> None:
    """A client with a large RDY may say nothing more until it has all of it."""
    taker = Taker(channel(topic), ready=20_000)
    publish(topic, 9_000)
    wait_until(lambda: len(taker.bodies) == 9_000)


def test_of_a_batch_that_another_has_part_of_there_is_the_rest_and_then_the_next(topic: Topic) -> None:
    one = channel(topic)
    first, second = Taker(one, ready=3), Taker(one, ready=0)
    publish(topic, 5)
    wait_until(lambda: len(first.bodies) == 3)
    publish(topic, 4)
    wait_until(lambda: one.depth == 6)
    first.ready, second.ready = 0, 10
    one.serve()
    wait_until(lambda: one.depth == 0)
    assert (first.bodies, second.bodies) == ([b"0", b"1", b"2"], [b"3", b"4", b"0", b"1", b"2", b"3"])
    assert one.in_flight_count == 9


@pytest.mark.parametrize(("size", "count", "fits"), [(1, 1000, 205), (1019, 1000, 2), (1020, 1000, 1), (100_000, 1, 1)])
def test_of_long_messages_a_client_gets_fewer_at_once(monkeypatch: pytest.MonkeyPatch, size: int, count: int, fits: int) -> None:
    monkeypatch.setattr(delivery, "_CHUNK_BYTES", 1023)
    assert delivery.fitting(Batch(1, 0, count, 0, 0, payload(*[b"x" * size] * count))) == fits


@pytest.mark.parametrize("verb", ["read", "bodies"])
def test_a_disk_that_cannot_be_read_for_a_while_costs_no_message(
    verb: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was never delivered is read again, and so is what was to be tried again before a restart."""
    monkeypatch.setattr(channels, "_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(brokers, "_RECENT_BYTES", 0)
    lines: list[str] = []

    def opened() -> Broker:
        return Broker(Store(folder), parse([f"--data-path={folder}"]), lambda level, words: lines.append(f"{level} {words}"))

    broker = opened()
    taker = Taker(channel(broker.topic("t")), ready=5 if verb == "bodies" else 0)
    publish(broker.topic("t"), 5)
    wait_until(lambda: taker.channel.in_flight_count + taker.channel.depth == 5)
    broker.stop()
    again, failures = opened(), [OSError("input/output error"), ValueError("a number of no batch"), OSError("again")]
    real = getattr(Broker, verb)

    def failing(self: Broker, *arguments: object) -> object:
        if failures:
            raise failures.pop()
        return real(self, *arguments)

    monkeypatch.setattr(Broker, verb, failing)
    taker = Taker(again.topics["t"].channels["c"], ready=5)
    taker.channel.serve()
    wait_until(lambda: len(taker.bodies) == 5)
    assert sorted(taker.bodies) == [b"0", b"1", b"2", b"3", b"4"]
    assert sum(line.startswith("ERROR CHANNEL(c): cannot read ") for line in lines) == 3
    again.stop()


def test_what_is_deferred_is_taken_from_memory_and_the_log_is_not_asked_for_it(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    taker = Taker(channel(topic), ready=5)
    publish(topic, 1)
    wait_until(lambda: len(taker.bodies) == 1)
    reads: list[object] = []
    monkeypatch.setattr(Broker, "read", lambda self, *asked: reads.append(asked) or [])
    due = int(topic.port.clock.now()) + 60_000
    for at in range(5):
        group = topic.port.publish([(topic, Entry(topic.id, payload(b"later-%d" % at), 1, due))])
        assert group is not None
        group.wait()
    wait_until(lambda: len(taker.channel.deferred) == 5)
    gevent.sleep(0.05)
    assert (reads, taker.channel.depth) == ([], 0)


def test_what_is_given_back_is_shared_like_what_is_new(topic: Topic) -> None:
    one = channel(topic)
    first, second = Taker(one, ready=10), Taker(one, ready=0)
    publish(topic, 10)
    wait_until(lambda: len(first.bodies) == 10)
    ids = list(first.leases.messages)
    first.ready = 0
    for message_id in ids:
        assert one.requeue(first, message_id, 0) is None
    first.ready = second.ready = 10
    one.serve()
    assert (len(first.leases.messages), len(second.leases.messages)) == (5, 5)
    again = [message.body for taker in (first, second) for message in taker.leases.messages.values()]
    assert sorted(body or b"" for body in again) == [b"%d" % at for at in range(10)], "so short that they are not read once more"


def test_what_waited_in_a_topic_goes_to_channels_on_the_disk_and_in_memory(topic: Topic) -> None:
    takers = [Taker(channel(topic, name), ready=100) for name in ("c", "d#ephemeral")]
    topic.pause(True)
    publish(topic, 7)
    gevent.sleep(0.05)
    assert [len(one.bodies) for one in takers] == [0, 0]
    topic.pause(False)
    wait_until(lambda: [len(one.bodies) for one in takers] == [7, 7])
    assert [one.channel.depth for one in takers] == [0, 0]


def test_a_client_without_heartbeats_may_take_its_time_to_read() -> None:
    ours, theirs = socket.socketpair()
    connection = ClientConnection(ours, "", lambda *_: None, lambda: None, lambda: None, memory=Memory(1 << 20))
    connection.start_heartbeat(0)
    connection.outgoing.write([bytes(4 << 20)])
    gevent.sleep(0.2)
    assert not connection.outgoing.closed
    read = 0
    while read < 4 << 20:
        read += len(theirs.recv(1 << 20))
    connection.end()
    theirs.close()


def test_many_publishes_behind_a_few_bytes_are_taken_a_share_at_a_time() -> None:
    """Others must be let run in between: a thousand times as many can lie behind bytes that were compressed."""
    line = b"PUB t\n"
    stream = SimpleNamespace(buffer=bytearray((line + payload(b"x")) * 2500), position=0)
    read = Bodies(stream, parse([]))  # type: ignore[arg-type]
    assert [read.run(line)[1] for _ in range(4)] == [1000, 1000, 500, 0]
    assert stream.position == len(stream.buffer)


def test_a_client_that_wants_no_heartbeats_any_more_gets_none() -> None:
    ours, theirs = socket.socketpair()
    connection = ClientConnection(ours, "", lambda *_: None, lambda: None, lambda: None, memory=Memory(1 << 20))
    try:
        connection.start_heartbeat(0.01)
        assert theirs.recv(100)
        connection.start_heartbeat(0)
        theirs.setblocking(False)
        gevent.sleep(0.05)
        with pytest.raises(BlockingIOError):
            theirs.recv(100)
    finally:
        connection.end()
        theirs.close()

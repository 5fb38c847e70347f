"""The embedded nsqd's topics over its storage, without sockets: nothing that is saved is ahead of what it rests on."""

from __future__ import annotations

import shutil
import sqlite3
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gevent
import pytest
from gevent.event import Event

from framework.nsqd import broker as brokers
from framework.nsqd import journal
from framework.nsqd.broker import Broker
from framework.nsqd.channel import Channel
from framework.nsqd.journal import NotStored
from framework.nsqd.lease import Leases
from framework.nsqd.options import parse
from framework.nsqd.store import Entry, Store
from framework.nsqd.topic import Topic


class Taker:
    """A client that takes what it is given."""

    sample_rate = 0

    def __init__(self, channel: Channel, ready: int = 1000) -> None:
        self.channel = channel
        self.leases: Leases = channel.new_leases(60)
        self.ready = ready
        channel.subscribe(self)
        channel.serve()

    def room(self) -> int:
        return self.ready - len(self.leases.messages)

    def send(self, frames: list[bytes], count: int) -> None:
        pass

    def sampled(self) -> bool:
        return True

    def close(self, reason: str) -> None:
        self.channel.unsubscribe(self)

    def ids(self, count: int) -> list[bytes]:
        """Of the messages in flight, once they are ``count``."""
        wait_until(lambda: len(self.leases.messages) >= count)
        return list(self.leases.messages)


def wait_until(what: Callable[[], Any], seconds: float = 10.0) -> None:
    with gevent.Timeout(seconds):
        while not what():
            gevent.sleep(0.002)


def bodies(*some: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(one)) + one for one in some)


def publish(broker: Broker, topic: Topic, count: int = 1) -> None:
    group = broker.publish([(topic, Entry(topic.id, bodies(*(b"%d" % at for at in range(count))), count))])
    if group is not None:
        group.wait()


def channel(topic: Topic, name: str = "c") -> Channel:
    made = topic.channel(name)
    topic.settle()
    return made


class Nsqd:
    """A broker on a folder. Rounds of saving are made by the test alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self.store = Store(folder)
        self.broker = Broker(self.store, parse([f"--data-path={folder}"]), lambda level, words: self.lines.append(words))

    def killed(self) -> Nsqd:
        """Another, on what a kill -9 would leave now."""
        copy = self.folder.with_name(self.folder.name + "-killed")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.folder, copy)
        return Nsqd(copy)

    def waiting(self, topic: str, name: str = "c") -> int:
        """How many messages the channel, or else the topic, has."""
        found = self.broker.topics[topic].channels.get(name)
        return found.depth + found.in_flight_count + len(found.deferred) if found else self.broker.topics[topic].depth


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Nsqd]:
    monkeypatch.setattr(brokers, "SAVE_SECONDS", 3600.0)
    monkeypatch.setattr(journal, "RETRY_SECONDS", 0.01)
    return lambda: Nsqd(tmp_path / "data")


@contextmanager
def held(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The journal writes nothing meanwhile."""
    go, real = Event(), broker.journal._thread.do

    def do(*arguments: Any) -> Any:
        go.wait()
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(broker.journal._thread, "do", do)
        yield
    go.set()


def refusing(monkeypatch: pytest.MonkeyPatch, opened: Store) -> None:
    """Its index takes no transaction any more."""

    def full(**options: Any) -> Any:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(opened.index, "transaction", full)


def test_a_save_before_the_first_channel_is_committed_keeps_what_waits(
    start: Callable[[], Nsqd], monkeypatch: pytest.MonkeyPatch
) -> None:
    nsqd = start()
    topic = nsqd.broker.topic("t")
    publish(nsqd.broker, topic, 100)
    with held(nsqd.broker, monkeypatch):
        made = topic.channel("c")
        publisher = gevent.spawn(publish, nsqd.broker, topic)
        gevent.sleep(0.01)
        nsqd.broker.save()
        nsqd.store.sweep()
        assert (made.depth, topic.depth) == (0, 100)
        again = nsqd.killed()
        assert again.waiting("t") == 100
    topic.settle()
    publisher.get()
    assert (nsqd.waiting("t"), topic.depth) == (101, 0)
    nsqd.broker.save()
    assert nsqd.killed().waiting("t") == 101


def test_what_is_committed_before_a_channels_declaration_waits_for_it(
    start: Callable[[], Nsqd], monkeypatch: pytest.MonkeyPatch
) -> None:
    nsqd = start()
    topic = nsqd.broker.topic("t")
    publish(nsqd.broker, topic)
    first, second, real = Event(), Event(), nsqd.broker.journal._thread.do
    gates = [first, second]

    def do(*arguments: Any) -> Any:
        gates.pop(0).wait()
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(nsqd.broker.journal._thread, "do", do)
        publisher = gevent.spawn(publish, nsqd.broker, topic, 9)
        wait_until(lambda: not gates[:-1])  # its write is under way: the declaration comes with the next
        topic.channel("c")
        first.set()
        publisher.get()
        nsqd.broker.save()
        nsqd.store.sweep()
        assert nsqd.killed().waiting("t") == 10
        second.set()
        topic.settle()
    assert (nsqd.waiting("t"), topic.depth) == (10, 0)


def test_a_channel_gets_nothing_of_what_others_get_before_it_is_committed(
    start: Callable[[], Nsqd], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill it would not be there: it begins when the log knows it."""
    nsqd = start()
    topic = nsqd.broker.topic("t")
    there = Taker(channel(topic, "there"))
    first, second, real = Event(), Event(), nsqd.broker.journal._thread.do
    gates = [first, second]

    def do(*arguments: Any) -> Any:
        gates.pop(0).wait()
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(nsqd.broker.journal._thread, "do", do)
        publisher = gevent.spawn(publish, nsqd.broker, topic, 5)
        wait_until(lambda: not gates[:-1])
        late = Taker(topic.channel("late"))
        first.set()
        publisher.get()
        assert len(there.ids(5)) == 5
        late.channel.serve()
        gevent.sleep(0.02)
        assert not late.leases.messages
        second.set()
        topic.settle()
    publish(nsqd.broker, topic, 2)
    assert len(late.ids(2)) == 2


def test_a_channel_that_was_made_anew_waits_for_a_declaration_of_its_own(
    start: Callable[[], Nsqd], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is committed is a channel of its name, which is deleted by then."""
    nsqd = start()
    topic = nsqd.broker.topic("t")
    publish(nsqd.broker, topic)
    first, second, real = Event(), Event(), nsqd.broker.journal._thread.do
    gates = [first, second]

    def do(*arguments: Any) -> Any:
        gates.pop(0).wait()
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(nsqd.broker.journal._thread, "do", do)
        topic.channel("c")
        wait_until(lambda: not gates[:-1])
        topic.delete_channel("c")
        made = topic.channel("c")
        first.set()
        wait_until(lambda: not gates)
        assert not made.declared
        assert (made.depth, topic.depth) == (0, 1), "it gets what waits when the log knows it"
        second.set()
        topic.settle()
    assert made.declared
    assert (made.depth, topic.depth) == (1, 0)


def test_channels_that_were_made_together_get_what_waits_both(start: Callable[[], Nsqd], monkeypatch: pytest.MonkeyPatch) -> None:
    nsqd = start()
    topic = nsqd.broker.topic("t")
    publish(nsqd.broker, topic, 10)
    with held(nsqd.broker, monkeypatch):
        topic.channel("a")
        topic.channel("b")
    topic.settle()
    assert (nsqd.waiting("t", "a"), nsqd.waiting("t", "b")) == (10, 10)


def test_a_channel_whose_deletion_is_not_committed_has_its_messages_after_a_kill(
    start: Callable[[], Nsqd], monkeypatch: pytest.MonkeyPatch
) -> None:
    nsqd = start()
    topic = nsqd.broker.topic("t")
    made = channel(topic)
    publish(nsqd.broker, topic, 10)
    nsqd.broker.save()
    made.touched()
    with held(nsqd.broker, monkeypatch):
        topic.delete_channel("c")
        nsqd.broker.save()
        nsqd.store.sweep()
        assert nsqd.killed().waiting("t") == 10
        new = topic.channel("c")
    topic.settle()
    publish(nsqd.broker, topic, 3)
    nsqd.broker.save()
    again = nsqd.killed()
    assert again.waiting("t") == 3
    assert again.broker.topics["t"].channels["c"].id == new.id != made.id


def test_a_topic_whose_deletion_is_not_committed_has_its_messages_after_a_kill(
    start: Callable[[], Nsqd], monkeypatch: pytest.MonkeyPatch
) -> None:
    nsqd = start()
    topic = nsqd.broker.topic("t")
    channel(topic).touched()
    publish(nsqd.broker, topic, 10)
    with held(nsqd.broker, monkeypatch):
        nsqd.broker.delete_topic("t")
        nsqd.broker.save()
        nsqd.store.sweep()
        assert nsqd.killed().waiting("t") == 10
    topic.settle()
    assert "t" not in nsqd.killed().broker.topics


def test_a_pause_that_is_not_committed_is_not_saved(start: Callable[[], Nsqd], monkeypatch: pytest.MonkeyPatch) -> None:
    nsqd = start()
    topic = nsqd.broker.topic("t")
    made = channel(topic)
    publish(nsqd.broker, topic)
    with held(nsqd.broker, monkeypatch):
        topic.pause(True)
        made.pause(True)
        topic.touched()
        made.touched()
        nsqd.broker.save()
        again = nsqd.killed().broker.topics["t"]
        assert (again.paused, again.channels["c"].paused) == (False, False)
    topic.settle()
    nsqd.broker.save()
    again = nsqd.killed().broker.topics["t"]
    assert (again.paused, again.channels["c"].paused) == (True, True)


def test_a_first_ephemeral_channel_has_its_copies_before_the_logs_may_go(
    start: Callable[[], Nsqd], monkeypatch: pytest.MonkeyPatch
) -> None:
    nsqd = start()
    topic = nsqd.broker.topic("t")
    publish(nsqd.broker, topic, 10)
    go, real = Event(), nsqd.broker.read

    def read(*arguments: Any) -> Any:
        go.wait()
        return real(*arguments)

    monkeypatch.setattr(nsqd.broker, "read", read)
    made = topic.channel("c#ephemeral")
    gevent.sleep(0.01)
    nsqd.broker.save()
    nsqd.store.sweep()
    assert nsqd.killed().waiting("t") == 10
    publish(nsqd.broker, topic, 5)
    go.set()
    assert len(Taker(made).ids(15)) == 15
    assert topic.depth == 0


def test_what_was_emptied_while_it_was_read_for_an_ephemeral_channel_does_not_come(
    start: Callable[[], Nsqd], monkeypatch: pytest.MonkeyPatch
) -> None:
    nsqd = start()
    topic = nsqd.broker.topic("t")
    publish(nsqd.broker, topic, 10)
    begun, go, real = Event(), Event(), nsqd.broker.read

    def read(*arguments: Any) -> Any:
        found = real(*arguments)
        begun.set()
        go.wait()
        return found

    monkeypatch.setattr(nsqd.broker, "read", read)
    taker = Taker(topic.channel("c#ephemeral"))
    assert begun.wait(10)
    topic.empty()
    go.set()
    publish(nsqd.broker, topic, 2)
    taker.ids(2)
    gevent.sleep(0.05)
    assert len(taker.ids(2)) == 2


@pytest.mark.usefixtures("small_segments")
def test_a_sweep_after_a_failed_save_removes_nothing_that_is_unfinished(
    start: Callable[[], Nsqd], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A requeued message is kept by a row. Where that could not be written, the cursor has not moved either."""
    nsqd = start()
    topic = nsqd.broker.topic("t")
    made = channel(topic)
    publish(nsqd.broker, topic)
    nsqd.broker.save()
    taker = Taker(made)
    (one,) = taker.ids(1)
    made.requeue(taker, one, 3600)
    with monkeypatch.context() as patch:
        refusing(patch, nsqd.store)
        with pytest.raises(NotStored, match="disk is full"):
            nsqd.broker.save()
        assert nsqd.broker.wrong.startswith("DISK: states not saved")
    for _ in range(5):
        publish(nsqd.broker, nsqd.broker.topic("other"), 400)
        nsqd.store.sweep()
    assert nsqd.killed().waiting("t") == 1
    nsqd.broker.save()
    assert nsqd.killed().waiting("t") == 1
    assert nsqd.broker.wrong == ""


@pytest.mark.usefixtures("small_segments")
def test_a_removal_that_fails_is_made_again_whole(start: Callable[[], Nsqd], monkeypatch: pytest.MonkeyPatch) -> None:
    nsqd = start()
    topic = nsqd.broker.topic("t")
    for _ in range(4):
        publish(nsqd.broker, topic, 400)
    topic.empty()
    nsqd.broker.save()
    with monkeypatch.context() as patch:
        refusing(patch, nsqd.store)
        with pytest.raises(sqlite3.OperationalError):
            nsqd.store.sweep()
    for _ in range(3):
        nsqd.store.sweep()
    assert len(nsqd.store.log.numbers) == 1
    assert set(nsqd.store.catalog.ranges) <= set(nsqd.store.log.numbers)
    assert {segment for segment, *_ in nsqd.store.index.ranges()} <= set(nsqd.store.log.numbers)


def test_what_was_emptied_after_a_failed_save_does_not_come_back(
    start: Callable[[], Nsqd], monkeypatch: pytest.MonkeyPatch
) -> None:
    nsqd = start()
    topic = nsqd.broker.topic("t")
    made = channel(topic)
    publish(nsqd.broker, topic, 4)
    taker = Taker(made)
    for one in taker.ids(4):
        made.requeue(taker, one, 3600)
    go = Event()

    def refused(*arguments: Any) -> Any:
        go.wait()
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(nsqd.broker._reader, "do", refused)
        first = gevent.spawn(nsqd.broker.save)
        gevent.sleep(0.01)
        made.empty()
        go.set()
        with pytest.raises(NotStored):
            first.get()
    nsqd.broker.save()
    assert nsqd.killed().waiting("t") == 0


def test_saves_come_one_after_another(start: Callable[[], Nsqd], monkeypatch: pytest.MonkeyPatch) -> None:
    """What a failed one could not keep must not undo what a later one has kept."""
    nsqd = start()
    topic = nsqd.broker.topic("t")
    made = channel(topic)
    publish(nsqd.broker, topic)
    taker = Taker(made)
    made.requeue(taker, *taker.ids(1), 0)
    go, real, calls = Event(), nsqd.broker._reader.do, 0

    def slow(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            go.wait()
            raise sqlite3.OperationalError("database or disk is full")
        return real(*arguments)

    monkeypatch.setattr(nsqd.broker._reader, "do", slow)
    made.touched()
    first = gevent.spawn(nsqd.broker.save)
    gevent.sleep(0.01)
    made.serve()
    made.finish(taker, *taker.ids(1))
    second = gevent.spawn(nsqd.broker.save)
    gevent.sleep(0.01)
    go.set()
    with pytest.raises(NotStored):
        first.get()
    second.get()
    nsqd.broker.save()
    assert nsqd.killed().waiting("t") == 0


def test_a_topic_is_declared_once_however_often_it_was_tried(start: Callable[[], Nsqd], monkeypatch: pytest.MonkeyPatch) -> None:
    nsqd = start()
    topic = nsqd.broker.topic("t")
    publish(nsqd.broker, topic, 5)
    written: list[int] = []
    real = nsqd.store.append

    def append(entries: Any) -> Any:
        written.append(len(entries))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(nsqd.store, "append", append)
    for at in range(300):
        topic.channel("c")
        with pytest.raises(NotStored, match="No space left"):
            topic.settle()
        if at % 100 == 0:
            with pytest.raises(NotStored, match="No space left"):
                publish(nsqd.broker, topic)
    assert max(written) <= 2  # one declaration, and one message
    assert "No space left" in nsqd.broker.wrong
    nsqd.broker.save()
    assert nsqd.killed().waiting("t") == 5
    monkeypatch.setattr(nsqd.store, "append", real)
    wait_until(lambda: nsqd.waiting("t") == 5 and "c" in topic.channels and topic.depth == 0)  # tried again by itself


def test_an_error_at_the_hand_over_reaches_its_publisher_and_stops_no_other(
    start: Callable[[], Nsqd], monkeypatch: pytest.MonkeyPatch
) -> None:
    nsqd = start()
    bad, good = nsqd.broker.topic("bad"), nsqd.broker.topic("good")
    publish(nsqd.broker, bad)
    with monkeypatch.context() as patch:
        patch.setattr(bad, "committed", lambda batch: 1 / 0)
        with pytest.raises(NotStored, match="division by zero"):
            publish(nsqd.broker, bad)
        assert nsqd.broker.wrong == "DISK: nothing was published - ZeroDivisionError('division by zero')"
        assert any("Traceback" in line for line in nsqd.lines)
    with gevent.Timeout(10):
        publish(nsqd.broker, good)
    assert nsqd.broker.wrong == ""


def test_an_error_at_a_delivery_is_told_and_stops_no_publisher(
    start: Callable[[], Nsqd], monkeypatch: pytest.MonkeyPatch
) -> None:
    nsqd = start()
    topic = nsqd.broker.topic("t")
    made = channel(topic)
    taker = Taker(made)
    with monkeypatch.context() as patch:
        patch.setattr(taker, "send", lambda frames, count: 1 / 0)
        with gevent.Timeout(10):
            publish(nsqd.broker, topic)
        assert nsqd.broker.wrong.startswith("CHANNEL(t/c): nothing was delivered")
    publish(nsqd.broker, topic)
    assert nsqd.broker.wrong == ""


@pytest.mark.parametrize("part", ["journal", "saver"])
def test_what_there_is_one_of_goes_on_after_an_exception(
    start: Callable[[], Nsqd], monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setattr("framework.nsqd.health._AGAIN_SECONDS", 0.01)
    nsqd = start()
    monkeypatch.setattr(brokers, "SAVE_SECONDS", 0.01)
    topic = nsqd.broker.topic("t")
    publish(nsqd.broker, topic)
    owner, name = (nsqd.broker.journal, "_write") if part == "journal" else (nsqd.broker, "_try_to_save")
    failed = Event()

    def fails() -> None:
        failed.set()
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fails)
        nsqd.broker._saver.kill()
        nsqd.broker._saver = nsqd.broker.health.supervise(brokers.NOT_SAVED, nsqd.broker._save_rounds)
        topic.declare()
        assert failed.wait(10)
        wait_until(lambda: "a bug" in nsqd.broker.wrong)
    with gevent.Timeout(10):
        publish(nsqd.broker, topic)
    wait_until(lambda: nsqd.broker.wrong == "")


def test_a_disk_that_does_not_answer_is_told(start: Callable[[], Nsqd], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers, "_STUCK_SECONDS", 0.05)
    nsqd = start()
    topic = nsqd.broker.topic("t")
    publish(nsqd.broker, topic)
    real = nsqd.store.append

    def slow(entries: Any) -> Any:
        time.sleep(0.3)
        return real(entries)

    monkeypatch.setattr(nsqd.store, "append", slow)
    publisher = gevent.spawn(publish, nsqd.broker, topic)
    wait_until(lambda: "has not answered" in nsqd.broker.wrong)
    publisher.join()
    assert nsqd.broker.wrong == ""


def test_a_topic_that_is_emptied_again_and_again_stays_empty_after_a_kill(start: Callable[[], Nsqd]) -> None:
    nsqd = start()
    topic = nsqd.broker.topic("t")
    for _ in range(3):
        publish(nsqd.broker, topic, 5)
        nsqd.broker.save()
        assert nsqd.killed().waiting("t") == 5
        topic.empty()
        nsqd.broker.save()
        assert nsqd.killed().waiting("t") == 0


def test_a_message_that_is_given_back_for_an_hour_is_due_in_an_hour(start: Callable[[], Nsqd]) -> None:
    nsqd = start()
    topic = nsqd.broker.topic("t")
    made = channel(topic)
    publish(nsqd.broker, topic)
    taker = Taker(made)
    (one,) = taker.ids(1)
    made.requeue(taker, one, 3600)
    nsqd.broker.save()
    (row,) = nsqd.store.index.retries(made.id)
    assert 0 <= nsqd.store.clock.now() + 3_600_000 - row.due < 2000

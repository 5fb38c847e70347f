"""The embedded nsqd's topics over its storage, without sockets: nothing that is saved is ahead of what it rests on."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
import pytest
from gevent.event import Event

from framework.nsqd.journal import NotStored
from tests.nsqd.rounds import Nsqd, Taker, channel, held, publish, starter, wait_until


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Nsqd]:
    return starter(tmp_path, monkeypatch)


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


@pytest.mark.parametrize("meanwhile", [True, False])
def test_what_was_emptied_while_it_was_read_for_an_ephemeral_channel_does_not_come(
    start: Callable[[], Nsqd], monkeypatch: pytest.MonkeyPatch, meanwhile: bool
) -> None:
    """What comes after it does, though nothing else comes that would have the topic handed over."""
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
    if not meanwhile:
        go.set()
    publish(nsqd.broker, topic, 2)
    go.set()
    taker.ids(2)
    gevent.sleep(0.05)
    assert len(taker.ids(2)) == 2


@pytest.mark.parametrize("begun_before", [True, False], ids=["that began before", "that began before this was saved"])
def test_what_a_topic_was_emptied_of_comes_by_no_reading_of_the_log(
    start: Callable[[], Nsqd], monkeypatch: pytest.MonkeyPatch, begun_before: bool
) -> None:
    first = start()
    channel(first.broker.topic("t"))
    publish(first.broker, first.broker.topic("t"), 3)
    first.broker.topic("t").pause(True)
    first.broker.topic("t").settle()
    publish(first.broker, first.broker.topic("t"), 5)
    first.broker.save()
    nsqd = first.killed()
    topic = nsqd.broker.topics["t"]
    begun, go, real = Event(), Event(), nsqd.broker.read

    def read(*arguments: Any) -> Any:
        found = real(*arguments)
        begun.set()
        go.wait()
        return found

    monkeypatch.setattr(nsqd.broker, "read", read)
    if not begun_before:
        topic.empty()
    taker = Taker(topic.channels["c"])
    assert begun.wait(10)
    if begun_before:
        topic.empty()
    go.set()
    taker.ids(3)
    gevent.sleep(0.05)
    assert len(taker.ids(3)) == 3
    topic.pause(False)
    publish(nsqd.broker, topic, 2)
    assert len(taker.ids(5)) == 5
    assert (topic.depth, topic.channels["c"].depth) == (0, 0)


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


def test_behind_a_stop_no_lease_ends_and_the_next_has_what_was_in_flight(tmp_path: Path) -> None:
    nsqd = Nsqd(tmp_path / "data")
    topic = nsqd.broker.topic("t")
    taker = Taker(channel(topic))
    publish(nsqd.broker, topic, 5)
    assert len(taker.ids(5)) == 5
    assert taker.leases._alarm.when < math.inf
    nsqd.broker.stop()
    assert (taker.leases.messages, taker.leases._alarm.when) == ({}, math.inf)
    again = Nsqd(tmp_path / "data")
    assert again.waiting("t") == 5
    again.broker.stop()

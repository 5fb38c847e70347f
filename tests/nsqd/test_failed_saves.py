"""The embedded nsqd's topics over its storage, without sockets: saves that fail or are late, and errors that stop no other."""

from __future__ import annotations

import errno
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
import pytest
from gevent.event import Event

from framework.nsqd import broker as brokers
from framework.nsqd import journal
from framework.nsqd.journal import NotStored
from framework.nsqd.store import log
from tests.nsqd.rounds import Nsqd, Taker, bodies, channel, publish, refusing, starter, wait_until


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Nsqd]:
    return starter(tmp_path, monkeypatch)


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


def test_a_disk_that_takes_messages_again_is_seen_without_one(start: Callable[[], Nsqd], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "RETRY_SECONDS", 0.01)
    nsqd = start()
    topic = nsqd.broker.topic("t")
    publish(nsqd.broker, topic)
    looks, real = list[int](), nsqd.store.try_to_write

    def look(size: int) -> None:
        looks.append(size)
        real(size)

    def fails(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(nsqd.store, "try_to_write", look)
    with monkeypatch.context() as patch:
        patch.setattr(log, "_write_all", fails)
        with pytest.raises(NotStored, match="Input/output"):
            publish(nsqd.broker, topic)
        wait_until(lambda: len(looks) > 3)
        assert set(looks) == {len(bodies(b"0"))}
        assert nsqd.broker.wrong.startswith("DISK: nothing was published"), "it looked, and the disk does not take them"
    wait_until(lambda: nsqd.broker.wrong == "")
    publish(nsqd.broker, topic)
    assert nsqd.killed().waiting("t") == 2


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

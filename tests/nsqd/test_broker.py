"""All topics of an nsqd on a folder, without sockets: what it keeps at hand, what it tells, and its last save."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import psutil
import pytest

from framework.nsqd import broker as brokers
from framework.nsqd.broker import Broker
from framework.nsqd.journal import NotStored, QuotaReached
from framework.nsqd.options import parse
from framework.nsqd.store import Batch, Correction, Entry, Store
from framework.nsqd.topic import Emptied, Gone, Made, Topic
from tests.nsqd.rounds import Taker, bodies, channel, publish
from tests.nsqd.speaking import eventually

Open = Callable[..., Broker]


@pytest.fixture
def opened(folder: Path) -> Iterator[Open]:
    """A broker on the folder, with flags; it is stopped where the test has not."""
    made: list[Broker] = []

    def open_(*flags: str) -> Broker:
        made.append(Broker(Store(folder), parse([f"--data-path={folder}", *flags]), lambda level, words: None))
        return made[-1]

    yield open_
    for one in made:
        if not one._stopped:
            one.stop()


def test_a_number_is_one_that_neither_a_topic_nor_the_log_has(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = opened()
    there = broker.topic("there").id
    monkeypatch.setattr(broker._store, "has_number", lambda number: number == 8)
    rolls = iter([0, there, 8, 9])
    monkeypatch.setattr(brokers, "secrets", SimpleNamespace(randbits=lambda bits: next(rolls) if bits == 32 else 1))
    assert broker._new_number() == 9


def test_a_topic_that_goes_is_told_with_its_channels_and_its_name_is_free(opened: Open) -> None:
    broker, told = opened(), list[tuple[Any, ...]]()
    broker.events.on(Made, lambda event: told.append(("made", event.topic.name, event.channel)))
    broker.events.on(Gone, lambda event: told.append(("gone", event.topic.name, event.channel)))
    broker.events.on(Emptied, lambda event: told.append(("emptied", event.topic, event.high - event.low)))
    topic = broker.topic("t")
    assert broker.topic("t") is topic
    channel(topic)
    channel(topic, "d")
    publish(broker, topic, 3)
    made = [("made", "t", ""), ("made", "t", "c"), ("made", "t", "d")]
    assert told == made
    first = topic.next - 3
    broker.delete_topic("t")
    assert told == [*made, ("gone", "t", "c"), ("gone", "t", "d"), ("gone", "t", ""), ("emptied", topic.id, first + 3)]
    topic.settle()
    assert not broker.recent
    again = broker.topic("t")
    assert again is not topic
    again.settle()
    publish(broker, again)
    assert (topic.message_count, again.message_count) == (3, 1)
    broker._committed([batch(topic, topic.next), batch(again, again.next)])  # one that was on its way to the disk meanwhile
    assert (topic.message_count, again.message_count) == (3, 2)


def test_a_publish_to_memory_alone_has_nothing_to_wait_for(opened: Open) -> None:
    broker = opened()
    kept, held = broker.topic("t"), broker.topic("t#ephemeral")
    kept.settle()
    one = [(held, Entry(held.id, bodies(b"x"), 1))]
    assert broker.publish(one) is None
    group = broker.publish([*one, (kept, Entry(kept.id, bodies(b"x"), 1))])
    assert group is not None
    group.wait()
    assert (held.message_count, kept.message_count) == (2, 1)


def test_a_quota_counts_what_is_under_way(opened: Open) -> None:
    broker = opened("--topic-quota=t=2")
    topic = broker.topic("t")
    topic.settle()
    entry = (topic, Entry(topic.id, bodies(b"x"), 1))
    groups = [broker.publish([entry]), broker.publish([entry])]
    with pytest.raises(QuotaReached, match="2 unfinished"):
        broker.publish([entry])
    for group in groups:
        assert group is not None
        group.wait()
    assert (topic.message_count, topic.refused_count) == (2, 1)


def batch(topic: Topic, first: int, size: int = 1) -> Batch:
    return Batch(topic.id, first, 1, 0, 0, bodies(b"x" * size))


def test_what_was_written_lately_is_at_hand_up_to_its_bytes_and_the_oldest_goes_first(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = opened()
    topic = broker.topic("t")
    some = [batch(topic, number, 1000) for number in range(4)]
    monkeypatch.setattr(brokers, "_RECENT_BYTES", 2 * some[0].weight)
    for one in some:
        broker._remember(one)
    assert list(broker.recent) == [(topic.id, 2), (topic.id, 3)]
    broker._remember(batch(topic, 4, 3000))
    assert not broker.recent, "one that is longer than all that may be is not kept"
    assert broker._recent_bytes == 0


def test_of_what_was_emptied_nothing_is_at_hand(opened: Open) -> None:
    broker = opened()
    topic, other = broker.topic("t"), broker.topic("other")
    for number in range(5):
        broker._remember(batch(topic, number))
        broker._remember(batch(other, number))
    broker.emit(Emptied(topic.id, 1, 3))
    assert set(broker.recent) == {(topic.id, number) for number in (0, 3, 4)} | {(other.id, number) for number in range(5)}


def test_what_one_topic_cannot_take_keeps_no_other_from_its_own(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = opened()
    bad, good = broker.topic("bad"), broker.topic("good")
    taker = Taker(channel(good))
    good.settle()
    bad.settle()
    monkeypatch.setattr(bad, "committed", lambda batch: 1 / 0)
    start = good.next
    some = [batch(bad, bad.next), Batch(12345, 1, 1, 0, 0, bodies(b"x")), batch(good, start), batch(good, start + 1)]
    with pytest.raises(ZeroDivisionError):
        broker._committed(some)
    assert good.message_count == 2
    assert len(taker.leases.messages) == 2


def test_a_declaration_that_is_written_twice_is_taken_once(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = opened()
    topic = broker.topic("t")
    taken: list[int] = []
    monkeypatch.setattr(broker, "_take", lambda _, one: taken.append(one.first))
    one, two = batch(topic, 1), batch(topic, 2)
    broker._committed([one, one, two])
    assert taken == [1, 2]


@pytest.mark.parametrize(("journal", "reader", "wrong"), [
    (0.0, 0.0, ""), (10.0, 10.0, ""),
    (10.6, 0.0, "DISK: it has not answered for 11 s"), (3.0, 12.0, "DISK: it has not answered for 12 s"),
])  # fmt: skip
def test_a_disk_that_takes_long_is_wrong(journal: float, reader: float, wrong: str) -> None:
    broker: Any = SimpleNamespace(journal=SimpleNamespace(busy=journal), _reader=SimpleNamespace(busy=reader))
    broker.health = SimpleNamespace(wrong="")
    assert Broker.wrong.fget(broker) == wrong  # type: ignore[attr-defined]
    broker.health.wrong = "else"
    assert Broker.wrong.fget(broker) == "else"  # type: ignore[attr-defined]


@pytest.mark.parametrize(("changed", "ago", "saves"), [(False, 0.9, 0), (False, 1.1, 3), (True, 0.0, 3), (True, 1.1, 3)])
def test_it_saves_what_has_changed_and_gives_the_storage_a_turn_once_a_second(
    monkeypatch: pytest.MonkeyPatch, changed: bool, ago: float, saves: int
) -> None:
    rounds, saved = iter(range(3)), list[int]()
    broker: Any = SimpleNamespace(
        changed=[1] if changed else [], _saved=100.0, _stopped=False, _try_to_save=lambda: saved.append(1)
    )

    def sleep(seconds: float) -> None:
        assert seconds == brokers.SAVE_SECONDS
        broker._stopped = next(rounds) == 2

    monkeypatch.setattr(brokers, "gevent", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(brokers, "time", SimpleNamespace(monotonic=lambda: 100.0 + ago))
    Broker._save_rounds(broker)
    assert len(saved) == saves


def test_a_round_counts_from_the_last_save(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = opened()
    monkeypatch.setattr(brokers, "time", SimpleNamespace(monotonic=lambda: 123.0))
    broker.save()
    assert broker._saved == 123.0


def test_a_save_that_is_broken_off_is_made_by_the_next(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = opened()
    topic = broker.topic("t")
    one = channel(topic)
    broker.save()

    def ended(*_: object) -> None:
        raise gevent.GreenletExit

    topic.touched()
    one.touched()
    with monkeypatch.context() as patch:
        patch.setattr(broker._reader, "do", ended)
        with pytest.raises(gevent.GreenletExit):
            broker.save()
    assert broker.changed == [topic, one]
    assert not broker.health.wrong


def test_a_save_that_fails_is_told_until_one_works(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = opened()
    with monkeypatch.context() as patch:
        patch.setattr(broker._store, "save", full)
        with pytest.raises(NotStored, match="No space left"):
            broker.save()
        assert broker.wrong.startswith("DISK: states not saved")
    broker.save()
    assert broker.wrong == ""


def test_a_round_of_saving_tidies_the_storage_and_tells_where_that_fails(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = opened()
    monkeypatch.setattr(broker._store, "_swept", float("-inf"))
    with monkeypatch.context() as patch:
        patch.setattr(broker._store, "sweep", full)
        broker._try_to_save()
        assert broker.wrong.startswith(brokers.NOT_TIDIED)
    assert broker._store.untidy
    broker._try_to_save()
    assert not broker._store.untidy
    assert broker.wrong == ""


@pytest.mark.parametrize("reading", ["read", "bodies", "a report"])
def test_what_the_storage_has_found_lost_is_waited_for_no_more(
    opened: Open, monkeypatch: pytest.MonkeyPatch, reading: str
) -> None:
    broker = opened()
    topic = broker.topic("t")
    topic.settle()
    told: list[Correction] = []
    monkeypatch.setattr(topic, "correct", told.append)
    lost = Correction(topic.id, topic.next, topic.next + 1, lost=True)
    broker._store.corrections.extend([Correction(topic.id ^ 1, 1, 2), lost])
    if reading == "read":
        broker.read(topic.id, topic.next, 1000)
    elif reading == "bodies":
        broker.bodies(topic.id, [topic.next], 1000)
    else:
        broker._report()
    assert (told, broker._store.corrections) == ([lost], [])


def test_it_knows_since_when_it_runs_and_says_what_its_storage_reports(folder: Path) -> None:
    before, lines, store = time.time(), list[str](), Store(folder)
    store.reports += ["one thing", "another"]
    broker = Broker(store, parse([f"--data-path={folder}"]), lambda level, words: lines.append(f"{level} {words}"))
    broker.stop()
    assert before <= broker.start_time <= time.time()
    assert (lines, store.reports) == (["WARNING DISK: one thing", "WARNING DISK: another"], [])


def test_what_was_deleted_stays_on_the_disk_until_the_log_knows(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = opened()
    topic = broker.topic("t")
    one = channel(topic)
    publish(broker, topic)
    one.declared = False
    saved: list[Any] = []
    monkeypatch.setattr(broker._store, "save", lambda topics, channels: saved.append((len(topics), len(channels))))
    broker.save()
    assert saved == [(1, 0)]
    one.declared = True


@pytest.fixture
def finishing(opened: Open, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Broker:
    """One message was finished, and nothing is saved of it: no save is made before the end."""
    monkeypatch.setattr(brokers, "SAVE_SECONDS", 0.01)
    broker = opened()
    topic = broker.topic("t")
    taker = Taker(channel(topic))
    publish(broker, topic)
    (message_id,) = taker.ids(1)
    broker._stopped = True
    broker._saver.join()
    broker._store.reserve.fill()
    assert broker._store.reserve.whole
    assert taker.channel.finish(taker, message_id) is None
    taker.channel.touched()
    return broker


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def left(folder: Path) -> int:
    """Messages that come again at the next start."""
    store = Store(folder)
    try:
        (state,) = store.topics.values()
        (one,) = state.channels.values()
        return one.waiting + len(one.retries)
    finally:
        store.close()


def test_the_last_save_on_a_full_disk_has_what_is_kept_in_reserve(
    finishing: Broker, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, store = finishing._store.save, finishing._store
    monkeypatch.setattr(store, "save", lambda *some: full() if store.reserve.whole else real(*some))
    finishing.stop()
    assert left(folder) == 0


def test_the_reserve_is_kept_where_there_is_room(finishing: Broker, folder: Path) -> None:
    finishing.stop()
    assert finishing._store.reserve.whole
    assert left(folder) == 0


def test_what_cannot_be_saved_at_the_end_is_told_and_the_storage_is_closed(
    finishing: Broker, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finishing._store, "save", full)
    with pytest.raises(NotStored, match="No space left"):
        finishing.stop()
    assert left(folder) == 1


def test_one_that_has_stopped_leaves_no_thread(folder: Path) -> None:
    """A worker with an nsqd in it may start many, one after the other."""

    def started_and_stopped() -> int:
        Broker(Store(folder), parse([f"--data-path={folder}"]), lambda level, words: None).stop()
        return psutil.Process().num_threads()

    before = started_and_stopped()
    assert eventually(lambda: started_and_stopped() <= before)


def test_a_storage_that_cannot_be_closed_is_told(finishing: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    real = finishing._store.close

    def closed() -> None:
        real()
        full()

    monkeypatch.setattr(finishing._store, "close", closed)
    with pytest.raises(NotStored, match="No space left"):
        finishing.stop()


def test_how_large_its_log_is(opened: Open, folder: Path) -> None:
    broker = opened()
    topic = broker.topic("t")
    topic.settle()
    publish(broker, topic, 100)
    segments = list((folder / "log").glob("*.log"))
    count, size = broker.log_size()
    assert count == len(segments)
    assert 0 < size <= sum(one.stat().st_size for one in segments)

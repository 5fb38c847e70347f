"""The storage: segments go when nobody needs them, few messages keep no more than themselves, and nothing is lost by it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from framework.nsqd.store import (
    Batch,
    Declaration,
    Declare,
    Retry,
    Store,
    TopicSave,
)
from tests.nsqd.storing import TOPIC, declared, everything, killed, publish, saved, segment


@pytest.mark.usefixtures("small_segments")
def test_a_segment_goes_when_all_its_messages_are_finished(opened: Store, folder: Path) -> None:
    batches = [publish(opened, b"x" * 900)[0] for _ in range(7)]
    opened.save([TopicSave(TOPIC, batches[-1].end)], [saved(batches[-1].end, inflight=[batches[3].first])])
    opened.sweep()
    kept = sorted(int(path.stem) for path in (folder / "log").iterdir())
    assert everything(opened)[:1] == [b"x" * 900]
    assert 1 not in kept
    opened.save(channels=[saved(batches[-1].end)])
    opened.sweep()
    assert everything(opened) == []
    assert len(list((folder / "log").iterdir())) == 1


def in_tens(opened: Store, count: int, topic: int = TOPIC) -> list[Batch]:
    """Batches of ten messages, their numbers in their bodies."""
    return [publish(opened, *(b"%d.%d" % (at, of) + b"x" * 90 for of in range(10)), topic=topic)[0] for at in range(count)]


def swept(opened: Store) -> int:
    """Bytes of the log when nothing more can be done for it."""
    for _ in range(30):
        opened.sweep()
    return sum(opened.log.length(number) for number in opened.log.numbers)


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("how", ["in flight", "deferred", "requeued"])
def test_one_unfinished_message_keeps_no_more_than_itself(opened: Store, folder: Path, tmp_path: Path, how: str) -> None:
    batches = in_tens(opened, 30)
    seq = batches[3].first + 5
    what = {
        "in flight": {"inflight": [seq]},
        "deferred": {"put": {seq: Retry(1 << 60, 2)}},
        "requeued": {"put": {seq: Retry(0, 2)}},
    }[how]
    opened.save([TopicSave(TOPIC, batches[-1].end)], [saved(batches[-1].end, **what)])
    assert swept(opened) < 1000
    assert not segment(folder).exists()
    for again in (opened, Store(killed(opened, folder, tmp_path / "copy"))):
        assert again.bodies(TOPIC, [seq], 1)[seq][1] == b"3.5" + b"x" * 90
        assert [body[:3] for body in everything(again)] == [b"3.5"]
    assert set(again.topics[TOPIC].channels["c"].retries) == {seq}
    again.close()


@pytest.mark.usefixtures("small_segments")
def test_a_topic_that_nobody_reads_keeps_its_few_messages_and_not_those_of_others(folder: Path) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c"), declared(8)])
    first = publish(opened, b"dead letter", topic=8)[0]
    batches = in_tens(opened, 15)
    second = publish(opened, b"another", topic=8)[0]
    batches += in_tens(opened, 15)
    opened.save([TopicSave(TOPIC, batches[-1].end)], [saved(batches[-1].end)])
    assert swept(opened) < 1000
    assert everything(opened, 8) == [b"dead letter", b"another"]
    assert (first.end, second.end) == (second.first, opened.topics[8].next)
    opened.close()
    (folder / "index.db").unlink()
    again = Store(folder)
    assert everything(again, 8) == [b"dead letter", b"another"]
    assert again.topics[8].depth == 2
    again.close()


@pytest.mark.usefixtures("small_segments")
def test_what_was_moved_is_delivered_again_when_the_index_is_lost(folder: Path) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    batches = in_tens(opened, 30)
    seq = batches[3].first + 5
    opened.save([TopicSave(TOPIC, batches[-1].end)], [saved(batches[-1].end, inflight=[seq])])
    swept(opened)
    opened.close()
    (folder / "index.db").unlink()
    again = Store(folder)
    channel = again.topics[TOPIC].channels["c"]
    assert seq < channel.cursor
    assert {one.attempts for one in channel.retries.values()} == {0}, "its next delivery is the first that is known of"
    assert seq in channel.retries
    assert again.bodies(TOPIC, [seq], 1)[seq][1] == b"3.5" + b"x" * 90
    again.close()


@pytest.mark.usefixtures("small_segments")
def test_a_segment_that_is_mostly_unfinished_is_left_alone(opened: Store, folder: Path) -> None:
    batches = in_tens(opened, 6)
    waiting = batches[0].first + 5
    opened.save([TopicSave(TOPIC, batches[-1].end)], [saved(waiting)])
    before = segment(folder).read_bytes()
    swept(opened)
    assert segment(folder).read_bytes() == before


@pytest.mark.usefixtures("small_segments")
def test_numbers_of_messages_that_are_gone_are_not_used_again_when_the_index_is_lost(folder: Path) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    stays = publish(opened, *[b"stays" * 30] * 9)[0]
    batches = in_tens(opened, 3)
    later = {seq: Retry(1 << 60, 1) for seq in range(stays.first, stays.end)}
    opened.save([TopicSave(TOPIC, batches[-1].end)], [saved(batches[-1].end, put=later)])
    swept(opened)
    opened.close()
    (folder / "index.db").unlink()
    again = Store(folder)
    assert publish(again, b"new")[0].first >= batches[-1].end
    again.close()


@pytest.mark.usefixtures("small_segments")
def test_the_index_may_end_in_a_segment_that_went(opened: Store, folder: Path, tmp_path: Path) -> None:
    """One between others: its removal is not taken for a log that lost its end."""
    opened.append([declared(8)])
    publish(opened, *[b"stays" * 30] * 9, topic=8)
    batches = in_tens(opened, 3)
    opened.save([TopicSave(TOPIC, batches[-1].end)], [saved(batches[-1].end)])
    swept(opened)
    assert opened.log.numbers[-1] - opened.log.numbers[0] >= len(opened.log.numbers)
    again = Store(killed(opened, folder, tmp_path / "copy"))
    assert again.reports == []
    assert not again.catalog.rebuilt
    again.close()


@pytest.mark.usefixtures("small_segments")
def test_moving_waits_for_room(opened: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = in_tens(opened, 30)
    seq = batches[3].first

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "pwritev", full)
    opened.save([TopicSave(TOPIC, batches[-1].end)], [saved(batches[-1].end, inflight=[seq])])
    assert swept(opened) > 1000
    assert opened.bodies(TOPIC, [seq], 1)[seq][1][:3] == b"3.0"
    monkeypatch.undo()


@pytest.mark.usefixtures("small_segments")
def test_topics_and_channels_survive_the_loss_of_the_index_after_their_first_segment_went(folder: Path) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    batches = [publish(opened, b"x" * 900)[0] for _ in range(7)]
    opened.save([TopicSave(TOPIC, batches[-1].end)], [saved(batches[-1].end)])
    opened.sweep()
    assert not segment(folder).exists()
    publish(opened, b"new")
    opened.close()
    (folder / "index.db").unlink()
    again = Store(folder)
    assert list(again.topics[TOPIC].channels) == ["c"]
    assert everything(again)[-1:] == [b"new"]
    again.close()


@pytest.mark.usefixtures("small_segments")
def test_a_lost_index_does_not_move_a_channel_past_what_was_in_flight(folder: Path) -> None:
    """Later segments' heads name a cursor beyond it; the first that is met must win."""
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    first = publish(opened, b"in flight" * 100)[0]
    opened.save([TopicSave(TOPIC, first.end)], [saved(first.end, inflight=[first.first])])
    for _ in range(4):
        publish(opened, b"x" * 900)
    opened.close()
    (folder / "index.db").unlink()
    again = Store(folder)
    assert len(again.log.numbers) > 1
    assert again.topics[TOPIC].channels["c"].cursor <= first.first
    again.close()


@pytest.mark.usefixtures("small_segments")
def test_the_declarations_of_many_topics_alone_begin_no_segment(folder: Path) -> None:
    opened = Store(folder)
    opened.append([declared(topic, "c") for topic in range(100, 160)])
    assert swept(opened) > 2000  # more than a segment of this test
    first = opened.log.active
    for _ in range(5):
        opened.sweep()
    publish(opened, b"a", topic=100)
    publish(opened, b"b", topic=100)
    assert opened.log.active == first
    assert everything(opened, 100) == [b"a", b"b"]
    opened.close()


def dropped(topic: int = TOPIC) -> Declare:
    return Declare(topic, Declaration(f"t{topic}", dropped=True))


@pytest.mark.usefixtures("small_segments")
def test_a_deleted_topic_stays_deleted_when_the_segment_that_says_so_is_gone(folder: Path) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c"), declared(8)])
    publish(opened, b"deleted with its topic")
    publish(opened, b"keeps the first segment" * 60, topic=8)
    publish(opened, b"x" * 900, topic=8)
    publish(opened, b"begins the second", topic=8)
    opened.append([dropped()])
    assert opened.log.numbers == [1, 2]
    opened._roll()
    opened.save([TopicSave(8, opened.topics[8].next - 1)])
    opened.save([TopicSave(8, opened.topics[8].next)])
    opened._remove(2)
    opened.close()
    (folder / "index.db").unlink()
    again = Store(folder)
    assert set(again.topics) == {8}
    assert again.has_number(TOPIC)
    again.close()


@pytest.mark.usefixtures("small_segments")
def test_numbers_of_deleted_topics_are_kept_no_longer_than_the_segments_that_name_them(opened: Store) -> None:
    opened.append([dropped()])
    opened.append([declared(8)])
    opened.flush()
    opened._roll()
    assert opened.catalog.retired == {TOPIC}
    opened.sweep()
    assert opened.catalog.retired == set()
    opened._roll()
    assert opened.log.written == 0
    assert opened.log.size < 300  # one topic, twice
    opened.append([dropped(8)])
    opened._roll()
    opened.sweep()
    assert opened.catalog.retired == {8}  # not saved yet


def test_records_of_which_little_would_be_saved_are_not_moved(opened: Store) -> None:
    """Moved, a record keeps the size of each message: of short ones that is most of it, and it would be moved for ever."""
    batches = [publish(opened, *[b"x"] * 500)[0] for _ in range(8)]
    opened._roll()
    opened.save([TopicSave(TOPIC, batches[-1].end)], [saved(batches[-1].end, inflight=[one.first + 7 for one in batches])])
    assert opened._compactor.plan(1) is None


def test_a_message_that_is_nowhere_keeps_no_record(opened: Store) -> None:
    """The index has lost its row, and a channel waits for it still."""
    (gone,), (finished,) = publish(opened, b"gone"), publish(opened, b"finished" * 20)
    opened._roll()
    opened.save([TopicSave(TOPIC, finished.end)], [saved(finished.end, inflight=[gone.first])])
    opened.index.remove_batch(TOPIC, gone.first)
    assert opened._compactor.plan(1) == []


def test_what_a_long_transaction_took_beside_the_index_is_given_back(opened: Store, folder: Path) -> None:
    """SQLite itself keeps its write-ahead log as long as it ever was."""
    (batch,) = publish(opened, b"x")
    puts = {seq: Retry(1 << 60, 1) for seq in range(200_000)}
    opened.save([TopicSave(TOPIC, batch.end)], [saved(batch.end, put=puts)])
    beside = folder / "index.db-wal"
    assert beside.stat().st_size > 4 << 20, "the test is about a long one"
    opened.save(channels=[saved(batch.end)])
    assert beside.stat().st_size <= 1 << 20

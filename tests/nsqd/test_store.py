"""The storage: what was appended is read back, whatever happened to the process, the index or single bytes."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from framework.nsqd.store import (
    Batch,
    ChannelSave,
    Declaration,
    Declare,
    Declared,
    Entry,
    FolderInUse,
    FolderUnusable,
    Pending,
    Store,
    Syncing,
    TopicSave,
    compaction,
    log,
    record,
    store,
)

TOPIC, CHANNEL = 7, 70


def payload(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def declared(topic: int = TOPIC, *channels: str) -> Declare:
    return Declare(
        topic, Declaration(f"t{topic}", channels={name: Declared(CHANNEL + at, 0) for at, name in enumerate(channels)})
    )


def publish(opened: Store, *bodies: bytes, topic: int = TOPIC) -> list[Batch]:
    return opened.append([Entry(topic, payload(*bodies), len(bodies))])


def everything(opened: Store, topic: int = TOPIC) -> list[bytes]:
    """All bodies of the topic, read as a channel reads them."""
    found: list[bytes] = []
    seq = 0
    while batches := opened.read(topic, seq, 1 << 20):
        for batch in batches:
            found += record.bodies(batch.payload, batch.count)
        seq = batches[-1].end
    return found


def saved(cursor: int, **changes: object) -> ChannelSave:
    fields = {"paused": False, "inflight": (), "put": {}, "drop": ()} | changes
    return ChannelSave(CHANNEL, TOPIC, "c", cursor, **fields)  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def opened(folder: Path) -> Iterator[Store]:
    one = Store(folder)
    one.append([declared(TOPIC, "c")])
    yield one
    one.close()


def killed(opened: Store, folder: Path, copy: Path) -> Path:
    """The folder as a kill -9 would leave it now."""
    shutil.copytree(folder, copy)
    return copy


def test_messages_come_back_in_order_and_numbered_without_gaps(opened: Store) -> None:
    batches = [*publish(opened, b"a", b"b"), *publish(opened, b"c")]
    assert everything(opened) == [b"a", b"b", b"c"]
    assert batches[1].first == batches[0].end


def test_single_messages_of_a_group_become_one_record(opened: Store) -> None:
    batches = opened.append([Entry(TOPIC, payload(b"%d" % at), 1) for at in range(10)])
    assert [batch.count for batch in batches] == [10]
    assert everything(opened) == [b"%d" % at for at in range(10)]


def test_a_deferred_message_has_a_record_of_its_own(opened: Store) -> None:
    batches = opened.append(
        [Entry(TOPIC, payload(b"a"), 1), Entry(TOPIC, payload(b"b"), 1, 5000), Entry(TOPIC, payload(b"c"), 1)]
    )
    assert [(batch.count, batch.due) for batch in batches] == [(1, 0), (1, 5000), (1, 0)]


def test_a_big_publish_is_cut_into_records_that_a_flipped_bit_can_cost(opened: Store) -> None:
    bodies = [b"x" * 3000 for _ in range(1200)]
    batches = publish(opened, *bodies)
    assert all(batch.count <= record.MAX_RECORD_MESSAGES and len(batch.payload) <= record.MAX_RECORD_BYTES for batch in batches)
    assert everything(opened) == bodies


def test_what_was_appended_survives_a_kill_without_any_save(opened: Store, folder: Path, tmp_path: Path) -> None:
    publish(opened, b"a", b"b")
    again = Store(killed(opened, folder, tmp_path / "killed"))
    assert everything(again) == [b"a", b"b"]
    assert again.topics[TOPIC].channels["c"].waiting == 2
    assert again.reports == []
    again.close()


def test_numbers_go_on_after_a_reopen(opened: Store, folder: Path, tmp_path: Path) -> None:
    (first,) = publish(opened, b"a")
    again = Store(killed(opened, folder, tmp_path / "killed"))
    (second,) = publish(again, b"b")
    assert second.first == first.end
    again.close()


def test_a_topic_made_anew_never_repeats_a_number(opened: Store) -> None:
    (first,) = publish(opened, b"a")
    opened.append([Declare(TOPIC, Declaration("t7", dropped=True)), declared(8)])
    assert publish(opened, b"b", topic=8)[0].first > first.end
    assert everything(opened) == []


def test_a_channels_state_is_as_it_was_saved(opened: Store, folder: Path, tmp_path: Path) -> None:
    (batch,) = publish(opened, *[b"%d" % at for at in range(10)])
    first = batch.first
    opened.save(channels=[saved(first + 6, inflight=[first + 1, first + 4], put={first + 2: Pending(99, 3)})])
    again = Store(killed(opened, folder, tmp_path / "killed"))
    channel = again.topics[TOPIC].channels["c"]
    assert channel.cursor == first + 6
    assert channel.waiting == 4
    assert channel.pending == {first + 1: Pending(0, 1), first + 4: Pending(0, 1), first + 2: Pending(99, 3)}
    again.close()


def test_a_message_in_flight_at_the_crash_counts_one_attempt_more(opened: Store, folder: Path, tmp_path: Path) -> None:
    (batch,) = publish(opened, b"a")
    opened.save(channels=[saved(batch.end, inflight=[batch.first], put={batch.first: Pending(0, 4)})])
    again = Store(killed(opened, folder, tmp_path / "killed"))
    assert again.topics[TOPIC].channels["c"].pending == {batch.first: Pending(0, 5)}
    again.close()


def test_a_message_finished_ahead_of_the_cursor_stays_finished(opened: Store, folder: Path, tmp_path: Path) -> None:
    (batch,) = publish(opened, b"a", b"b")
    opened.save(channels=[saved(batch.first, put={batch.first + 1: Pending(-1, 0)})])
    again = Store(killed(opened, folder, tmp_path / "killed"))
    channel = again.topics[TOPIC].channels["c"]
    assert (channel.pending, channel.ahead, channel.waiting) == ({}, {batch.first + 1}, 1)
    again.close()


def test_a_folder_is_for_one_process(opened: Store, folder: Path) -> None:
    with pytest.raises(FolderInUse, match="in use by another nsqd"):
        Store(folder)


def test_a_folder_of_another_version_is_refused(folder: Path) -> None:
    Store(folder).close()
    (folder / "meta.json").write_text('{"format": 99, "salt": 1}')
    with pytest.raises(FolderUnusable, match="says format 99"):
        Store(folder)


def segment(folder: Path, number: int = 1) -> Path:
    return folder / "log" / f"{number:010}.log"


def test_a_torn_tail_is_cut_and_reported_and_nothing_else_is_lost(opened: Store, folder: Path, tmp_path: Path) -> None:
    publish(opened, b"a")
    end = segment(folder).stat().st_size
    publish(opened, b"never confirmed")
    copy = killed(opened, folder, tmp_path / "killed")
    os.truncate(segment(copy), segment(copy).stat().st_size - 3)
    shutil.rmtree(copy / "index.db-wal", ignore_errors=True)
    for name in ("index.db", "index.db-wal", "index.db-shm"):
        (copy / name).unlink(missing_ok=True)
    again = Store(copy)
    assert everything(again) == [b"a"]
    assert segment(copy).stat().st_size == end
    assert "never confirmed: cut off" in again.reports[0]
    publish(again, b"b")
    assert everything(again) == [b"a", b"b"]
    again.close()


@pytest.mark.parametrize("indexed", [True, False], ids=["met when it is read", "met when the log is scanned"])
def test_a_flipped_byte_costs_its_record_and_no_other(folder: Path, tmp_path: Path, indexed: bool) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    for at in range(5):
        publish(opened, b"%d" % at * 20)
    opened.close()
    if not indexed:
        (folder / "index.db").unlink()
    data = bytearray(segment(folder).read_bytes())
    data[data.find(b"2" * 20) + 5] ^= 1
    segment(folder).write_bytes(data)
    again = Store(folder)
    assert everything(again) == [b"%d" % at * 20 for at in (0, 1, 3, 4)]
    assert len(again.reports) == 1
    assert "damaged" in again.reports[0]
    (kept,) = (folder / "bad").iterdir()
    assert b"2" * 14 in kept.read_bytes()
    again.close()


def test_a_lost_index_is_rebuilt_from_the_log(opened: Store, folder: Path, tmp_path: Path) -> None:
    publish(opened, b"a", b"b")
    opened.append([declared(8, "d")])
    publish(opened, b"c", topic=8)
    copy = killed(opened, folder, tmp_path / "killed")
    for name in ("index.db", "index.db-wal", "index.db-shm"):
        (copy / name).unlink(missing_ok=True)
    again = Store(copy)
    assert (everything(again), everything(again, 8)) == ([b"a", b"b"], [b"c"])
    assert {topic.name: list(topic.channels) for topic in again.topics.values()} == {"t7": ["c"], "t8": ["d"]}
    again.close()


def test_a_damaged_index_is_set_aside_and_rebuilt(folder: Path) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    publish(opened, b"a")
    opened.close()
    (folder / "index.db").write_bytes(b"this is no database" * 500)
    again = Store(folder)
    assert everything(again) == [b"a"]
    assert "rebuilt from the log" in again.reports[0]
    again.close()


def changed_index(folder: Path, statement: str) -> None:
    with sqlite3.connect(folder / "index.db") as db:
        db.execute(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "update batch set off = off + 1 where first = (select min(first) from batch)",
        "update batch set n = n + 1 where first = (select min(first) from batch)",
        "delete from batch where first = (select min(first) from batch)",
        "update batch set first = first + 1 where first = (select max(first) from batch)",
    ],
    ids=["a wrong place", "a wrong count", "a lost row", "a wrong number"],
)
def test_a_wrong_row_of_the_index_is_corrected_from_the_log(folder: Path, statement: str) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    for at in range(3):
        publish(opened, *[b"%d-%d" % (at, one) for one in range(3)])
    opened.close()
    changed_index(folder, statement)
    again = Store(folder)
    first = everything(again)
    wanted = [b"%d-%d" % (at, one) for at in range(3) for one in range(3)]
    assert sorted(set(first)) == wanted or "corrected" in " ".join(again.reports)
    assert everything(again) == wanted
    again.close()


def test_a_published_copy_of_the_log_is_no_record(folder: Path) -> None:
    """The salt: whoever publishes bytes that look like a record cannot have them taken for one after damage."""
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    forged = b"".join(record.encode(Batch(TOPIC, 1, 1, 0, 0, payload(b"forged")), 0))
    publish(opened, forged)
    opened.close()
    (folder / "index.db").unlink()
    data = bytearray(segment(folder).read_bytes())
    data[data.find(forged) - 30] ^= 1
    segment(folder).write_bytes(data)
    again = Store(folder)
    assert everything(again) == []
    again.close()


def test_a_write_that_fails_half_way_leaves_nothing_of_its_group(
    opened: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(opened, b"a")
    size = segment(folder).stat().st_size

    def half(fd: int, buffers: list[bytes], offset: int) -> int:
        os.pwrite(fd, buffers[0], offset)
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(log, "_write_all", half)
    with pytest.raises(OSError, match="no space left"):
        publish(opened, b"lost")
    assert segment(folder).stat().st_size == size
    monkeypatch.undo()
    publish(opened, b"b")
    assert everything(opened) == [b"a", b"b"]


def test_after_a_failed_sync_a_new_segment_is_written(opened: Store, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(opened, b"a")

    def failing(fd: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "fdatasync", failing)
    with pytest.raises(OSError, match="input/output error"):
        publish(opened, b"lost")
    monkeypatch.undo()
    publish(opened, b"b")
    assert everything(opened) == [b"a", b"b"]
    assert segment(folder, 2).exists()


def test_syncs_come_as_seldom_as_they_were_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, synced = os.fdatasync, []

    def counted(fd: int) -> None:
        synced.append(fd)
        real(fd)

    monkeypatch.setattr(os, "fdatasync", counted)
    opened = Store(folder, Syncing(10, 3600))
    opened.append([declared()])
    synced.clear()
    publish(opened, *[b"x"] * 8)
    opened.save()
    assert synced == []
    publish(opened, b"the tenth")
    assert len(synced) == 1
    publish(opened, b"the last")
    opened.close()
    assert len(synced) == 2


def test_a_sync_that_is_late_comes_with_the_next_save(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Store(folder, Syncing(1000, 0.001))
    publish(opened, b"x")
    assert opened.log._unsynced
    time.sleep(0.002)
    opened.save()
    assert not opened.log._unsynced
    opened.close()


def test_nothing_is_published_into_the_reserve(opened: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs(opened.folder.path)

    class Full:
        f_bavail, f_frsize, f_blocks = 1, real.f_frsize, real.f_blocks

    monkeypatch.setattr(os, "statvfs", lambda path: Full)
    with pytest.raises(OSError, match="reserve"):
        publish(opened, b"a")
    monkeypatch.undo()
    publish(opened, b"b")
    assert everything(opened) == [b"b"]


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SEGMENT_BYTES", 2000)
    monkeypatch.setattr(store, "_ROLL_BYTES", 500)
    monkeypatch.setattr(compaction, "_SHARE", 0)


@pytest.mark.usefixtures("small_segments")
def test_a_segment_goes_when_all_its_messages_are_finished(opened: Store, folder: Path) -> None:
    batches = [publish(opened, b"x" * 900)[0] for _ in range(7)]
    opened.save([TopicSave(TOPIC, batches[-1].end, False)], [saved(batches[-1].end, inflight=[batches[3].first])])
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
        "deferred": {"put": {seq: Pending(1 << 60, 2)}},
        "requeued": {"put": {seq: Pending(0, 2)}},
    }[how]
    opened.save([TopicSave(TOPIC, batches[-1].end, False)], [saved(batches[-1].end, **what)])
    assert swept(opened) < 1000
    assert not segment(folder).exists()
    for again in (opened, Store(killed(opened, folder, tmp_path / "copy"))):
        assert again.bodies(TOPIC, [seq])[seq][1] == b"3.5" + b"x" * 90
        assert [body[:3] for body in everything(again)] == [b"3.5"]
    assert set(again.topics[TOPIC].channels["c"].pending) == {seq}
    again.close()


@pytest.mark.usefixtures("small_segments")
def test_a_topic_that_nobody_reads_keeps_its_few_messages_and_not_those_of_others(folder: Path) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c"), declared(8)])
    first = publish(opened, b"dead letter", topic=8)[0]
    batches = in_tens(opened, 15)
    second = publish(opened, b"another", topic=8)[0]
    batches += in_tens(opened, 15)
    opened.save([TopicSave(TOPIC, batches[-1].end, False)], [saved(batches[-1].end)])
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
    opened.save([TopicSave(TOPIC, batches[-1].end, False)], [saved(batches[-1].end, inflight=[seq])])
    swept(opened)
    opened.close()
    (folder / "index.db").unlink()
    again = Store(folder)
    channel = again.topics[TOPIC].channels["c"]
    assert seq >= channel.cursor or seq in channel.pending
    assert again.bodies(TOPIC, [seq])[seq][1] == b"3.5" + b"x" * 90
    again.close()


@pytest.mark.usefixtures("small_segments")
def test_a_segment_that_is_mostly_unfinished_is_left_alone(opened: Store, folder: Path) -> None:
    batches = in_tens(opened, 6)
    waiting = batches[0].first + 5
    opened.save([TopicSave(TOPIC, batches[-1].end, False)], [saved(waiting)])
    before = segment(folder).read_bytes()
    swept(opened)
    assert segment(folder).read_bytes() == before


@pytest.mark.usefixtures("small_segments")
def test_numbers_of_messages_that_are_gone_are_not_used_again_when_the_index_is_lost(folder: Path) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    stays = publish(opened, *[b"stays" * 30] * 9)[0]
    batches = in_tens(opened, 3)
    later = {seq: Pending(1 << 60, 1) for seq in range(stays.first, stays.end)}
    opened.save([TopicSave(TOPIC, batches[-1].end, False)], [saved(batches[-1].end, put=later)])
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
    opened.save([TopicSave(TOPIC, batches[-1].end, False)], [saved(batches[-1].end)])
    swept(opened)
    assert opened.log.numbers[-1] - opened.log.numbers[0] >= len(opened.log.numbers)
    again = Store(killed(opened, folder, tmp_path / "copy"))
    assert again.reports == []
    assert not again.rebuilt
    again.close()


@pytest.mark.usefixtures("small_segments")
def test_moving_waits_for_room(opened: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = in_tens(opened, 30)
    seq = batches[3].first

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "pwritev", full)
    opened.save([TopicSave(TOPIC, batches[-1].end, False)], [saved(batches[-1].end, inflight=[seq])])
    assert swept(opened) > 1000
    assert opened.bodies(TOPIC, [seq])[seq][1][:3] == b"3.0"
    monkeypatch.undo()


@pytest.mark.usefixtures("small_segments")
def test_topics_and_channels_survive_the_loss_of_the_index_after_their_first_segment_went(folder: Path) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    batches = [publish(opened, b"x" * 900)[0] for _ in range(7)]
    opened.save([TopicSave(TOPIC, batches[-1].end, False)], [saved(batches[-1].end)])
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
    opened.save([TopicSave(TOPIC, first.end, False)], [saved(first.end, inflight=[first.first])])
    for _ in range(4):
        publish(opened, b"x" * 900)
    opened.close()
    (folder / "index.db").unlink()
    again = Store(folder)
    assert len(again.log.numbers) > 1
    assert again.topics[TOPIC].channels["c"].cursor <= first.first
    again.close()

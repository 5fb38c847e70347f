"""The storage: what was appended is read back, whatever happened to the process; what is synced, and when."""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from framework.nsqd.store import (
    Batch,
    Declaration,
    Declare,
    Declared,
    Entry,
    FolderInUse,
    FolderUnusable,
    Retry,
    Store,
    Syncing,
    TopicSave,
    log,
    record,
    recovery,
)
from tests.nsqd.storing import CHANNEL, TOPIC, declared, everything, killed, payload, publish, saved, segment


def test_messages_come_back_in_order_and_numbered_without_gaps(opened: Store) -> None:
    batches = [*publish(opened, b"a", b"b"), *publish(opened, b"c")]
    assert everything(opened) == [b"a", b"b", b"c"]
    assert batches[1].first == batches[0].end


def test_single_messages_of_a_group_become_one_record(opened: Store) -> None:
    batches = opened.append([Entry(TOPIC, payload(b"%d" % at), 1) for at in range(10)])
    assert [batch.count for batch in batches] == [10]
    assert everything(opened) == [b"%d" % at for at in range(10)]


def test_a_record_of_single_messages_has_no_more_than_any(opened: Store) -> None:
    """A flipped bit costs one record."""
    batches = opened.append([Entry(TOPIC, payload(b"%d" % at), 1) for at in range(1300)])
    assert [one.count for one in batches] == [500, 500, 300]
    large = opened.append([Entry(TOPIC, payload(b"x" * 300_000), 1) for at in range(7)])
    assert [one.count for one in large] == [3, 3, 1]


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
    opened.save(channels=[saved(first + 6, inflight=[first + 1, first + 4], put={first + 2: Retry(99, 3)})])
    again = Store(killed(opened, folder, tmp_path / "killed"))
    channel = again.topics[TOPIC].channels["c"]
    assert channel.cursor == first + 6
    assert channel.waiting == 4
    assert channel.retries == {first + 1: Retry(0, 1), first + 4: Retry(0, 1), first + 2: Retry(99, 3)}
    again.close()


def test_a_message_in_flight_at_the_crash_counts_one_attempt_more(opened: Store, folder: Path, tmp_path: Path) -> None:
    (batch,) = publish(opened, b"a")
    opened.save(channels=[saved(batch.end, inflight=[batch.first], put={batch.first: Retry(0, 4)})])
    again = Store(killed(opened, folder, tmp_path / "killed"))
    assert again.topics[TOPIC].channels["c"].retries == {batch.first: Retry(0, 5)}
    again.close()


def test_a_message_finished_ahead_of_the_cursor_stays_finished(opened: Store, folder: Path, tmp_path: Path) -> None:
    (batch,) = publish(opened, b"a", b"b")
    opened.save(channels=[saved(batch.first, put={batch.first + 1: Retry(-1, 0)})])
    again = Store(killed(opened, folder, tmp_path / "killed"))
    channel = again.topics[TOPIC].channels["c"]
    assert (channel.retries, channel.beyond_cursor, channel.waiting) == ({}, {batch.first + 1}, 1)
    again.close()


def test_a_folder_is_for_one_process(opened: Store, folder: Path) -> None:
    with pytest.raises(FolderInUse, match="in use by another nsqd"):
        Store(folder)


def test_a_folder_of_another_version_is_refused(folder: Path) -> None:
    Store(folder).close()
    (folder / "meta.json").write_text('{"format": 99, "salt": 1}')
    with pytest.raises(FolderUnusable, match="says format 99"):
        Store(folder)


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
    publish(opened, b"c")
    assert everything(opened) == [b"a", b"b", b"c"]
    assert opened.log.numbers == [1, 2], "one new segment, for all that follows"


def test_numbers_of_a_group_whose_sync_failed_are_not_used_again(
    opened: Store, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was cut off, but after a power cut it may be there again: a disk that fails to sync keeps what it likes."""
    publish(opened, b"a")
    came_back = b""

    def failing(fd: int) -> None:
        nonlocal came_back
        came_back = segment(folder).read_bytes()
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "fdatasync", failing)
    with pytest.raises(OSError, match="input/output error"):
        opened.append([Entry(TOPIC, payload(b"refused%d" % at), 1, 1) for at in range(3)])
    monkeypatch.undo()
    (batch,) = publish(opened, b"b", b"c", b"d")
    cut = killed(opened, folder, tmp_path / "power cut")
    segment(cut).write_bytes(came_back)
    for name in ("index.db", "index.db-wal", "index.db-shm"):
        (cut / name).unlink(missing_ok=True)
    again = Store(cut)
    found = again.bodies(TOPIC, range(batch.first, batch.end), 1 << 20)
    assert [one and one[1] for one in found.values()] == [b"b", b"c", b"d"]
    assert everything(again)[-3:] == [b"b", b"c", b"d"]
    again.close()


@pytest.mark.parametrize("by", ["the next round", "the next publish", "the end"])
def test_what_was_confirmed_before_a_failed_sync_is_written_again(folder: Path, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    """With --sync-every: the kernel may have dropped what a failed sync had, and the next one says nothing of it."""
    opened = Store(folder, Syncing(1000, 0.001))
    opened.append([declared(TOPIC, "c")])
    opened.log.sync()
    durable = opened.log.size
    publish(opened, b"a", b"b")
    opened.append([Entry(TOPIC, payload(b"later"), 1, 1 << 50)])
    time.sleep(0.002)

    def failing(fd: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "fdatasync", failing)
    for _ in range(2):  # it stays wrong for as long as the disk does
        with pytest.raises(OSError, match="input/output error"):
            opened.tidy()
    monkeypatch.undo()
    if by == "the next round":
        opened.tidy()
    elif by == "the next publish":
        publish(opened, b"c")
        opened.log.sync()
    opened.close()
    assert not opened.log.waits
    if segment(folder).exists():  # a sweep may have seen that nothing is in it any more
        os.truncate(segment(folder), durable)
    expected = [b"a", b"b", b"later", b"c"] if by == "the next publish" else [b"a", b"b", b"later"]
    for _ in range(2):  # the second time without the index
        again = Store(folder)
        assert (everything(again), again.reports) == (expected, [])
        assert again.topics[TOPIC].channels["c"].waiting == len(expected)
        again.close()
        (folder / "index.db").unlink()


def test_what_was_cut_off_is_synced_before_anything_else_is_written(opened: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a refused message, whose number the next one has, may be there after a power cut."""
    calls: list[str] = []

    def recorded(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            calls.append(name)
            if name == "pwritev" and calls.count("pwritev") == 1:
                raise OSError(errno.ENOSPC, "no space left")
            return real(*arguments)

        return call

    for name in ("ftruncate", "fsync", "pwritev", "fdatasync"):
        monkeypatch.setattr(os, name, recorded(name, getattr(os, name)))
    with pytest.raises(OSError, match="no space left"):
        publish(opened, b"refused")
    publish(opened, b"b")
    assert calls == ["pwritev", "ftruncate", "fsync", "pwritev", "fdatasync"]


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


def test_after_a_failed_sync_no_segment_is_begun_before_there_is_something_for_it(
    opened: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was confirmed is durable: on a broken disk the sweep goes on."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", refused)
        with pytest.raises(OSError, match="Input/output error"):
            publish(opened, b"x")
    opened.tidy()
    assert opened.log.numbers == [1]
    publish(opened, b"y")
    assert (opened.log.numbers, everything(opened)) == ([1, 2], [b"y"])


def refused(*_: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_a_sync_that_is_late_comes_with_the_next_round(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Store(folder, Syncing(1000, 0.001))
    publish(opened, b"x")
    assert opened.log._unsynced
    time.sleep(0.002)
    opened.save()
    opened.tidy()
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


def test_what_is_indexed_is_read_where_the_disk_has_no_byte_left(opened: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    (indexed,) = publish(opened, b"a")
    opened.save()
    (later,) = publish(opened, b"b")

    def full() -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(opened.index, "transaction", full)
    assert [batch.first for batch in opened.read(TOPIC, indexed.first, 1 << 20)] == [indexed.first]
    with pytest.raises(sqlite3.OperationalError):  # not "there is none", which would skip it
        opened.read(TOPIC, later.first, 1 << 20)
    monkeypatch.undo()
    assert everything(opened) == [b"a", b"b"]


def test_bodies_are_read_in_the_order_asked_for_until_they_are_many_bytes(opened: Store) -> None:
    (batch,) = publish(opened, b"a", b"bb", b"ccc", b"d")
    seqs = [batch.first + at for at in (2, 0, 3)]
    found = opened.bodies(TOPIC, [seqs[0], batch.end, *seqs[1:]], 1 << 20)
    assert {seq: one and one[1] for seq, one in found.items()} == {seqs[0]: b"ccc", batch.end: None, seqs[1]: b"a", seqs[2]: b"d"}
    publish(opened, b"e" * 100)
    found = opened.bodies(TOPIC, [batch.end, seqs[0]], 100)
    assert {seq: one and one[1] for seq, one in found.items()} == {batch.end: b"e" * 100}


@pytest.mark.parametrize(("code", "left"), [(errno.ENOSPC, False), (errno.EIO, True)], ids=["a full disk", "another fault"])
def test_the_reserve_is_for_declarations_on_a_full_disk_alone(
    opened: Store, monkeypatch: pytest.MonkeyPatch, code: int, left: bool
) -> None:
    assert opened.reserve.whole
    write, tried = opened.log.write, list[int]()

    def once(batches: list[Batch]) -> int:
        tried.append(1)
        if len(tried) == 1:
            raise OSError(code, "refused")
        return write(batches)

    monkeypatch.setattr(opened.log, "write", once)
    with pytest.raises(OSError, match="refused") if left else nullcontext():
        opened.append([declared(8)])
    assert opened.reserve.whole == left
    assert opened.log.numbers == [1], "what is in reserve does not do for a segment's head"


def test_a_state_of_a_channel_that_is_gone_is_not_taken_for_that_of_a_new_one(opened: Store) -> None:
    """They have one name. The old one's position would let messages of the new one go."""
    (batch,) = publish(opened, b"a", b"b")
    anew = Declared(CHANNEL + 1, batch.first)
    opened.append([Declare(TOPIC, Declaration("t7", channels={"c": anew}))])
    opened.save([TopicSave(TOPIC, batch.end)], [saved(batch.end)])
    assert opened.topics[TOPIC].channels["c"].cursor == batch.first
    assert [row.cursor for row in opened.index.channels(TOPIC)] == [batch.first]


def test_a_start_that_fails_lets_everything_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Store(folder).close()
    before = sorted(os.listdir("/proc/self/fd"))

    def fails(*parts: object) -> None:
        raise OSError("refused")

    monkeypatch.setattr(recovery, "recover", fails)
    with pytest.raises(FolderUnusable):
        Store(folder)
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_paused_topic_keeps_its_messages_across_a_restart(folder: Path) -> None:
    """A channel that is made during the pause gets them too, and emptying the topic takes them from all."""
    opened = Store(folder)
    channels = {"c": Declared(CHANNEL, 0)}
    opened.append([Declare(TOPIC, Declaration("t7", paused=True, channels=channels))])
    publish(opened, b"a", b"b")
    opened.close()
    again = Store(folder)
    assert (again.topics[TOPIC].depth, again.topics[TOPIC].channels["c"].waiting) == (2, 0)
    again.append([Declare(TOPIC, Declaration("t7", channels=channels))])
    again.close()
    last = Store(folder)
    assert (last.topics[TOPIC].depth, last.topics[TOPIC].channels["c"].waiting) == (0, 2)
    last.close()

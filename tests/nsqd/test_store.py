"""The storage: what was appended is read back, whatever happened to the process; what is synced, and when."""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import nullcontext
from pathlib import Path

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
    TopicSave,
    formats,
    record,
    recovery,
    store,
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


def test_the_head_of_a_segment_that_was_there_at_the_start_is_counted_as_written(folder: Path) -> None:
    opened = Store(folder)
    publish(opened, b"x" * 1000)
    begins = segment(folder).stat().st_size - opened.log.written
    opened.close()
    again = Store(folder)
    assert 0 < begins < 1000 < again.log.written == segment(folder).stat().st_size
    again.close()


def test_a_folder_of_another_version_is_refused(folder: Path) -> None:
    Store(folder).close()
    (folder / "meta.json").write_text('{"format": 99, "salt": 1}')
    with pytest.raises(FolderUnusable, match="says format 99"):
        Store(folder)


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


def test_whether_a_disk_takes_messages_again_is_not_tried_out_of_the_reserve(
    opened: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(folder.rglob("*"))
    monkeypatch.setattr(opened, "_has_room", lambda: False)
    with pytest.raises(OSError, match="reserve"):
        opened.try_to_write(10)
    assert (sorted(folder.rglob("*")), opened.log.numbers) == (before, [1])
    monkeypatch.setattr(opened, "_has_room", lambda: True)
    opened.try_to_write(10)
    assert opened.log.numbers == [1, 2]


def test_how_far_a_topic_has_come_is_saved_with_its_channels(opened: Store) -> None:
    opened.append([declared(TOPIC)])
    end = publish(opened, b"a", b"b")[0].end
    opened.save([TopicSave(TOPIC, end - 1)])
    assert [(one.id, one.next, one.pumped) for one in opened.index.topics()] == [(TOPIC, end, end - 1)]


def test_that_declarations_may_name_changes_alone_is_written_down_once(opened: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    opened.append([declared(TOPIC, "c")])
    assert not opened.folder.has_changes
    written: list[Path] = []
    monkeypatch.setattr(formats, "allow_changes", written.append)
    for _ in range(3):
        opened.append([declared(8), Declare(TOPIC, Declaration("t7", changes=True, total=1))])
    assert written == [opened.folder.path]


def test_what_is_moved_begins_a_segment_where_the_last_is_full(opened: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    opened.append([declared(TOPIC)])
    some = publish(opened, b"a")
    opened.move(some)
    assert opened.log.numbers == [1]
    monkeypatch.setattr(store, "SEGMENT_BYTES", opened.log.written + 1)
    opened.move(some)
    assert opened.log.numbers == [1]
    monkeypatch.setattr(store, "SEGMENT_BYTES", opened.log.written)
    opened.move(some)
    assert opened.log.numbers == [1, 2]


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
    for most, others in ((100, {}), (101, {seqs[0]: b"ccc", seqs[1]: b"a"})):  # these two are in one record
        found = opened.bodies(TOPIC, [batch.end, *seqs[:2]], most)
        assert {seq: one and one[1] for seq, one in found.items()} == {batch.end: b"e" * 100, **others}


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

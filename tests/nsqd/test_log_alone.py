"""The log by itself: when what was written is synced, what a refused write leaves, and how a new segment begins."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from framework.nsqd.store import loading
from framework.nsqd.store import log as logs
from framework.nsqd.store.index import FINISHED
from framework.nsqd.store.log import Log, Syncing
from framework.nsqd.store.record import Batch
from framework.nsqd.store.segments import Found
from framework.nsqd.store.state import ChannelState, Retry
from tests.nsqd.storing import payload

SALT = 5


def batch(first: int, count: int = 1) -> Batch:
    return Batch(1, first, count, 7, 0, payload(*[b"x"] * count))


def has(log: Log, segment: int) -> list[Batch]:
    """What the segment holds but for its opening, which is of no topic."""
    found = [one.batch for one in log.scan(segment, 0) if isinstance(one, Found)]
    return [one for one in found if one.topic]


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is synced, by how."""
    found: list[str] = []
    for how in ("fsync", "fdatasync"):
        real = getattr(os, how)
        monkeypatch.setattr(logs.os, how, lambda fd, how=how, real=real: found.append(how) or real(fd))
    return found


def test_each_write_is_durable_where_nothing_else_is_said(tmp_path: Path, syncs: list[str]) -> None:
    log = Log(tmp_path, SALT)
    assert not log.due
    syncs.clear()
    for number in range(3):
        log.write([batch(number)])
        assert (len(syncs), log.waits, log.due, log.unsynced()) == (number + 1, False, False, [])
    log.sync()
    assert syncs == ["fdatasync"] * 3


def test_so_many_messages_are_synced_together_or_what_is_there_after_so_many_seconds(
    tmp_path: Path, syncs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(monotonic=lambda: 50.0, time_ns=lambda: 1)
    monkeypatch.setattr(logs, "time", clock)
    log = Log(tmp_path, SALT, Syncing(5, 2.0))
    syncs.clear()
    log.write([batch(1, 2), batch(3)])
    clock.monotonic = lambda: 51.5
    log.write([batch(4)])
    assert (syncs, log.waits, log.due, log.unsynced()) == ([], True, False, [batch(1, 2), batch(3), batch(4)])
    clock.monotonic = lambda: 52.0  # of the first
    assert log.due
    log.sync()
    assert (syncs, log.waits, log.due, log.unsynced()) == (["fdatasync"], False, False, [])
    log.write([batch(5, 4)])
    assert not log.due
    assert log.unsynced() == [batch(5, 4)]
    log.write([batch(9)])
    assert (syncs, log.waits) == (["fdatasync"] * 2, False)


def test_a_write_without_messages_counts_as_one(tmp_path: Path, syncs: list[str]) -> None:
    """Declarations alone."""
    log = Log(tmp_path, SALT, Syncing(2, 60.0))
    for _ in range(2):
        syncs.clear()
        log.write([batch(1, 0), batch(2, 0)])
        assert (syncs, log.waits) == ([], True)
        log.write([batch(3, 0)])
        assert (syncs, log.waits) == (["fdatasync"], False)


def test_a_write_that_is_refused_leaves_the_segment_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(tmp_path, SALT, Syncing(5, 2.0))
    log.write([batch(1)])
    size, real = log.size, os.pwritev

    def full(fd: int, buffers: list[bytes], offset: int) -> int:
        real(fd, [buffers[0][:10]], offset)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(logs.os, "pwritev", full)
    with pytest.raises(OSError, match="No space left"):
        log.write([batch(2)])
    monkeypatch.undo()
    assert (log.size, os.path.getsize(log.path(1)), log.suspect) == (size, size, False)
    assert log.unsynced() == [batch(1)]
    log.write([batch(2)])
    assert has(log, 1) == [batch(1), batch(2)]


@pytest.mark.parametrize("fails", ["ftruncate", "fsync"])
def test_where_what_was_refused_cannot_be_taken_back_only_another_segment_is_worth_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """After a power cut it could be there all the same."""
    log = Log(tmp_path, SALT)
    log.write([batch(1)])

    def refuse(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(logs.os, "fdatasync", refuse)
    monkeypatch.setattr(logs.os, fails, refuse)
    log.suspect = False
    with pytest.raises(OSError, match="Input/output error"):
        log.write([batch(2)])
    assert log.suspect
    monkeypatch.undo()
    log.roll([batch(3)])
    assert not log.suspect
    assert (has(log, 1), has(log, 2)) == ([batch(1)], [batch(3)])


def test_what_is_not_written_to_the_disk_at_once_is_suspect_only_where_it_cannot_be_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(tmp_path, SALT, Syncing(5, 2.0))

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(logs.os, "pwritev", full)
    with pytest.raises(OSError, match="No space"):
        log.write([batch(1)])
    assert not log.suspect
    monkeypatch.setattr(logs.os, "ftruncate", full)
    with pytest.raises(OSError, match="No space"):
        log.write([batch(1)])
    assert log.suspect


def test_after_a_sync_that_failed_another_is_worth_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(tmp_path, SALT, Syncing(5, 2.0))
    log.write([batch(1)])

    def refuse(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(logs.os, "fdatasync", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        log.sync()
    assert (log.suspect, log.waits) == (True, True)


def test_where_the_kernel_takes_a_part_the_rest_is_written_behind_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(tmp_path, SALT)
    real_v, real = os.pwritev, os.pwrite
    monkeypatch.setattr(logs, "_IOV_MAX", 3)
    monkeypatch.setattr(logs.os, "pwritev", lambda fd, some, offset: real_v(fd, [b"".join(some)[:5]], offset))
    monkeypatch.setattr(logs.os, "pwrite", lambda fd, some, offset: real(fd, bytes(some)[:7], offset))
    many = [batch(number) for number in range(1, 8)]
    log.write(many)
    monkeypatch.undo()
    assert has(Log(tmp_path, SALT), 1) == many


def test_a_new_segment_begins_with_its_head_and_what_was_before_is_durable(tmp_path: Path, syncs: list[str]) -> None:
    log = Log(tmp_path, SALT, Syncing(5, 2.0))
    log.write([batch(1)])
    assert (log.written > 0, log.waits) == (True, True)
    syncs.clear()
    start = log.roll([batch(2)], [batch(3)])
    assert syncs[:2] == ["fdatasync", "fdatasync"]  # of the old one, and of the new one before it has its name
    assert (log.numbers, log.active, log.waits, log.suspect) == ([1, 2], 2, False, False)
    assert has(log, 2) == [batch(2), batch(3)]
    assert log.written == log.size - start > 0
    assert [one.name for one in sorted(tmp_path.iterdir())] == ["0000000001.log", "0000000002.log"]


@pytest.mark.parametrize("fails", ["pwritev", "fdatasync"])
def test_a_segment_that_cannot_be_begun_leaves_the_old_one_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    log = Log(tmp_path, SALT)
    log.write([batch(1)])

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(logs.os, fails, full)
    with pytest.raises(OSError, match="No space left"):
        log.roll([])
    monkeypatch.undo()
    assert (log.numbers, log.active) == ([1], 1)
    assert [one.name for one in tmp_path.iterdir()] == ["0000000001.log"]
    log.write([batch(2)])
    assert has(log, 1) == [batch(1), batch(2)]


def test_a_segment_that_is_cut_or_removed_is_so_on_the_disk(tmp_path: Path, syncs: list[str]) -> None:
    log = Log(tmp_path, SALT)
    log.write([batch(1)])
    size = log.size
    log.write([batch(2)])
    syncs.clear()
    log.cut(size)
    assert (log.size, os.path.getsize(log.path(1)), syncs) == (size, size, ["fdatasync"])
    log.roll([])
    log.remove(1)
    assert (log.numbers, [one.name for one in tmp_path.iterdir()]) == ([2], ["0000000002.log"])


def test_a_start_makes_durable_what_it_found_and_removes_what_was_not_begun(tmp_path: Path, syncs: list[str]) -> None:
    folder = tmp_path / "new"
    first = Log(folder, SALT)
    assert (first.inherited, first.written) == (0, 0)
    (folder / "0000000002.new").write_bytes(b"half a head")
    syncs.clear()
    again = Log(folder, SALT)
    assert (again.inherited, again.active, syncs) == (1, 1, ["fsync"])
    assert [one.name for one in folder.iterdir()] == ["0000000001.log"]
    assert again.written == again.size > 0
    again.write([batch(1)])
    assert syncs == ["fsync", "fdatasync"]


def test_what_was_in_flight_is_tried_again_and_what_is_damaged_by_nobody() -> None:
    """Numbers 10 to 12 are damaged."""
    rows = {9: (0, 1), 10: (0, 1), 12: (0, 4), 13: (5, 2), 14: (FINISHED, 0), 15: (FINISHED, 0)}
    index: Any = SimpleNamespace(
        retries=lambda channel: [SimpleNamespace(seq=seq, due=due, attempts=tries) for seq, (due, tries) in rows.items()],
        damaged=lambda topic: [(10, 13)], count=lambda topic, low, high: high - low,
    )  # fmt: skip
    channel = ChannelState(7, "c", 14, inflight=[8, 9, 10, 12, 13, 15])
    topic: Any = SimpleNamespace(id=1, channels={"c": channel}, paused=False, next=20, pumped=16, depth=0)
    loading.load_backlog(index, topic)
    assert channel.inflight == [8, 9, 13, 15]
    assert channel.retries == {8: Retry(0, 1), 9: Retry(0, 2), 13: Retry(0, 3), 15: Retry(0, 1)}
    assert (channel.beyond_cursor, channel.finished_early) == ({14, 15}, [14])
    assert (topic.pumped, topic.depth, channel.waiting) == (20, 0, 20 - 14 - 2)

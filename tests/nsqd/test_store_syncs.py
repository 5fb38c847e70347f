"""What the storage writes and syncs, in which order, and what it does after a write or a sync that failed."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from framework.nsqd.store import (
    Entry,
    Store,
    Syncing,
    TopicSave,
    files,
    log,
)
from tests.nsqd.storing import TOPIC, declared, everything, killed, lose_index, payload, publish, saved, segment


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


def test_the_numbers_of_what_could_not_be_cut_off_are_not_given_again_by_a_restart(
    opened: Store, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else is written of its topic, and the index knows the log up to behind it."""
    opened.append([declared(8)])
    (first,) = publish(opened, b"a")
    opened.save([TopicSave(TOPIC, first.end)], [saved(first.end)])
    with monkeypatch.context() as patch:
        for name in ("fdatasync", "fsync", "ftruncate"):
            patch.setattr(os, name, refused)
        with pytest.raises(OSError, match="Input/output error"):
            publish(opened, b"refused", b"refused too")
    publish(opened, b"y", topic=8)
    opened.save()
    again = Store(killed(opened, folder, tmp_path / "copy"))
    assert publish(again, b"b")[0].first >= first.end + 2
    again.close()


def test_what_could_not_be_cut_off_is_cut_off_when_the_disk_works_again(
    opened: Store, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(opened, b"a")
    with monkeypatch.context() as patch:
        for name in ("fdatasync", "fsync", "ftruncate"):
            patch.setattr(os, name, refused)
        with pytest.raises(OSError, match="Input/output error"):
            publish(opened, b"refused")
    publish(opened, b"b")
    again = Store(killed(opened, folder, tmp_path / "copy"))
    assert (everything(again), again.reports) == ([b"a", b"b"], [])
    again.close()


@pytest.mark.parametrize("times", [1, 2])
def test_what_a_failed_sync_refused_is_not_reported_as_lost_without_the_index(
    opened: Store, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    publish(opened, b"a")
    for _ in range(times):
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", refused)
            with pytest.raises(OSError, match="Input/output error"):
                publish(opened, b"x", b"y", b"z")
        publish(opened, b"b")
    copy = killed(opened, folder, tmp_path / "copy")
    lose_index(copy)
    again = Store(copy)
    assert (everything(again), again.reports) == ([b"a"] + [b"b"] * times, [])
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


@pytest.mark.parametrize("fails", [False, True])
def test_what_the_removal_of_a_file_rests_on_is_synced_and_nothing_else(opened: Store, fails: bool) -> None:
    """SQLite's 1 syncs where it tidies up, its 2 at each commit."""
    db = opened.index._db

    def syncs() -> int:
        return int(db.execute("pragma synchronous").fetchone()[0])

    with opened.index.transaction():
        assert syncs() == 1
    with pytest.raises(ZeroDivisionError) if fails else nullcontext(), opened.index.transaction(synced=True):
        assert syncs() == 2
        if fails:
            1 / 0  # noqa: B018
    with opened.index.transaction():
        assert syncs() == 1


def test_a_folder_and_a_file_are_on_the_disk_when_they_are_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(files.os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    files.write_synced(tmp_path / "file", b"all of it")
    files.sync_folder(tmp_path)
    assert synced == [str(tmp_path / "file"), str(tmp_path)]
    assert (tmp_path / "file").read_bytes() == b"all of it"

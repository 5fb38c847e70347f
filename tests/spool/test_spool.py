"""The spool lands a batch once and durably, or not at all."""

from __future__ import annotations

import errno
import multiprocessing
import os
import resource
import threading
import time
from pathlib import Path

import gevent
import pytest

from framework.errors import WrongUse
from framework.message import Batch, Message
from framework.spool import Spool, SpoolError, files, segment
from framework.spool import spool as spool_module
from framework.spool.root import collectors, ensure_epoch, epoch
from tests.spool.rows import NOTED, MakeBatch, ids, landed


def test_what_is_landed_is_read_back_byte_for_byte(tmp_path: Path, batch: MakeBatch) -> None:
    spool = Spool(tmp_path, "archive")
    body = bytes(range(256)) + "żółw 🐢".encode()
    assert spool.land(batch(7, 8, body=body)) == 1
    assert landed(spool) == [
        {
            "value": body, "message_id": "0000000000000007", "timestamp_ns": 1_700_000_000_123_456_796,
            "attempts": 1, "topic": "orders", "nsqd": "127.0.0.1:4150",
        }
    ]  # fmt: skip


def test_segments_are_numbered_and_named_with_their_rows(tmp_path: Path, batch: MakeBatch) -> None:
    spool = Spool(tmp_path)
    spool.land(batch(0, 3))
    spool.land(batch(3, 5))
    assert [(one.number, one.rows) for one in segment.listing(spool.folder)] == [(1, 3), (2, 2)]


def test_a_message_that_comes_again_is_dropped(tmp_path: Path, batch: MakeBatch) -> None:
    spool = Spool(tmp_path)
    assert spool.land(batch(0, 10)) == 10
    assert spool.land(batch(5, 15)) == 5
    assert spool.land(batch(0, 15)) == 0
    assert len(ids(spool)) == len(set(ids(spool))) == 15
    assert len(segment.listing(spool.folder)) == 2, "a batch with nothing new makes no segment"


def test_a_message_twice_in_one_batch_is_landed_once(tmp_path: Path, batch: MakeBatch) -> None:
    spool = Spool(tmp_path)
    assert spool.land(Batch([*batch(0, 3), *batch(1, 4)])) == 4


def test_the_same_id_of_another_node_or_topic_is_another_message(tmp_path: Path, batch: MakeBatch) -> None:
    spool = Spool(tmp_path)
    assert spool.land(batch(0, 2)) == 2
    assert spool.land(batch(0, 2, node="127.0.0.1:9999")) == 2
    assert spool.land(batch(0, 2, topic="invoices")) == 2


def test_a_new_process_knows_what_the_last_one_landed(tmp_path: Path, batch: MakeBatch) -> None:
    with Spool(tmp_path) as first:
        first.land(batch(0, 10))
    with Spool(tmp_path) as second:
        assert second.land(batch(0, 12)) == 2
        assert [one.number for one in segment.listing(second.folder)] == [1, 2]


def test_the_ids_of_a_window_are_remembered_and_older_ones_forgotten(tmp_path: Path, batch: MakeBatch) -> None:
    spool = Spool(tmp_path, window=100, remember=0)
    for first in range(0, 400, 50):
        spool.land(batch(first, first + 50))
    assert spool.land(batch(300, 400)) == 0, "the newest 100"
    assert spool.land(batch(0, 50)) == 50, "the oldest"


def test_an_opening_spool_reads_no_more_than_its_window(
    tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Spool(tmp_path) as first:
        for n in range(0, 100, 10):
            first.land(batch(n, n + 10))
    opened: list[Path] = []
    read = segment.read
    monkeypatch.setattr(segment, "read", lambda path, columns: (opened.append(path), read(path, columns))[1])
    for window in (25, 30):
        opened.clear()
        with Spool(tmp_path, window=window, remember=0):
            pass
        assert [path.name[:20] for path in opened] == [f"{n:020d}" for n in (8, 9, 10)]


def test_a_full_disk_lands_nothing_and_leaves_nothing_behind(
    tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path)
    spool.land(batch(0, 5))

    def full(path: Path, rows: object) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as broken:
        broken.setattr(files, "_write_and_sync", full)
        with pytest.raises(SpoolError, match="5 messages could not be written: No space left on device"):
            spool.land(batch(5, 10))
    assert sorted(os.listdir(spool.folder)) == ["00000000000000000001-5.arrow", "epoch", "lock", "remember", NOTED]
    assert spool.land(batch(0, 10)) == 5, "it goes on by itself once there is room"


def test_a_write_that_the_system_cuts_short_leaves_nothing_behind(tmp_path: Path, batch: MakeBatch) -> None:
    def land() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        with pytest.raises(SpoolError, match="300 messages could not be written: File too large"):
            Spool(tmp_path).land(batch(0, 300))

    writer = multiprocessing.get_context("fork").Process(target=land)
    writer.start()
    writer.join(30)
    assert writer.exitcode == 0
    assert sorted(os.listdir(tmp_path / "main")) == ["epoch", "lock", "remember"]


def test_when_the_folders_sync_fails_the_disk_decides_what_is_there(
    tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path)
    spool.open()

    def fail(folder: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        broken.setattr(files, "sync_folder", fail)
        with pytest.raises(SpoolError, match="Input/output error"):
            spool.land(batch(0, 5))
    assert spool.land(batch(0, 5)) == 0, "the segment has its name already; landing it again would double it"
    assert len(ids(spool)) == 5


def test_a_segment_is_never_overwritten(tmp_path: Path, batch: MakeBatch) -> None:
    spool = Spool(tmp_path)
    spool.open()
    taken = spool.folder / f"{1:020d}-3.arrow"
    taken.write_bytes(b"another's")
    spool.land(batch(0, 3))
    assert taken.read_bytes() == b"another's"
    assert (spool.folder / f"{2:020d}-3.arrow").exists()


def test_large_bodies_are_spread_over_segments(tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "SEGMENT_BYTES", 1000)
    spool = Spool(tmp_path)
    assert spool.land(batch(0, 7, body=b"x" * 400)) == 7
    assert [one.rows for one in segment.listing(spool.folder)] == [2, 2, 2, 1]


def test_trimming_keeps_what_the_ids_need(tmp_path: Path, batch: MakeBatch) -> None:
    spool = Spool(tmp_path)
    for n in range(0, 60, 10):
        spool.land(batch(n, n + 10))
    assert segment.trim(spool.folder, before=2, keep_rows=10) == 1
    assert segment.listing(spool.folder)[0].number == 2, "what is before 2 goes, and 2 does not"
    assert segment.trim(spool.folder, before=6, keep_rows=25) == 2
    assert [one.number for one in segment.listing(spool.folder)] == [4, 5, 6]
    assert segment.trim(spool.folder, before=100, keep_rows=0) == 2
    assert [one.number for one in segment.listing(spool.folder)] == [6], "the last one stays, it keeps the numbering"
    spool.close()
    spool.land(batch(60, 61))
    assert segment.listing(spool.folder)[-1].number == 7


def test_who_is_killed_while_it_deletes_leaves_no_gap(tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gap is data loss to every query that begins there."""
    spool = Spool(tmp_path)
    for n in range(6):
        spool.land(batch(n, n + 1))
    unlink = Path.unlink

    def die(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok=missing_ok)
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(Path, "unlink", die)
        with pytest.raises(KeyboardInterrupt):
            segment.trim(spool.folder, before=5, keep_rows=1)
    assert [one.number for one in segment.listing(spool.folder)] == [2, 3, 4, 5, 6]


def dated(spool: Spool, *seconds: float) -> None:
    """Have its segments be so old."""
    now = time.time()
    for one, age in zip(segment.listing(spool.folder), seconds, strict=True):
        os.utime(one.path, (now - age, now - age))


def test_segments_older_than_the_retention_go_and_the_ids_stay_known(tmp_path: Path, batch: MakeBatch) -> None:
    spool = Spool(tmp_path, retention=3600, window=15)
    for n in range(0, 50, 10):
        spool.land(batch(n, n + 10))
    assert len(segment.listing(spool.folder)) == 5
    dated(spool, 7000, 6800, 6600, 5000, 2000)
    spool.close()
    with Spool(tmp_path, retention=3600, window=15) as again:
        again.land(batch(50, 51))
        assert [one.number for one in segment.listing(again.folder)] == [4, 5, 6], "1 to 3 are not needed for 15 ids"
        assert again.land(batch(35, 51)) == 0


def test_what_is_expired_goes_to_the_last_one_and_is_not_looked_for_with_every_batch(
    tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Spool(tmp_path, window=1) as spool:
        for n in range(4):
            spool.land(batch(n, n + 1))
    dated(spool, 7000, 6500, 5000, 3000)
    spool = Spool(tmp_path, retention=3600, window=1)
    spool.open()
    looked: list[Path] = []
    listing = segment.listing
    monkeypatch.setattr(segment, "listing", lambda folder: (looked.append(folder), listing(folder))[1])
    for n in range(4, 7):
        spool.land(batch(n, n + 1))
    assert [one.number for one in listing(spool.folder)] == [4, 5, 6, 7]
    assert len(looked) == 2, "one listing for what is expired, and one to delete it"


def test_what_cannot_be_deleted_is_landed_behind_all_the_same(
    tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    spool = Spool(tmp_path, retention=3600, window=1)
    spool.land(batch(0, 1))
    spool.land(batch(2, 3))
    dated(spool, 3700, 1800)
    spool.close()
    monkeypatch.setattr(segment, "trim", fail)
    again = Spool(tmp_path, retention=3600, window=1)
    assert again.land(batch(1, 2)) == 1
    assert "expired segments were not deleted" in caplog.text


def test_an_opening_that_failed_is_no_opening(tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    with Spool(tmp_path) as first:
        first.land(batch(0, 3))

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    second = Spool(tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr(files, "listing", fail)
        with pytest.raises(SpoolError, match="cannot be opened: Input/output error"):
            second.land(batch(0, 3))
    with Spool(tmp_path) as third:
        third.open()  # its lock is free
    assert second.land(batch(0, 4)) == 1, "and it has learnt the ids"


def test_the_names_are_durable_before_their_ids_are_known(
    tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Spool(tmp_path) as first:
        first.land(batch(0, 3))
    steps: list[str] = []
    sync, listing = files.sync_folder, files.listing
    monkeypatch.setattr(files, "sync_folder", lambda folder: (steps.append(folder.name), sync(folder))[1])
    monkeypatch.setattr(files, "listing", lambda folder: (steps.append("learn"), listing(folder))[1])
    Spool(tmp_path).open()
    assert steps[-2:] == ["main", "learn"]


def test_a_segment_that_a_reader_deletes_meanwhile_is_no_error(
    tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Spool(tmp_path) as first:
        first.land(batch(0, 1))
        first.land(batch(1, 2))
    read = segment.read

    def gone(path: Path, columns: list[str]) -> object:
        if path.name.startswith(f"{1:020d}"):
            path.unlink()
        return read(path, columns)

    monkeypatch.setattr(segment, "read", gone)
    assert Spool(tmp_path).land(batch(1, 3)) == 1


def test_the_epoch_is_minted_once_and_new_for_a_new_folder(tmp_path: Path) -> None:
    assert epoch(tmp_path / "a") is None
    first = ensure_epoch(tmp_path / "a")
    assert ensure_epoch(tmp_path / "a") == first == epoch(tmp_path / "a")
    assert ensure_epoch(tmp_path / "b") != first
    assert os.listdir(tmp_path / "a") == ["epoch"]


def test_processes_that_start_together_agree_on_the_epoch(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        assert len(set(pool.map(ensure_epoch, [tmp_path / "s"] * 16))) == 1


def test_the_collectors_are_the_folders(tmp_path: Path, batch: MakeBatch) -> None:
    for name in ("b", "a"):
        Spool(tmp_path, name).land(batch(0, 1))
    (tmp_path / ".hidden").mkdir()
    assert collectors(tmp_path) == ["a", "b"]


@pytest.mark.parametrize("name", ["", "a/b", "../a", ".a", "epoch", "x" * 65])
def test_a_bad_collector_name_is_refused_at_once(tmp_path: Path, name: str) -> None:
    with pytest.raises(WrongUse, match="collector name"):
        Spool(tmp_path / "s", name)
    assert not (tmp_path / "s").exists()


def test_a_bad_retention_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match="retention=0"):
        Spool(tmp_path, retention=0)


@pytest.mark.parametrize("folder", ["ftp://host/spool", "dbfs:/spool", "file:///spool"])
def test_a_url_that_no_spool_can_have_is_refused_and_no_folder_is_made_of_it(
    tmp_path: Path, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WrongUse, match=f"'{folder}' is a URL: give a path, or a URL that a spool can have, s3://bucket/spool"):
        Spool(folder).open()
    assert os.listdir(tmp_path) == []


def test_making_a_spool_touches_nothing(tmp_path: Path) -> None:
    Spool(tmp_path / "s")
    assert os.listdir(tmp_path) == []


def test_the_hub_goes_on_while_a_batch_lands(tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path)
    syncing, go = threading.Event(), threading.Event()
    real = files._write_and_sync

    def slow(path: Path, rows: object) -> None:
        syncing.set()
        assert go.wait(10)
        real(path, rows)

    monkeypatch.setattr(files, "_write_and_sync", slow)
    landing = gevent.spawn(spool.land, batch(0, 5))
    with gevent.Timeout(10):
        while not syncing.is_set():
            gevent.sleep(0.001)
        gevent.sleep(0.01)  # the hub turns while the disk does not answer
        go.set()
        assert landing.get() == 5


def test_many_greenlets_and_threads_share_one_spool(tmp_path: Path, batch: MakeBatch) -> None:
    spool = Spool(tmp_path)
    totals: list[int] = []

    def some() -> None:
        jobs = [gevent.spawn(spool.land, batch(n, n + 20)) for n in range(0, 200, 10)]
        totals.append(sum(job.get(timeout=20) for job in jobs))

    threads = [threading.Thread(target=some) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sum(totals) == 210
    assert len(ids(spool)) == len(set(ids(spool))) == 210


def test_an_error_in_the_pool_reaches_the_handler_and_is_not_printed(
    tmp_path: Path, batch: MakeBatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s").write_text("a file, not a folder")
    spool = Spool(tmp_path / "s")

    def handle() -> None:
        with pytest.raises(SpoolError, match="cannot be opened"):
            spool.land(batch(0, 1))

    gevent.spawn(handle).get(timeout=10)
    assert capfd.readouterr().err == ""


def test_any_message_id_survives_the_round_trip(tmp_path: Path, batch: MakeBatch) -> None:
    odd = Message(id=b"\xff\x00\\x", timestamp=1, attempts=65535, body=b"b", connection=batch(0, 1)[0].connection)
    with Spool(tmp_path) as spool:
        assert spool.land(Batch([odd])) == 1
    assert Spool(tmp_path).land(Batch([odd])) == 0

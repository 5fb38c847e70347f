"""The storage: what a torn tail or a damaged record of the log costs, and that it costs nothing else."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from framework.nsqd.store import (
    Batch,
    Retry,
    Store,
    TopicSave,
    log,
    record,
    recovery,
    segments,
    unfinished,
)
from framework.nsqd.store.formats import FolderUnusable
from tests.nsqd.storing import (
    TOPIC,
    declared,
    everything,
    flip,
    killed,
    lose_index,
    payload,
    publish,
    saved,
    segment,
)


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


@pytest.mark.parametrize("left", [5, 30, 60], ids=["of its first field", "of its header", "of its payload"])
def test_a_torn_tail_behind_a_damaged_record_is_cut_as_any_other(opened: Store, folder: Path, tmp_path: Path, left: int) -> None:
    publish(opened, b"a")
    middle = segment(folder).stat().st_size
    publish(opened, b"damaged")
    end = segment(folder).stat().st_size
    publish(opened, b"never confirmed" * 5)
    copy = killed(opened, folder, tmp_path / "killed")
    os.truncate(segment(copy), end + left)
    flip(segment(copy), middle + record.HEADER_BYTES + 6)
    lose_index(copy)
    again = Store(copy)
    assert everything(again) == [b"a"]
    assert segment(copy).stat().st_size == end
    cut = f"{left} bytes at {end} of segment 1 are the start of a record that was never confirmed: cut off"
    assert [cut in report for report in again.reports].count(True) == 1
    again.close()


def test_a_start_that_fails_leaves_no_copy_of_what_is_damaged_and_the_next_one_reports_it(
    opened: Store, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(opened, b"a")
    middle = segment(folder).stat().st_size
    publish(opened, b"damaged")
    publish(opened, b"b")
    copy = killed(opened, folder, tmp_path / "killed")
    flip(segment(copy), middle + record.HEADER_BYTES + 6)
    lose_index(copy)
    settle = recovery._Scan.settle

    def settle_and_fail(scan: recovery._Scan, position: tuple[int, int] | None) -> None:
        settle(scan, position)
        assert len(list((copy / "bad").iterdir())) == 1
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(recovery._Scan, "settle", settle_and_fail)
        with pytest.raises(FolderUnusable, match="No space left"):
            Store(copy)
    assert list((copy / "bad").iterdir()) == []
    again = Store(copy)
    assert everything(again) == [b"a", b"b"]
    assert len(list((copy / "bad").iterdir())) == len([one for one in again.reports if "kept in" in one]) == 1
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


@pytest.mark.parametrize("indexed", [True, False], ids=["with the index", "without"])
@pytest.mark.parametrize("field", [0, 9, 20, 27, 44, 52], ids=["magic", "length", "first", "count", "a size", "a body"])
def test_bit_rot_in_the_last_record_is_not_taken_for_a_torn_one(folder: Path, field: int, indexed: bool) -> None:
    """It was confirmed: it is counted as lost, and stays in the log."""
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    publish(opened, b"whole")
    end = opened.log.size
    publish(opened, *[b"confirmed-%d" % at for at in range(7)])
    opened.close()
    if not indexed:
        (folder / "index.db").unlink()
    data = bytearray(segment(folder).read_bytes())
    data[end + field] ^= 4
    segment(folder).write_bytes(data)
    again = Store(folder)
    assert everything(again) == [b"whole"]
    assert [report for report in again.reports if "7 messages lost" in report] == again.reports != []
    assert segment(folder).stat().st_size == len(data)
    publish(again, b"next")
    again.close()
    (folder / "index.db").unlink()
    last = Store(folder)
    assert everything(last) == [b"whole", b"next"]
    assert last.reports == []
    last.close()


def test_many_damaged_records_of_a_segment_take_one_scan(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    for at in range(40):
        publish(opened, b"%d" % at * 20)
    opened.close()
    data = bytearray(segment(folder).read_bytes())
    for at in range(10, 30):
        data[data.find(b"%d" % at * 20) + 5] ^= 1
    segment(folder).write_bytes(data)
    scans: list[int] = []
    scan = log.Log.scan
    monkeypatch.setattr(log.Log, "scan", lambda self, number, *where: scans.append(number) or scan(self, number, *where))
    again = Store(folder)
    scans.clear()
    seqs = range(again.index.batches(TOPIC, 0, 1)[0].first, again.topics[TOPIC].next)
    found = again.bodies(TOPIC, seqs, 1 << 20)
    assert sum(one is None for one in found.values()) == 20
    assert ["damaged: 20 messages lost" in report for report in again.reports] == [True], "they lie side by side"
    again.bodies(TOPIC, seqs, 1 << 20)
    assert scans == [1]
    again.close()


def test_messages_that_the_log_lost_with_its_end_are_counted(folder: Path) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    publish(opened, b"stays")
    end = opened.log.size
    publish(opened, *[b"gone"] * 30)
    opened.close()
    os.truncate(segment(folder), end)
    again = Store(folder)
    assert everything(again) == [b"stays"]
    assert again.topics[TOPIC].channels["c"].waiting == 1
    assert len(again.reports) == 1
    assert "30 messages lost" in again.reports[0]
    again.close()


def test_a_long_record_of_the_log_is_scanned_with_what_it_needs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows smaller than records, and records that end where windows end."""
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    bodies = [bytes([at]) * size for at, size in enumerate([1, 5000, 40, 900, 10_000, 2])]
    for body in bodies:
        publish(opened, body)
    opened.close()
    (folder / "index.db").unlink()
    for window in (1, 44, 1000, 1001, 4096):
        monkeypatch.setattr(segments, "_WINDOW_BYTES", window)
        again = Store(folder)
        assert everything(again) == bodies
        assert again.reports == []
        again.close()
        (folder / "index.db").unlink()


def test_a_record_behind_damage_is_found_wherever_a_window_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_WINDOW_BYTES", 60)
    one = b"".join(record.encode(Batch(TOPIC, 0, 1, 1, 0, payload(b"x")), 5))
    for damaged in range(1, 130):
        (tmp_path / "1.log").write_bytes(one + bytes(damaged) + one)
        found = list(segments.Segments(tmp_path, 5, {1: tmp_path / "1.log"}).scan(1))
        assert [(type(item), item.offset) for item in found] == [
            (segments.Found, 0), (segments.Broken, len(one)), (segments.Found, len(one) + damaged)
        ]  # fmt: skip


def test_what_is_kept_of_damage_is_on_the_disk_before_the_log_is_cut(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut it would be in neither."""
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    publish(opened, b"whole")
    opened.close()
    with segment(folder).open("ab") as file:
        file.write(b"the start of a record")
    done: list[str] = []
    for name in ("fsync", "ftruncate"):
        monkeypatch.setattr(os, name, noted(done, getattr(os, name)))
    Store(folder).close()
    (kept,) = (folder / "bad").iterdir()
    assert done.index(f"fsync {kept.name}") < done.index(f"ftruncate {segment(folder).name}")


def noted(done: list[str], call: Callable[..., None]) -> Callable[..., None]:
    """``call``, which adds its name and that of the file to ``done``."""

    def noting(fd: int, *rest: int) -> None:
        done.append(f"{call.__name__} {Path(f'/proc/self/fd/{fd}').resolve().name}")
        call(fd, *rest)

    return noting


def test_damage_right_behind_what_the_index_knows_is_counted(opened: Store, folder: Path, tmp_path: Path) -> None:
    publish(opened, b"indexed")
    opened.flush()
    at = opened.log.size
    publish(opened, *[b"damaged"] * 5)
    opened._roll()
    publish(opened, b"behind it")
    copy = killed(opened, folder, tmp_path / "killed")
    flip(segment(copy), at + 60)
    again = Store(copy)
    assert everything(again) == [b"indexed", b"behind it"]
    assert again.topics[TOPIC].channels["c"].waiting == 2
    assert len(again.reports) == 1
    assert "damaged: 5 messages lost" in again.reports[0]
    again.close()


def test_what_waits_for_its_next_try_is_there_at_each_start_after_damage_beside_it(folder: Path) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    (before,) = publish(opened, b"before", b"before")
    at = opened.log.size
    (gone,) = publish(opened, b"damaged", b"damaged")
    (behind,) = publish(opened, b"behind", b"behind", b"behind")
    tried = {seq: Retry(0, 2) for seq in (before.first, gone.first, behind.first)}
    inflight = [before.first + 1, gone.first + 1, behind.first + 1]
    opened.save([TopicSave(TOPIC, behind.end)], [saved(behind.end, put=tried, inflight=inflight)])
    opened.close()
    flip(segment(folder), at + 60)
    again = Store(folder)
    assert list(again.bodies(TOPIC, [gone.first], 100).values()) == [None]
    again.close()
    for _ in range(2):
        last = Store(folder)
        attempts = {seq: one.attempts for seq, one in last.topics[TOPIC].channels["c"].retries.items()}
        assert attempts == {before.first: 2, before.first + 1: 1, behind.first: 2, behind.first + 1: 1}
        last.close()


def test_numbers_that_were_given_to_nobody_are_not_lost_with_the_record_before_them(folder: Path) -> None:
    """A group whose sync failed uses its numbers up. There is no room for them in the damaged bytes."""
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    at = opened.log.size
    publish(opened, *[b"x"] * 8)
    opened.topics[TOPIC].next += 5
    publish(opened, b"behind")
    opened.close()
    lose_index(folder)
    flip(segment(folder), at + 49)
    again = Store(folder)
    assert [report for report in again.reports if "damaged: 8 messages lost" in report] == again.reports != []
    assert everything(again) == [b"behind"]
    again.close()


def test_messages_that_fill_the_damaged_bytes_are_lost_whatever_its_header_says(folder: Path) -> None:
    """Their topic is another's in it, which loses nothing, and whose next messages come."""
    other = TOPIC ^ 1
    opened = Store(folder)
    opened.append([declared(TOPIC, "c"), declared(other)])
    publish(opened, b"other", topic=other)
    at = opened.log.size
    publish(opened, *[b"x"] * 8)
    publish(opened, b"behind")
    opened.close()
    lose_index(folder)
    flip(segment(folder), at + 15)
    again = Store(folder)
    assert [report for report in again.reports if "damaged: 8 messages lost" in report] == again.reports != []
    assert (len(again.index.damaged(TOPIC)), again.index.damaged(other)) == (1, [])
    publish(again, b"next", topic=other)
    assert (everything(again), everything(again, other)) == ([b"behind"], [b"other", b"next"])
    again.close()


def test_several_damaged_records_at_the_end_are_each_counted(folder: Path) -> None:
    """Nothing follows that would say which numbers they had."""
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    publish(opened, b"whole", b"whole")
    places = []
    for at in range(3):
        places.append(opened.log.size)
        publish(opened, *[b"damaged-%d" % at] * (at + 2))
    opened.close()
    (folder / "index.db").unlink()
    for place in places:
        flip(segment(folder), place + 50)
    again = Store(folder)
    assert again.topics[TOPIC].channels["c"].waiting == len(everything(again)) == 2
    lost = re.findall(r"damaged: (\d+) messages lost", " ".join(again.reports))
    assert list(map(int, lost)) == [2, 3, 4]
    again.close()


def test_what_is_finished_is_not_counted_as_lost_and_what_is_in_flight_or_to_be_tried_again_is(opened: Store) -> None:
    """Whatever part of the topic the damage is in."""
    publish(opened, *[b"x"] * 10)
    put = {2: Retry(1, 1 << 42), 3: Retry(1, 1 << 42)}
    opened.save([TopicSave(TOPIC, 10)], [saved(6, inflight=[1, 4, 7], put=put)])
    waited_for = [1, 2, 3, 4, 6, 7, 8, 9]
    for low in range(11):
        for high in range(low, 11):
            expected = sum(low <= one < high for one in waited_for)
            assert unfinished.count(opened.catalog, opened.index, TOPIC, low, high) == expected, (low, high)
            found = unfinished.any_of(opened.catalog, opened.index, TOPIC, low, high)
            assert found >= (expected > 0), (low, high)


@pytest.mark.parametrize("moved", [False, True], ids=["", "the first was moved"])
def test_records_of_several_topics_that_are_damaged_in_one_stretch_are_each_counted(folder: Path, moved: bool) -> None:
    """The header of the first alone is left. What the others had is known by the numbers of their topics."""
    opened = Store(folder)
    opened.append([declared(TOPIC, "c"), declared(8, "d")])
    old = publish(opened, b"old")
    at = opened.log.size
    if moved:
        opened.move([msgspec.structs.replace(one, moved=True) for one in old])
    publish(opened, *[b"of the first"] * 3)
    publish(opened, *[b"of the other"] * 4, topic=8)
    end = opened.log.size
    publish(opened, b"kept")
    publish(opened, b"kept", topic=8)
    opened.close()
    lose_index(folder)
    data = segment(folder).read_bytes()
    segment(folder).write_bytes(data[: at + 50] + b"\xff" * (end - at - 50) + data[end:])
    again = Store(folder)
    assert (everything(again), everything(again, 8)) == ([b"old", b"kept"], [b"kept"])
    assert "are damaged: 7 messages lost" in " ".join(again.reports)
    again.close()

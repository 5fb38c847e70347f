"""The segments of a log by themselves: which there are, what they hold, and what a scan finds between damaged bytes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from framework.nsqd.store import segments
from framework.nsqd.store.record import HEADER_BYTES, MAGIC, Batch, encode
from framework.nsqd.store.segments import Broken, Found, Segments
from tests.nsqd.storing import payload

SALT = 5


def batch(first: int, body: bytes = b"x") -> Batch:
    return Batch(1, first, 1, 7, 0, payload(body))


def written(*pieces: Batch | bytes) -> bytes:
    return b"".join(one if isinstance(one, bytes) else b"".join(encode(one, SALT)) for one in pieces)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A folder with two segments."""
    (tmp_path / "0000000002.log").write_bytes(written(batch(10), batch(11)))
    (tmp_path / "0000000001.log").write_bytes(written(batch(9)))
    return tmp_path


def scanned(folder: Path, *pieces: Batch | bytes, start: int = 0, end: int | None = None) -> list[Found | Broken]:
    (folder / "0000000001.log").write_bytes(written(*pieces))
    return list(Segments(folder, SALT).scan(1, start, end))


def found(*pieces: Batch | bytes) -> list[Found | Broken]:
    """What a scan should find: each batch whole, all else broken; torn is what comes last."""
    expected: list[Found | Broken] = []
    offset = 0
    for at, one in enumerate(pieces):
        length = len(written(one))
        expected.append(Found(offset, length, one) if isinstance(one, Batch) else Broken(offset, length, at == len(pieces) - 1))
        offset += length
    return expected


def test_a_folder_without_any_has_none(tmp_path: Path) -> None:
    none = Segments(tmp_path, SALT)
    assert (none.numbers, none.active, none.size) == ([], 0, 0)
    assert none.read(1, 0, 10) == b""
    assert not none.suspect
    assert none.unsynced() == []


def test_they_are_read_oldest_first_and_the_last_is_written_to(log: Path) -> None:
    both = Segments(log, SALT)
    assert (both.numbers, both.active) == ([1, 2], 2)
    assert (both.size, both.length(1), both.length(2)) == (2 * both.length(1), both.length(1), both.size)
    assert both.path(2) == log / "0000000002.log"
    assert [one.batch.first for number in both.numbers for one in both.scan(number) if isinstance(one, Found)] == [9, 10, 11]


def test_names_that_were_found_out_are_believed_before_the_files_own(log: Path) -> None:
    named = Segments(log, SALT, {5: log / "0000000001.log", 3: log / "elsewhere.log"})
    assert (named.numbers, named.active, named.size) == ([3, 5], 5, (log / "0000000001.log").stat().st_size)
    assert (named.path(3), named.path(4)) == (log / "elsewhere.log", log / "0000000004.log")


def test_one_that_is_cut_or_rolled_for_a_look_stays_as_it_is_on_the_disk(log: Path) -> None:
    both = Segments(log, SALT)
    size = both.size
    assert both.roll([]) == size
    both.cut(3)
    assert (both.size, both.length(2), both.numbers) == (3, size, [1, 2])


def test_what_is_open_is_read_and_measured_to_its_end_though_it_was_removed(log: Path) -> None:
    both = Segments(log, SALT)
    size = both.length(1)
    assert both.read(1, 0, 4) == MAGIC
    (log / "0000000001.log").unlink()
    assert (both.length(1), len(both.read(1, 1, 1000))) == (size, size - 1)
    both.close()
    assert both.read(1, 0, 4) == b""
    with pytest.raises(FileNotFoundError):
        both.length(1)


def test_no_program_that_is_started_has_them_open(log: Path) -> None:
    assert not os.get_inheritable(Segments(log, SALT)._file(1).fd)


FIRST, SECOND, THIRD = batch(1, b"a" * 50), batch(2, b"b" * 20), batch(3, b"")


@pytest.mark.parametrize("pieces", [
    (), (FIRST,), (FIRST, SECOND, THIRD), (b"-", FIRST), (FIRST, b"-", SECOND), (FIRST, b"-" * 500), (b"-" * 500,),
    (FIRST, MAGIC, SECOND), (FIRST, MAGIC * 3, SECOND), (FIRST, MAGIC[:3], SECOND), (FIRST, MAGIC[:1]),
    (FIRST, written(SECOND)[:-1], THIRD), (FIRST, written(SECOND)[1:], THIRD), (FIRST, written(SECOND)[:HEADER_BYTES]),
    (FIRST, written(SECOND)[: HEADER_BYTES - 1]), (MAGIC + b"\xff" * HEADER_BYTES, FIRST), (b"\0" * (HEADER_BYTES + 1), THIRD),
])  # fmt: skip
@pytest.mark.parametrize("window", [1, 64, 4 << 20])
def test_a_scan_finds_every_record_and_what_lies_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: tuple[Batch | bytes, ...], window: int
) -> None:
    monkeypatch.setattr(segments, "_WINDOW_BYTES", window)
    assert scanned(tmp_path, *pieces) == found(*pieces)


def test_a_record_of_another_folder_is_none(tmp_path: Path) -> None:
    """It may be the body of a message."""
    strange = b"".join(encode(FIRST, SALT + 1))
    assert scanned(tmp_path, strange, SECOND) == found(strange, SECOND)


def test_a_scan_begins_and_ends_where_it_is_told_to(tmp_path: Path) -> None:
    begins = [one.offset for one in found(FIRST, SECOND, THIRD)]
    whole = scanned(tmp_path, FIRST, SECOND, THIRD)
    assert scanned(tmp_path, FIRST, SECOND, THIRD, start=begins[1]) == whole[1:]
    assert scanned(tmp_path, FIRST, SECOND, THIRD, end=begins[2]) == whole[:2]
    assert scanned(tmp_path, FIRST, SECOND, THIRD, end=begins[2] - 1) == [
        whole[0],
        Broken(begins[1], begins[2] - 1 - begins[1], True),
    ]
    assert scanned(tmp_path, FIRST, SECOND, THIRD, start=1) == [Broken(1, begins[1] - 1, False), *whole[1:]]


def test_a_scan_reads_a_long_file_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = [batch(at, b"y" * 80) for at in range(100)]
    monkeypatch.setattr(segments, "_WINDOW_BYTES", 1000)
    read, real = list[int](), os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, at: read.append(length) or real(fd, length, at))
    assert scanned(tmp_path, *pieces) == found(*pieces)
    assert max(read) == 1000
    assert len(read) < 25

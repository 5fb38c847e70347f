"""Lines are whole in a file and in a pipe, however many processes write there and wherever a disk is full."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from framework.observe import appending
from framework.observe.appending import append

WRITER = """
import sys
from framework.observe.appending import append
for number in range(100):
    left, error = append(1, f"{sys.argv[1]} {number} {'x' * (number * 199)}\\n".encode())
    assert not left, error
"""


@contextmanager
def full_at(size: int) -> Iterator[None]:
    """No file of this process can be longer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def opened(path: Path, more: int = os.O_APPEND) -> Iterator[int]:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | more)
    try:
        yield fd
    finally:
        os.close(fd)


@pytest.mark.parametrize("more", [os.O_APPEND, 0])
def test_where_a_full_disk_took_whole_lines_nothing_is_taken_back(more: int, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with opened(log, more) as fd:
        with full_at(6):
            left, error = append(fd, b"first\nsecond\n")
        assert (error is not None, log.read_bytes(), left) == (True, b"first\n", b"second\n")


def test_the_piece_of_a_line_that_a_full_disk_took_is_taken_back(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with opened(log) as fd:
        with full_at(10):
            left, error = append(fd, b"first\nsecond\n")
        assert error is not None
        assert error.errno == errno.EFBIG
        assert (log.read_bytes(), left) == (b"first\n", b"second\n")
        assert append(fd, left) == (b"", None)
    assert log.read_bytes() == b"first\nsecond\n"


def test_what_others_wrote_behind_it_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    plain, limits = appending._taken_back, resource.getrlimit(resource.RLIMIT_FSIZE)

    def written_meanwhile(fd: int, piece: bytes) -> bool:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)  # there is room again
        os.write(fd, b" theirs\n")
        return plain(fd, piece)

    with opened(log) as fd:
        with full_at(20):
            monkeypatch.setattr(appending, "_taken_back", written_meanwhile)
            left, _ = append(fd, b"first\n" + b"s" * 6 + b"\n" + b"t" * 14)
        assert b"theirs" in log.read_bytes()
        append(fd, left + b"\n")
    assert log.read_bytes().splitlines()[-1] == b"t" * 14


def test_a_file_that_others_opened_in_no_way_of_ours_gets_no_hole(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with opened(log, more=0) as fd:
        with full_at(10):
            left, _ = append(fd, b"first\nsecond\n")
        append(fd, left)
    assert log.read_bytes() == b"first\nseco\nsecond\n"


def test_lines_of_several_processes_stay_whole_in_a_pipe_and_in_a_file(tmp_path: Path) -> None:
    for to in ("pipe", "file"):
        lines = _written_by_four(tmp_path / "log" if to == "file" else None)
        assert len(lines) == 400
        assert {len(line) - 199 * int(line.split()[1]) for line in lines} == {5, 6}, to


def _written_by_four(path: Path | None) -> list[bytes]:
    reader, writer = os.pipe()
    read: list[bytes] = []

    def read_all() -> None:
        with open(reader, "rb") as stream:
            read.extend(stream)

    thread = threading.Thread(target=read_all)
    thread.start()
    out = writer if path is None else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    four = [subprocess.Popen([sys.executable, "-c", WRITER, name], stdout=out) for name in "abcd"]
    os.close(writer)
    try:
        assert [one.wait(60) for one in four] == [0] * 4
    finally:
        for one in four:
            one.kill()
        thread.join(20)
    return read if path is None else path.read_bytes().splitlines(keepends=True)

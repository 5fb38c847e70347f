"""What the kernel takes only a part of is written on from there, to the last byte and no further."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from framework.nsqd.store import log


class Kernel:
    """Takes so many bytes of each write, and of no more than so many."""

    def __init__(self, first: int, rest: int, most: int = 100) -> None:
        self.first, self.rest, self.most = first, rest, most
        self.calls = 0

    def pwritev(self, fd: int, buffers: list[bytes], offset: int) -> int:
        return os.pwrite(fd, b"".join(buffers)[: self.first], offset)

    def pwrite(self, fd: int, data: Any, offset: int) -> int:
        self.calls += 1
        if self.calls > self.most:
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.pwrite(fd, data[: self.rest], offset)


BUFFERS = [b"abc", b"", b"defgh", b"i"]


@pytest.mark.parametrize(("first", "rest", "calls"), [(9, 9, 0), (8, 9, 1), (1, 8, 1), (0, 9, 1), (3, 2, 3), (0, 1, 9)])
def test_all_is_written_however_little_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int, rest: int, calls: int
) -> None:
    kernel = Kernel(first, rest)
    monkeypatch.setattr(log, "os", kernel)
    path = tmp_path / "log"
    with path.open("wb", buffering=0) as file:
        file.write(b"12")
        assert log._write_all(file.fileno(), BUFFERS, 2) == 11
    assert (path.read_bytes(), kernel.calls) == (b"12abcdefghi", calls)


def test_many_buffers_are_written_some_at_a_time_one_behind_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_IOV_MAX", 3)
    given: list[int] = []

    def pwritev(fd: int, buffers: Sequence[bytes], offset: int) -> int:
        given.append(len(buffers))
        return os.pwritev(fd, buffers, offset)

    monkeypatch.setattr(log, "os", SimpleNamespace(pwritev=pwritev))
    path = tmp_path / "log"
    with path.open("wb", buffering=0) as file:
        assert log._write_all(file.fileno(), BUFFERS * 2, 0) == 18
    assert (path.read_bytes(), given) == (b"abcdefghi" * 2, [3, 3, 2])


def test_a_disk_that_is_full_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "os", Kernel(3, 2, most=1))
    with (tmp_path / "log").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        log._write_all(file.fileno(), BUFFERS, 0)

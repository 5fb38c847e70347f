"""Writes lines whole, whatever they are written to and whichever processes write there too. It keeps none that is not taken."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from gevent import monkey

_WHOLE = 4096
"""Bytes that a pipe takes in one piece (PIPE_BUF), also from those who do not wait for their turn."""
_poll = monkey.get_original("select", "poll")
_POLLOUT = 4


def append(fd: int, data: bytes) -> tuple[bytes, OSError | None]:
    """Block until ``data`` is written. Returns what is left of it, from the beginning of a line, and why: nothing and None."""
    try:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return _to_file(fd, data)
        with _turn(fd):
            return _to_stream(fd, data)
    except OSError as error:
        return data, error


def _to_file(fd: int, data: bytes) -> tuple[bytes, OSError | None]:
    """By one call, which no other process comes between, nor another file that is opened in the place of this one."""
    view, done = memoryview(data), 0
    try:
        while done < len(data):
            done += os.write(fd, view[done:])
    except OSError as error:
        begun = data.rfind(b"\n", 0, done) + 1
        return _from_a_line(data[begun:], cut=done > begun and not _taken_back(fd, data[begun:done])), error
    return b"", None


def _taken_back(fd: int, piece: bytes) -> bool:
    """Cut off the piece of a line that a full disk still took, unless another process has written behind it."""
    with suppress(OSError):
        if not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND:  # what is written next would leave a hole
            return False
        begins = os.fstat(fd).st_size - len(piece)
        reader = os.open(f"/dev/fd/{fd}", os.O_RDONLY)
        try:
            there = os.pread(reader, len(piece), begins)
        finally:
            os.close(reader)
        if there == piece:
            os.ftruncate(fd, begins)
            return True
    return False


def _to_stream(fd: int, data: bytes) -> tuple[bytes, OSError | None]:
    view, done = memoryview(data), 0
    try:
        while done < len(data):
            end = len(data) if len(data) - done <= _WHOLE else data.rfind(b"\n", done, done + _WHOLE) + 1
            try:
                done += os.write(fd, view[done : end or done + _WHOLE])
            except BlockingIOError:
                _await_room(fd)
    except OSError as error:  # whoever reads it next has not had the beginning
        begun = data.rfind(b"\n", 0, done) + 1
        return _from_a_line(data[begun:], cut=done > begun), error
    return b"", None


def _from_a_line(left: bytes, *, cut: bool) -> bytes:
    return b"\n" + left if cut else left


def _await_room(fd: int) -> None:
    poll = _poll()
    poll.register(fd, _POLLOUT)
    poll.poll()


@contextmanager
def _turn(fd: int) -> Iterator[None]:
    """Lines that a pipe does not take in one piece would mix with those of other processes. Its lock ends with its process."""
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX)
    except OSError:  # it is nothing that can be locked
        yield
        return
    try:
        yield
    finally:
        with suppress(OSError):
            fcntl.lockf(fd, fcntl.LOCK_UN)

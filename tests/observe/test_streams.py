"""Lines to a pipe, piece by piece: where each piece ends, what is left where it breaks, and whose turn it is."""

from __future__ import annotations

import errno
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from framework.observe import appending
from framework.observe.appending import _WHOLE, append
from framework.observe.background import Background

Take = Callable[..., list[bytes]]


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Where it is read, and where it is written."""
    read, write = os.pipe()
    yield read, write
    for one in (read, write):
        try:
            os.close(one)
        except OSError:
            pass


@pytest.fixture
def take(monkeypatch: pytest.MonkeyPatch) -> Take:
    """Has what is written taken as ``answers`` say, a number of bytes or an error for each try, and then whole; the tries."""
    tries: list[bytes] = []

    def begin(*answers: int | OSError) -> list[bytes]:
        left = list(answers)
        tries.clear()

        def write(fd: int, data: Any) -> int:
            tries.append(bytes(data))
            answer = left.pop(0) if left else len(data)
            if isinstance(answer, OSError):
                raise answer
            return answer

        monkeypatch.setattr(appending.os, "write", write)
        return tries

    return begin


def test_what_a_pipe_takes_in_one_piece_is_written_in_one_and_more_by_lines(pipe: tuple[int, int], take: Take) -> None:
    _, fd = pipe
    whole = b"a\n" + b"x" * (_WHOLE - 2)
    tries = take()
    assert append(fd, whole) == (b"", None)
    assert tries == [whole]
    take()
    lines = [b"x" * 1500 + b"\n" for _ in range(4)]
    append(fd, b"".join(lines))
    assert tries == [b"".join(lines[:2]), b"".join(lines[2:])]
    take()
    append(fd, b"x" * (_WHOLE - 1) + b"\ny\n")
    assert tries == [b"x" * (_WHOLE - 1) + b"\n", b"y\n"]
    take()
    append(fd, b"x" * (_WHOLE + 1) + b"\n")
    assert tries == [b"x" * _WHOLE, b"x\n"], "a line that is longer than a piece"


@pytest.mark.parametrize(
    ("taken", "left"),
    [(0, b"one\ntwo\nthree\n"), (4, b"two\nthree\n"), (5, b"\ntwo\nthree\n"), (8, b"three\n"), (13, b"\nthree\n")],
)
def test_of_a_pipe_that_breaks_what_was_not_taken_is_left_from_the_beginning_of_its_line(
    taken: int, left: bytes, pipe: tuple[int, int], take: Take
) -> None:
    """Behind the piece of a line that somebody has had, the whole line comes on one of its own."""
    broken = BrokenPipeError(errno.EPIPE, "nobody reads")
    tries = take(*([taken] if taken else []), broken)
    assert append(pipe[1], b"one\ntwo\nthree\n") == (left, broken)
    assert len(tries) == (2 if taken else 1)


def test_a_pipe_that_is_full_is_waited_for(pipe: tuple[int, int]) -> None:
    read, fd = pipe
    os.set_blocking(fd, False)
    data = b"".join(b"%d %s\n" % (number, b"x" * 997) for number in range(300))
    came: list[bytes] = []

    def drain() -> None:
        while sum(map(len, came)) < len(data):
            came.append(os.read(read, 65536))

    reader = threading.Timer(0.05, drain)
    reader.start()
    assert append(fd, data) == (b"", None)
    reader.join(20)
    assert b"".join(came) == data


def test_who_writes_to_a_pipe_waits_for_its_turn_and_gives_it_back(pipe: tuple[int, int], tmp_path: Path) -> None:
    """Of several processes that share it."""
    read, fd = pipe
    code = "import fcntl, sys; fcntl.lockf(1, fcntl.LOCK_EX); print('mine', file=sys.stderr, flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=fd, stderr=subprocess.PIPE, text=True
    ) as other:
        assert other.stderr is not None
        assert other.stdin is not None
        assert other.stderr.readline() == "mine\n"
        writing = threading.Thread(target=append, args=(fd, b"line\n"))
        writing.start()
        writing.join(0.1)
        waits = writing.is_alive()
        other.stdin.close()
        writing.join(20)
    assert waits
    assert os.read(read, 100) == b"line\n"
    asked = subprocess.run(
        [sys.executable, "-c", "import fcntl; fcntl.lockf(1, fcntl.LOCK_EX | fcntl.LOCK_NB)"], stdout=fd, check=False
    )
    assert asked.returncode == 0, "it is free again"


def test_what_cannot_be_locked_is_written_all_the_same(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(appending.fcntl, "lockf", refuse)
    assert append(pipe[1], b"line\n") == (b"", None)
    assert os.read(pipe[0], 100) == b"line\n"


def test_a_disk_that_is_full_again_and_again_costs_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "log"
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    write, full = os.write, OSError(errno.ENOSPC, "full")
    turns = iter(range(100))

    def half(fd: int, data: Any) -> int:
        if next(turns) % 2:
            raise full
        return write(fd, data[: len(data) // 2])

    monkeypatch.setattr(appending.os, "write", half)
    before = psutil.Process().num_fds()
    for _ in range(5):
        assert append(fd, b"0123456789\n") == (b"0123456789\n", full)
    assert psutil.Process().num_fds() == before
    assert file.read_bytes() == b""
    os.close(fd)


def test_nothing_is_taken_again_until_half_of_the_places_are_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framework.observe.background._start_new_thread", lambda *_: None)
    drops: list[tuple[str, bool]] = []
    queue = Background(lambda item: drops.append((item, queue.drops)), lambda count: f"{count} lost", size=4)
    for item in ("1", "2", "3", "4", "dropped", "dropped"):
        queue.put(item)
    turns = iter([True, False])
    monkeypatch.setattr(queue, "_more", lambda: next(turns))
    queue._run()
    assert drops == [("1", True), ("2", False), ("3", False), ("4", False), ("2 lost", False)]


def test_who_is_refused_because_a_pipe_is_full_tries_again_when_it_has_room(
    pipe: tuple[int, int], take: Take, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not all the time until then."""
    tries, waits, waiting_for = take(BlockingIOError(), BlockingIOError()), [], []
    poll = SimpleNamespace(register=lambda *of: waiting_for.append(of), poll=lambda: waits.append(len(tries)))
    monkeypatch.setattr(appending, "_poll", lambda: poll)
    assert append(pipe[1], b"line\n") == (b"", None)
    assert (waits, waiting_for) == ([1, 2], [(pipe[1], select.POLLOUT)] * 2)


def test_what_stands_behind_a_flush_is_handled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not only when the thread has waited for more."""
    monkeypatch.setattr("framework.observe.background._start_new_thread", lambda *_: None)
    handled: list[str] = []
    queue = Background(handled.append, lambda count: f"{count} lost")
    assert not queue.flush(0.001)
    queue.put("behind it")
    turns = iter([True, False])
    monkeypatch.setattr(queue, "_more", lambda: next(turns))
    queue._run()
    assert handled == ["behind it"]

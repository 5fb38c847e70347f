"""What is written to stderr, whoever reads it: in its order, in few pieces, and with a count of what nobody read in time."""

from __future__ import annotations

import errno
import os
import re
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from framework.observe import stderr
from framework.observe.stderr import Stderr, say_as, unblocked


class Pipe:
    """Takes what is written, and stands still while it is ``held``."""

    def __init__(self) -> None:
        self.text = ""
        self.open = threading.Event()
        self.open.set()
        self.began = threading.Event()

    def write(self, text: str) -> tuple[bytes, OSError | None]:
        self.began.set()
        assert self.open.wait(20)
        self.text += text
        return b"", None


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Pipe:
    made = Pipe()
    monkeypatch.setattr(stderr, "write_now", made.write)
    return made


def test_all_is_written_at_the_end_and_the_plain_one_is_back(pipe: Pipe) -> None:
    plain = sys.stderr
    with unblocked("workers: "):
        for number in range(100):
            print(number, file=sys.stderr)
    assert pipe.text == "".join(f"{number}\n" for number in range(100))
    assert sys.stderr is plain


def test_what_nobody_reads_is_dropped_and_counted_and_blocks_nobody(pipe: Pipe) -> None:
    stream = Stderr("workers: ", size=10)
    pipe.open.clear()
    stream.write("first\n")
    assert pipe.began.wait(20)
    for _ in range(15):
        stream.write("more\n")
    assert not stream.drain(0.01)
    pipe.open.set()
    assert stream.drain(20)
    assert pipe.text.count("more") == 10
    assert "workers: 5 pieces of this log were dropped while nobody read it\n" in pipe.text


def test_a_forked_child_writes_at_once(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stderr("workers: ")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert stream.write("mine\n") == 5
    assert pipe.text == "mine\n"


def test_bytes_are_no_text(pipe: Pipe) -> None:
    with pytest.raises(TypeError, match="a str is written"):
        Stderr("").write(b"x")  # type: ignore[arg-type]


def test_a_line_is_written_when_it_has_an_end(pipe: Pipe) -> None:
    stream = Stderr("")
    stream.write("begun")
    assert stream._queue.flush(20)
    assert pipe.text == ""
    stream.write(" and ended\nthe next")
    assert stream._queue.flush(20)
    assert pipe.text == "begun and ended\n"
    stream.flush()
    assert stream.drain(20)
    assert pipe.text == "begun and ended\nthe next"


class Disk:
    """Full for as long as ``fails`` says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fails = 0
        self.text = ""
        monkeypatch.setattr(stderr, "append", self.append)
        monkeypatch.setattr(stderr, "_PAUSE", 0.01)

    def append(self, fd: int, data: bytes) -> tuple[bytes, OSError | None]:
        if self.fails:
            self.fails -= 1
            return data, OSError(errno.ENOSPC, "No space left on device")
        self.text += data.decode()
        return b"", None


def test_what_a_full_disk_does_not_take_is_written_later_and_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    stream = Stderr("workers: ")
    disk.fails = 5
    for number in range(100):
        stream.write(f"{number}\n")
    assert stream.drain(20)
    lines = disk.text.splitlines()
    said = [line for line in lines if not line.isdigit()]
    assert [int(line) for line in lines if line.isdigit()] == list(range(100))
    assert len(said) == 1
    assert re.fullmatch(r"workers: the log could not be written for .* s: No space left on device", said[0])


def test_a_disk_that_takes_nothing_is_left_alone_between_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, pauses = Disk(monkeypatch), []
    monkeypatch.setattr(stderr, "_sleep", pauses.append)
    disk.fails = 5
    stream = Stderr("workers: ")
    stream.write("line\n")
    assert stream.drain(20)
    assert pauses == [stderr._PAUSE] * 5


def test_the_reason_is_that_of_the_time_when_they_were_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    stream = Stderr("workers: ", size=10)
    for fails in (3, 0):
        disk.fails = fails
        stream.write("first\n")
        assert stream.drain(20)
    assert stream._lost(7) == "workers: 7 pieces of this log were dropped while nobody read it\n"
    disk.fails = 1_000_000
    stream.write("first\n")
    until = time.monotonic() + 20
    while stream._error is None and time.monotonic() < until:
        time.sleep(0.005)
    for _ in range(15):
        stream.write("more\n")
    disk.fails = 0
    assert stream.drain(20)
    assert "workers: 5 pieces of this log were dropped while it could not be written: No space left on device\n" in disk.text


def test_its_own_words_look_as_the_log_does(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    with unblocked("workers: "):
        say_as(lambda words: f"WARNING {words}!\n")
        disk.fails = 1
        print("first", file=sys.stderr)
    assert re.fullmatch(r"first\nWARNING the log could not be written for .* s: No space left on device!\n", disk.text)


def test_who_asks_finds_a_stream_of_text_that_is_written_to(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stderr("")
    assert (stream.writable(), stream.readable(), stream.fileno(), stream.encoding) == (True, False, 2, "utf-8")
    for answer in (True, False):
        monkeypatch.setattr(os, "isatty", lambda fd: fd == 2 and answer)  # noqa: B023
        assert stream.isatty() is answer


def test_where_no_line_was_begun_a_flush_writes_nothing(pipe: Pipe) -> None:
    stream = Stderr("")
    stream.flush()
    assert stream.drain(20)
    assert not pipe.began.is_set()


def test_a_line_that_its_parent_has_begun_is_not_written_by_a_forked_child(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stderr("")
    stream.write("begun")
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        stream.flush()
        assert stream._queue.flush(20)
    assert pipe.text == ""
    assert stream.drain(20)
    assert pipe.text == "begun"


@pytest.mark.parametrize("own_file", [True, False])
def test_what_was_refused_for_good_is_tried_again_only_where_another_file_may_come(
    own_file: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stderr of somebody else's whose reader has gone has none again."""
    tries: list[bytes] = []

    def append(fd: int, data: bytes) -> tuple[bytes, OSError | None]:
        tries.append(data)
        return (data, BrokenPipeError(errno.EPIPE, "Broken pipe")) if len(tries) < 3 else (b"", None)

    monkeypatch.setattr(stderr, "append", append)
    monkeypatch.setattr(stderr, "_PAUSE", 0.0)
    monkeypatch.setattr(stderr.logfile, "path", lambda: Path("/log") if own_file else None)
    monkeypatch.setattr(stderr, "time", SimpleNamespace(monotonic=iter((100.0, 103.5)).__next__))
    stream = Stderr("workers: ")
    stream.write("line\n")
    assert stream.drain(20)
    said = b"workers: the log could not be written for 3.5 s: Broken pipe\n"
    assert tries == ([b"line\n"] * 3 + [said] if own_file else [b"line\n"])


def test_the_last_words_are_written_before_a_process_ends(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stderr("")
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", stream)
        print("the last words", end="", file=sys.stderr)
        stderr.last_words()
        assert pipe.text == "the last words"
    form = stream.form
    stderr.say_as(str)
    assert stream.form is form, "it is stderr no more"

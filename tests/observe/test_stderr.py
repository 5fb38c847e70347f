"""What is written to stderr, whoever reads it: in its order, in few pieces, and with a count of what nobody read in time."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from framework.observe import stderr
from framework.observe.stderr import Stderr, unblocked


class Pipe:
    """Takes what is written, and stands still while it is ``held``."""

    def __init__(self) -> None:
        self.text = ""
        self.open = threading.Event()
        self.open.set()
        self.began = threading.Event()

    def write(self, text: str) -> None:
        self.began.set()
        assert self.open.wait(20)
        self.text += text


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

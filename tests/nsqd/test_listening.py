"""How many connections are accepted, and what is done where there are no more open files: without a socket."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any

import pytest

from framework.nsqd import daemon, listening
from framework.nsqd.listening import Capped
from framework.nsqd.options import parse


@pytest.mark.parametrize(("files", "flags", "most", "said"), [
    (1034, (), (750, 250), 0), (44, (), (6, 4), 0), (20, (), (4, 4), 0), (0, (), (4, 4), 0),
    (1034, ("--max-tcp-connections=700",), (700, 250), 0), (1034, ("--max-tcp-connections=900",), (900, 100), 0),
    (1034, ("--max-tcp-connections=999",), (999, 4), 1), (1034, ("--max-http-connections=900",), (100, 900), 0),
    (1034, ("--max-http-connections=1000",), (4, 1000), 1),
    (1034, ("--max-tcp-connections=500", "--max-http-connections=500"), (500, 500), 0),
    (1034, ("--max-tcp-connections=501", "--max-http-connections=500"), (501, 500), 1),
])  # fmt: skip
def test_a_fourth_is_https_and_what_cannot_be_had_is_said(
    monkeypatch: pytest.MonkeyPatch, files: int, flags: tuple[str, ...], most: tuple[int, int], said: int
) -> None:
    """Ten are open at the start, and 24 are left to others."""
    monkeypatch.setattr(listening, "resource", SimpleNamespace(RLIMIT_NOFILE=7, getrlimit=lambda what: (files, -1)))
    monkeypatch.setattr(listening, "os", SimpleNamespace(listdir=lambda folder: ["fd"] * 10))
    options = parse(flags)
    assert listening.allowed(options) == most
    assert [f"raise `ulimit -n`, which is {files}" in words for words in options.warnings] == [True] * said


def test_a_daemon_takes_as_many_open_files_as_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    limits = SimpleNamespace(RLIMIT_NOFILE=7, getrlimit=lambda what: (100, 900), setrlimit=lambda *what: asked.append(what))
    monkeypatch.setattr(daemon, "resource", limits)
    daemon._allow_connections()
    assert asked == [(7, (900, 900))]


class Base:
    """gevent's server, as far as it is used."""

    def __init__(self) -> None:
        self.does: list[object] = []
        self.raises: OSError | None = None
        self.loop = SimpleNamespace(timer=self._timer)

    def _timer(self, seconds: float) -> object:
        return SimpleNamespace(start=lambda call: self.does.append((seconds, call)))

    def do_handle(self, *arguments: Any) -> None: ...

    def do_close(self, *arguments: Any) -> None: ...

    def do_read(self) -> str:
        if self.raises is not None:
            raise self.raises
        return "a connection"

    def stop_accepting(self) -> None:
        self.does.append("stops")

    def _start_accepting_if_started(self) -> None:
        self.does.append("starts")


class Server(Capped, Base):
    """One that has room for two."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.cap(2, lambda level, words: self.lines.append(f"{level} {words}"), "TCP")


def test_it_is_full_with_so_many_until_one_ends() -> None:
    server = Server()
    full = [server.full()]
    for _ in range(3):
        server.do_handle()
        full.append(server.full())
    assert full == [False, False, True, True]
    server.do_close()
    assert (server.full(), server.does) == (True, ["starts"])
    server.do_close()
    assert not server.full()
    assert server.lines == ["WARNING TCP: 2 connections are open: others wait until one ends (-max-tcp-connections)"]


def test_it_is_said_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    server, clock = Server(), SimpleNamespace(monotonic=lambda: 1000.0)
    monkeypatch.setattr(listening, "time", clock)
    for at, lines in ((1000.0, 1), (1059.9, 1), (1060.0, 2), (1100.0, 2)):
        clock.monotonic = lambda at=at: at
        server._say("words")
        assert len(server.lines) == lines


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_without_open_files_it_waits_for_a_while(number: int) -> None:
    server = Server()
    server.raises = OSError(number, "there are none")
    assert server.do_read() is None
    (stops, (seconds, call)) = server.does  # type: ignore[misc]
    assert (stops, seconds) == ("stops", 0.5)
    call()
    assert server.does[-1] == "starts"
    assert len(server.lines) == 1


@pytest.mark.parametrize("number", [errno.ECONNABORTED, errno.EPERM, errno.EPROTO])
def test_a_client_that_has_left_is_nobodys_fault(number: int) -> None:
    server = Server()
    server.raises = OSError(number, "gone")
    assert (server.do_read(), server.does, server.lines) == (None, [], [])


def test_any_other_error_is_one() -> None:
    server = Server()
    assert server.do_read() == "a connection"
    server.raises = OSError(errno.EBADF, "a bug")
    with pytest.raises(OSError, match="a bug"):
        server.do_read()

"""The daemons' log lines: a stderr that nobody reads costs lines, never a client, and a clean end has said all that it could."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from framework.testing import servers
from framework.testing.servers import Server
from tests.nsqd.conftest import logged

PIPE_BYTES = 4096
CLIENTS = 150
"""Two lines each: several times what the pipe holds."""


class Unread(Server):
    """Its stderr is a small pipe that nobody reads until ``read``."""

    def _read_log(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        fcntl.fcntl(process.stderr.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def read(self) -> None:
        assert self.process is not None
        threading.Thread(target=super()._read_log, args=(self.process,), daemon=True).start()


@pytest.fixture(params=["nsqd", "nsqlookupd"])
def unread(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Unread]:
    made = servers.own_nsqd(tmp_path) if request.param == "nsqd" else servers.own_nsqlookupd()
    server = Unread(made.command, tcp_port=made.tcp_port, http_port=made.http_port, data=tmp_path)
    with servers.running(server):
        yield server


def visit(server: Server, clients: int) -> None:
    """So many clients come and go; each is seen to its end."""
    for _ in range(clients):
        with socket.create_connection(("127.0.0.1", server.tcp_port), 10) as client:
            client.settimeout(10)
            client.sendall(b"nope")
            assert client.recv(100).endswith(b"E_BAD_PROTOCOL")


def said(server: Server, words: str) -> int:
    return sum(words in line for line in server.log)


def test_a_stderr_that_nobody_reads_stops_nobody(unread: Unread) -> None:
    visit(unread, CLIENTS)
    assert unread.http("/ping") == "OK"
    unread.read()
    assert logged(unread, "HTTP: listening on")
    deadline = time.monotonic() + 20
    while said(unread, "left") < max(said(unread, "TCP: new client"), CLIENTS + 1) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert said(unread, "left") == said(unread, "TCP: new client") > CLIENTS, "lines are missing"
    assert len(set(unread.log)) == len(unread.log), "a line was said twice"
    assert unread.stop() == 0
    assert logged(unread, "bye")


def test_nor_its_end(unread: Unread) -> None:
    visit(unread, CLIENTS)
    assert unread.process is not None
    unread.process.send_signal(signal.SIGTERM)
    assert unread.process.wait(12) == 0
    unread.read()


_OVERFLOWS = """
import os, sys
from framework.observe import stderr
with stderr.unblocked("[nsqd] ", size=100):
    for at in range({count}):
        sys.stderr.write(f"line {{at}}\\n")
        if at == {count} - 2:
            os.write(1, b"full")
            os.read(0, 1)
            sys.stderr.drain(30)
"""


def test_what_is_dropped_is_counted_once_it_is_read_again() -> None:
    """Each gap has one line. On a busy machine there may be more than one gap: the thread that writes comes late."""
    count = 3000
    command = [sys.executable, "-c", _OVERFLOWS.format(count=count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        fcntl.fcntl(process.stderr.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        assert process.stdout.read(4) == b"full"
        process.stdin.write(b"x")
        process.stdin.close()
        lines = process.stderr.read().decode().splitlines()
        assert process.wait(20) == 0
    dropped, last = 0, -1
    for line in lines:
        if line.startswith("line "):
            last += 1
            assert line == f"line {last}"
        else:
            gap = int(line.removeprefix("[nsqd] ").removesuffix(" pieces of this log were dropped while nobody read it"))
            assert gap > 0
            last += gap
            dropped += gap
    assert dropped > 0
    assert lines[0] == "line 0"
    assert lines[-1] == f"line {count - 1}"


def written_by(code: str, wait: Callable[[int], None] = lambda fd: None) -> bytes:
    """What a process with that code leaves in its stderr, a pipe whose reading end ``wait`` sees first."""
    reading, writing = os.pipe()
    with subprocess.Popen([sys.executable, "-c", code], stderr=writing) as process:
        os.close(writing)
        wait(reading)
        with os.fdopen(reading, "rb") as stream:
            said = stream.read()
        process.wait(20)
    return said


def test_a_normal_end_has_written_all_of_it() -> None:
    code = """
import sys
from framework.observe import stderr
with stderr.unblocked(""):
    for at in range(5000):
        print(f"line {at}", file=sys.stderr)
sys.stderr.write("and then\\n")
"""
    assert written_by(code).decode().splitlines() == [*(f"line {at}" for at in range(5000)), "and then"]


def test_a_stderr_that_another_program_has_made_non_blocking_loses_nothing() -> None:
    code = """
import os, sys
from framework.observe import stderr
os.set_blocking(2, False)
with stderr.unblocked(""):
    for at in range(9000):
        sys.stderr.write(f"line {at}\\n")
"""
    assert len(written_by(code, wait=lambda fd: time.sleep(0.5)).splitlines()) == 9000


def test_greenlets_tracebacks_go_the_same_way() -> None:
    code = """
import gevent
from framework.observe import stderr
with stderr.unblocked(""):
    gevent.spawn(lambda: 1 / 0)
    gevent.sleep(0.01)
"""
    assert b"ZeroDivisionError" in written_by(code)


def test_a_forked_child_that_ends_without_a_word_has_written_its_own() -> None:
    code = """
import os, sys
from framework.observe import stderr
with stderr.unblocked(""):
    sys.stderr.write("parent\\n")
    sys.stderr.drain(10)
    pid = os.fork()
    if pid == 0:
        sys.stderr.write("child\\n")
        os._exit(0)
    os.waitpid(pid, 0)
    sys.stderr.write("parent again\\n")
"""
    assert written_by(code).decode().splitlines() == ["parent", "child", "parent again"]


def test_an_exit_that_runs_no_finally_has_written_all_of_it() -> None:
    code = """
import os, sys
from framework.observe import stderr
with stderr.unblocked(""):
    for at in range(5000):
        sys.stderr.write(f"line {at}\\n")
    stderr.last_words()
    os._exit(0)
"""
    assert len(written_by(code).splitlines()) == 5000

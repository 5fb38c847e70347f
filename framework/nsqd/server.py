"""The process: listens, accepts, logs as nsqd does, and stops cleanly."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import gevent
from gevent import socket
from gevent.event import Event
from gevent.pywsgi import WSGIServer
from gevent.server import StreamServer

from framework.errors import WrongUse
from framework.nsqd import options as flags
from framework.nsqd import stats
from framework.nsqd.broker import Broker
from framework.nsqd.embedded import RUNNING
from framework.nsqd.http import Api
from framework.nsqd.options import LEVELS, BadFlag, Options
from framework.nsqd.protocol import Client
from framework.nsqd.store import FolderInUse, FolderUnusable, Store
from framework.nsqd.users import Users

_BACKLOG = 1024
_SWITCH_SECONDS = 0.001
_USERS_SECONDS = 0.25


class Server:
    """One nsqd. Raises FolderInUse, FolderUnusable, OSError (a port in use) when it cannot start."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.clients: set[Client] = set()
        self._stop = Event()
        store = Store(options.data_path.resolve())
        try:
            tcp = _listen(options.tcp_address)
            http = _listen(options.http_address)
        except OSError:
            store.close()
            raise
        self.broker = Broker(store, options, self.log)
        self._tcp = StreamServer(tcp, self._serve)
        api = Api(self.broker, self.clients, lambda: (tcp.getsockname()[1], http.getsockname()[1]))
        self._http = WSGIServer(http, api, log=None, error_log=None)

    def log(self, level: str, words: str) -> None:
        """One line on stderr, as nsqd writes it."""
        if LEVELS.index(level) >= LEVELS.index(self.options.log_level):
            stamp = datetime.now().strftime("%Y/%m/%d %H:%M:%S.%f")
            sys.stderr.write(f"{self.options.log_prefix}{stamp} {level}: {words}\n")
            sys.stderr.flush()

    def run(self) -> None:
        """Serve until ``stop``."""
        self.log("INFO", stats.version_line())
        self.log("INFO", f"ID: {self.options.node_id}")
        for warning in self.options.warnings:
            self.log("WARNING", warning)
        self.log(
            "INFO",
            f"DISK: a sync of {self.options.data_path.resolve()} takes {1000 * _sync_seconds(self.options.data_path):.2f} ms",
        )
        self._http.start()
        self._tcp.start()
        self._say_running()
        self.log("INFO", f"TCP: listening on {_address(self._tcp)}")
        self.log("INFO", f"HTTP: listening on {_address(self._http)}")
        gc.collect()
        gc.freeze()
        if self.options.while_used:
            gevent.spawn(self._stop_without_users)
        self._stop.wait()
        self._close()

    def stop(self) -> None:
        """May be called from a signal handler."""
        self._stop.set()

    def _stop_without_users(self) -> None:
        """A worker that was killed cannot stop the nsqd that it started. Users that come now wait until this process ends."""
        users = Users(self.options.data_path)
        while not users.alone():
            gevent.sleep(_USERS_SECONDS)
        self.log("INFO", "NSQ: no worker uses this nsqd any more")
        self.stop()

    def _say_running(self) -> None:
        running = {"pid": os.getpid(), "tcp_address": _address(self._tcp), "http_address": _address(self._http)}
        fresh = self.options.data_path / f"{RUNNING}.new"
        fresh.write_text(json.dumps(running))
        fresh.replace(self.options.data_path / RUNNING)

    def _serve(self, sock: socket.socket, address: tuple[str, int]) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        where = _joined(address)
        self.log("INFO", f"TCP: new client({where})")
        client = Client(self.broker, sock, where)
        self.clients.add(client)
        try:
            client.run()
        finally:
            self.clients.discard(client)
            self.log("INFO", f"TCP: client({where}) left")

    def _close(self) -> None:
        self._tcp.close()
        for client in list(self.clients):
            client.close("nsqd is stopping")
        self._http.stop(timeout=1)
        with gevent.Timeout(2, False):
            while self.clients:
                gevent.sleep(0.005)
        self.broker.stop()
        (self.options.data_path / RUNNING).unlink(missing_ok=True)
        self.log("INFO", "NSQ: bye")


def _listen(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise BadFlag(f"address {address!r} is not <host>:<port>")
    host = host.removeprefix("[").removesuffix("]")
    try:
        found = socket.getaddrinfo(host or "0.0.0.0", int(port), type=socket.SOCK_STREAM)  # noqa: S104
    except socket.gaierror as error:
        raise OSError(error.errno, f"cannot listen on {address}: {error.strerror}; name another address") from error
    family, kind, number, _, where = found[0]
    listener = socket.socket(family, kind, number)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(where)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise OSError(
            error.errno, f"cannot listen on {address}: {os.strerror(error.errno or 0)}; name another address"
        ) from error
    return listener


def _address(server: StreamServer) -> str:
    return _joined(server.socket.getsockname())


def _joined(address: tuple[str, int]) -> str:
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _sync_seconds(folder: Path) -> float:
    """What one sync of 4 KiB costs on this disk (the median of five): the least that any OK takes."""
    probe = folder / ".sync"
    took = []
    fd = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        for at in range(5):
            start = time.perf_counter()
            os.pwrite(fd, bytes(4096), at * 4096)
            os.fdatasync(fd)
            took.append(time.perf_counter() - start)
    finally:
        os.close(fd)
        probe.unlink()
    return sorted(took)[2]


def main(arguments: Sequence[str]) -> int:
    """Run nsqd with Go-style flags until SIGTERM or SIGINT; returns the exit code: 0, 1 (cannot start), 2 (wrong flag)."""
    try:
        options = flags.parse(arguments)
    except BadFlag as error:
        sys.stderr.write(f"nsqd: {error} (--help lists the flags)\n")
        return 2
    if options.help or options.version:
        sys.stdout.write(f"{flags.usage() if options.help else stats.version_line()}\n")
        return 0
    # A thread that comes back from a sync waits this long for the interpreter while the hub is busy (default 5 ms).
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        server = Server(options)
    except BadFlag as error:
        sys.stderr.write(f"nsqd: {error}\n")
        return 2
    except (FolderInUse, FolderUnusable, WrongUse) as error:
        sys.stderr.write(f"nsqd: {error}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"nsqd: {error.strerror or error}\n")
        return 1
    gevent.signal_handler(signal.SIGTERM, server.stop)
    gevent.signal_handler(signal.SIGINT, server.stop)
    server.run()
    return 0

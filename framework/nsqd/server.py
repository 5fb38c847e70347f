"""The process: listens, accepts, logs as nsqd does, and stops cleanly."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import gevent
from gevent import socket
from gevent.event import Event
from gevent.server import StreamServer

from framework.errors import FrameworkError
from framework.nsqd import daemon, listening, tls
from framework.nsqd.backup import Backup
from framework.nsqd.broker import Broker
from framework.nsqd.embedded import RUNNING
from framework.nsqd.http import NsqdApi
from framework.nsqd.httpd import HttpServer
from framework.nsqd.inspect import Inspect
from framework.nsqd.journal import NotStored
from framework.nsqd.listening import TcpServer
from framework.nsqd.lookups import Lookups
from framework.nsqd.options import FLAGS, Options, parse
from framework.nsqd.protocol import Client
from framework.nsqd.store import FolderUnusable, Store, Syncing
from framework.nsqd.store.files import FILE_MODE, explain, keep_private, naming
from framework.nsqd.store.folder import Folder
from framework.nsqd.underway import Memory
from framework.nsqd.users import Users
from framework.nsqd.verify import Verify

_SWITCH_SECONDS = 0.001
_USERS_SECONDS = 0.25


class Server:
    """One nsqd. Raises FolderInUse, FolderUnusable, OSError (a port in use) when it cannot start."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.log = daemon.Log(options)
        self.clients: set[Client] = set()
        self._stop = Event()
        options.tls_context = tls.context(options)
        syncing = Syncing(options.sync_every, options.sync_timeout) if options.sync_every else Syncing()
        tcp, http, https = _bound(options)
        self._listeners = [one for one in (tcp, http, https) if one is not None]
        try:
            store = Store(options.data_path.resolve(), syncing)
        except BaseException:
            for listener in self._listeners:
                daemon.forget(listener)
            raise
        for listener in self._listeners:
            listener.listen(daemon.BACKLOG)
        self.broker = Broker(store, options, self.log)
        tcp_most, http_most = listening.allowed(options)
        self._memory = Memory(options.max_body_memory)
        self._tcp = TcpServer(tcp, self._serve, self.log, tcp_most)
        about = self._about(daemon.port(tcp), daemon.port(http))
        self.lookups = Lookups(
            self.broker.topics, self.broker.events, about, log=self.log, timeout=options.http_client_request_timeout
        )  # fmt: skip
        api = NsqdApi(self.broker, self.clients, about, self._memory, self.lookups)
        self._http = HttpServer(http, api, self.log, http_most)
        self._https: HttpServer | None = None
        if https is not None:
            self._https = HttpServer(https, api, self.log, http_most, ssl_context=options.tls_context)
            api.https_port = daemon.port(https)

    def _about(self, tcp_port: int, http_port: int) -> dict[str, Any]:
        """Where clients find this nsqd."""
        return {
            "broadcast_address": self.options.broadcast_address,
            "hostname": socket.gethostname(),
            "http_port": self.options.broadcast_http_port or http_port,
            "tcp_port": self.options.broadcast_tcp_port or tcp_port,
        }

    def run(self) -> None:
        """Serve until ``stop``. Raises FolderUnusable when the folder's disk takes nothing, NotStored if so at the end."""
        try:
            self._start()
        except OSError as error:
            with suppress(NotStored):
                self._close()
            raise FolderUnusable(explain(self.options.data_path, error)) from error
        self._stop.wait()
        self._close()

    def _start(self) -> None:
        self.log("INFO", daemon.version_line("nsqd"))
        self.log("INFO", f"ID: {self.options.node_id}")
        for warning in self.options.warnings:
            self.log("WARNING", warning)
        folder = self.options.data_path.resolve()
        self.log("INFO", f"DISK: a sync of {folder} takes {1000 * _sync_seconds(folder):.2f} ms")
        self._http.start()
        self._tcp.start()
        if self._https is not None:
            self._https.start()
        self._say_running()
        self.log("INFO", f"TCP: listening on {_address(self._tcp)}")
        self.log("INFO", f"HTTP: listening on {_address(self._http)}")
        if self._https is not None:
            self.log("INFO", f"HTTPS: listening on {_address(self._https)}")
        self.lookups.use(self.options.lookupd_tcp_addresses)
        gc.collect()
        gc.freeze()
        if self.options.while_used:
            gevent.spawn(self._stop_without_users)

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
        with naming(fresh):
            fresh.write_text(json.dumps(running))
        keep_private(fresh)
        fresh.replace(self.options.data_path / RUNNING)

    def _serve(self, sock: socket.socket, address: tuple[str, int]) -> None:
        daemon.send_at_once(sock)
        where = daemon.joined(address)
        self.log("INFO", f"TCP: new client({where})")
        client = Client(self.broker, sock, where, self._memory)
        self.clients.add(client)
        try:
            client.run()
        finally:
            self.clients.discard(client)
            self.log("INFO", f"TCP: client({where}) left")

    def _close(self) -> None:
        for listener in self._listeners:
            daemon.forget(listener)
        self.lookups.stop()
        self._tcp.close()
        for client in list(self.clients):
            client.close("nsqd is stopping")
        for server in filter(None, (self._http, self._https)):
            server.stop(timeout=1)
        with gevent.Timeout(2, False):
            while self.clients:
                gevent.sleep(0.005)
        try:
            self.broker.stop()
        except NotStored as error:
            folder = self.options.data_path
            raise NotStored(f"{folder} has not what was finished and requeued last, which comes again: {error}") from error
        finally:
            with suppress(OSError):  # where the disk takes nothing: it names a process that has ended, as after a kill
                (self.options.data_path / RUNNING).unlink()
        self.log("INFO", "NSQ: bye")


def _bound(options: Options) -> tuple[socket.socket, socket.socket, socket.socket | None]:
    """TCP, HTTP and HTTPS: before the folder is opened, so that an address in use leaves it as it was. Raises as Server."""
    addresses = [options.tcp_address, options.http_address]
    if options.tls_context and options.https_address:
        addresses.append(options.https_address)
    bound: list[socket.socket] = []
    try:
        for address in addresses:
            bound.append(daemon.bind(address))
    except OSError:
        for one in bound:
            daemon.forget(one)
        path = options.data_path.resolve()
        if (path / "meta.json").exists():
            Folder(path).close()  # that the folder is in use says more
        raise
    return bound[0], bound[1], bound[2] if len(bound) > 2 else None


def _address(server: StreamServer) -> str:
    return daemon.joined(server.socket.getsockname())


def _sync_seconds(folder: Path) -> float:
    """What one sync of 4 KiB costs on this disk (the median of five): the least that any OK takes."""
    probe = folder / ".sync"
    took = []
    fd = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        for at in range(5):
            start = time.perf_counter()
            with naming(folder):
                os.pwrite(fd, bytes(4096), at * 4096)
                os.fdatasync(fd)
            took.append(time.perf_counter() - start)
    finally:
        os.close(fd)
        probe.unlink()
    return sorted(took)[2]


def main(arguments: Sequence[str]) -> int:
    """Run nsqd with Go-style flags until SIGTERM or SIGINT, or until --drain-to and the like are done; returns the exit code:
    0, 1 (cannot start, not everything could be saved or moved, not sound), 2 (wrong flag)."""
    # A thread that comes back from a sync waits this long for the interpreter while the hub is busy (default 5 ms).
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        return daemon.main("nsqd", FLAGS, parse, _make, arguments)
    except FrameworkError as error:  # of a stop, or of a drain that was under way
        sys.stderr.write(f"nsqd: {error}\n")
        return 1


def _make(options: Options) -> daemon.Daemon:
    if options.verify:
        return Verify(options)
    if options.inspect:
        return Inspect(options)
    if options.backup is not None:
        return Backup(options)
    if not options.drain_to:
        return Server(options)
    from framework.nsqd.drain import Drain  # noqa: PLC0415 - what speaks to other nsqds is slow to import

    return Drain(options)

"""nsqlookupd as a process: listens for nsqds and for HTTP, and stops cleanly."""

from __future__ import annotations

import socket as system
from collections.abc import Sequence
from typing import Any

from gevent import socket
from gevent.event import Event

from framework.nsqd import daemon, listening
from framework.nsqd.httpd import HttpServer
from framework.nsqd.listening import TcpServer
from framework.nsqd.options import VERSION
from framework.nsqd.underway import Memory
from framework.nsqlookupd.http import LookupdApi
from framework.nsqlookupd.options import FLAGS, Options, parse
from framework.nsqlookupd.protocol import Connection
from framework.nsqlookupd.registry import Registry


class Server:
    """One nsqlookupd. Raises BadFlag, OSError (a port in use) when it cannot start."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._log = daemon.Log(options)
        self._stop = Event()
        self._registry = Registry()
        tcp = daemon.listen(options.tcp_address)
        http = daemon.listen(options.http_address)
        self._ports = (daemon.port(tcp), daemon.port(http))
        self._memory = Memory(options.max_body_memory)
        api = LookupdApi(self._registry, options, self._log, self._memory)
        tcp_most, http_most = listening.allowed(options)
        self._tcp = TcpServer(tcp, self._serve, self._log, tcp_most)
        self._http = HttpServer(http, api, self._log, http_most)

    def run(self) -> None:
        """Serve until ``stop``."""
        self._log("INFO", daemon.version_line("nsqlookupd"))
        for warning in self._options.warnings:
            self._log("WARNING", warning)
        self._http.start()
        self._tcp.start()
        self._log("INFO", f"TCP: listening on {daemon.joined(self._tcp.socket.getsockname())}")
        self._log("INFO", f"HTTP: listening on {daemon.joined(self._http.socket.getsockname())}")
        self._stop.wait()
        for listener in (self._tcp.socket, self._http.socket):
            daemon.forget(listener)
        self._tcp.stop(timeout=0)
        self._http.stop(timeout=1)
        self._log("INFO", "NSQLOOKUPD: bye")

    def stop(self) -> None:
        """May be called from a signal handler."""
        self._stop.set()

    def _serve(self, sock: socket.socket, address: tuple[Any, ...]) -> None:
        where = daemon.joined(address)
        self._log("INFO", f"TCP: new client({where})")
        daemon.send_at_once(sock)
        patience = max(daemon.PATIENCE_SECONDS, self._options.inactive_producer_timeout)  # nobody is told of it any more
        Connection(self._registry, sock, where, self._about, self._log, memory=self._memory, patience=patience).run()
        sock.close()
        self._log("INFO", f"TCP: client({where}) left")

    def _about(self) -> dict[str, Any]:
        """What an nsqd that has said who it is gets to know."""
        return {
            "broadcast_address": self._options.broadcast_address,
            "hostname": system.gethostname(),
            "http_port": self._ports[1],
            "tcp_port": self._ports[0],
            "version": VERSION,
        }


def main(arguments: Sequence[str]) -> int:
    """Run nsqlookupd with Go-style flags until SIGTERM or SIGINT; returns the exit code: 0, 1 (cannot start), 2 (wrong flag)."""
    return daemon.main("nsqlookupd", FLAGS, parse, Server, arguments)

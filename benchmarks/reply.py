"""How long a request takes until its reply is back: answered by a worker that is a peer of the cluster, and by nats.py.

One client asks by a bare socket, one request after the other, of 200 bytes. Who answers is a process of its own, in turns on the
same nats-server. Ours answers from a handler, through the whole runtime; nats.py does what its documentation shows.

python -m benchmarks.reply                         # both versions of the server, about a minute
python -m benchmarks.reply --versions 2.15 --rounds 1
"""

from __future__ import annotations

import argparse
import re
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks import measure, peers
from framework.testing import servers

CLIENTS = ("ours", "nats-py")
REQUESTS = 5000
WARM_UP = 500
PATIENCE = 30.0
"""Seconds for somebody to answer the first request."""
_REPLY = re.compile(rb"MSG _INBOX\.me 1 200\r\n")
_NOBODY = b"503"


class Asker:
    """A client that has one request under way."""

    def __init__(self, server: servers.Server) -> None:
        self._sock = socket.create_connection(("127.0.0.1", server.tcp_port))
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock.settimeout(PATIENCE)
        self._sock.sendall(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nSUB _INBOX.me 1\r\nPING\r\n')
        self._read(b"PONG\r\n")

    def _read(self, *ends: bytes) -> bytes:
        data = b""
        while not any(end in data for end in ends):
            data += self._sock.recv(1 << 16)
        return data

    def ask(self) -> float:
        """Milliseconds. Raises LookupError when nobody answers such requests."""
        began = time.perf_counter()
        self._sock.sendall(b"PUB bench _INBOX.me %d\r\n%b\r\n" % (len(measure.BODY), measure.BODY))
        answer = self._read(measure.BODY + b"\r\n", _NOBODY)
        took = (time.perf_counter() - began) * 1e3
        if b"PING\r\n" in answer:
            self._sock.sendall(b"PONG\r\n")
        if not _REPLY.search(answer):
            raise LookupError("nobody answers")
        return took

    def wait(self) -> None:
        """Until somebody answers."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self.ask()
            except LookupError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return

    def close(self) -> None:
        self._sock.close()


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    for version in options.versions:
        found: dict[str, list[list[float]]] = {name: [] for name in options.clients}
        with server(version) as (running, port):
            for n in range(options.rounds):
                for name in options.clients:
                    print(f"reply, {version}: round {n + 1} of {options.rounds}, {name}", file=sys.stderr)
                    found[name].append(run(running, port, name, options.requests))
        print(f"nats-server {version}, request and reply, {options.rounds} rounds of {options.requests}, ms: p50, p99 (medians)")
        for name, rounds in found.items():
            p50, p99 = (statistics.median(at(each, share) for each in rounds) for share in (0.5, 0.99))
            print(f"  {name:<10}{p50:9.3f}{p99:9.3f}")


def run(running: servers.Server, port: int, name: str, requests: int) -> list[float]:
    """Milliseconds of each request, answered by the client ``name``. ``port``: where routes are taken."""
    client = peers.start(name, "respond", f"127.0.0.1:{port}" if name == "ours" else running.address)
    asker = Asker(running)
    try:
        asker.wait()
        for _ in range(min(WARM_UP, requests)):
            asker.ask()
        return [asker.ask() for _ in range(requests)]
    finally:
        asker.close()
        peers.stop(client)


def at(found: Sequence[float], share: float) -> float:
    return sorted(found)[int(len(found) * share)]


@contextmanager
def server(version: str) -> Iterator[tuple[servers.Server, int]]:
    """With the port where it takes routes."""
    port = servers.free_port()
    with tempfile.TemporaryDirectory() as folder:
        block = f'cluster {{ name: C1, listen: "127.0.0.1:{port}" }}'
        with servers.running(servers.real_nats(Path(folder), block, version=version, jetstream=False)) as running:
            servers.await_port(port)
            yield running, port


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reply", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--versions", nargs="+", default=["2.9", "2.15"])
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=CLIENTS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()

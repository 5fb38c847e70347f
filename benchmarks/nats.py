"""How fast a handler that does nothing works off a stream of a real nats-server, and how fast one is filled: 200 bytes a message.

Ours runs through the whole runtime, each message under a lease of its own, and each that is published has an id by which doubles
are dropped. The bare socket is the server's limit from Python: one read buffer, and no id. nats.py does what its documentation
shows. Every client is a process of its own, every run has a fresh server that keeps its stream in memory.
"""

from __future__ import annotations

import argparse
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import measure, peers
from framework.testing import servers
from framework.transports import open_transports
from framework.transports.nats.dial import dial
from framework.transports.nats.session import Session

JOBS = {"pull": "pull and acknowledge, 2,500 in flight", "store": "publish, 500 under way"}
MESSAGES = {"ours": 400_000, "bare-nats": 400_000, "nats-py": 60_000}
WARM_UP = 5_000  # messages
WINDOW = 3.0  # seconds
_STREAM = (
    b'{"name":"bench","subjects":["bench"],"storage":"memory","retention":"limits","discard":"old","duplicate_window":2000000000}'
)


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    for job in options.jobs:
        rounds: dict[str, list[measure.Result]] = {name: [] for name in options.clients}
        for n in range(options.rounds):
            for name in options.clients:
                print(f"nats, {job}: round {n + 1} of {options.rounds}, {name}", file=sys.stderr)
                rounds[name].append(run(name, job, options.scale))
        print(measure.table(f"nats, {JOBS[job]}, {options.rounds} rounds, medians", rounds))


def run(name: str, job: str, scale: float = 1.0) -> measure.Result:
    with tempfile.TemporaryDirectory() as folder, _server(Path(folder)) as server:
        return _pulled(server, name, int(MESSAGES[name] * scale)) if job == "pull" else _stored(server, name, scale)


def _pulled(server: servers.Server, name: str, messages: int) -> measure.Result:
    _fill(server, messages)
    client = peers.start(name, "pull", server.address)
    try:
        figures = measure.window(server, client, lambda: _acked(server), messages // 10, messages * 9 // 10, longest=60)
        return measure.Result(*figures, fault=_fault(server, messages))
    finally:
        peers.stop(client)


def _stored(server: servers.Server, name: str, scale: float) -> measure.Result:
    client = peers.start(name, "store", server.address)
    try:
        figures = measure.window(server, client, lambda: _last(server), WARM_UP, sys.maxsize, longest=WINDOW * scale)
        return measure.Result(*figures, fault="" if client.poll() is None else f"ended with {client.returncode}")
    finally:
        peers.stop(client)


@contextmanager
def _server(folder: Path) -> Iterator[servers.Server]:
    """With a stream in memory, and a durable consumer: the disk has no part in this."""
    http = servers.free_port()
    server = servers.real_nats(folder, f"http: 127.0.0.1:{http}")
    server.http_port = http
    with servers.running(server):
        with dial(server.address) as line:
            session = Session(line, 30.0)
        session.ask(b"$JS.API.STREAM.CREATE.bench", _STREAM, 5.0)
        session.close()
        (transport,) = open_transports([f"nats://{server.address}"])
        transport.ensure("bench", ["bench"])
        transport.close()
        yield server


def _fill(server: servers.Server, messages: int) -> None:
    """By nobody in particular: without an id, or any other header."""
    command = b"PUB bench %d\r\n%b\r\n" % (len(measure.BODY), measure.BODY)
    with socket.create_connection(("127.0.0.1", server.tcp_port)) as sock:
        sock.sendall(b'CONNECT {"verbose":false}\r\n')
        for start in range(0, messages, 1000):
            sock.sendall(command * min(1000, messages - start))
        while _last(server) < messages:
            time.sleep(measure.POLL)


def _acked(server: servers.Server) -> int:
    (consumer,) = _stream(server).get("consumer_detail") or [{"ack_floor": {"stream_seq": 0}}]
    return int(consumer["ack_floor"]["stream_seq"])


def _last(server: servers.Server) -> int:
    return int(_stream(server)["state"]["last_seq"])


def _stream(server: servers.Server) -> dict[str, Any]:
    (account,) = server.http("/jsz?accounts=true&streams=true&consumers=true")["account_details"]
    (stream,) = account["stream_detail"]
    return dict(stream)


def _fault(server: servers.Server, messages: int, patience: float = 30.0) -> str:
    """What is left when all should be acknowledged, which may take ``patience`` seconds, and what was delivered again."""
    deadline = time.monotonic() + patience
    while (done := _acked(server)) != messages and time.monotonic() < deadline:
        time.sleep(measure.POLL)
    (consumer,) = _stream(server)["consumer_detail"]
    again = consumer["delivered"]["consumer_seq"] - consumer["delivered"]["stream_seq"]
    counts = {"not acknowledged": messages - done, "delivered again": again}
    return ", ".join(f"{what} {n}" for what, n in counts.items() if n)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nats", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="how many messages, or how long, times the usual")
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--clients", nargs="+", choices=peers.NATS, default=peers.NATS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()

"""How late our embedded nsqd is: deferred, requeued and timed-out messages, and heartbeats, idle and under full load.

All is timed by bare sockets in processes of their own. The load is one publisher of MPUBs and one consumer, as fast as they can.
``--idle-topics`` also says what CPU so many topics take that have nothing to do.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import psutil

from benchmarks import peers
from framework.testing import servers

EDGES = (1, 2, 5, 10, 20, 50, 100, 250)  # ms
LEASE = HEARTBEAT = 1000  # ms: the shortest that there are
DELAYS = (30, 100, 200, 300, 700, 1500)  # ms


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    for load in (False, True):
        print(f"late, milliseconds, {'under full load' if load else 'idle'}")
        print(f"  {'':<22} {'n':>6} {'p50':>7} {'p99':>7} {'worst':>7}   " + " ".join(f"<{edge}" for edge in EDGES))
        for name, measured in MEASURES.items():
            with _fresh() as server, _load(server) if load else nullcontext():
                print(f"  {name:<22} {_histogram(_apart(measured, server.tcp_port, options.seconds))}", flush=True)
    if options.idle_topics:
        _idle(options.idle_topics, options.seconds)


def _histogram(late: list[float]) -> str:
    late = sorted(late)
    at = [late[min(len(late) - 1, int(len(late) * part))] for part in (0.5, 0.99, 1.0)]
    counts = " ".join(str(sum(one < edge for one in late)) for edge in EDGES)
    return f"{len(late):6} " + " ".join(f"{one:7.2f}" for one in at) + f"   {counts}"


# --- what is timed, each in a process of its own ----------------------------------------------------------------------


class _Client:
    """A consumer of a topic of its own."""

    def __init__(self, port: int, topic: str, **wishes: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        body = json.dumps(wishes).encode()
        sub = f"SUB {topic} c\nRDY 2500\n".encode()
        self.socket.sendall(b"  V2IDENTIFY\n" + struct.pack(">i", len(body)) + body + sub)
        self.topic = topic
        self._buffer = b""

    def defer(self, delay: int) -> None:
        body = b"%d" % (time.time_ns() + delay * 1_000_000)
        self.socket.sendall(f"DPUB {self.topic} {delay}\n".encode() + struct.pack(">i", len(body)) + body)

    def frames(self, until: float) -> Iterator[tuple[int, bytes]]:
        """(type, data) until monotonic seconds."""
        while (left := until - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                self._buffer += self.socket.recv(1 << 16)
            except TimeoutError:
                return
            while len(self._buffer) >= 8 and len(self._buffer) >= 4 + (size := int.from_bytes(self._buffer[:4], "big")):
                yield int.from_bytes(self._buffer[4:8], "big"), self._buffer[8 : 4 + size]
                self._buffer = self._buffer[4 + size :]


def _deferred(port: int, seconds: float) -> Iterator[float]:
    client, until = _Client(port, "deferred"), time.monotonic() + seconds
    for at in range(200):
        client.defer(DELAYS[at % len(DELAYS)] + at % 17)
    for kind, data in client.frames(until):
        if kind == 2:
            yield (time.time_ns() - int(data[26:])) / 1e6
            client.socket.sendall(b"FIN " + data[10:26] + b"\n")
            client.defer(DELAYS[len(data) % len(DELAYS)] + int(data[26:]) % 97)


def _requeued(port: int, seconds: float) -> Iterator[float]:
    client, until = _Client(port, "requeued"), time.monotonic() + seconds
    due: dict[bytes, float] = {}
    for _ in range(200):
        client.defer(1)
    for kind, data in client.frames(until):
        if kind == 2:
            now, message_id = time.monotonic(), data[10:26]
            if message_id in due:
                yield (now - due[message_id]) * 1000
            delay = DELAYS[data[25] % len(DELAYS)]
            due[message_id] = now + delay / 1000
            client.socket.sendall(b"REQ %b %d\n" % (message_id, delay))


def _timed_out(port: int, seconds: float) -> Iterator[float]:
    client, until = _Client(port, "timedout", msg_timeout=LEASE), time.monotonic() + seconds
    came: dict[bytes, float] = {}
    for at in range(200):
        client.defer(1 + 5 * at)
    for kind, data in client.frames(until):
        if kind == 2:
            now, message_id = time.monotonic(), data[10:26]
            if message_id in came:
                yield (now - came[message_id]) * 1000 - LEASE
            came[message_id] = now
        elif data == b"_heartbeat_":
            client.socket.sendall(b"NOP\n")


def _heartbeats(port: int, seconds: float) -> Iterator[float]:
    """Each counted from the one before, as the first's own lateness is not known."""
    client, last = _Client(port, "heartbeats", heartbeat_interval=HEARTBEAT), 0.0
    for _, data in client.frames(time.monotonic() + seconds):
        if data == b"_heartbeat_":
            now = time.monotonic()
            client.socket.sendall(b"NOP\n")
            if last:
                yield (now - last) * 1000 - HEARTBEAT
            last = now


Measure = Callable[[int, float], Iterator[float]]
MEASURES: dict[str, Measure] = {
    "deferred (DPUB)": _deferred,
    "requeued (REQ)": _requeued,
    "timed out": _timed_out,
    "heartbeats": _heartbeats,
}


def _apart(measure: Measure, port: int, seconds: float) -> list[float]:
    with multiprocessing.Pool(1) as pool:
        return pool.apply(_listed, (measure, port, seconds))


def _listed(measure: Measure, port: int, seconds: float) -> list[float]:
    return list(measure(port, seconds))


# --- what goes on meanwhile ------------------------------------------------------------------------------------------


@contextmanager
def _fresh() -> Iterator[servers.Server]:
    with tempfile.TemporaryDirectory() as folder, servers.running(servers.own_nsqd(Path(folder))) as server:
        yield server


@contextmanager
def _load(server: servers.Server) -> Iterator[None]:
    clients: list[subprocess.Popen[bytes]] = []
    try:
        clients.append(peers.start("bare-loop", "mpub", server.address, "bench"))
        clients.append(peers.start("bare-loop", "consume", server.address))
        time.sleep(1)
        yield
    finally:
        for client in clients:
            peers.stop(client)


def _idle(topics: int, seconds: float) -> None:
    with _fresh() as server:
        for at in range(topics):
            server.http(f"/topic/create?topic=idle{at}", b"")
            server.http(f"/channel/create?topic=idle{at}&channel=c", b"")
        clients = [_Client(server.tcp_port, f"idle{at}", heartbeat_interval=60_000) for at in range(200)]
        time.sleep(3)
        assert server.process is not None
        process = psutil.Process(server.process.pid)
        before = process.cpu_times()
        time.sleep(seconds)
        after = process.cpu_times()
        used = (after.user + after.system - before.user - before.system) / seconds
        print(f"{topics} idle topics, {len(clients)} connections: {100 * used:.2f} % CPU, {process.memory_info().rss >> 20} MiB")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ontime", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each is timed (at most 25)")
    parser.add_argument("--idle-topics", type=int, default=1000)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()

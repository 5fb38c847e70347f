"""How fast a handler that does nothing works off a real RocketMQ, and how fast one is filled: 200 bytes a message, four queues.

Ours runs through the whole runtime, each message under a lease of its own by POP. The bare socket is the broker's limit from
Python: as many requests under way, and messages that nobody looks into. The Java client does what its documentation shows. All
take turns at one broker, which is warm by then; each run has a topic of its own.
"""

from __future__ import annotations

import argparse
import itertools
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import gevent

from benchmarks import latency, measure, peers
from framework.message import Message
from framework.testing.conformance.receiver import Held
from framework.testing.rocketmq import PROMPT, RocketMQ, java_command, real_rocketmq
from framework.transports import open_transports
from framework.transports.rocketmq import administration
from framework.transports.rocketmq.commands import Commands
from framework.transports.rocketmq.transport import RocketTransport
from framework.transports.rocketmq.wire.frames import Decoder, Frame, encode

JOBS = {
    "pop": "POP and acknowledge",
    "pull": "PULL and commit",
    "one": "publish one by one",
    "many": "publish, 64 at once",
    "batch": "publish in batches of 100",
}
CONSUMING = ("pop", "pull")
MESSAGES = {"pop": 400_000, "pull": 400_000}
WARM_UP = {"one": 500, "many": 5_000, "batch": 50_000}
WARM = 1.0
"""The least scale of the first rounds: after 60,000 messages a broker is half as fast as after 400,000."""
UNCOUNTED = 2
"""Rounds before those that count. They are for the Java machine of the broker alone: in the second a message still took it twice
as long as in the third."""
WINDOW = 3.0
"""Seconds."""
CLIENTS = ("ours", "bare-rocketmq", "java")
_FULL_JIT = ("-XX:TieredStopAtLevel=4", "-Xmn96m")
_numbers = itertools.count(1)


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    with running(PROMPT if options.kv else {}) as server:
        for job in options.jobs:
            rounds: dict[str, list[measure.Result]] = {name: [] for name in options.clients if (name, job) != ("java", "pop")}
            for n in range(1 - UNCOUNTED, options.rounds + 1):
                for name in _turned(list(rounds), n):
                    print(f"rocketmq, {job}: round {n} of {options.rounds}, {name}", file=sys.stderr)
                    result = run(server, name, job, options.scale if n > 0 else max(WARM, options.scale))
                    if n > 0:
                        rounds[name].append(result)
            print(measure.table(f"rocketmq, {JOBS[job]}, {options.rounds} rounds, medians", rounds), flush=True)
        if options.late:
            late = lateness(server, options.late)
            words = f"least {late[0]:.1f}, median {late[len(late) // 2]:.1f}, most {late[-1]:.1f} s" if late else "none came"
            print(f"requeued for a second, {len(late)} of {options.late} came later by: {words}", flush=True)
        if options.latency:
            print("publish -> handler by POP, 500 a second, milliseconds\n  client         p50      p99    worst")
            for name, times in delays(server, options.latency).items():
                times.sort()
                figures = latency.at(times, 0.5), latency.at(times, 0.99), times[-1]
                print(f"  {name:<13}" + "".join(f"{each:9.2f}" for each in figures), flush=True)


@contextmanager
def running(settings: dict[str, str]) -> Iterator[RocketMQ]:
    with tempfile.TemporaryDirectory() as folder:
        server = real_rocketmq(Path(folder), settings, *_FULL_JIT)
        server.start()
        try:
            yield server
        finally:
            server.kill()


def run(server: RocketMQ, name: str, job: str, scale: float = 1.0) -> measure.Result:
    topic = f"bench-{next(_numbers)}"
    (transport,) = open_transports([f"rocketmq://{server.address}" + ("?mode=pull" if job == "pull" else "")])
    assert isinstance(transport, RocketTransport)
    transport.ensure(topic, ["bench"])
    messages = int(MESSAGES[job] * scale) if job in CONSUMING else 0
    fill(server, topic, messages)
    client = start(server, name, job, topic)
    try:
        if job in CONSUMING:
            count = lambda: messages - _waiting(transport, server, topic, job)  # noqa: E731
            figures = measure.window(server.broker, client, count, messages // 10, messages * 9 // 10, longest=60)
            return measure.Result(*figures, fault=_fault(transport, topic))
        stored = lambda: _waiting(transport, server, topic, "pull")  # noqa: E731
        figures = measure.window(server.broker, client, stored, WARM_UP[job], sys.maxsize, longest=WINDOW * scale)
        return measure.Result(*figures, fault="" if client.poll() is None else f"ended with {client.returncode}")
    finally:
        peers.stop(client)
        transport.close()


def start(server: RocketMQ, name: str, job: str, topic: str, *, stdout: int | None = None) -> subprocess.Popen[bytes]:
    if name == "java":
        source = peers.ROOT / "benchmarks" / "clients" / "RocketClient.java"
        java = [*java_command(server.data), "-XX:TieredStopAtLevel=4", str(source)]
        return subprocess.Popen([*java, job, server.address, topic], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if name == "ours":
        return peers.start("ours-rocketmq", job, server.address, topic, stdout=stdout)
    return peers.start(name, job, server.broker.address, topic, stdout=stdout)


def fill(server: RocketMQ, topic: str, messages: int) -> None:
    """In batches of 100, to one queue after the other."""
    made = Commands(4 << 20)
    decoder = Decoder()
    with socket.create_connection(("127.0.0.1", server.broker.tcp_port)) as sock:
        for number, first in enumerate(range(0, messages, 100)):
            (command,) = made.together(topic, topic, [measure.BODY] * min(100, messages - first), {})
            sock.sendall(encode(Frame(command.code, number, {**command.fields, "e": str(number % 4)}, command.body)))
            while not (answers := decoder.feed(sock.recv(1 << 16))):
                pass
            assert answers[0].code == 0, answers[0].remark


def delays(server: RocketMQ, samples: int) -> dict[str, list[float]]:
    """Client -> milliseconds of each message, but of the first tenth. Each has a group of its own and gets the same messages at
    the same time: the broker's pauses, of up to 50 ms, would be in the figures of one and not in those of the other."""
    topic = f"bench-{next(_numbers)}"
    (transport,) = open_transports([f"rocketmq://{server.address}"])
    transport.ensure(topic, ["bench"])
    transport.close()
    clients = {name: start(server, name, "latency", topic, stdout=subprocess.PIPE) for name in ("ours", "bare-rocketmq")}
    pace = peers.start("bare-rocketmq", "pace", server.broker.address, topic)
    try:
        with ThreadPoolExecutor() as readers:  # a client whose pipe is full would stand still
            times = readers.map(lambda client: _numbers_of(client, samples)[samples // 10 :], clients.values())
            return dict(zip(clients, times, strict=True))
    finally:
        for process in (pace, *clients.values()):
            peers.stop(process)


def _numbers_of(client: subprocess.Popen[bytes], count: int) -> list[float]:
    assert client.stdout is not None
    return [float(client.stdout.readline()) for _ in range(count)]


def lateness(server: RocketMQ, samples: int, delay: float = 1.0) -> list[float]:
    """Seconds by which each message comes later than the delay that it was requeued for, ascending; one is requeued at a time of
    its own."""
    topic = f"bench-{next(_numbers)}"
    (transport,) = open_transports([f"rocketmq://{server.address}"])
    transport.ensure(topic, ["bench"])
    (node,) = transport.discover(topic, "bench")
    held = Held(lambda receiver: transport.connect(node, topic, "bench", receiver))
    held.grant(samples)
    transport.producer().publish(topic, [b"%d" % number for number in range(samples)])
    due: dict[bytes, float] = {}
    late: list[float] = []
    fresh: list[Message] = []
    seen, began = 0, time.monotonic()
    while len(late) < samples and (now := time.monotonic()) < began + 60.0 + samples:
        for message in held.taken[seen:]:
            seen += 1
            if message.body in due:
                late.append(now - due[message.body])
                held.connection.finish(message)
            else:
                fresh.append(message)
        if fresh and now > began + 0.2 * len(due):
            message = fresh.pop()
            held.connection.requeue(message, delay)
            due[message.body] = now + delay
        gevent.sleep(0.01)
    held.connection.close()
    transport.close()
    return sorted(late)


def _turned(names: list[str], by: int) -> list[str]:
    """Another one is the first in each round: what the first writes the broker's machine has to write out while the next one is
    measured."""
    by %= len(names)
    return names[by:] + names[:by]


def _waiting(transport: RocketTransport, server: RocketMQ, topic: str, job: str) -> int:
    with transport._sessions.use(server.broker.address) as session:
        if job == "pull":
            return sum(administration._unread(session, topic, f"{topic}|bench"))
        return sum(administration._waiting(session, topic, "bench"))


def _fault(transport: RocketTransport, topic: str, patience: float = 30.0) -> str:
    """What is left when all should be handled, which may take ``patience`` seconds."""
    deadline = time.monotonic() + patience
    while (left := sum(transport.backlog(topic, "bench").values())) and time.monotonic() < deadline:
        time.sleep(measure.POLL)
    return f"not handled {left}" if left else ""


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rocketmq", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="how many messages, or how long, times the usual")
    parser.add_argument("--jobs", nargs="*", choices=JOBS, default=list(JOBS))
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=CLIENTS)
    parser.add_argument("--latency", type=int, default=10_000, metavar="N", help="how many messages are timed; 0: none")
    parser.add_argument("--late", type=int, default=0, metavar="N", help="how many messages are requeued for a second and timed")
    parser.add_argument("--kv", action="store_true", help="a broker with the checkpoints of POP in RocksDB")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()

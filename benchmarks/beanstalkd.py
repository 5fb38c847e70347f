"""How fast a handler that does nothing works off a real beanstalkd: 200 bytes a job, 100 in flight.

Ours runs through the whole runtime, each job under a lease of its own. The bare socket is the server's limit from Python: it
reserves 100 jobs at a time on one connection, which no handler could be given. Every client is a process of its own.
"""

from __future__ import annotations

import argparse
import re
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks import measure, peers
from framework.testing import servers

JOBS = 200_000
_DELETED = re.compile(rb"cmd-delete: (\d+)")


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    rounds: dict[str, list[measure.Result]] = {name: [] for name in options.clients}
    for n in range(options.rounds):
        for name in options.clients:
            print(f"beanstalkd: round {n + 1} of {options.rounds}, {name}", file=sys.stderr)
            rounds[name].append(run(name, int(JOBS * options.scale)))
    print(measure.table(f"beanstalkd, reserve and delete, {options.rounds} rounds, medians", rounds))


def run(name: str, jobs: int) -> measure.Result:
    with tempfile.TemporaryDirectory() as folder, _server(Path(folder)) as (server, asking):
        _fill(asking, jobs)
        client = peers.start(name, "reserve", server.address)
        try:
            figures = measure.window(server, client, lambda: _deleted(asking), jobs // 10, jobs * 9 // 10, longest=30)
            return measure.Result(*figures, fault=_fault(asking, jobs))
        finally:
            peers.stop(client)


@contextmanager
def _server(folder: Path) -> Iterator[tuple[servers.Server, socket.socket]]:
    """One that does not sync: the disk has no part in this. With a connection to ask it."""
    with (
        servers.running(servers.real_beanstalkd(folder, "-F")) as server,
        socket.create_connection(("127.0.0.1", server.tcp_port)) as asking,
    ):
        yield server, asking


def _fill(asking: socket.socket, jobs: int) -> None:
    put = b"put 1024 0 600 %d\r\n%b\r\n" % (len(measure.BODY), measure.BODY)
    _ask(asking, b"use bench\r\n", 1)
    for start in range(0, jobs, 1000):
        count = min(1000, jobs - start)
        _ask(asking, put * count, count)


def _ask(asking: socket.socket, commands: bytes, lines: int) -> None:
    asking.sendall(commands)
    while lines > 0:
        lines -= asking.recv(1 << 16).count(b"\n")


def _deleted(asking: socket.socket) -> int:
    asking.sendall(b"stats\r\n")
    answer = asking.recv(1 << 16)
    while not answer.endswith(b"\r\n") or not (found := _DELETED.search(answer)):
        answer += asking.recv(1 << 16)
    return int(found[1])


def _fault(asking: socket.socket, jobs: int, patience: float = 60.0) -> str:
    """What is left when all should be done, which may take ``patience`` seconds."""
    deadline = time.monotonic() + patience
    while (done := _deleted(asking)) != jobs and time.monotonic() < deadline:
        time.sleep(measure.POLL)
    return "" if done == jobs else f"{done} of {jobs} jobs deleted"


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.beanstalkd", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="how many jobs, times the usual number")
    parser.add_argument("--clients", nargs="+", choices=peers.BEANSTALKD, default=peers.BEANSTALKD)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()

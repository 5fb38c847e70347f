"""A peer of a NATS cluster: how long messages wait for a slot, how quickly interest is known, how fast a queue group is.

python -m benchmarks.route                          # all of it, about two minutes
python -m benchmarks.route --parts waits --versions 2.15
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import gevent

from framework.engine.supervisor import Supervisor
from framework.handler import make_spec
from framework.message import Message
from framework.testing import servers
from framework.transports import open_transports
from framework.transports.nats import route_wire, wire
from framework.transports.nats.dial import dial
from framework.transports.nats.session import Session
from framework.transports.nats_route import connection, weights

SLOTS = (10, 2)
WORK = 0.020
"""Seconds that a call takes."""
LOAD = 0.75
MESSAGES = 4000
SUBSCRIPTIONS = 100_000
CORE = 200_000
BODY = b"x" * 100

Policy = Callable[[int, int, int], int]
"""Slots, those that are taken, members of the queue group -> weight."""

POLICIES: dict[str, Policy] = {
    "1 for each worker": lambda slots, taken, members: 1,
    "its number of slots": lambda slots, taken, members: slots,
    "its free slots": weights.weight,
}


@contextmanager
def server(version: str) -> Iterator[tuple[servers.Server, str]]:
    """With its route port, as a URL."""
    port = servers.free_port()
    with tempfile.TemporaryDirectory() as folder:
        block = f'cluster {{ name: C1, listen: "127.0.0.1:{port}" }}'
        with servers.running(servers.real_nats(Path(folder), block, version=version, jetstream=False)) as running:
            servers.await_port(port)
            yield running, f"nats-route://127.0.0.1:{port}"


class Client:
    """An ordinary client, which only publishes and subscribes."""

    def __init__(self, running: servers.Server) -> None:
        with dial(running.address) as line:
            self.session = Session(line, 30.0)

    def say(self, commands: bytes) -> None:
        """Return when the server has read them."""
        read = gevent.event.Event()
        self.session.say(commands)
        self.session.ping(read.set)
        read.wait()


def worker(url: str, handle: Callable[[Message], object], concurrency: int) -> tuple[Supervisor, Any, Any]:
    (transport,) = open_transports([url])
    spec = make_spec(handle, "orders", "billing", {"concurrency": concurrency, "timeout": 300.0})
    supervisor = Supervisor([spec], [transport], publish=print)
    greenlet = gevent.spawn(supervisor.run)
    while not supervisor.ready:
        gevent.sleep(0.01)
    return supervisor, transport, greenlet


def end(workers: list[tuple[Supervisor, Any, Any]]) -> None:
    for supervisor, transport, greenlet in workers:
        supervisor.stop()
        greenlet.get()
        transport.close()


def waits(version: str, policy: Policy) -> list[float]:
    """Milliseconds that each message waited in the worker that got it, ascending."""
    found: list[float] = []

    def handle(message: Message) -> None:
        found.append((time.time_ns() - message.timestamp) / 1e6)
        gevent.sleep(WORK)

    def weigh(self: connection.RouteConnection, members: int) -> int:
        return policy(self._receiver.capacity, len(self.in_flight) + len(self._waiting), members)

    with server(version) as (running, url), mock.patch.object(connection.RouteConnection, "weight", weigh):
        workers = [worker(url, handle, slots) for slots in SLOTS]
        gevent.sleep(0.3)
        client = Client(running)
        pause = WORK / sum(SLOTS) / LOAD
        begin = time.monotonic()
        for number in range(MESSAGES):
            gevent.sleep(max(0.0, begin + number * pause - time.monotonic()))
            client.session.say(wire.pub(b"orders", BODY))
        while len(found) < MESSAGES:
            gevent.sleep(0.01)
        end(workers)
        client.session.close()
    return sorted(found)


def interest(version: str) -> float:
    """Seconds from the dial to when a peer knows all subscriptions of a server's clients."""
    with server(version) as (running, url):
        client = Client(running)
        client.say(b"".join(wire.sub(b"orders.%d" % number, number + 1) for number in range(SUBSCRIPTIONS)))
        (transport,) = open_transports([url])
        begin = time.monotonic()
        transport.start(None)
        (home,) = transport._homes.there()
        home.peer.reach()
        while len(home.peer.interests) < SUBSCRIPTIONS:
            gevent.sleep(0.001)
        seconds = time.monotonic() - begin
        transport.close()
        client.session.close()
    return seconds


def core(version: str, *, bare: bool) -> float:
    """Messages a second that come by way of a server and are handled: by a worker, or by a bare loop that only decodes."""
    seen = 0

    def handle(message: Message) -> None:
        nonlocal seen
        seen += 1

    with server(version) as (running, url):
        client = Client(running)
        workers = [] if bare else [worker(url, handle, 10)]
        loop = BareLoop(url) if bare else None
        count: Callable[[], int] = (lambda: loop.seen) if loop else (lambda: seen)
        gevent.sleep(0.3)
        begin = time.monotonic()
        for at in range(0, CORE, 1000):
            client.say(wire.pub(b"orders", BODY) * 1000)
            while count() < at - 20_000:
                gevent.sleep(0.0005)
        while count() < CORE:
            gevent.sleep(0.001)
        rate = CORE / (time.monotonic() - begin)
        end(workers)
        if loop is not None:
            loop.route.close()
        client.session.close()
    return rate


class BareLoop:
    """A route that counts what comes."""

    def __init__(self, url: str) -> None:
        from framework.transports.nats_route import line, route

        self.seen = 0
        with line.dialled(url.removeprefix("nats-route://")) as made:
            info = made.read_info(None)
            login = line.Login()
            card = line.Card("N" * 56, "bare", info.cluster, False, "127.0.0.1", 0, login, False, False)
            made.introduce(card, 2 * route_wire.interest(route_wire.Interest(b"$G", b"orders", b"billing", 10)))
            self.route = route.Route(made, self, 10.0)
            self.route.start()

    def heard(self, _: object, events: list[object]) -> None:
        self.seen += sum(type(event) is route_wire.Routed for event in events)

    def schedule(self) -> None:
        gevent.get_hub().loop.run_callback(self.route.flush)

    def ended(self, *_: object) -> None: ...


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=["waits", "interest", "core"], choices=["waits", "interest", "core"])
    parser.add_argument("--versions", nargs="+", default=["2.9", "2.15"])
    chosen = parser.parse_args(arguments)
    for version in chosen.versions:
        print(f"nats-server {version}")
        if "waits" in chosen.parts:
            print(f"  waits, {SLOTS[0]} and {SLOTS[1]} slots, {LOAD:.0%} load, ms: p50, p99, most")
            for name, policy in POLICIES.items():
                found = waits(version, policy)
                print(f"    {name:<22}{found[len(found) // 2]:9.2f}{found[int(len(found) * 0.99)]:9.2f}{found[-1]:9.2f}")
        if "interest" in chosen.parts:
            print(f"  interest: {SUBSCRIPTIONS} subscriptions joined in {interest(version):.2f} s")
        if "core" in chosen.parts:
            ours, bare = core(version, bare=False), core(version, bare=True)
            print(f"  core queue: {ours:,.0f} messages/s, a bare loop {bare:,.0f}: {ours / bare:.2f}")


if __name__ == "__main__":
    main()

"""A peer of a NATS cluster: how long messages wait for a slot, how quickly interest is known, how fast a queue group is.

python -m benchmarks.route                          # all of it, about two minutes
python -m benchmarks.route --parts waits --versions 2.15
"""

from __future__ import annotations

import argparse
import re
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
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
from framework.transports.nats.urls import Login
from framework.transports.nats_route import connection, line, mesh, route, weights

SLOTS = (10, 2)
WORK = 0.020
"""Seconds that a call takes."""
LOAD = 0.75
MESSAGES = 4000
SUBSCRIPTIONS = 100_000
CORE = 200_000
STORED = 100_000
BATCH = 1250
BODY = b"x" * 100
_STREAM = b'{"name":"orders","subjects":["orders"],"storage":"memory","duplicate_window":2000000000}'
_PULLED = re.compile(rb"RMSG \$G _INBOX\.me\.1 ([^ @]+)@[^ ]+ (\d+)\r\n")

PARTS = ["waits", "interest", "core", "streams"]
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


def worker(url: str, handle: Callable[[Message], object], concurrency: int, **options: Any) -> tuple[Supervisor, Any, Any]:
    (transport,) = open_transports([url])
    spec = make_spec(handle, "orders", "billing", {"concurrency": concurrency, "timeout": 300.0, **options})
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
        transport: Any = open_transports([url])[0]
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


@contextmanager
def cluster(version: str) -> Iterator[tuple[list[servers.Server], list[int]]]:
    """Two that keep streams, and the ports of their routes."""
    ports = [servers.free_port() for _ in range(2)]
    routes = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in ports)
    with ExitStack() as stack:
        made = []
        for port in ports:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            block = f'cluster {{ name: C1, listen: "127.0.0.1:{port}", routes: [{routes}] }}'
            made.append(stack.enter_context(servers.running(servers.real_nats(folder, block, version=version))))
        for port in ports:
            servers.await_port(port)
        yield made, ports


def streams(version: str, *, bare: bool) -> float:
    """Messages a second that are pulled by way of a route and acknowledged: by a worker, or by a loop around one socket."""
    seen: list[float] = []

    def handle(message: Message) -> None:
        seen.append(time.monotonic())

    with cluster(version) as (running, ports):
        url = f"nats-route://{','.join(f'127.0.0.1:{port}' for port in ports)}?jetstream=true"
        _fill(running[0], url)
        if bare:
            _pull(ports, seen)
        else:
            one = worker(url, handle, 10, max_in_flight=2500)
            while len(seen) < STORED:
                gevent.sleep(0.01)
            end([one])
    begin, last = STORED // 10, STORED * 9 // 10
    return (last - begin) / (seen[last] - seen[begin])


def _fill(running: servers.Server, url: str) -> None:
    """A stream in memory, so that the disk has no part in this."""
    client = Client(running)
    (transport,) = open_transports([url])
    transport.probe()  # it waits until somebody leads
    client.session.ask(b"$JS.API.STREAM.CREATE.orders", _STREAM, 30.0)
    transport.ensure("orders", ["billing"])
    transport.close()
    for _ in range(0, STORED, 1000):
        client.session.say(wire.pub(b"orders", BODY) * 999)
        client.session.ask(b"orders", BODY, 10.0)
    client.session.close()


def _pull(ports: list[int], seen: list[float]) -> None:
    """With one read buffer; what comes in one read is acknowledged in one send."""
    sock = _led_by(ports)
    request = b'{"batch":%d,"expires":30000000000}' % BATCH
    pull = b"RMSG $G $JS.API.CONSUMER.MSG.NEXT.orders.billing _INBOX.me.1 %d\r\n%b\r\n" % (len(request), request)
    sock.sendall(b"RS+ $G _INBOX.me.1\r\n" + pull * 2)
    data, came = b"", 0
    while len(seen) < STORED:
        data += sock.recv(1 << 18)
        at, replies = 0, []
        while at < len(data):
            if (found := _PULLED.match(data, at)) is not None:
                if (after := found.end() + int(found[2]) + 2) > len(data):
                    break
                replies.append(found[1])
                at = after
            elif (after := data.find(b"\r\n", at) + 2) > 1:  # what servers say of themselves
                if data.startswith(b"PING", at):
                    sock.sendall(b"PONG\r\n")
                at = after
            else:
                break
        data = data[at:]
        seen += [time.monotonic()] * len(replies)
        pulls, came = divmod(came + len(replies), BATCH)
        sock.sendall(b"".join([b"RMSG $G %b 4\r\n+ACK\r\n" % reply for reply in replies]) + pull * pulls)
    sock.close()


def _led_by(ports: list[int]) -> socket.socket:
    """A route to the server that leads the consumer."""
    while True:
        for port in ports:
            with line.dialled(f"127.0.0.1:{port}") as made:
                info = made.read_info(None)
                card = line.Card(mesh.new_id(), "bare", info.cluster, False, "127.0.0.1", 0, Login(), False, False)
                made.introduce(card, b"")
                if any(
                    isinstance(one, route_wire.Interest) and one.subject.endswith(b"NEXT.orders.billing") for one in made.events
                ):
                    sock = socket.socket(fileno=made.release().detach())  # type: ignore[attr-defined]
                    sock.setblocking(True)
                    return sock
        time.sleep(0.1)


class BareLoop:
    """A route that counts what comes."""

    def __init__(self, url: str) -> None:
        self.seen = 0
        with line.dialled(url.removeprefix("nats-route://")) as made:
            info = made.read_info(None)
            login = Login()
            card = line.Card("N" * 56, "bare", info.cluster, False, "127.0.0.1", 0, login, False, False)
            made.introduce(card, 2 * route_wire.interest(route_wire.Interest(b"$G", b"orders", b"billing", 10)))
            self.route = route.Route(made, self, 10.0)
            self.route.start()

    def heard(self, route: route.Route, events: list[route_wire.RouteEvent]) -> None:
        self.seen += sum(type(event) is route_wire.Routed for event in events)

    def schedule(self) -> None:
        gevent.get_hub().loop.run_callback(self.route.flush)

    def ended(self, *_: object) -> None: ...

    def resumed(self) -> None: ...


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
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
        if "streams" in chosen.parts:
            ours, bare = streams(version, bare=False), streams(version, bare=True)
            print(f"  streams: {ours:,.0f} messages/s pulled and acknowledged, a bare loop {bare:,.0f}: {ours / bare:.2f}")


if __name__ == "__main__":
    main()

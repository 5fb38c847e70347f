"""The faults of a peer of a NATS cluster, one function each. Nobody keeps a message there, so what is lost is counted: it is what
was under way to the worker, to the last message, and what the worker had when it ended."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gevent

from framework.message import Message
from framework.testing import servers
from framework.testing.proxy import Lane, Proxy
from framework.testing.workers import Worker as Process
from framework.transports import open_transports
from framework.transports.nats.route_wire import Routed, RouteDecoder
from tests.chaos.trial import Scenario, Verdict
from tests.conftest import starting
from tests.transports.nats_route.conftest import Client, Cluster, peer_of, until
from tests.transports.nats_route.workers import Worker, drained_again_and_again

_RANDOM = random.Random(20260101)
_BURST = 20
_UNDER_WAY = 50
_LAST = 40
_SLOW = """
import gevent
from framework import Message, handler

@handler("orders", "billing", concurrency=5)
def bill(message: Message) -> None:
    with open("started", "ab") as file:
        file.write(message.body + b"\\n")
    gevent.sleep(0.05)
    with open("finished", "ab") as file:
        file.write(message.body + b"\\n")
"""


class Tap:
    """How many messages a lane of a proxy has handed on whole: read from its bytes, whatever either side makes of them."""

    def __init__(self, lane: Lane) -> None:
        self.messages = 0
        self._decoder = RouteDecoder()
        send = lane._send

        def hand_on(data: bytes, sink: Any) -> None:
            send(data, sink)
            self.messages += sum(isinstance(event, Routed) for event in self._decoder.feed(data))

        lane._send = hand_on  # type: ignore[method-assign]

    def begin_anew(self) -> None:
        """With the next connection: this one ended in the middle of something."""
        self._decoder = RouteDecoder()


@dataclass
class Member:
    """A server of the cluster, whose route to the worker leads through ``proxy``."""

    server: servers.Server
    port: int
    proxy: Proxy
    client: Client

    def start(self) -> None:
        self.server.start()
        servers.await_port(self.port)
        self.client = Client(self.server)


class Trial:
    """The worker, and the books: what the servers have read, what was handled, and what was dropped under way."""

    def __init__(self, members: list[Member]) -> None:
        self.members = members
        self.faults = self.dropped = self._sent = 0
        self._seen: Counter[bytes] = Counter()
        self._stuck = False
        places = ",".join(one.proxy.address for one in members)
        nowhere = f"127.0.0.1:{servers.free_port()}"  # or the servers would dial the worker, past the proxies
        (transport,) = open_transports([f"nats-route://{places}?advertise={nowhere}"])

        def handle(message: Message) -> None:
            gevent.sleep(60 if self._stuck else 0.001)
            self._seen[message.body] += 1

        self.worker = Worker(transport, handle, concurrency=20)
        self.until_routed(len(members))

    def until_routed(self, count: int) -> None:
        """There are ``count`` routes, and their servers have read what is subscribed to."""
        peer = peer_of(self.worker.transport)
        until(lambda: len(peer.routes) == count and (peer.mine() or not count))
        read: list[bool] = []
        for route in peer.routes:
            route.ping(read.append)
        until(lambda: len(read) == count)
        assert all(read)

    def publish(self, *members: Member, count: int = _BURST) -> None:
        """``count`` messages by way of each; returns when the servers have read them."""
        for one in members:
            one.client.publish("orders", *[b"%d" % number for number in range(self._sent, self._sent + count)])
            self._sent += count

    def until_handled(self) -> None:
        """All that was not dropped."""
        until(lambda: self._seen.total() >= self._sent - self.dropped)

    def verdict(self, name: str) -> Verdict:
        """The worker is ended at once, with calls that do not end, which it counts as lost itself."""
        self.until_handled()
        self._stuck = True
        self.publish(self.members[0], count=_LAST)
        self.until_routed(len(self.members))  # what was sent before is here
        ledger = self.worker.stop(now=True)
        again = self._seen.total() - len(self._seen)
        assert (ledger.finished, ledger.lost) == (self._seen.total(), _LAST), ledger
        return Verdict(
            name, faults=self.faults, sent=self._sent, handled=len(self._seen), duplicates=again, unexplained=again,
            lost=self._sent - len(self._seen), allowed=self.dropped + ledger.lost, exactly=True,
        )  # fmt: skip


def connections_cut(folder: Path, times: int, version: str = "2.15") -> Verdict:
    """In the middle of a message to the worker, and of what it says of its weight."""
    with _trial(folder, 1, version) as trial:
        (one,) = trial.members
        tap = Tap(one.proxy.to_client)
        for n in range(times):
            trial.publish(one)
            trial.until_handled()
            before = tap.messages
            one.proxy.refuse()  # what comes now has no other way
            if n % 3:
                one.proxy.to_client.cut_after(1 + n * 137 % 1000)
            else:
                one.proxy.to_server.cut_after(1 + n % 20)
            trial.publish(one, count=_UNDER_WAY)
            trial.until_routed(0)
            trial.dropped += _UNDER_WAY - (tap.messages - before)
            trial.faults += 1
            tap.begin_anew()
            one.proxy.restore()
            trial.until_routed(1)
        return trial.verdict(f"route {version}: connections cut")


def member_killed(folder: Path, times: int, version: str = "2.15") -> Verdict:
    """One of three after the other, while the others bring messages; what it had sent, and had not arrived, is lost."""
    with _trial(folder, 3, version) as trial:
        for n in range(times):
            doomed = trial.members[n % 3]
            others = [one for one in trial.members if one is not doomed]
            trial.publish(*trial.members)
            gevent.sleep(_RANDOM.uniform(0.0, 0.3))
            trial.until_handled()
            doomed.proxy.to_client.hold()
            trial.publish(doomed, count=_UNDER_WAY)
            doomed.server.kill()
            doomed.proxy.cut()
            trial.publish(*others)
            trial.until_routed(2)
            trial.dropped += _UNDER_WAY
            trial.faults += 1
            trial.publish(*others)
            trial.until_handled()
            doomed.proxy.restore()
            doomed.start()
            trial.until_routed(3)
        return trial.verdict(f"route {version}: member of a cluster kill -9")


def worker_killed(folder: Path, times: int, version: str = "2.15") -> Verdict:
    """One of two: what it was brought and had not finished is lost, to the last message, and the other gets all that comes
    then."""
    (folder / "slow.py").write_text(_SLOW)
    seen: Counter[bytes] = Counter()
    sent = in_flight = 0
    with starting(lambda config, **how: servers.real_nats(folder, config, **how)) as start:
        cluster = Cluster(start)
        server = cluster.add(version, config=f"http: 127.0.0.1:{(http := servers.free_port())}")
        server.http_port = http
        stays = Worker(cluster.open(), lambda message: seen.update([message.body]))
        client = cluster.client()

        def publish(count: int) -> None:
            nonlocal sent
            client.publish("orders", *[b"%d" % number for number in range(sent, sent + count)])
            sent += count

        for n in range(times):
            before, home = seen.total(), sent
            (place := folder / f"worker-{n}").mkdir()
            with Proxy(f"127.0.0.1:{cluster.routes[0]}") as proxy, _process(place, proxy) as doomed:
                tap = Tap(proxy.to_client)
                while len(_lines(place / "started")) < 20 + n % 10:
                    publish(10)
                    gevent.sleep(0.01)
                until(lambda tap=tap, before=before, home=home: tap.messages + seen.total() - before == sent - home)
                doomed.process.kill()
                doomed.wait()
                until(lambda: server.http("/routez")["num_routes"] == 1)
                finished = _lines(place / "finished")
                in_flight += tap.messages - len(finished)
            publish(4 * _BURST)  # the worker may have had its 20 after few
            until(lambda tap=tap, before=before, home=home: tap.messages + seen.total() - before == sent - home)
            seen.update(finished)
        ledger = stays.stop()
        cluster.close()
    again = seen.total() - len(seen)
    return Verdict(
        f"route {version}: worker kill -9", faults=times, sent=sent, handled=len(seen), duplicates=again, unexplained=again,
        lost=sent - len(seen), allowed=in_flight + ledger.lost, exactly=True,
    )  # fmt: skip


@contextmanager
def _process(place: Path, proxy: Proxy) -> Iterator[Process]:
    """A worker of its own, to which only ``proxy`` leads."""
    url = f"nats-route://{proxy.address}?advertise=127.0.0.1:{servers.free_port()}"
    worker = Process("run", "slow", "--broker", url, cwd=place, env={"PYTHONPATH": f"{place.parent}:{servers.ROOT}"})
    try:
        worker.wait_for("ready")
        yield worker
    finally:
        worker.process.kill()
        worker.wait()


def _lines(file: Path) -> list[bytes]:
    return file.read_bytes().split(b"\n")[:-1] if file.exists() else []


def drains(folder: Path, times: int, version: str = "2.15") -> Verdict:
    """Of two workers the older one stops, and a new one comes, under load."""
    with starting(lambda config, **how: servers.real_nats(folder, config, **how)) as start:
        cluster = Cluster(start)
        cluster.add(version)
        done = drained_again_and_again(cluster, times)
        cluster.close()
    again = done.seen.total() - len(done.seen)
    return Verdict(
        f"route {version}: drains under load", faults=times, sent=done.sent, handled=len(done.seen), duplicates=again,
        unexplained=again, lost=done.sent - len(done.seen), exactly=True,
    )  # fmt: skip


# --- what is started ---------------------------------------------------------------------------------------


@contextmanager
def _trial(folder: Path, count: int, version: str) -> Iterator[Trial]:
    ports = [servers.free_port() for _ in range(count)]
    with ExitStack() as stack:
        members = [_member(folder / f"nats-{port}", port, ports, version, stack) for port in ports]
        trial = Trial(members)
        try:
            yield trial
        finally:
            trial.worker.supervisor.stop(now=True)
            trial.worker.greenlet.join(timeout=30)
            trial.worker.transport.close()
            for one in members:
                one.client.session.close()


def _member(data: Path, port: int, ports: list[int], version: str, stack: ExitStack) -> Member:
    """Which tells the others, and the worker, of its proxy's address in place of its own."""
    data.mkdir()
    proxy = stack.enter_context(Proxy(f"127.0.0.1:{port}"))
    routes = ", ".join(f'"nats-route://127.0.0.1:{other}"' for other in ports if other != port)
    block = f'cluster {{ name: chaos, listen: "127.0.0.1:{port}", advertise: "{proxy.address}", routes: [{routes}] }}'
    server = stack.enter_context(servers.running(servers.real_nats(data, block, version=version, jetstream=False)))
    servers.await_port(port)
    return Member(server, port, proxy, Client(server))


ALL: dict[str, tuple[Scenario, int, int]] = {
    "route-cut": (connections_cut, 60, 6),
    "route-member": (member_killed, 20, 3),
    "route-worker": (worker_killed, 50, 2),
    "route-worker-2.9": (partial(worker_killed, version="2.9"), 50, 1),
    "route-drains": (drains, 100, 3),
    "route-cut-2.9": (partial(connections_cut, version="2.9"), 60, 0),
    "route-member-2.9": (partial(member_killed, version="2.9"), 20, 0),
    "route-drains-2.9": (partial(drains, version="2.9"), 100, 0),
}
"""As ``scenarios.ALL``."""

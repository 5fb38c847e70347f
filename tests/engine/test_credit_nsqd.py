"""Who may have how many in flight, by the counts of real nsqds themselves: RDY and in flight of every client, from /stats."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gevent
import pytest

from framework.engine.credit import PERIOD
from framework.engine.supervisor import Supervisor
from framework.handler import HandlerSpec
from framework.testing.servers import Server
from framework.transports import open_transports

pytestmark = pytest.mark.real


class Working:
    """A supervisor in a greenlet, on nsqds or on what stands before them."""

    def __init__(self, addresses: Sequence[str], spec: HandlerSpec, options: str) -> None:
        transports = open_transports([f"nsq://{address}?{options}" for address in addresses])
        self.supervisor = Supervisor([spec], transports, publish=print)
        self.greenlet = gevent.spawn(self.supervisor.run)

    @property
    def connections(self) -> int:
        return sum(len(consumer.accounts) for consumer in self.supervisor._consumers)

    def until(self, condition: Callable[[], Any], seconds: float = 30.0) -> float:
        """Returns after how many seconds it was true."""
        began = time.monotonic()
        while not condition():
            assert not self.greenlet.dead
            assert time.monotonic() < began + seconds, "the condition did not become true in time"
            gevent.sleep(0.005)
        return time.monotonic() - began

    def stop(self) -> None:
        self.supervisor.stop(now=True)
        self.greenlet.get(timeout=30)
        for ledger in self.supervisor.ledgers.values():
            assert ledger.balance(0) == 0, ledger


@pytest.fixture
def work(spec: Any) -> Iterator[Callable[..., Working]]:
    """``work(addresses, function, concurrency=3)``. ``broker``: the options in the URL."""
    started: list[Working] = []

    def start(
        addresses: Sequence[str], function: Callable[[Any], Any], *, broker: str = "heartbeat=1s", **options: Any
    ) -> Working:
        started.append(Working(addresses, spec(function, **options), broker))
        return started[-1]

    yield start
    for one in started:
        if not one.greenlet.dead:
            one.stop()


class Sampler:
    """Adds up max(RDY, in flight) over the clients of all ``servers``, again and again, in a native thread.

    Answers of different servers are not of one moment. What has moved from one to another between two of them is not counted
    twice: of each server the lower of two rounds counts, and both together must take less than a grant takes to move.
    """

    def __init__(self, servers: Sequence[Server]) -> None:
        self.sums: list[int] = []
        self._servers = servers
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(0.005):
            began = time.monotonic()
            first, second = self._round(), self._round()
            if time.monotonic() - began < PERIOD:
                self.sums.append(sum(map(min, first, second)))

    def _round(self) -> list[int]:
        return [held_by(server) for server in self._servers]


def held_by(server: Server) -> int:
    """The sum of max(RDY, in flight) over the clients; 0 while it is down."""
    try:
        clients = server.channel_stats("orders", "billing").get("clients") or []
    except (OSError, ValueError):
        return 0
    return sum(max(client["ready_count"], client["in_flight_count"]) for client in clients)


def publish(server: Server, count: int) -> None:
    try:
        server.http("/mpub?topic=orders", b"\n".join(b"%d" % i for i in range(count)))
    except OSError:  # it is being killed
        pass


class Churn(threading.Thread):
    """Bursts on any nsqd, kills and starts of the first two, cuts of the connections to the others, for some seconds, and until
    there was enough of it."""

    def __init__(
        self, servers: Sequence[Server], cuts: Sequence[Callable[[], None]], seconds: float, enough: Callable[[], bool]
    ) -> None:
        super().__init__(daemon=True)
        self._servers, self._cuts, self._seconds, self._enough = servers, cuts, seconds, enough
        self.done: list[str] = []

    def run(self) -> None:
        chance = random.Random(1)
        ends = time.monotonic() + self._seconds
        while time.monotonic() < ends or not self._enough():
            publish(chance.choice(self._servers), chance.choice([1, 5, 60, 200]))
            time.sleep(chance.uniform(0, 0.1))
            if chance.random() < 0.1:
                server = chance.choice(self._servers[:2])
                server.kill()
                time.sleep(chance.uniform(0, 0.3))
                server.start()
                self.done.append("killed")
            elif chance.random() < 0.15:
                chance.choice(self._cuts)()
                self.done.append("cut")


@pytest.mark.slow
def test_nsqds_own_counts_never_add_up_to_more_than_max_in_flight_whatever_happens(start_nsqd, start_proxy, work):
    servers = [start_nsqd() for _ in range(4)]
    proxies = [start_proxy(server.address) for server in servers]
    slow = random.Random(2)
    worker = work(
        [proxy.address for proxy in proxies], lambda message: gevent.sleep(slow.choice([0, 0.005, 0.04])),
        concurrency=20, max_in_flight=10,
    )  # fmt: skip
    worker.until(lambda: worker.connections == 4)
    for proxy in proxies[1:]:
        proxy.delay(0.01)  # what a grant lets in comes later than the grant that follows it
    with Sampler(servers) as sampler:
        churn = Churn(
            servers, [proxy.cut for proxy in proxies[2:]], 8, lambda: len(sampler.sums) > 50 and len(set(churn.done)) == 2
        )
        churn.start()
        worker.until(lambda: not churn.is_alive(), seconds=60)
    assert {"killed", "cut"} == set(churn.done)
    assert len(sampler.sums) > 50
    assert max(sampler.sums) <= 10
    assert max(sampler.sums) >= 8  # there was something to see


def test_a_hundred_busy_connections_do_not_pass_max_in_flight_although_lowering_rdy_recalls_nothing(nsqd, work):
    nsqd.kill()
    nsqd.command.append(f"--tcp-address=0.0.0.0:{nsqd.tcp_port}")  # so that one nsqd has a hundred addresses
    nsqd.start()
    publish(nsqd, 5000)
    done = []
    worker = work([f"127.0.{n}.1:{nsqd.tcp_port}" for n in range(100)], done.append, concurrency=50, max_in_flight=500)
    worker.until(lambda: worker.connections == 100)
    with Sampler([nsqd]) as sampler:
        for round_ in range(1, 9):
            threading.Thread(target=publish, args=(nsqd, 5000)).start()
            worker.until(lambda round_=round_: len(done) >= 5000 * (round_ + 1))
    assert len(sampler.sums) > 20
    assert 100 <= max(sampler.sums) <= 500


def test_the_share_of_an_idle_nsqd_is_lent_and_comes_back_with_work(start_nsqd, work):
    first, second = servers = [start_nsqd(), start_nsqd()]
    worker = work([server.address for server in servers], lambda message: gevent.sleep(0.03), concurrency=10, max_in_flight=10)
    worker.until(lambda: worker.connections == 2)
    threadpool = gevent.get_hub().threadpool
    holds = lambda server: threadpool.apply(held_by, (server,))  # noqa: E731
    publish(first, 3000)
    lent = worker.until(lambda: holds(first) >= 9)
    publish(second, 3000)
    back = worker.until(lambda: holds(second) >= 5)
    second.http("/channel/empty?topic=orders&channel=billing", b"")
    again = worker.until(lambda: holds(first) >= 9)
    assert max(lent, back, again) < 5.0  # on a quiet machine under 0.3 s each


def test_no_message_waits_for_nsqds_buffer_to_be_flushed_by_its_timer(nsqd, work):
    """With a timer of 30 s and no heartbeat before, what arrives sooner was sent because the client had no RDY left."""
    bodies = []
    worker = work(
        [nsqd.address], lambda message: bodies.append(message.body), max_in_flight=2500,
        broker="output_buffer_timeout=30s&heartbeat=60s",
    )  # fmt: skip
    worker.until(lambda: worker.connections == 1)
    count = 0
    for burst in [*[1] * 10, 700, *[1] * 10, 100, 3, 2, *[1] * 10]:
        publish(nsqd, burst)
        count += burst
        worker.until(lambda count=count: len(bodies) == count, seconds=20)


def test_none_of_more_nsqds_than_max_in_flight_waits_long(start_nsqd, work):
    servers = [start_nsqd() for _ in range(6)]
    waits = []
    worker = work(
        [server.address for server in servers], lambda message: waits.append(time.time() - message.timestamp / 1e9),
        concurrency=1, max_in_flight=1,
    )  # fmt: skip
    worker.until(lambda: worker.connections == 6)
    for number in range(1, 5):
        for server in servers:
            publish(server, 1)
            gevent.sleep(0.05)
        worker.until(lambda number=number: len(waits) == 6 * number)
    assert sorted(waits)[-2] < 2.0  # a term of all six takes 0.4 s

"""Attempts are for what was started, as real nsqds count them: what only waits does not go round, and is not dead-lettered."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gevent
import pytest

from framework.engine.supervisor import Supervisor
from framework.errors import Retry
from framework.handler import make_spec
from framework.message import Batch, Message
from framework.publisher import Publisher
from framework.testing.servers import Server
from framework.transports import open_transports

pytestmark = pytest.mark.real


def urls(servers: Sequence[Server], scheme: str) -> list[str]:
    ports = {server.http_port for server in servers if server.http_port}  # one may be named for all
    return [f"{scheme}://{server.address}" + (f"?http_port={min(ports)}" if len(ports) == 1 else "") for server in servers]


class Working:
    """One handler on ``nsqds``, with two attempts for each message, and the letters of those that have none left."""

    def __init__(self, nsqds: Sequence[Server], function: Callable[[Any], None], scheme: str = "nsq", **options: Any) -> None:
        transports = open_transports(urls(nsqds, scheme))
        self.publisher = Publisher(transports)
        self.spec = make_spec(function, "orders", "billing", {"max_attempts": 2, "concurrency": 1, **options})
        self.supervisor = Supervisor([self.spec], transports, publish=self.publisher.publish)
        self.ledger = self.supervisor.ledgers[self.spec.name]
        self.greenlet = gevent.spawn(self.supervisor.run)

    def until(self, condition: Callable[[], Any], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert not self.greenlet.dead
            assert time.monotonic() < deadline, f"the condition did not become true in time: {self.ledger}"
            gevent.sleep(0.01)

    def let_wait(self) -> None:
        """All of its slots are taken for ever, as far as messages can tell."""
        gevent.sleep(0)  # it has begun, and is not connected
        self.supervisor._consumers[0].shutdown.halt()

    @property
    def in_flight(self) -> int:
        return sum(len(connection.in_flight) for connection in self.supervisor._consumers[0].accounts)

    def stop(self) -> None:
        self.supervisor.stop()
        self.greenlet.get(timeout=40)
        self.publisher.close()
        assert self.ledger.balance(0) == 0


@pytest.fixture
def work() -> Iterator[Callable[..., Working]]:
    started: list[Working] = []

    def start(nsqds: Sequence[Server], function: Callable[[Any], None], **options: Any) -> Working:
        started.append(Working(nsqds, function, **options))
        return started[-1]

    yield start
    for one in started:
        if not one.greenlet.dead:
            one.supervisor.stop(now=True)
            one.greenlet.join(timeout=10)


def put(nsqd: Server, *bodies: bytes) -> None:
    nsqd.http("/mpub?topic=orders", b"\n".join(bodies))


def requeued(nsqds: Sequence[Server]) -> int:
    return sum(nsqd.channel_stats("orders", "billing").get("requeue_count", 0) for nsqd in nsqds)


def test_batches_that_take_nearly_as_long_as_a_lease_can_be_do_not_bury_what_waits_for_them(start_nsqd, work):
    nsqd = start_nsqd("--msg-timeout=2s", "--max-msg-timeout=4s")
    calls: list[list[int]] = []

    def function(batch: Batch) -> None:
        calls.append([message.attempts for message in batch])
        gevent.sleep(2.4)

    put(nsqd, *[b"%d" % n for n in range(6)])
    working = work([nsqd], function, timeout=4, batch=2, linger=0.1)
    working.until(lambda: working.ledger.finished + working.ledger.dead == 6, seconds=40)
    assert calls == [[1, 1]] * 3
    assert (working.ledger.dead, requeued([nsqd])) == (0, 0)
    working.stop()


def test_one_slot_for_three_nsqds_buries_nothing_that_waits_for_it(start_nsqd, work):
    nsqds = [start_nsqd("--msg-timeout=1s", "--max-msg-timeout=2s") for _ in range(3)]
    calls: Counter[bytes] = Counter()

    def function(message: Message) -> None:
        calls[message.body] += message.attempts
        gevent.sleep(1.2)

    for nsqd in nsqds:
        put(nsqd, b"on %d" % nsqd.tcp_port)
    working = work(nsqds, function, timeout=2)
    working.until(lambda: working.ledger.finished + working.ledger.dead == 3, seconds=40)
    assert calls == {b"on %d" % nsqd.tcp_port: 1 for nsqd in nsqds}
    assert (working.ledger.dead, requeued(nsqds)) == (0, 0)
    working.stop()


@pytest.mark.slow
def test_where_nsqd_keeps_nothing_in_memory_all_of_many_wait_for_their_time(start_nsqd, work):
    """It drops the delay of what is published while its topic is at work: of many at once most came again at once."""
    nsqd = start_nsqd("--mem-queue-size=0")
    began: dict[bytes, float] = {}
    waited: list[float] = []

    def function(message: Message) -> None:
        if message.body in began:
            waited.append(time.time() - began[message.body])
        else:
            began[message.body] = time.time()
            raise Retry(delay=5, count=False)

    put(nsqd, *[b"%d" % n for n in range(1000)])
    working = work([nsqd], function, concurrency=100, max_in_flight=1000)
    working.until(lambda: working.ledger.finished + working.ledger.dead == 1000, seconds=60)
    assert (min(waited) >= 4.9, working.ledger.dead) == (True, 0)
    working.stop()


@pytest.mark.parametrize(("scheme", "workers"), [("nsq", 15), ("beanstalkd", 5)])
def test_what_only_waited_in_many_workers_that_stopped_is_run_by_the_next(request, work, scheme, workers):
    broker = request.getfixturevalue("start_nsqd" if scheme == "nsq" else "start_beanstalkd")()
    calls: list[tuple[bytes, int]] = []

    def function(message: Message) -> None:
        calls.append((message.body, message.attempts))

    publisher = Publisher(urls([broker], scheme))
    publisher.publish("orders", "waits")
    publisher.close()
    for _ in range(workers):
        stopping = work([broker], function, scheme=scheme, max_attempts=3)
        stopping.let_wait()
        stopping.until(lambda: stopping.in_flight == 1, seconds=10)  # noqa: B023
        stopping.stop()
        assert (stopping.ledger.requeued, stopping.ledger.dead) == (1, 0)
    last = work([broker], function, scheme=scheme, max_attempts=3)
    last.until(lambda: last.ledger.finished + last.ledger.dead == 1, seconds=10)
    assert calls == [(b"waits", 3)]
    assert last.ledger.dead == 0
    last.stop()

"""A server that is killed takes what it had not sent; of a worker that is, see ``python -m tests.chaos route-worker``."""

from __future__ import annotations

import gevent
import pytest

from framework.message import Message

from .conftest import routed, until
from .workers import Worker

pytestmark = [pytest.mark.real, pytest.mark.slow]


def test_a_server_that_is_killed_takes_only_what_it_had_not_sent(make_cluster):
    cluster = make_cluster("2.15", "2.9")
    seen: list[bytes] = []

    def handle(message: Message) -> None:
        gevent.sleep(0.002)
        seen.append(message.body)

    worker = Worker(cluster.open(), handle)
    for round_ in range(5):
        doomed = round_ % 2
        client = cluster.client(doomed)
        bodies = [b"%d-%d" % (round_, number) for number in range(200)]
        client.publish("orders", *bodies)
        until(lambda: worker.ledger.received > 200 * round_)  # noqa: B023
        gevent.sleep(0.05)
        cluster.servers[doomed].kill()
        until(lambda: len(seen) == 200 * (round_ + 1))  # noqa: B023
        cluster.servers[doomed].start()
        until(lambda: len(routed(worker.transport)) == 2)
    assert (worker.ledger.received, worker.stop().lost) == (1000, 0)

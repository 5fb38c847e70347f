"""Workers on a route, in greenlets of the test's thread, and the books of all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gevent

from framework.engine.ledger import Ledger
from framework.engine.supervisor import Supervisor
from framework.handler import make_spec
from framework.message import Message

from .conftest import Cluster, until


class Worker:
    """One handler on ``transport``; connected when it is made."""

    def __init__(self, transport: Any, handle: Callable[[Message], None], *, drain: float = 25.0, **options: Any) -> None:
        spec = make_spec(handle, "orders", "billing", {"concurrency": 4, **options})
        self.transport = transport
        self.supervisor = Supervisor([spec], [transport], publish=print, drain=drain)
        self.greenlet = gevent.spawn(self.supervisor.run)
        until(lambda: self.supervisor.ready or self.greenlet.dead)

    @property
    def ledger(self) -> Ledger:
        (ledger,) = self.supervisor.ledgers.values()
        return ledger

    def stop(self, *, now: bool = False) -> Ledger:
        self.supervisor.stop(now)
        self.greenlet.get(timeout=30)
        self.transport.close()
        assert self.ledger.balance(0) == 0, self.ledger
        return self.ledger


@dataclass
class Drained:
    """The books of workers that have come and gone."""

    sent: int = 0
    lost: int = 0
    requeued: int = 0
    seen: Counter[bytes] = field(default_factory=Counter)


def drained_again_and_again(cluster: Cluster, times: int) -> Drained:
    """Of two workers the older one stops, ``times`` times, while a client publishes as fast as they handle; and more often until
    one has had something to give back, because a busy machine may publish slower."""
    done = Drained()

    def handle(message: Message) -> None:
        gevent.sleep(0.002)
        done.seen[message.body] += 1

    client = cluster.client()
    publishing = True

    def publish() -> None:
        while publishing:
            client.publish("orders", *[b"%d" % number for number in range(done.sent, done.sent + 20)])
            done.sent += 20
            gevent.sleep(0.01)

    workers = [Worker(cluster.open(), handle), Worker(cluster.open(), handle)]
    talking = gevent.spawn(publish)
    for number in range(10 * times):
        if number >= times and done.requeued:
            break
        before = done.sent
        until(lambda before=before: done.sent > before + 60)  # type: ignore[misc]
        _end(workers.pop(0), done)
        workers.append(Worker(cluster.open(), handle))
    publishing = False
    talking.get(timeout=20)
    until(lambda: len(done.seen) == done.sent)
    for worker in workers:
        _end(worker, done)
    return done


def _end(worker: Worker, done: Drained) -> None:
    ledger = worker.stop()
    done.lost += ledger.lost
    done.requeued += ledger.requeued

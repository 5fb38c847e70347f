"""Handlers on real nsqds: run by a supervisor, filled over HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import gevent

from framework.engine.supervisor import Supervisor
from framework.handler import HandlerSpec
from framework.testing.servers import Server
from framework.transports import open_transports


class Running:
    """A supervisor on real nsqds, in a greenlet."""

    def __init__(self, servers: Sequence[Server], specs: Sequence[HandlerSpec], urls: Sequence[str] = (), **options: Any) -> None:
        transports = open_transports(urls or [f"nsq://{server.address}?heartbeat=1s" for server in servers])
        self.producer = transports[0].producer()
        publish = lambda topic, body: self.producer.publish(topic, [body])  # noqa: E731
        self.supervisor = Supervisor(specs, transports, publish=publish, **options)
        self.greenlet = gevent.spawn(self.supervisor.run)

    def until(self, condition: Callable[[], Any], seconds: float = 20.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if self.greenlet.dead:
                self.greenlet.get()
            assert time.monotonic() < deadline, "the condition did not become true in time"
            gevent.sleep(0.005)

    def stop(self) -> dict[str, int]:
        """Stop, and check that every ledger adds up."""
        self.supervisor.stop()
        return self.end()

    def end(self) -> dict[str, int]:
        self.greenlet.get(timeout=40)
        self.producer.close()
        for ledger in self.supervisor.ledgers.values():
            assert ledger.balance(0) == 0, ledger
        return next(iter(self.supervisor.ledgers.values())).as_dict()


def spec(function: Callable[[Any], Any], **options: Any) -> HandlerSpec:
    defaults: dict[str, Any] = {
        "topic": "orders", "channel": "billing", "decode": None, "concurrency": 10, "max_in_flight": 200, "timeout": 30.0,
        "max_attempts": 5, "batch": 0, "linger": 0.05,
    }  # fmt: skip
    return HandlerSpec(function=function, **{**defaults, **options})


def publish(server: Server, bodies: Sequence[bytes], topic: str = "orders") -> None:
    for start in range(0, len(bodies), 5000):
        server.http(f"/mpub?topic={topic}", b"\n".join(bodies[start : start + 5000]))

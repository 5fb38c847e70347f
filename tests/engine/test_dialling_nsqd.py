"""Real nsqds that restart, freeze, and are found again through real nsqlookupds: how long messages wait for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gevent
import pytest

from framework.app import App
from framework.settings import Settings
from framework.testing.proxy import Proxy
from framework.testing.servers import Server
from tests.engine.real import publish, spec

pytestmark = pytest.mark.real

Start = Callable[..., Server]


def found_by(*lookupds: Server) -> list[str]:
    return [f"nsq+lookupd://{','.join(lookupd.http_address for lookupd in lookupds)}?heartbeat=1s"]


def test_an_nsqd_that_restarts_is_used_again_at_once_though_nsqlookupd_had_dropped_it(
    start_nsqd: Start, start_nsqlookupd: Start, run_real: Any
) -> None:  # fmt: skip
    lookupds = [start_nsqlookupd(), start_nsqlookupd()]
    flags = [f"--lookupd-tcp-address={lookupd.address}" for lookupd in lookupds]
    first, second = start_nsqd(*flags), start_nsqd(*flags)
    done: list[bytes] = []
    for server in (first, second):
        publish(server, [b"before"])
    worker = run_real([], spec(lambda message: done.append(message.body)), urls=found_by(*lookupds))
    worker.until(lambda: len(done) == 2)
    first.kill()
    gevent.sleep(1.5)  # it is forgotten in the look-up that follows the end of the connection
    first.start()
    began = time.monotonic()
    publish(first, [b"after"])
    worker.until(lambda: b"after" in done)
    assert time.monotonic() - began < 5  # at the next look-up it would be 10 to 15


def test_a_topic_that_is_deleted_is_not_made_anew_by_dialling(
    start_nsqd: Start, start_nsqlookupd: Start, run_real: Any
) -> None:  # fmt: skip
    lookupd = start_nsqlookupd()
    server = start_nsqd(f"--lookupd-tcp-address={lookupd.address}")
    publish(server, [b"x"])
    done: list[bytes] = []
    worker = run_real([], spec(lambda message: done.append(message.body)), urls=found_by(lookupd))
    worker.until(lambda: done)
    lookupd.http(f"/topic/tombstone?topic=orders&node={server.http_address}", b"")  # as nsqadmin does it
    server.http("/topic/delete?topic=orders", b"")
    gevent.sleep(2.5)
    assert not server.http("/stats?format=json&topic=orders")["topics"]


def test_one_frozen_nsqd_of_several_does_not_hold_up_the_start(start_nsqd: Start) -> None:
    servers = [start_nsqd() for _ in range(3)]
    publish(servers[0], [b"x"])
    servers[1].freeze()
    done: list[bytes] = []
    handlers = [spec(lambda message: done.append(message.body))]
    app = App(handlers, Settings(brokers=tuple(f"nsq://{server.address}" for server in servers)))
    greenlet = gevent.spawn(app.run)
    try:
        until(lambda: done, 4)  # a dial gives up after 5
        servers[1].thaw()
        publish(servers[1], [b"thawed"])
        until(lambda: b"thawed" in done, 20)
    finally:
        app.stop()
        greenlet.get(timeout=20)


def until(condition: Callable[[], Any], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        gevent.sleep(0.01)


def test_a_proxy_that_cuts_every_second_costs_a_tenth_of_one(
    start_nsqd: Start, start_proxy: Callable[[str], Proxy], run_real: Any
) -> None:  # fmt: skip
    server = start_nsqd("--msg-timeout=1s")
    proxy = start_proxy(server.address)
    done: list[float] = []

    def function(message: Any) -> None:
        gevent.sleep(0.01)
        done.append(time.monotonic())

    worker = run_real([], spec(function, max_attempts=0), urls=[f"nsq://{proxy.address}?heartbeat=1s"])
    publish(server, [b"%d" % i for i in range(5000)])
    worker.until(lambda: len(done) > 10)
    pauses = []
    for _ in range(8):
        gevent.sleep(0.3)
        proxy.cut()
        gevent.sleep(0.02)
        cut, count = time.monotonic(), len(done)
        worker.until(lambda: len(done) > count)  # noqa: B023
        pauses.append(done[-1] - cut)
    assert sorted(pauses)[4] < 1.0, pauses  # doubled each time it was 10 at the median

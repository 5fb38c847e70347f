"""Each kind of slot in ``workers run`` on a real nsqd: publishing from it, and what is promised at a stop, as nsqd counts it."""

from __future__ import annotations

import os
import re
import signal
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from framework.testing.processes import left_after
from framework.testing.servers import Server
from framework.testing.workers import Worker, working

pytestmark = pytest.mark.real

KINDS = ("greenlet", "thread", "process")
SHOP = """
    import logging, os, threading, time
    from framework import Message, handler, publish, publisher
    from gevent import monkey

    log = logging.getLogger("shop")
    pause = time.sleep if {kind!r} == "greenlet" else monkey.get_original("time", "sleep")  # what blocks this kind of slot
    lock = threading.Lock()

    @handler("orders", "billing", slots={kind!r}, concurrency=2, timeout={timeout})
    def bill(message: Message) -> None:
        verb = message.body.split()[0]
        log.info("started %s", message.body.decode())
        with lock:
            pause(0.001)
        if verb == b"wait":
            while not os.path.exists("opened"):
                pause(0.01)
        if verb == b"hang":
            pause(1000)
        if verb == b"spin" and message.attempts == 1:
            while True:
                pass
        if verb == b"send":
            publish("invoices", message.body)
        if verb == b"limit":
            log.info("a publish may take %s s", publisher.default()._plain["timeout"])
        log.info("done %s", message.body.decode())
"""
ELSEWHERE = """
    import logging
    from framework import Message, handler

    @handler("orders", "billing", concurrency=100)
    def bill(message: Message) -> None:
        logging.getLogger("other").info("got %s", message.body.decode())
"""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def worker(nsqd: Server, tmp_path: Path, kind: str) -> Callable[..., Iterator[Worker]]:
    """``with worker("--drain=1s"):`` a worker with slots of each kind."""

    @contextmanager
    def start(*flags: str, timeout: float = 60.0) -> Iterator[Worker]:
        (tmp_path / "shop.py").write_text(textwrap.dedent(SHOP.format(kind=kind, timeout=timeout)))
        ledger = f"--ledger={tmp_path / 'ledger.json'}"
        with working("run", "shop", f"--broker=nsq://{nsqd.address}", ledger, *flags, cwd=tmp_path) as one:
            yield one

    return start


def publish(nsqd: Server, *bodies: str) -> None:
    nsqd.http("/mpub?topic=orders", "\n".join(bodies).encode())


def counts(nsqd: Server) -> dict[str, int]:
    stats = nsqd.channel_stats("orders", "billing")
    return {name: stats[f"{name}_count"] for name in ("in_flight", "timeout", "requeue")} | {"depth": stats["depth"]}


def lines(worker: Worker, text: str) -> list[str]:
    return [line for line in worker.err if text in line]


def books(worker: Worker) -> dict[str, int]:
    """The ledger that the worker wrote into its log at its end; it adds up, or the test fails."""
    line = next(line for line in worker.err if "ledger orders/billing" in line)
    ledger = {name: int(count) for name, count in re.findall(r"(\w+)=(\d+)", line)}
    assert ledger["received"] == ledger["finished"] + ledger["requeued"] + ledger["dead"] + ledger["lease_lost"]
    return ledger


def test_a_publish_may_take_as_long_as_the_setting_says_in_each_kind_of_slot(nsqd, worker):
    with worker("--publish-timeout=1500ms") as one:
        publish(nsqd, "limit")
        one.wait_for("a publish may take 1.5 s")


def test_what_a_handler_publishes_is_stored_and_counted_and_what_it_logs_is_logged(nsqd, worker):
    with worker() as one:
        publish(nsqd, *[f"send {n}" for n in range(60)])
        one.wait_until(lambda: len(lines(one, "done send")) == 60)
        assert nsqd.http("/stats?format=json&topic=invoices")["topics"][0]["message_count"] == 60
        assert one.stop() == 0
    assert [line.split(" published by ")[1] for line in lines(one, "published by")] == ["orders/billing invoices=60"]
    assert books(one) == {"received": 60, "finished": 60, "requeued": 0, "dead": 0, "lease_lost": 0}
    assert counts(nsqd) == {"in_flight": 0, "timeout": 0, "requeue": 0, "depth": 0}


def test_at_a_stop_the_unstarted_are_with_another_worker_within_a_second_and_what_runs_finishes(nsqd, worker, tmp_path):
    (tmp_path / "elsewhere.py").write_text(textwrap.dedent(ELSEWHERE))
    with worker() as one, working("run", "elsewhere", f"--broker=nsq://{nsqd.address}", cwd=tmp_path) as other:
        other.signal(signal.SIGSTOP)  # it takes nothing for now, but is connected
        publish(nsqd, *[f"wait {n}" for n in range(30)])
        one.wait_until(lambda: len(lines(one, "started")) == 2)
        other.signal(signal.SIGCONT)
        began = time.monotonic()
        one.signal(signal.SIGTERM)
        other.wait_until(lambda: len(lines(other, "got wait")) == 28)
        assert time.monotonic() - began < 3  # a second, on a machine that does nothing else
        assert one.process.poll() is None
        (tmp_path / "opened").touch()
        assert one.wait() == 0
        other.stop()
    assert books(one)["finished"] == 2
    assert len(lines(one, "done wait")) == 2
    assert counts(nsqd)["timeout"] == counts(nsqd)["in_flight"] == counts(nsqd)["depth"] == 0


@pytest.mark.parametrize("how", ["drain", "second signal"])
def test_a_handler_that_hangs_for_ever_does_not_hold_the_stop_and_its_message_is_given_back(nsqd, worker, how):
    with worker("--drain=500ms" if how == "drain" else "--drain=60s") as one:
        publish(nsqd, "hang")
        one.wait_for("started hang")
        tree = psutil.Process(one.process.pid).children(recursive=True)
        one.signal(signal.SIGTERM)
        if how == "second signal":
            one.wait_for("stopping")
            one.signal(signal.SIGTERM)
        code = one.wait(deadline=20)
    assert code == (0 if how == "drain" else 128 + signal.SIGTERM)
    assert books(one) == {"received": 1, "finished": 0, "requeued": 1, "dead": 0, "lease_lost": 0}
    assert (counts(nsqd)["in_flight"], counts(nsqd)["timeout"]) == (0, 0)
    assert left_after([one.pid for one in tree], 0) == []


@pytest.mark.parametrize("kind", ["thread", "process"], indirect=True)
def test_a_handler_that_spins_is_given_back_at_its_timeout_while_others_run(nsqd, worker, kind):
    with worker(timeout=1) as one:
        publish(nsqd, "spin")
        one.wait_for("started spin")
        publish(nsqd, *[f"fine {n}" for n in range(20)])
        one.wait_until(lambda: len(lines(one, "done fine")) == 20)
        one.wait_for("done spin", deadline=30)
        one.wait_until(lambda: counts(nsqd)["in_flight"] == 0)
        assert one.stop() == 0
    assert counts(nsqd) == {"in_flight": 0, "timeout": 0, "requeue": 1, "depth": 0}
    assert books(one)["finished"] == 21


@pytest.mark.parametrize("kind", ["process"], indirect=True)
def test_no_slot_process_outlives_a_killed_worker(nsqd, worker):
    with worker() as one:
        publish(nsqd, "hang", "spin")
        one.wait_until(lambda: len(lines(one, "started")) == 2)
        tree = psutil.Process(one.process.pid).children(recursive=True)
        assert len(tree) == 2
        os.kill(one.process.pid, signal.SIGKILL)
        one.process.wait()
        assert left_after([one.pid for one in tree], 10) == []

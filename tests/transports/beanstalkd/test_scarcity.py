"""What there is too little of: open files for connections, room in the log of the server. Failures stay local and count right."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from framework.errors import BrokerUnreachable
from framework.testing.servers import ROOT, Server
from framework.transports.beanstalkd import Client, waiters
from framework.transports.beanstalkd.client import OutOfMemory

from .conftest import job_stats, server_stats, spec, tube_stats, until, url

pytestmark = pytest.mark.real

JOBS = 60
_FEW_FILES = """
import json, os, resource, sys
from gevent import monkey; monkey.patch_all()
import gevent
from framework.engine.supervisor import Supervisor
from framework.handler import HandlerSpec
from framework.transports import open_transports

url, jobs = sys.argv[1], int(sys.argv[2])
transport = open_transports([url])[0]
producer = transport.producer()
calls = []

def function(message):
    calls.append(message.body)
    gevent.sleep(0.3)

spec = HandlerSpec("orders", "billing", function, None, 40, 100, 30.0, 5, 0, 0.0)
supervisor = Supervisor([spec], [transport], publish=lambda topic, body: producer.publish(topic, [body]))
running = gevent.spawn(supervisor.run)
while not supervisor.ready:
    gevent.sleep(0.01)
producer.publish("orders", [b"first"])
ledger = supervisor.ledgers["orders/billing"]
while ledger.finished < 1:
    gevent.sleep(0.01)
# What a waiter needs, three times; then no socket can be made any more.
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
for at in range(jobs):  # one by one: each finds the tube empty, and a waiter that waits
    producer.publish("orders", [b"%d" % at])
    gevent.sleep(0.02)
with gevent.Timeout(60, False):
    while ledger.finished < jobs + 1:
        gevent.sleep(0.02)
supervisor.stop()
running.get(timeout=30)
print(json.dumps({"calls": len(calls), **ledger.as_dict()}))
"""


def in_a_process(code: str, server: Server, *arguments: str) -> tuple[Any, str]:
    """What a child process prints, as JSON, and what it logs."""
    done = subprocess.run(
        [sys.executable, "-c", code, url(server), *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout), done.stderr


def test_that_no_connection_more_can_be_had_is_said_once_and_it_is_tried_ever_less_often(caplog):
    pool = SimpleNamespace(_redial=waiters._REDIAL, _dial_at=0.0)
    for number in range(1, 10):
        waiters.WaiterPool.postpone(pool, BrokerUnreachable("Too many open files"))
        assert caplog.text.count("raise `ulimit -n`") == 1
        assert pool._redial == min(waiters._REDIAL * 2**number, waiters._REDIAL_CAP)


def test_with_few_open_files_it_goes_on_with_the_connections_that_it_has(start_beanstalkd):
    server = start_beanstalkd("-F")
    ended, said = in_a_process(_FEW_FILES, server, str(JOBS))
    assert ended == {"calls": JOBS + 1, "received": JOBS + 1, "finished": JOBS + 1, "requeued": 0, "dead": 0, "lease_lost": 0}
    assert said.count("raise `ulimit -n`") == 1, said
    with Client(server.address) as client:
        assert client.stats()["job-timeouts"] == "0"


# --- the server's log is full -----------------------------------------------------------------------------------------


@contextmanager
def full(server: Server) -> Iterator[None]:
    """No room in the server's log: a file of it is full, and another one cannot be made, as on a full disk."""
    away = server.data.with_name(server.data.name + "-away")
    with Client(server.address, use="filling", watch="filling") as client:
        server.data.rename(away)
        try:
            for size in (200, 0):
                with pytest.raises(OutOfMemory):
                    for _ in range(1000):
                        client.put(b"x" * size)
            with pytest.raises(OutOfMemory):  # there was room for this, which is less
                while True:
                    client.release(client.reserve(timeout=0), delay=3600)
            yield
        finally:
            if away.exists():
                away.rename(server.data)


@pytest.fixture
def hasty(monkeypatch):
    """Whether there is room again is asked often."""
    monkeypatch.setattr("framework.transports.beanstalkd.connection._PULSE", 0.1)
    monkeypatch.setattr("framework.transports.beanstalkd.log_space.WAIT", 0.05)
    monkeypatch.setattr("framework.engine.backoff.RETRY_BASE", 0.0)


def test_a_release_that_finds_no_room_is_a_lost_lease_and_nothing_else(start_beanstalkd, run, hasty, caplog):
    server = start_beanstalkd("-s", "8192")
    tries, done, well = Counter[bytes](), [], []

    def function(message):
        tries[message.body] += 1
        if message.body.startswith(b"bad") and not well:
            raise ValueError("not yet")
        done.append(message.body)

    names = [b"bad 0", b"bad 1", b"bad 2", b"bad 3"]
    with Client(server.address, use="orders") as client:
        ids = client.put_many([*names, *[b"good %d" % at for at in range(20)]])
    with full(server):
        worker = run(url(server), spec(function, concurrency=1, max_in_flight=1, max_attempts=0))
        (connection,) = worker.connections
        worker.until(lambda: sum(body.startswith(b"good") for body in done) == 20)
        assert worker.ledger.lease_lost == 1
        assert job_stats(server, ids[0])["state"] == "reserved"
        assert server_stats(server)["current-jobs-delayed"] == job_count(server, "filling")
        worker.until(lambda: all(tries[name] > 2 for name in names[1:]))
        assert tries[b"bad 0"] == 1
    worker.until(lambda: not connection._log_space.full)
    well.append(True)
    worker.until(lambda: len(done) == 23)
    assert worker.connections == [connection], "the connection was lost"
    ledger = worker.stop()
    assert (ledger["finished"], ledger["lease_lost"], ledger["dead"]) == (23, 1, 0)
    assert f"no room in its log to release job {ids[0]}," in caplog.text
    assert "has room in its log again" in caplog.text
    probes = tube_stats(server, "default")
    assert probes["total-jobs"] >= 1
    assert probes["current-jobs-delayed"] == probes["current-jobs-ready"] == 0, "a probe has stayed"
    server.kill()
    server.start()
    with Client(server.address, watch="orders") as client:  # until then it was nobody's
        assert client.reserve(timeout=5).body == b"bad 0"


def job_count(server: Server, tube: str) -> str:
    with Client(server.address) as client:
        return client.stats_tube(tube)["current-jobs-delayed"]


def test_what_is_kept_for_want_of_room_is_released_when_the_worker_stops(start_beanstalkd, run, hasty, monkeypatch):
    monkeypatch.setattr("framework.transports.beanstalkd.log_space.WAIT", 60.0)
    server = start_beanstalkd("-s", "8192")
    failed = []

    def function(message):
        failed.append(message.body)
        raise ValueError("not yet")

    with Client(server.address, use="orders") as client:
        client.put_many([b"bad 0", b"bad 1", b"bad 2"], ttr=300)
    with full(server):
        worker = run(url(server), spec(function, concurrency=1, max_in_flight=1, max_attempts=0))
        worker.until(lambda: len(failed) == 3)
        ledger = worker.stop()
        assert (ledger["received"], ledger["requeued"], ledger["lease_lost"]) == (3, 2, 1)
        assert tube_stats(server)["current-jobs-ready"] == 2


def test_what_is_kept_for_want_of_room_is_released_when_its_connection_closes(
    start_beanstalkd, receiver, subscribe, hasty, monkeypatch
):
    """Without having been drained: the server would let go of it as well, but late or uncounted."""
    monkeypatch.setattr("framework.transports.beanstalkd.log_space.WAIT", 60.0)
    server = start_beanstalkd("-s", "8192")
    with Client(server.address, use="orders") as client:
        client.put_many([b"0", b"1", b"2"], ttr=300)
    with full(server):
        connection = subscribe(server.address, grant=3)
        until(lambda: len(receiver.messages) == 3)
        first, *others = receiver.messages
        connection.requeue(first, 1.0)
        until(lambda: receiver.losses)
        for message in others:
            connection.requeue(message, 1.0)
        gevent.sleep(0.2)
        assert (receiver.tally.requeued, tube_stats(server)["current-jobs-ready"]) == (0, 0)
        connection.close()
        until(lambda: receiver.ends)
        assert (receiver.tally.requeued, receiver.tally.lease_lost) == (2, 1)
        assert tube_stats(server)["current-jobs-ready"] == 2


def test_a_bury_that_finds_no_room_is_a_lost_lease(start_beanstalkd, receiver, subscribe):
    server = start_beanstalkd("-s", "8192")
    with Client(server.address, use="orders") as client:
        client.put(b"strange")
    with full(server):
        connection = subscribe(server.address, grant=2)
        until(lambda: receiver.messages)
        connection.bury(receiver.messages[0])
        until(lambda: receiver.losses)
        assert (receiver.tally.finished, receiver.tally.lease_lost, receiver.ends) == (0, 1, [])
        assert "no room in its log to bury job 1" in receiver.losses[0][1]

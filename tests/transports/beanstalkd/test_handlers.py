"""Handlers on real beanstalkds: the same functions as on NSQ, and every job accounted for, as the server itself counts it."""

from __future__ import annotations

import time
from collections import Counter

import gevent
import pytest
from gevent.event import Event

from framework.transports.beanstalkd import waiters
from tests.transports.beanstalkd.conftest import finished, put

from .conftest import job_stats, server_stats, spec, tube_stats, until, url

pytestmark = pytest.mark.real


def test_every_job_is_handled_once_and_deleted(server, run):
    seen = Counter()
    worker = run(url(server), spec(lambda message: seen.update([message.body]), max_in_flight=1000))
    bodies = [b"%d" % i for i in range(5000)]
    worker.producer.publish("orders", bodies)
    worker.until(lambda: len(seen) == 5000)
    assert worker.stop() == finished(5000)
    assert set(seen) == set(bodies)
    assert set(seen.values()) == {1}
    assert tube_stats(server) == {}  # a tube that is empty and that nobody watches is gone


def test_a_lone_job_is_handled_within_milliseconds(server, run):
    delays = []
    worker = run(url(server), spec(lambda message: delays.append(time.monotonic() - float(message.body))))
    for _ in range(60):
        worker.producer.publish("orders", [b"%f" % time.monotonic()])
        gevent.sleep(0.02)
    worker.until(lambda: len(delays) == 60)
    assert sorted(delays)[30] < 0.02


def test_any_bytes_arrive_as_they_were_put_an_empty_body_too(server, run):
    got = []
    worker = run(url(server), spec(lambda message: got.append(message.body), max_in_flight=1))
    bodies = [b"", b"\r\n", b"RESERVED 1 1\r\nx\r\n", bytes(range(256)), b"x" * 65535]
    put(server, bodies)
    worker.until(lambda: len(got) == 5)
    assert got == bodies


def test_one_at_a_time_is_in_the_order_of_publishing(server, run):
    got = []
    worker = run(url(server), spec(lambda message: got.append(int(message.body)), max_in_flight=1, concurrency=1))
    worker.producer.publish("orders", [b"%d" % i for i in range(500)])
    worker.until(lambda: len(got) == 500)
    assert got == list(range(500))


def test_the_urgent_goes_first(server, run):
    got = []
    for priority in (9, 3, 2**32 - 1, 0, 1024):
        put(server, [b"%d" % priority] * 20, priority=priority)
    worker = run(url(server), spec(lambda message: got.append(int(message.body)), max_in_flight=1, concurrency=1))
    worker.until(lambda: len(got) == 100)
    assert got == sorted(got)


def test_with_fanout_every_channel_gets_its_copy(server, run):
    got = {"billing": [], "shipping": []}
    specs = [spec(lambda message: got[message.channel].append(message.body), channel=channel) for channel in got]
    worker = run(url(server, "?fanout=orders/billing,orders/shipping"), *specs)
    bodies = [b"%d" % i for i in range(200)]
    worker.producer.publish("orders", bodies)
    worker.until(lambda: all(len(each) == 200 for each in got.values()))
    assert sorted(got["billing"]) == sorted(got["shipping"]) == sorted(bodies)
    worker.stop()


def test_a_batch_handler_gets_full_batches(server, run):
    sizes = []
    put(server, [b"%d" % i for i in range(3000)])
    worker = run(
        url(server), spec(lambda batch: sizes.append(len(batch)), batch=300, linger=2.0, max_in_flight=1000, concurrency=1)
    )
    worker.until(lambda: sum(sizes) == 3000)
    assert sizes == [300] * 10
    assert worker.stop()["finished"] == 3000


def test_in_flight_as_the_servers_count_it_never_exceeds_max_in_flight_over_two_of_them(start_beanstalkd, run):
    servers = [start_beanstalkd("-F"), start_beanstalkd("-F")]
    done, most = [], 0

    def function(message):
        gevent.sleep(0.004)
        done.append(message.body)

    for server in servers:
        put(server, [b"%d" % i for i in range(300)])
    worker = run(url(servers), spec(function, concurrency=20, max_in_flight=10))
    while len(done) < 600:
        reserved = sum(tube_stats(server).get("current-jobs-reserved", 0) for server in servers)
        most = max(most, reserved)
        assert reserved <= 10 + 2  # two answers are not of one moment
        worker.until(lambda: True)
    assert most >= 5
    assert worker.stop()["finished"] == 600


def test_every_slot_gets_a_job_and_no_more_are_taken_than_can_start(server, run):
    gate = Event()
    worker = run(url(server), spec(lambda message: gate.wait(), concurrency=10, max_in_flight=1000))
    put(server, [b"%d" % i for i in range(100)])
    worker.until(lambda: tube_stats(server).get("current-jobs-reserved", 0) >= 10)
    gevent.sleep(0.3)
    assert tube_stats(server)["current-jobs-reserved"] == 10
    gate.set()
    worker.until(lambda: worker.ledger.finished == 100)


def test_light_traffic_opens_few_connections(server, run):
    worker = run(url(server), spec(lambda message: gevent.sleep(0.001), concurrency=50))
    for i in range(100):
        worker.producer.publish("orders", [b"%d" % i])
        gevent.sleep(0.005)
    worker.until(lambda: worker.ledger.finished == 100)
    assert int(server_stats(server)["total-connections"]) < 20


@pytest.mark.parametrize("most", [2, 64])
def test_slow_jobs_that_come_one_by_one_all_run_however_few_connections_may_wait(server, run, monkeypatch, most):
    monkeypatch.setattr(waiters, "MOST", most)
    running, gate = [], Event()

    def function(message):
        running.append(message.body)
        gate.wait()

    worker = run(url(server), spec(function, concurrency=8))
    for i in range(8):
        worker.producer.publish("orders", [b"%d" % i])
        worker.until(lambda: len(running) == i + 1)  # noqa: B023
    assert int(server_stats(server)["current-connections"]) <= 12
    gate.set()
    worker.until(lambda: worker.ledger.finished == 8)


def test_a_handler_at_work_asks_the_server_for_nothing(server, run):
    """No poll while the tube is empty, and no DEADLINE_SOON spin while a job is about to run out."""
    gate = Event()
    worker = run(url(server), spec(lambda message: gate.wait(), concurrency=5))
    put(server, [b"a", b"b"], ttr=1)
    worker.until(lambda: worker.ledger.received == 2)
    before = int(server_stats(server)["cmd-reserve-with-timeout"])
    gevent.sleep(3)
    assert int(server_stats(server)["cmd-reserve-with-timeout"]) - before <= 2
    gate.set()
    worker.until(lambda: worker.ledger.finished == 2)
    assert server_stats(server)["job-timeouts"] == "0"


def test_what_runs_is_finished_and_what_has_not_started_is_with_another_worker_at_once(server, run):
    started, elsewhere, gate = [], [], Event()

    def slow(message):
        started.append(message.body)
        gate.wait()

    first = run(url(server), spec(slow, concurrency=2, max_in_flight=100))
    first.supervisor._consumers[0].flow.credit._concurrency = 50  # prefetch as if the handlers had been quick until now
    put(server, [b"%d" % i for i in range(60)])
    first.until(lambda: tube_stats(server)["current-jobs-reserved"] >= 30)
    second = run(url(server), spec(lambda message: elsewhere.append(message.body), max_in_flight=100))
    first.supervisor.stop()
    second.until(lambda: len(elsewhere) == 58)
    gate.set()
    ledger = first.end()
    assert (len(started), ledger["finished"], ledger["lease_lost"]) == (2, 2, 0)
    assert sorted(started + elsewhere) == sorted(b"%d" % i for i in range(60))
    assert second.stop()["finished"] == 58
    assert server_stats(server)["job-timeouts"] == "0"


def test_stopping_in_the_middle_of_a_flood_loses_nothing_and_handles_nothing_twice(server, run):
    seen = Counter()
    put(server, [b"%d" % i for i in range(20_000)])
    total = 0
    for _ in range(5):
        worker = run(url(server), spec(lambda message: seen.update([message.body]), max_in_flight=500))
        worker.until(lambda: len(seen) > total + 500)  # noqa: B023
        ledger = worker.stop()
        assert ledger["lease_lost"] == 0
        total = len(seen)
        assert tube_stats(server).get("current-jobs-reserved", 0) == 0
    last = run(url(server), spec(lambda message: seen.update([message.body]), max_in_flight=500))
    last.until(lambda: len(seen) == 20_000)
    last.stop()
    assert set(seen.values()) == {1}


def test_an_idle_worker_stops_at_once_and_leaves_no_connection(server, run):
    worker = run(url(server), spec(lambda message: None))
    began = time.monotonic()
    worker.stop()
    assert time.monotonic() - began < 2
    until(lambda: server_stats(server)["current-connections"] == "1")  # of who asks


def test_a_job_whose_body_the_server_lost_is_set_aside_and_stops_nothing(server, run, caplog):
    first, *_ = put(server, [b"first", *[b"%d" % n for n in range(100)]])
    server.kill()
    for file in server.data.glob("binlog.*"):  # as when it is killed between two writes of a record
        file.chmod(0o600)
        file.write_bytes(file.read_bytes().replace(b"first\r\n", bytes(7)))
    server.start()
    handled = []
    worker = run(url(server), spec(lambda message: handled.append(message.body)))
    worker.until(lambda: len(handled) == 100)
    worker.until(lambda: job_stats(server, first).get("state") == "buried")
    ledger = worker.stop()
    assert sorted(handled) == sorted(b"%d" % n for n in range(100))
    assert (ledger["received"], ledger["finished"], ledger["lease_lost"]) == (101, 101, 0)
    assert [f"lost the body of job {first} " in line for line in caplog.messages].count(True) == 1

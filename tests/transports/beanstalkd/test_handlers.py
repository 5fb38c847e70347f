"""Handlers on real beanstalkds: the same functions as on NSQ, and every job accounted for, as the server itself counts it."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter

import gevent
import pytest
from gevent.event import Event

from framework.errors import Reject, Retry
from framework.transports.beanstalkd import Client, waiters, wire
from framework.transports.beanstalkd.attempts import Attempts
from framework.transports.beanstalkd.client import TimedOut
from framework.transports.beanstalkd.poller import Poll
from framework.transports.beanstalkd.rescuer import Rescuer
from framework.transports.beanstalkd.reserved_job import ReservedJob

from .conftest import job_stats, server_stats, spec, tube_stats, until, url

pytestmark = pytest.mark.real


@pytest.fixture
def server(start_beanstalkd):
    return start_beanstalkd("-F")


def finished(count: int, **others: int) -> dict[str, int]:
    return {"received": count, "finished": count, "requeued": 0, "dead": 0, "lease_lost": 0, **others}


def put(server, bodies, tube: str = "orders", **options) -> list[int]:
    with Client(server.address, use=tube) as client:
        return client.put_many(bodies, **options)


# --- what is published is handled -------------------------------------------------------------------------


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


# --- how many -----------------------------------------------------------------------------------------------


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


# --- leases -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_jobs_of_a_second_survive_handlers_of_many_though_nothing_said_how_long_they_are(server, run):
    calls = []

    def function(message):
        calls.append(message.attempts)
        gevent.sleep(4)

    put(server, [b"long"] * 3, ttr=60)
    put(server, [b"short"] * 20, ttr=1)
    put(server, [b"two"] * 3, ttr=2)
    worker = run(url(server), spec(function, concurrency=13))
    worker.until(lambda: worker.ledger.finished == 26)
    assert calls == [1] * 26
    assert server_stats(server)["job-timeouts"] == "0"
    assert worker.stop() == finished(26)


@pytest.mark.slow
def test_a_lease_that_ran_out_while_the_process_stood_still_is_counted_and_is_no_error(server, run, monkeypatch):
    """Of some jobs beanstalkd 1.12 forgets that they run out, until their connection speaks: then another one must do."""
    monkeypatch.setattr(Rescuer, "rescue", lambda self, now, expired: None)
    stolen = []

    def steal():
        with Client(server.address, watch="orders") as thief:
            try:
                job = thief.reserve(timeout=2)
            except TimedOut:
                return
            stolen.append(job.id)
            thief.delete(job)

    def function(message):
        if not stolen:  # without hub and guardian no touch: the job's second is over, and another worker has it
            thief = threading.Thread(target=steal)
            thief.start()
            thief.join()

    worker = run(url(server), spec(function, concurrency=1, max_in_flight=1))
    for count in range(1, 31):
        put(server, [b"x"], ttr=1)
        worker.until(lambda: worker.ledger.settled == count)  # noqa: B023
        if worker.ledger.lease_lost:
            break
    put(server, [b"y"])
    worker.until(lambda: worker.ledger.settled == count + 1)  # and it goes on
    ledger = worker.stop()
    assert (len(stolen), ledger["lease_lost"], ledger["finished"]) == (1, 1, count)


# --- attempts, retries and the end of them ------------------------------------------------------------------


def take_and_die(server, count: int) -> None:
    """As a worker that is killed with ``count`` jobs in its hands."""
    with Client(server.address, watch="orders") as other:
        for _ in range(count):
            other.reserve(timeout=5)
    until(lambda: tube_stats(server)["current-jobs-reserved"] == 0)


def test_deliveries_that_killed_their_worker_count_exactly_also_in_a_flood(server, run):
    attempts = {}
    put(server, [b"%d" % i for i in range(1000)])
    for count in (40, 25, 1):
        take_and_die(server, count)
    worker = run(url(server), spec(lambda message: attempts.__setitem__(int(message.body), message.attempts), max_in_flight=1000))
    worker.until(lambda: len(attempts) == 1000)
    expected = {i: 1 + (i < 40) + (i < 25) + (i < 1) for i in range(1000)}
    assert attempts == expected
    asked = int(server_stats(server)["cmd-stats-job"])
    assert 40 <= asked < 950  # those behind a fresh one need no asking


def test_where_priorities_differ_each_job_is_asked_for(server, run):
    """A more urgent job may be due again between two answers of a poll: the fresh one before it says nothing of it."""
    attempts = {}
    with Client(server.address, use="orders") as client, client.pipeline() as pipeline:
        for i in range(400):
            pipeline.put(b"%d" % i, priority=i % 2 * 1024)
    take_and_die(server, 30)
    worker = run(url(server), spec(lambda message: attempts.__setitem__(int(message.body), message.attempts), max_in_flight=300))
    worker.until(lambda: len(attempts) == 400)
    assert attempts == {i: 1 + (i < 60 and not i % 2) for i in range(400)}
    # Those that came before the first of the other priority may have been vouched for.
    assert int(server_stats(server)["cmd-stats-job"]) >= 200
    worker.stop()


def test_an_urgent_job_that_is_due_again_in_the_middle_of_a_poll_is_asked_for():
    class Owner:
        def message(self, job, attempts, born):
            return (job.number, attempts)

        def lease(self, ttr): ...

        def asked(self, job): ...

        def free(self, job): ...

    def reserved(poll, number):
        job = ReservedJob(number, b"", None, 0.0)
        attempts.reserved(poll, job)
        return job

    attempts = Attempts(Owner())
    first = Poll(1)
    attempts.known(reserved(first, 50), wire.JobState(0, 1, 0, 60, 1))  # urgent; it fails, and is released with a delay
    second = Poll(3)
    top, behind = reserved(second, 5), reserved(second, 50)
    attempts.known(top, wire.JobState(1024, 1, 0, 60, 1))
    last = reserved(second, 51)
    assert [job.message for job in attempts.arrived] == [(50, 1), (5, 1)]
    assert attempts.asking[-2:] == [behind, last]


def test_delayed_jobs_vouch_for_nobody(server, run):
    """A job with a lower id that was not ready was passed over: that it is fresh says nothing of those behind it."""
    attempts = {}
    put(server, [b"late"] * 20, delay=1)
    put(server, [b"taken"] * 60)
    take_and_die(server, 60)
    until(lambda: tube_stats(server)["current-jobs-ready"] == 80)
    worker = run(url(server), spec(lambda message: attempts.setdefault(message.body, Counter()).update([message.attempts])))
    worker.until(lambda: worker.ledger.finished == 80)
    assert attempts == {b"late": Counter({1: 20}), b"taken": Counter({2: 60})}


def test_poison_goes_to_the_dead_tube_by_the_servers_count_of_attempts_and_pauses_nobody(server, run, monkeypatch):
    monkeypatch.setattr("framework.engine.backoff.RETRY_BASE", 0.0)
    attempts, fine, letters = [], [], []

    def function(message):
        if message.body == b"poison":
            attempts.append(message.attempts)
            raise ValueError("never")
        fine.append(message.body)

    put(server, [b"poison", *[b"%d" % i for i in range(300)]])
    worker = run(
        url(server),
        spec(function, concurrency=2, max_attempts=3),
        spec(lambda message: letters.append(message.body), topic="orders.billing.dead", channel="look"),
    )
    worker.until(lambda: letters and len(fine) == 300)
    header, _, body = letters[0].partition(b"\n")
    assert attempts == [1, 2, 3]
    assert body == b"poison"
    assert json.loads(header)["attempts"] == 3
    assert worker.stop() == {"received": 303, "finished": 300, "requeued": 2, "dead": 1, "lease_lost": 0}


def test_a_job_that_its_handlers_did_not_survive_is_given_up_before_it_is_handled_again(server, run):
    handled, letters = [], []
    put(server, [b"poison", b"fine"])
    for _ in range(3):
        take_and_die(server, 1)
    worker = run(
        url(server),
        spec(lambda message: handled.append(message.body), max_attempts=3),
        spec(lambda message: letters.append(message.body), topic="orders.billing.dead", channel="look"),
    )
    worker.until(lambda: letters and handled)
    assert handled == [b"fine"]
    assert letters[0].endswith(b"\npoison")
    assert worker.stop() == finished(1, received=2, dead=1)


def test_what_comes_again_keeps_its_priority_and_comes_after_its_delay(server, run):
    calls = []

    def function(message):
        calls.append((message.body, time.monotonic()))
        if len(calls) <= 60:
            raise Retry("later", delay=1.2)

    ids = put(server, [b"%d" % i for i in range(60)], priority=77)
    worker = run(url(server), spec(function, max_in_flight=500))
    worker.until(lambda: worker.ledger.requeued == 60)
    assert {job_stats(server, number).get("pri") for number in ids} == {"77"}
    assert {job_stats(server, number).get("delay") for number in ids} == {"2"}  # whole seconds, rounded up
    worker.until(lambda: worker.ledger.finished == 60)
    first, again = dict(calls[:60]), dict(calls[60:])
    assert all(again[body] - first[body] > 1.0 for body in first)
    assert worker.stop() == finished(60, received=120, requeued=60)


def test_a_rejected_job_is_in_the_dead_tube_and_a_buried_one_stays_in_its_own(server, run):
    def function(message):
        if message.body == b"reject":
            raise Reject("no")
        if message.body == b"bury":
            message.connection.bury(message)

    ids = put(server, [b"reject", b"bury", b"fine"])
    worker = run(url(server), spec(function))
    worker.until(lambda: worker.ledger.settled == 3)
    worker.stop()
    assert tube_stats(server, "orders.billing.dead")["current-jobs-ready"] == 1
    assert job_stats(server, ids[1])["state"] == "buried"
    with Client(server.address, use="orders", watch="orders") as client:
        assert client.kick(1) == 1
        assert client.reserve(timeout=5).body == b"bury"


# --- the end ------------------------------------------------------------------------------------------------


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

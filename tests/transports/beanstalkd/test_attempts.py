"""Leases, attempts and retries of handlers on real beanstalkds, as the server itself counts them."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter

import gevent
import pytest

from framework.errors import Reject, Retry
from framework.transports.beanstalkd import Client, wire
from framework.transports.beanstalkd.attempts import Attempts
from framework.transports.beanstalkd.client import TimedOut
from framework.transports.beanstalkd.poller import Poll
from framework.transports.beanstalkd.rescuer import Rescuer
from framework.transports.beanstalkd.reserved_job import ReservedJob
from tests.transports.beanstalkd.conftest import finished, put

from .conftest import job_stats, server_stats, spec, tube_stats, until, url

pytestmark = pytest.mark.real


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

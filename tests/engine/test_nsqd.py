"""The engine against real nsqds: leases, credit, failures of either side, and the end, as nsqd itself counts them."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter

import gevent
import pytest
from gevent.event import Event

from framework.errors import HandlerTimeout
from framework.testing.servers import Server
from framework.transports.nsq import connection
from tests.engine.real import publish, spec

pytestmark = pytest.mark.real


def test_every_message_is_finished_as_nsqd_counts_it(nsqd, run_real):
    seen = Counter()
    worker = run_real(nsqd, spec(lambda message: seen.update([message.body]), max_in_flight=2500))
    bodies = [b"%d" % i for i in range(20_000)]
    publish(nsqd, bodies)
    worker.until(lambda: len(seen) == 20_000)
    assert worker.stop() == {"received": 20_000, "finished": 20_000, "requeued": 0, "dead": 0, "lease_lost": 0}
    assert set(seen.values()) == {1}
    stats = nsqd.channel_stats("orders", "billing")
    assert (stats["depth"], stats["in_flight_count"], stats["requeue_count"], stats["timeout_count"]) == (0, 0, 0, 0)


def test_a_lone_message_is_handled_within_milliseconds(nsqd, run_real):
    delays = []
    worker = run_real(nsqd, spec(lambda message: delays.append(time.time() - message.timestamp / 1e9), max_in_flight=2500))
    worker.until(lambda: worker.supervisor.ready)
    for i in range(60):
        worker.producer.publish("orders", [b"%d" % i])
        gevent.sleep(0.02)
    worker.until(lambda: len(delays) == 60)
    assert sorted(delays)[30] < 0.02  # nsqd's output buffer alone would make it 25 ms, by default 250


@pytest.mark.slow
def test_a_handler_longer_than_two_heartbeats_and_two_leases_keeps_its_connection_and_its_message(start_nsqd, run_real):
    server = start_nsqd("--msg-timeout=2s")
    calls = []

    def function(message):
        calls.append(message.attempts)
        gevent.sleep(5)

    worker = run_real(server, spec(function, concurrency=2, max_in_flight=6))
    publish(server, [b"%d" % i for i in range(4)])  # two run, two wait for longer than a lease
    worker.until(lambda: server.channel_stats("orders", "billing").get("depth") == 0 and len(calls) >= 2)
    connected = server.channel_stats("orders", "billing")["clients"][0]["connect_ts"]
    worker.until(lambda: worker.supervisor.ledgers["orders/billing"].finished == 4)
    worker.until(lambda: server.channel_stats("orders", "billing")["in_flight_count"] == 0)  # handed to the socket, not yet read
    stats = server.channel_stats("orders", "billing")
    assert calls == [1, 1, 1, 1]
    assert stats["timeout_count"] == 0
    assert len(stats["clients"]) == 1  # since the connection, nobody connected anew
    assert stats["clients"][0]["finish_count"] == 4
    assert stats["clients"][0]["connect_ts"] == connected
    assert worker.stop() == {"received": 4, "finished": 4, "requeued": 0, "dead": 0, "lease_lost": 0}


@pytest.mark.slow
def test_a_lease_is_kept_no_longer_than_the_timeout(start_nsqd, run_real):
    server = start_nsqd("--msg-timeout=1s")

    timed_out = Event()

    def stubborn(message):
        while message.attempts == 1 and not timed_out.is_set():
            try:
                timed_out.wait()
            except HandlerTimeout:
                pass

    worker = run_real(server, spec(stubborn, timeout=1.0))
    publish(server, [b"x"])
    # late by up to five seconds: so often does nsqd look for new channels to scan
    worker.until(lambda: server.channel_stats("orders", "billing").get("timeout_count") == 1, seconds=12)
    timed_out.set()
    worker.until(lambda: worker.supervisor.ledgers["orders/billing"].lease_lost == 1)
    worker.until(lambda: worker.supervisor.ledgers["orders/billing"].finished == 1)
    assert worker.stop() == {"received": 2, "finished": 1, "requeued": 0, "dead": 0, "lease_lost": 1}


def test_in_flight_as_nsqd_counts_it_never_exceeds_max_in_flight_over_three_nsqds(start_nsqd, run_real):
    servers = [start_nsqd() for _ in range(3)]
    done, most = [], 0

    def function(message):
        gevent.sleep(0.004)
        done.append(message.body)

    worker = run_real(servers, spec(function, concurrency=20, max_in_flight=10))
    for number, server in enumerate(servers):
        publish(server, [b"%d.%d" % (number, i) for i in range(400)])
    threadpool = gevent.get_hub().threadpool
    while len(done) < 1200:
        counts = [threadpool.apply(server.channel_stats, ("orders", "billing")) for server in servers]
        most = max(most, sum(len(c.in_flight) for consumer in worker.supervisor._consumers for c in consumer.accounts))
        assert sum(stats.get("in_flight_count", 0) for stats in counts) <= 10 + 2  # three answers are not of one moment
    assert 5 <= most <= 10
    assert worker.stop()["finished"] == 1200


def test_one_busy_nsqd_of_three_is_not_starved_by_the_idle_ones(start_nsqd, run_real):
    servers = [start_nsqd() for _ in range(3)]
    done, running, together = [], set(), []

    def function(message):
        running.add(message)
        together.append(len(running))
        gevent.sleep(0.005)
        running.remove(message)
        done.append(message.body)

    worker = run_real(servers, spec(function, concurrency=20, max_in_flight=10))
    worker.until(lambda: len(worker.supervisor._consumers) == 1 and len(worker.supervisor._consumers[0].accounts) == 3)
    publish(servers[1], [b"%d" % i for i in range(800)])
    worker.until(lambda: len(done) == 800)
    assert max(together) >= 7  # of ten; three of them are its own
    worker.stop()


def test_more_nsqds_than_max_in_flight_are_all_served(start_nsqd, run_real):
    servers = [start_nsqd() for _ in range(3)]
    done = []
    worker = run_real(servers, spec(lambda message: done.append(message.body), max_in_flight=1))
    for server in servers:
        publish(server, [b"%d" % i for i in range(50)])
    worker.until(lambda: len(done) == 150)
    assert worker.stop()["finished"] == 150


def test_nsqds_are_found_through_nsqlookupd(start_nsqd, start_nsqlookupd, run_real):
    lookupd = start_nsqlookupd()
    server = start_nsqd(f"--lookupd-tcp-address={lookupd.address}")
    done = []
    url = f"nsq+lookupd://{lookupd.http_address}"
    worker = run_real([], spec(lambda message: done.append(message.body)), urls=[url], connect_deadline=0.2, poll_interval=0.5)
    gevent.sleep(0.4)  # past the deadline: the topic does not exist yet, and that is no error
    publish(server, [b"x"])
    worker.until(lambda: done)
    worker.stop()


@pytest.mark.slow
def test_a_killed_nsqd_that_comes_back_is_used_again_and_the_other_one_all_the_time(start_nsqd, run_real):
    servers = [start_nsqd(), start_nsqd()]
    done = []
    worker = run_real(servers, spec(lambda message: done.append(message.body)))
    worker.until(lambda: worker.supervisor.ready)
    servers[0].kill()
    publish(servers[1], [b"while %d" % i for i in range(100)])
    worker.until(lambda: len(done) == 100)
    servers[0].start()
    publish(servers[0], [b"after %d" % i for i in range(100)])
    worker.until(lambda: len(done) == 200, seconds=30)
    worker.stop()


@pytest.mark.slow
def test_an_nsqd_killed_in_the_middle_loses_no_message_that_it_still_has(start_nsqd, run_real):
    server = start_nsqd("--mem-queue-size=0", "--msg-timeout=2s", "--sync-every=1")
    seen = Counter()

    def function(message):
        seen[message.body] += 1
        gevent.sleep(0.001)

    worker = run_real(server, spec(function, concurrency=5, max_in_flight=20))
    publish(server, [b"%d" % i for i in range(400)])
    worker.until(lambda: len(seen) > 100)
    server.kill()
    server.start()
    # nsqd itself forgets what was in flight when it is killed: at most max_in_flight messages
    worker.until(lambda: len(seen) >= 400 - 20, seconds=40)
    worker.stop()


def test_poison_goes_to_the_dead_letter_topic_by_nsqds_count_of_attempts_and_pauses_nobody(nsqd, run_real, monkeypatch):
    monkeypatch.setattr("framework.engine.backoff.RETRY_BASE", 0.0)
    attempts, fine, letters = [], [], []

    def function(message):
        if message.body == b"poison":
            attempts.append(message.attempts)
            raise ValueError("never")
        fine.append(message.body)

    worker = run_real(
        nsqd,
        spec(function, concurrency=1, max_attempts=3),
        spec(lambda message: letters.append(message.body), topic="orders.billing.dead", channel="look"),
    )
    publish(nsqd, [b"poison", *[b"%d" % i for i in range(500)]])
    worker.until(lambda: letters and len(fine) == 500)
    header, _, body = letters[0].partition(b"\n")
    assert attempts == [1, 2, 3]
    assert body == b"poison"
    assert json.loads(header)["attempts"] == 3
    assert worker.stop() == {"received": 503, "finished": 500, "requeued": 2, "dead": 1, "lease_lost": 0}


def test_a_batch_handler_gets_full_batches(nsqd, run_real):
    sizes = []
    worker = run_real(
        nsqd, spec(lambda batch: sizes.append(len(batch)), batch=500, linger=1.0, max_in_flight=2500, concurrency=1)
    )
    publish(nsqd, [b"%d" % i for i in range(5000)])
    worker.until(lambda: sum(sizes) == 5000)
    assert sizes == [500] * 10
    assert worker.stop()["finished"] == 5000


def test_on_stop_what_has_not_started_is_with_another_consumer_within_a_second(nsqd, run_real):
    started, elsewhere = [], []
    gate = Event()

    def slow(message):
        started.append(message.id)
        gate.wait()

    first = run_real(nsqd, spec(slow, concurrency=2, max_in_flight=100))
    consumer = first.supervisor._consumers
    first.until(lambda: first.supervisor.ready)
    consumer[0].flow.credit._concurrency = 50  # prefetch as if the handlers had been quick until now
    publish(nsqd, [b"%d" % i for i in range(50)])
    first.until(lambda: nsqd.channel_stats("orders", "billing").get("in_flight_count", 0) >= 30)
    second = run_real(nsqd, spec(lambda message: elsewhere.append(time.monotonic()), max_in_flight=100))
    second.until(lambda: second.supervisor.ready)
    began = time.monotonic()
    first.supervisor.stop()
    second.until(lambda: len(elsewhere) == 48)
    assert max(elsewhere) - began < 1.0
    gate.set()
    ledger = first.end()
    assert (len(started), ledger["finished"], ledger["lease_lost"]) == (2, 2, 0)
    assert second.stop()["finished"] >= 48
    assert nsqd.channel_stats("orders", "billing")["timeout_count"] == 0


def give_twice(server: Server) -> None:
    """Have the first message of the channel's queue there twice, as after a crash whose note of what was read is older."""
    server.stop()
    queue, note = (server.data / f"orders:billing.diskqueue.{end}" for end in ("000000.dat", "meta.dat"))
    record = queue.read_bytes()
    queue.write_bytes(record * 2)
    note.write_text(f"2\n0,0\n0,{len(record) * 2}\n")
    server.start()


def test_a_message_that_nsqd_has_twice_does_not_leave_the_handler_without_any(start_nsqd, run_real, monkeypatch, caplog):
    """nsqd then counts one in flight for ever, and a grant of 1 is none."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(connection, "RENEWAL", 0.1)
    server = start_nsqd("--mem-queue-size=0")
    server.http("/topic/create?topic=orders", b"")
    server.http("/channel/create?topic=orders&channel=billing", b"")
    publish(server, [b"twice"])
    deadline = time.monotonic() + 20
    while server.channel_stats("orders", "billing")["depth"] != 1:
        assert time.monotonic() < deadline
    give_twice(server)
    seen, both = [], Event()

    def function(message):
        seen.append(message.body)
        both.set() if len(seen) == 2 else both.wait(20)

    worker = run_real(server, spec(function))
    worker.until(lambda: worker.supervisor.ledgers["orders/billing"].lease_lost == 1)
    for body in (b"first after", b"second after"):
        publish(server, [body])
        worker.until(lambda: seen[-1] == body)  # noqa: B023
    assert seen == [b"twice", b"twice", b"first after", b"second after"]
    assert f"nsqd {server.address} may count messages as in flight that are not: subscribing anew" in caplog.text
    assert worker.stop() == {"received": 4, "finished": 3, "requeued": 0, "dead": 0, "lease_lost": 1}

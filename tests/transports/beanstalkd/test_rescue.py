"""A handler that computes for longer than a job's time to run costs no job, wherever on its way to a handler that is."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter

import gevent
import pytest

from framework.message import Message
from framework.transports.beanstalkd.rescue import Rescue

from .conftest import server_stats, spec, tube_stats, until, url

pytestmark = pytest.mark.real
TTR = 1


@pytest.fixture
def aside(server):
    """Says something to the server without a turn of the hub, and returns the first line of the answer."""
    with socket.create_connection(("127.0.0.1", server.tcp_port), 20) as sock:

        def ask(command: bytes) -> bytes:
            sock.sendall(command)
            answer = b""
            while not answer.endswith(b"\r\n"):
                answer += sock.recv(65536)
            return answer

        assert ask(b"use orders\r\n") == b"USING orders\r\n"
        yield ask


def put(aside, count: int) -> None:
    for _ in range(count):
        assert aside(b"put 0 0 %d 1\r\nx\r\n" % TTR).startswith(b"INSERTED")


def compute(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


@pytest.mark.parametrize("count", [1, 100], ids=["on a waiter", "on the poller"])
def test_a_handler_that_computes_for_long_costs_no_lease(server, run, aside, count):
    """Of a hundred, one is computed on, some wait for it, and most have not been delivered."""

    def function(message):
        if worker.ledger.finished == 0:
            compute(3 * TTR)

    worker = run(url(server), spec(function, concurrency=1))
    worker.supervisor._consumers[0].flow.credit._concurrency = 1000  # prefetch as if the handlers had been quick until now
    until(lambda: tube_stats(server).get("current-waiting"))
    put(aside, count)
    worker.until(lambda: worker.ledger.finished == count)
    assert int(server_stats(server)["cmd-touch"]) >= 3
    assert server_stats(server)["job-timeouts"] == "0"
    assert worker.stop() == {"received": count, "finished": count, "requeued": 0, "dead": 0, "lease_lost": 0}


def blocked(connection, seconds: float, expired=()) -> None:
    """As a guardian does for a hub that does not turn."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.2)
        connection.rescuable.rescue(time.monotonic(), expired)


def test_a_job_that_comes_while_the_hub_is_blocked_is_kept_and_delivered_afterwards(server, receiver, subscribe, aside):
    connection = subscribe(server.address)
    until(lambda: tube_stats(server)["current-waiting"] == 1)
    put(aside, 1)
    blocked(connection, 2.5 * TTR)
    assert b"job-timeouts: 0\n" in (stats := aside(b"stats\r\n"))
    assert b"cmd-touch: 0\n" not in stats
    assert receiver.messages == []
    connection.rescuable.rescued()
    until(lambda: receiver.messages)
    assert receiver.messages[0].attempts == 1
    connection.finish(receiver.messages[0])
    until(lambda: receiver.tally.finished == 1 and not connection.unsent())


def test_a_job_that_was_settled_and_not_yet_sent_is_kept(server, receiver, subscribe, aside):
    connection = subscribe(server.address, grant=5)
    until(lambda: tube_stats(server)["current-waiting"] == 1)
    put(aside, 5)
    until(lambda: len(receiver.messages) == 5)
    for message in receiver.messages:
        connection.finish(message)
    blocked(connection, 2.5 * TTR)
    assert b"job-timeouts: 0\n" in aside(b"stats\r\n")
    connection.rescuable.rescued()
    until(lambda: not connection.unsent())
    assert (receiver.tally.finished, receiver.tally.lease_lost) == (5, 0)


def test_jobs_that_wait_for_what_is_known_of_the_first_of_their_poll_are_kept(server, receiver, subscribe, aside, monkeypatch):
    """All reserves of the poll are answered; the hub is blocked before the statistics of its first job come.

    Where they come with the reserves, five more jobs are put.
    """
    connection = subscribe(server.address, grant=5)
    flush, late = connection._poller.flush, []

    def flush_and_compute() -> None:
        flush()
        if not late and len(connection._poller.undelivered()) == 4 and not connection._poller.polling:
            late.append(True)
            blocked(connection, 2.5 * TTR)

    monkeypatch.setattr(connection._poller, "flush", flush_and_compute)
    for rounds in range(1, 21):
        until(lambda: tube_stats(server)["current-waiting"] == 1)
        put(aside, 5)
        until(lambda: len(receiver.messages) == 5)
        assert b"job-timeouts: 0\n" in aside(b"stats\r\n")
        connection.rescuable.rescued()
        while receiver.messages:
            connection.finish(receiver.messages.pop())
        until(lambda: not connection.unsent())
        assert (receiver.tally.finished, receiver.tally.lease_lost) == (5 * rounds, 0)
        if late:
            break
    assert late


def test_a_job_that_will_be_due_before_the_next_rescue_is_touched_in_this_one(server, receiver, subscribe, aside):
    connection = subscribe(server.address)
    until(lambda: tube_stats(server)["current-waiting"] == 1)
    put(aside, 1)
    until(lambda: receiver.messages)
    [message] = receiver.messages
    connection.rescuable.rescue(connection.in_flight[message] + 0.3 * TTR, ())
    assert b"cmd-touch: 1\n" in aside(b"stats\r\n")
    connection.rescuable.rescued()
    connection.finish(message)
    until(lambda: not connection.unsent())


def test_a_job_that_was_touched_on_its_way_is_kept_since_then_and_not_since_it_was_delivered(server, receiver, subscribe, aside):
    connection = subscribe(server.address)
    until(lambda: tube_stats(server)["current-waiting"] == 1)
    put(aside, 1)
    time.sleep(0.1)
    connection.rescuable.rescue(time.monotonic(), ())
    touched = time.monotonic()
    time.sleep(0.2)
    connection.rescuable.rescued()
    until(lambda: receiver.messages)
    [message] = receiver.messages
    assert connection.in_flight[message] <= touched
    connection.finish(message)
    until(lambda: not connection.unsent())


def test_what_a_handler_may_not_keep_any_longer_is_not_touched(server, receiver, subscribe, aside):
    connection = subscribe(server.address)
    until(lambda: tube_stats(server)["current-waiting"] == 1)
    put(aside, 1)
    until(lambda: receiver.messages)
    before = aside(b"stats\r\n").count(b"cmd-touch: 0\n")
    blocked(connection, 0.8 * TTR, expired=receiver.messages)
    assert aside(b"stats\r\n").count(b"cmd-touch: 0\n") == before == 1
    connection.rescuable.rescued()
    connection.finish(receiver.messages[0])


def test_a_rescue_in_the_middle_of_a_hub_that_turns_puts_nothing_out_of_step(server, run):
    """It may come just as the hub goes on: here it comes all the time."""
    seen = Counter()
    worker = run(url(server), spec(lambda message: seen.update([message.body]), max_in_flight=50))
    [connection] = worker.connections
    over = threading.Event()

    def rescue() -> None:
        while not over.wait(0.01):
            connection.rescuable.rescue(time.monotonic(), ())

    thread = threading.Thread(target=rescue)
    thread.start()
    bodies = [b"%d" % i for i in range(5000)]
    worker.producer.publish("orders", bodies)
    try:
        while len(seen) < len(bodies):
            gevent.get_hub().loop.run_callback(connection.rescuable.rescued)
            gevent.sleep(0.001)
            assert not worker.greenlet.dead
    finally:
        over.set()
        thread.join()
    gevent.get_hub().loop.run_callback(connection.rescuable.rescued)
    ledger = worker.stop()
    assert (ledger["finished"], ledger["lease_lost"]) == (5000, 0)
    assert set(seen.values()) == {1}


def test_a_job_that_is_settled_in_this_moment_is_not_touched_and_disturbs_nothing():
    """The hub, when it turns again, takes it out of one place after the other."""
    settled = Message(b"7", 0, 1, b"x", None)
    assert Rescue().touches({settled: 0.0}, {}, 60.0, 1000.0, ()) == {}

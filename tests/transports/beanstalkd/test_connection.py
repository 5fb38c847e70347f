"""One connection of the transport without the engine: what it asks for, what it learns, and what it says when things break."""

from __future__ import annotations

import socket
import time

import gevent
import pytest

from framework.errors import AlreadySettled
from framework.message import Message
from framework.transports.beanstalkd import connection as connection_module
from framework.transports.beanstalkd import unasked, waiters
from framework.transports.beanstalkd.client import TimedOut

from .conftest import job_stats, server_stats, tube_stats, until

pytestmark = pytest.mark.real


VERBS = {"finish": "delete", "requeue": "release", "bury": "bury", "touch": "touch"}


def test_nothing_comes_before_a_grant_and_no_more_than_granted(server, client, receiver, subscribe):
    connection = subscribe(server.address, grant=0)
    client.put_many([b"%d" % i for i in range(50)])
    gevent.sleep(0.1)
    assert (receiver.messages, connection.granted, connection.exposed) == ([], 0, 0)
    for n in (1, 2, 7, 30):
        connection.grant(n)
        until(lambda: len(receiver.messages) == n)  # noqa: B023
        gevent.sleep(0.05)
        assert (len(receiver.messages), tube_stats(server)["current-jobs-reserved"]) == (n, n)


def test_no_more_than_granted_are_ours_while_some_are_handled_and_the_others_wait_for_it(server, client, receiver, subscribe):
    """Jobs are delivered a slice at a time, and how those ended is sent before the next slice."""
    client.put_many([b"%d" % i for i in range(1000)])
    most = 0
    with socket.create_connection(("127.0.0.1", server.tcp_port), 20) as aside:  # the hub stands still meanwhile

        def deliver(connection, batch):
            nonlocal most
            aside.sendall(b"stats\r\n")
            answer = b""
            while not answer.endswith(b"\n\r\n"):
                answer += aside.recv(65536)
            most = max(most, int(answer.partition(b"current-jobs-reserved: ")[2].partition(b"\n")[0]))
            for message in batch:
                connection.finish(message)

        receiver.deliver = deliver
        subscribe(server.address, grant=100)
        until(lambda: receiver.tally.finished == 1000)
    assert 32 < most <= 100


def test_a_connection_that_keeps_a_job_is_heard_from_though_nothing_is_said_of_the_job(
    server, client, receiver, subscribe, monkeypatch
):
    monkeypatch.setattr(connection_module, "_PULSE", 600.0)
    connection = subscribe(server.address, grant=1)
    until(lambda: tube_stats(server)["current-waiting"] == 1)
    client.put(b"kept")
    until(lambda: receiver.messages and not connection.unsent())
    before = int(server_stats(server)["cmd-list-tube-used"])
    connection._check_pulse()  # the server may let the job run out only then
    until(lambda: not connection.unsent())
    assert int(server_stats(server)["cmd-list-tube-used"]) == before + 2  # on the poller, and on the waiter that keeps it
    connection.finish(receiver.messages[0])
    until(lambda: receiver.tally.finished == 1 and not connection.unsent())


@pytest.mark.parametrize(
    "case",
    [
        (("finish",), {"cmd-delete": 1, "current-jobs-reserved": 0}),
        (("bury",), {"current-jobs-buried": 1, "current-jobs-reserved": 0}),
        (("requeue", 60.0), {"current-jobs-delayed": 1, "current-jobs-reserved": 0}),
    ],
)
def test_how_a_job_ended_is_said_though_nothing_else_is_to_be_said(server, client, receiver, subscribe, case):
    (how, *said), seen = case
    connection = subscribe(server.address, grant=1)
    client.put(b"kept")
    until(lambda: receiver.messages and not connection.unsent())
    gevent.sleep(0.05)  # all that its coming brought about is done
    connection.granted = 0  # so that nothing is asked for in its place
    getattr(connection, how)(receiver.messages[0], *said)
    until(lambda: {name: tube_stats(server)[name] for name in seen} == seen, 3.0)  # a pulse would come later


def test_of_jobs_that_are_done_soon_nothing_is_asked(server, client, receiver, subscribe):
    """What a release must know of a job is asked while it runs long: a question for each would cost as much as the jobs."""
    deliver = receiver.deliver

    def deliver_and_finish(connection, batch) -> None:
        deliver(connection, batch)
        for message in batch:
            gevent.spawn(connection.finish, message)  # in the next turn of the hub

    receiver.deliver = deliver_and_finish
    connection = subscribe(server.address, grant=50)
    client.put_many([b"%d" % at for at in range(200)])
    until(lambda: receiver.tally.finished == 200 and not connection.unsent())
    gevent.sleep(3 * unasked.LATER)
    assert int(server_stats(server)["cmd-stats-job"]) < 100


def test_a_grant_that_is_taken_back_takes_back_the_waiting_reserve(server, client, receiver, subscribe):
    connection = subscribe(server.address, grant=3)
    until(lambda: tube_stats(server)["current-waiting"] == 1)
    connection.grant(0)
    until(lambda: tube_stats(server)["current-waiting"] == 0)
    client.put(b"x")
    gevent.sleep(0.1)
    assert receiver.messages == []
    assert job_stats(server, 1)["reserves"] == "0"
    connection.grant(1)
    until(lambda: receiver.messages)


def test_a_message_says_when_it_was_put_and_how_often_it_came(server, client, receiver, subscribe):
    client.put(b"x")
    client.reserve(timeout=5)
    client.release(1)
    gevent.sleep(1.1)
    subscribe(server.address)
    until(lambda: receiver.messages)
    [message] = receiver.messages
    assert (message.attempts, message.topic, message.channel, message.node) == (2, "orders", "billing", server.address)
    assert message.id == b"1@" + server_stats(server)["id"][:8].encode()
    assert -0.5 < time.time() - message.timestamp / 1e9 - 1.1 < 5


def test_the_lease_is_the_shortest_of_the_jobs_in_flight(server, client, receiver, subscribe, monkeypatch):
    """It is known as each of them comes: nobody looks at the leases meanwhile."""
    monkeypatch.setattr(connection_module.JobLeases, "look", lambda *_: None)
    connection = subscribe(server.address, grant=10)
    assert connection.limits.lease == 60
    client.put(b"a", ttr=300)
    until(lambda: connection.limits.lease == 300)
    client.put_many([b"b", b"c"], ttr=9)
    until(lambda: connection.limits.lease == 9)
    client.put(b"d", ttr=100)
    until(lambda: len(receiver.messages) == 4)
    assert connection.limits.lease == 9
    for message in receiver.messages:
        connection.finish(message)
    client.put(b"e", ttr=100)
    until(lambda: connection.limits.lease == 100)


def test_the_lease_grows_again_when_the_job_with_the_shortest_is_done(server, client, receiver, subscribe, monkeypatch):
    monkeypatch.setattr("framework.transports.beanstalkd.connection._PULSE", 0.05)
    connection = subscribe(server.address, grant=10)
    client.put_many([b"long", b"longer"], ttr=300)
    client.put(b"short", ttr=9)
    until(lambda: len(receiver.messages) == 3 and connection.limits.lease == 9)
    gevent.sleep(0.2)
    assert connection.limits.lease == 9, "it is still in flight"
    connection.finish(next(message for message in receiver.messages if message.body == b"short"))
    until(lambda: connection.limits.lease == 300)


def test_what_was_settled_cannot_be_settled_again(server, client, receiver, subscribe):
    connection = subscribe(server.address, grant=4)
    client.put_many([b"a", b"b", b"c"])
    until(lambda: len(receiver.messages) == 3)
    for settle, message in zip(
        (connection.finish, lambda m: connection.requeue(m, 1), connection.bury), receiver.messages, strict=True
    ):
        settle(message)
        for again in (connection.finish, lambda m: connection.requeue(m, 0), connection.touch, connection.bury):
            with pytest.raises(AlreadySettled):
                again(message)
    until(lambda: not connection.unsent())
    stats = tube_stats(server)
    assert (stats["current-jobs-delayed"], stats["current-jobs-buried"], stats["cmd-delete"]) == (1, 1, 1)


def test_what_failed_comes_after_a_second_at_least_or_it_would_be_the_very_next_job(server, client, receiver, subscribe):
    connection = subscribe(server.address)
    client.put_many([b"failing", b"next"])
    until(lambda: receiver.messages)
    connection.requeue(receiver.messages[0], 0.0)
    until(lambda: len(receiver.messages) == 2)
    assert receiver.messages[1].body == b"next"
    assert job_stats(server, 1)["delay"] == "1"


def test_a_delay_longer_than_the_server_takes_is_its_longest(server, client, receiver, subscribe):
    connection = subscribe(server.address)
    client.put(b"a")
    until(lambda: receiver.messages)
    connection.requeue(receiver.messages[0], float("inf"))
    until(lambda: job_stats(server, 1).get("delay") == "4294967295")


def expired(server, client, receiver) -> Message:
    """A message whose job ran out of its time, and which ``client`` has taken and deleted since.

    Of some jobs beanstalkd 1.12 forgets that they run out, until their connection speaks: then another one must do."""
    for _ in range(30):
        count = len(receiver.messages)
        client.put(b"short", ttr=1)
        until(lambda: len(receiver.messages) > count)  # noqa: B023
        message = receiver.messages[-1]
        message.connection.grant(0)
        try:
            client.delete(client.reserve(timeout=2))
        except TimedOut:
            message.connection.finish(message)
            message.connection.grant(2)
        else:
            return message
    raise AssertionError("no job ever ran out")


@pytest.mark.slow
@pytest.mark.parametrize("place", ["waiter", "poller"])
def test_a_job_that_another_worker_has_by_now_is_a_lost_lease(server, client, subscribe, place, monkeypatch):
    connection = subscribe(server.address, grant=2)
    receiver = connection._receiver
    if place == "poller":  # that a poll gets what comes next, no waiter may wait
        monkeypatch.setattr(waiters, "MOST", 0)
        connection.waiters._spare.clear()
    for lost, verb in enumerate(("finish", "requeue", "bury", "touch"), 1):
        message = expired(server, client, receiver)
        finished = receiver.tally.finished
        if verb == "requeue":
            connection.requeue(message, 5.0)
        else:
            getattr(connection, verb)(message)
        until(lambda: len(receiver.losses) == lost)  # noqa: B023
        assert receiver.losses[-1] == (
            b"short",
            f"beanstalkd answered {VERBS[verb]} {int(message.id.split(b'@')[0])} with NOT_FOUND",
        )
        assert message.settled
        assert (receiver.tally.lease_lost, receiver.tally.finished, receiver.tally.requeued) == (lost, finished, 0)
        connection.grant(2)
    client.put(b"next")
    until(lambda: receiver.messages[-1].body == b"next")  # nothing is out of step


def test_a_job_that_was_deleted_before_it_could_be_delivered_is_never_received(receiver, subscribe, listening):
    """Its lease had run out, and another worker was quicker: a real server cannot be made to show it."""
    state = b"---\npri: 1\nage: 0\ndelay: 0\nttr: 60\ntime-left: 60\nfile: 0\nreserves: 3\n"
    states = [b"NOT_FOUND\r\n", b"OK %d\r\n%b\r\n" % (len(state), state)]
    jobs = iter((7, 8))

    def serve(sock):
        for line in sock.makefile("rb"):
            verb = line.split()[0]
            if verb == b"reserve-with-timeout" and not int(line.split()[1]):
                sock.sendall(b"TIMED_OUT\r\n")
            elif verb == b"reserve-with-timeout":
                if job := next(jobs, None):
                    sock.sendall(b"RESERVED %d 1\r\nx\r\n" % job)
            elif verb == b"stats-job":
                sock.sendall(states.pop(0))
            else:
                sock.sendall({b"stats": b"OK 4\r\n---\n\r\n", b"delete": b"DELETED\r\n"}.get(verb, b"WATCHING 1\r\n"))

    connection = subscribe(listening(serve))
    until(lambda: receiver.messages)
    assert [(message.id, message.attempts) for message in receiver.messages] == [(b"8@", 3)]
    connection.finish(receiver.messages[0])
    until(lambda: receiver.tally.finished == 1)
    assert receiver.tally.received == 1

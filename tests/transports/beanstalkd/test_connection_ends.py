"""The end of one connection of the transport, without the engine: drained, closed or broken, and which jobs that costs."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace

import gevent
import pytest

from framework.errors import BrokerError, BrokerUnreachable, ProtocolError
from framework.testing.servers import free_port
from framework.transports.beanstalkd import connection as connection_module
from framework.transports.beanstalkd import reserved_job, waiters
from framework.transports.beanstalkd.job_leases import limits_of
from framework.transports.beanstalkd.transport import connect

from .conftest import tube_stats, until

pytestmark = pytest.mark.real


def test_a_waiter_that_breaks_loses_its_own_job_and_no_other(server, client, receiver, subscribe):
    connection = subscribe(server.address, grant=8)
    for i in range(3):
        client.put(b"%d" % i)
        until(lambda: len(receiver.messages) == i + 1)  # noqa: B023
    waiter = connection._jobs[receiver.messages[1]].keeper
    waiter.hub_socket._sock.shutdown(2)
    until(lambda: receiver.losses)
    assert receiver.losses[0][0] == b"1"
    until(lambda: len(receiver.messages) == 4)  # it comes again
    assert (receiver.messages[3].body, receiver.messages[3].attempts) == (b"1", 2)
    for message in list(connection.in_flight):
        connection.finish(message)
    until(lambda: tube_stats(server)["cmd-delete"] == 3)
    assert not receiver.ends


def test_a_poller_that_breaks_ends_it_all_at_once(server, client, receiver, subscribe):
    connection = subscribe(server.address, grant=50)
    client.put_many([b"%d" % i for i in range(30)])
    until(lambda: len(receiver.messages) == 30)
    connection._poller.hub_socket._sock.shutdown(2)
    until(lambda: receiver.ends)
    assert isinstance(receiver.ends[0], BrokerUnreachable)
    assert (receiver.tally.received, receiver.tally.lease_lost) == (30, 30)
    until(lambda: tube_stats(server)["current-jobs-ready"] == 30)


def test_draining_returns_when_nothing_can_come_any_more(server, client, receiver, subscribe):
    connection = subscribe(server.address, grant=5)
    client.put_many([b"a", b"b"])
    until(lambda: len(receiver.messages) == 2)
    connection.drain()
    until(lambda: receiver.drains)
    client.put(b"c")
    gevent.sleep(0.1)
    connection.finish(receiver.messages[0])
    connection.requeue(receiver.messages[1], 0.0)  # at once, for another worker
    until(lambda: not connection.unsent())
    assert len(receiver.messages) == 2
    assert (tube_stats(server)["current-jobs-ready"], receiver.drains) == (2, 1)


@pytest.mark.parametrize("again", ["drain", "close"])
def test_what_is_said_again_of_a_connection_that_closes_does_not_keep_it(server, client, receiver, start_proxy, again):
    proxy = start_proxy(server.address)
    connection = connect(proxy.address, "orders", "billing", "orders", receiver, ttr=60.0)
    connection.grant(3)
    client.put(b"x")
    until(lambda: receiver.messages)
    proxy.swallow()
    connection.finish(receiver.messages[0])
    connection.close()
    getattr(connection, again)()
    until(lambda: receiver.ends, seconds=connection_module.CLOSE_FLUSH + 10)
    getattr(connection, again)()
    assert not connection._deadline.active


def test_half_open_connections_hold_the_stop_for_a_moment_only(server, client, receiver, start_proxy):
    proxy = start_proxy(server.address)
    connection = connect(proxy.address, "orders", "billing", "orders", receiver, ttr=60.0)
    connection.grant(3)
    client.put(b"x")
    until(lambda: receiver.messages)
    proxy.swallow()
    began = time.monotonic()
    connection.finish(receiver.messages[0])
    connection.drain()
    until(lambda: receiver.drains)
    connection.close()
    until(lambda: receiver.ends)
    assert time.monotonic() - began < 6
    assert receiver.tally.balance(0) == 0


def test_a_close_long_after_the_drain_still_waits_for_what_the_server_says(server, client, receiver, start_proxy):
    """The time that a drain gives the waiters was over: what was left of it, nothing, was all that a close had."""
    proxy = start_proxy(server.address)
    connection = connect(proxy.address, "orders", "billing", "orders", receiver, ttr=60.0)
    connection.grant(3)
    client.put(b"x")
    until(lambda: receiver.messages)
    connection.drain()
    gevent.sleep(connection_module.CLOSE_FLUSH + 0.2)
    proxy.delay(0.2)
    connection.finish(receiver.messages[0])
    connection.close()
    until(lambda: receiver.ends)
    assert not connection.unsent()
    assert tube_stats(server)["cmd-delete"] == 1
    assert (receiver.tally.finished, receiver.tally.lease_lost) == (1, 0)


def test_where_no_waiter_can_be_had_the_tube_is_looked_at_now_and_then_and_no_more(server, receiver, subscribe, monkeypatch):
    looks = []
    connection = subscribe(server.address)
    monkeypatch.setattr(waiters, "MOST", 0)
    connection.waiters._spare.clear()
    look = connection.look
    monkeypatch.setattr(connection, "look", lambda: (looks.append(1), look()))
    connection.grant(5)
    gevent.sleep(1.0)
    assert 3 <= len(looks) <= 12  # every 0.1 s


def test_a_waiter_that_is_still_being_dialled_holds_up_no_stop(server, receiver, subscribe):
    connection = subscribe(server.address)
    connection.waiters._dial(pause=600.0)
    connection.drain()
    until(lambda: receiver.drains)
    assert not receiver.ends


@pytest.mark.slow
def test_a_server_that_is_gone_without_a_word_is_noticed(server, client, receiver, start_proxy, monkeypatch):
    monkeypatch.setattr(connection_module, "_PULSE", 0.2)
    monkeypatch.setattr(reserved_job, "GRACE", 1.0)
    proxy = start_proxy(server.address)
    connection = connect(proxy.address, "orders", "billing", "orders", receiver, ttr=60.0)
    connection.grant(3)
    gevent.sleep(1.5)
    assert not receiver.ends  # silence alone is nothing: a question was answered
    proxy.swallow()
    until(lambda: receiver.ends)
    assert "gave no answer for 1 s" in str(receiver.ends[0])


def test_waiters_that_were_not_needed_are_closed_after_a_while(server, client, receiver, subscribe, monkeypatch):
    monkeypatch.setattr(connection_module, "_PULSE", 0.1)
    monkeypatch.setattr(waiters, "SPARE", 0.3)
    connection = subscribe(server.address, grant=20)
    for i in range(10):
        client.put(b"%d" % i)
        until(lambda: len(receiver.messages) == i + 1)  # noqa: B023
    for message in receiver.messages:
        connection.finish(message)
    assert len(connection.waiters.all) >= 10
    until(lambda: len(connection.waiters.all) <= 2)
    client.put(b"more")
    until(lambda: receiver.messages[-1].body == b"more")


def test_what_cannot_be_reached_or_is_no_beanstalkd_is_an_error_that_names_it(receiver, nsqd):
    port = free_port()
    with pytest.raises(BrokerUnreachable, match=f"beanstalkd 127.0.0.1:{port} cannot be reached"):
        connect(f"127.0.0.1:{port}", "orders", "billing", "orders", receiver, ttr=60.0)
    for address in (nsqd.address, nsqd.http_address):
        with pytest.raises((ProtocolError, BrokerError, BrokerUnreachable), match=address):
            connect(address, "orders", "billing", "orders", receiver, ttr=60.0)


@pytest.mark.parametrize("drained", [True, False])
def test_one_that_has_nothing_to_say_is_closed_at_once(server, receiver, subscribe, drained):
    """And not only when its patience is over."""
    connection = subscribe(server.address, grant=5)
    gevent.sleep(0.01)
    if drained:
        connection.drain()
        until(lambda: receiver.drains)
    began = time.monotonic()
    connection.close()
    until(lambda: receiver.ends)
    assert receiver.ends == [None]
    assert time.monotonic() - began < connection.limits.goodbye / 2


@pytest.mark.parametrize("end", ["drain", "close"])
def test_what_waits_for_room_in_a_log_is_given_back_when_it_ends(  # noqa: PLR0917
    server, client, receiver, subscribe, monkeypatch, end
):
    """And not only when it has waited for long enough, or when the connection is gone."""
    monkeypatch.setattr("framework.transports.beanstalkd.log_space.WAIT", 60.0)
    connection = subscribe(server.address)
    client.put(b"x")
    until(lambda: receiver.messages)
    connection.grant(0)
    connection._log_space.none(1)
    connection.requeue(receiver.messages[0], 5.0)
    gevent.sleep(0.1)
    assert tube_stats(server)["current-jobs-reserved"] == 1
    assert len(connection._log_space.kept) == 1
    getattr(connection, end)()
    assert not connection._log_space.kept
    until(lambda: tube_stats(server)["current-jobs-ready"] == 1)
    assert (receiver.tally.requeued, receiver.tally.lease_lost) == (1, 0)


def test_in_a_forked_child_it_does_nothing_more_and_tells_nobody(server, client, receiver):
    """Or it would be made anew there."""
    connection = connect(server.address, "orders", "billing", "orders", receiver, ttr=60.0)
    connection.grant(2)
    client.put(b"x")
    until(lambda: receiver.messages)
    worked = []
    connection.forget()
    connection._guarded(worked.append, "as a timer would")
    connection.grant(5)
    connection.drain()
    connection.close()
    connection.forget()
    gevent.sleep(0.01)
    connection._end(None)
    assert (worked, receiver.drains, receiver.ends, connection._turn_due) == ([], 0, [], False)


def test_a_touch_that_the_server_refuses_is_a_lost_lease_once(server, client, receiver, subscribe):
    connection = subscribe(server.address)
    client.put(b"x")
    until(lambda: receiver.messages)
    for _ in range(2):
        connection.refused("touch", receiver.messages[0])
        assert ([body for body, _ in receiver.losses], receiver.tally.lease_lost) == ([b"x"], 1)
    assert not connection.in_flight


def test_no_timer_outlives_it(server, receiver, subscribe):
    """Each would keep it, and all that it has."""
    connection = subscribe(server.address)
    timers = [connection._deadline, connection._unasked._timer, connection._pacing._patience]
    for timer in timers:
        timer.start(receiver.messages.clear)
    connection._log_space._timer.start(receiver.messages.clear)
    connection._attempts.asking.append(None)
    connection._attempts.arrived.append(None)
    connection._end(None)
    assert [timer.active for timer in [*timers, connection._log_space._timer]] == [False] * 4
    assert (connection._pulse.when, connection.granted, connection.exposed) == (math.inf, 0, 0)
    assert (connection._attempts.asking, connection._attempts.arrived) == ([], [])
    assert not connection._poller.hub_socket.open


@pytest.mark.parametrize(("lease", "pulse"), [(60, 5.0), (10, 5.0), (9, 4.5), (1, 0.5)])
def test_answers_and_leases_are_looked_at_every_five_seconds_and_twice_in_a_lease(  # noqa: PLR0917
    server, receiver, subscribe, monkeypatch, lease, pulse
):
    connection = subscribe(server.address)
    monkeypatch.setattr(connection_module, "monotonic", lambda: 100.0)
    due = []
    with monkeypatch.context() as patched:
        patched.setattr(connection._pulse, "set", due.append)
        connection._limit(limits_of(lease))
    assert (due, connection.limits.lease) == ([100.0 + pulse], lease)


def test_what_is_not_sent_and_what_is_not_ours_yet_add_up():
    parts = SimpleNamespace(
        _settling=[1] * 2, _poller=SimpleNamespace(unanswered=30, polling=7, hub_socket=SimpleNamespace(unsent=500)),
        waiters=SimpleNamespace(unsent=7000, promised=1), in_flight=[1] * 40, _attempts=SimpleNamespace(undelivered=300),
        ours=340, granted=348,
    )  # fmt: skip
    of = connection_module.BeanstalkdConnection
    assert (of.unsent(parts), of.ours.fget(parts), of.exposed.fget(parts)) == (7532, 340, 348)
    parts.granted = 349
    assert of.exposed.fget(parts) == 349
    parts.granted = 0
    assert of.exposed.fget(parts) == 348

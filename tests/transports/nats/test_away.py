"""A connection to JetStream whose socket breaks while calls run: they are settled by another, and none runs twice."""

from __future__ import annotations

import time

import gevent.event
import pytest

from framework.errors import BrokerUnreachable
from framework.testing.servers import nats_binary
from framework.transports.nats import away, wire

from .conftest import until
from .holding import BOTH, holding, left


class Nowhere:
    """A socket that takes all, of which nothing arrives."""

    def send(self, data):
        return len(data)


@BOTH
def test_what_runs_while_a_server_is_started_again_is_settled_there_and_comes_once(make_kit, version):
    kit = make_kit("", version=version)
    transport = kit.open()
    held = holding(kit, transport, 5)
    during, failed, *after = held.taken
    kit.server.stop()
    until(lambda: held.connection.away)
    assert held.connection.exposed == 5
    held.connection.finish(during)
    held.connection.touch(after[0])
    kit.server.start()
    until(lambda: held.tally.finished == 1)
    held.connection.requeue(failed, 0.0)
    for message in after:
        held.connection.finish(message)
    until(lambda: len(held.taken) == 6)
    assert (held.taken[5].body, held.taken[5].id) == (failed.body, failed.id)
    held.connection.finish(held.taken[5])
    until(held.balanced)
    assert (held.tally.finished, held.tally.requeued, held.tally.lease_lost, held.receiver.closings) == (5, 1, 0, 0)
    until(lambda: left(kit, transport) == 0)


@pytest.mark.slow
def test_what_runs_while_a_server_becomes_a_newer_one_is_settled_there_and_comes_once(make_kit):
    """The older one says another time of when a consumer was created after each of its starts."""
    kit = make_kit("", version="2.9")
    transport = kit.open()
    held = holding(kit, transport, 2)
    kit.server.stop()
    until(lambda: held.connection.away)
    kit.server.command[0] = str(nats_binary("2.15"))
    kit.server.start()
    for message in held.taken:
        held.connection.finish(message)
    until(lambda: held.tally.finished == 2)
    until(lambda: left(kit, transport) == 0)
    assert (held.tally.lease_lost, held.receiver.closings) == (0, 0)


def test_leases_are_kept_again_from_when_there_is_a_session(make_kit):
    kit = make_kit()
    transport = kit.open("?ack_wait=2s")
    held = holding(kit, transport, 3)
    kit.server.stop()
    until(lambda: held.connection._session.error is not None)
    kit.server.start()
    until(lambda: held.connection._session.error is None)
    rival = kit.hold(transport, grant=10)
    end = time.monotonic() + 4.0
    while time.monotonic() < end:
        gevent.sleep(0.5)
        for message in list(held.connection.in_flight):
            held.connection.touch(message)
    assert (rival.taken, held.tally.lease_lost, len(held.connection.in_flight)) == ([], 0, 3)


def test_a_lease_that_ends_while_there_is_no_server_is_lost_and_the_connection_with_the_last(make_kit):
    kit = make_kit()
    held = holding(kit, kit.open("?ack_wait=1s"), 2)
    kit.server.kill()
    gevent.sleep(0.2)
    assert held.receiver.closings == 0
    until(lambda: held.receiver.closings == 1, 5.0)
    assert (held.tally.lease_lost, len(held.receiver.lost_messages)) == (2, 2)


def test_what_was_settled_without_a_server_is_not_said_after_its_lease(make_kit):
    kit = make_kit()
    transport = kit.open("?ack_wait=1s")
    held = holding(kit, transport, 2)
    kit.server.stop()
    until(lambda: held.connection._session.error is not None)
    held.connection.finish(held.taken[0])
    until(lambda: held.receiver.closings == 1, 5.0)
    assert (held.tally.lease_lost, held.tally.finished) == (2, 0)
    kit.server.start()
    again = kit.hold(transport, grant=10)
    until(lambda: len(again.taken) == 2)
    assert {message.attempts for message in again.taken} == {2}


def test_a_drain_without_a_server_is_over_at_once_and_what_runs_is_settled_by_the_next(make_kit):
    kit = make_kit()
    transport = kit.open()
    held = holding(kit, transport, 2)
    kit.server.stop()
    until(lambda: held.connection._session.error is not None)
    held.connection.drain()
    until(lambda: held.receiver.drains == 1, 2.0)
    held.connection.finish(held.taken[0])
    assert held.connection.unsent()
    kit.server.start()
    until(lambda: held.tally.finished == 1)
    held.connection.finish(held.taken[1])
    until(lambda: held.tally.finished == 2 and not held.connection.unsent())
    assert (held.receiver.closings, left(kit, transport)) == (0, 0)


def test_a_drain_that_the_server_did_not_answer_is_over_when_it_is_gone(make_kit):
    kit = make_kit()
    held = holding(kit, kit.open(), 1)
    kit.server.freeze()
    held.connection.drain()
    gevent.sleep(0.1)
    assert held.receiver.drains == 0
    kit.server.kill()
    until(lambda: held.receiver.drains == 1)


def test_a_connection_that_is_closed_without_a_server_ends_at_once_and_dials_no_more(make_kit):
    kit = make_kit()
    transport = kit.open()
    held = holding(kit, transport, 2)
    kit.server.stop()
    until(lambda: held.connection._session.error is not None)
    held.connection.close()
    assert (held.receiver.closings, held.tally.lease_lost) == (1, 2)
    kit.server.start()
    gevent.sleep(2 * away.LONGEST_PAUSE)
    assert transport._sessions._users == {}


def test_a_consumer_that_is_gone_with_its_server_ends_the_connection(make_kit):
    kit = make_kit()
    held = holding(kit, kit.open(), 1)
    kit.server.stop()
    until(lambda: held.connection._session.error is not None)
    (kit.server.data / "jetstream").rename(kit.server.data / "elsewhere")
    kit.server.start()
    until(lambda: held.receiver.closings == 1)
    assert held.tally.lease_lost == 1


def test_what_runs_while_a_server_does_not_accept_us_is_settled_when_it_does_again(make_kit, caplog):
    """A server may be told of its users late."""
    kit = make_kit("authorization { token: one }")
    transport = kit.open(login="one@")
    held = kit.hold(transport)
    kit.producer(transport).publish("orders", [b"x"])
    until(lambda: held.taken)
    kit.server.stop()
    config = next(part for part in kit.server.command if part.endswith(".conf"))
    with open(config) as file:
        words = file.read()
    for token in ("two", "one"):
        with open(config, "w") as file:
            file.write(words.replace("token: one", f"token: {token}"))
        kit.server.start()
        if token == "two":
            until(lambda: "Authorization Violation" in held.connection.away)
            assert caplog.text.count("Authorization Violation") == 1
            kit.server.stop()
    until(lambda: not held.connection.away)
    held.connection.finish(held.taken[0])
    until(lambda: held.tally.finished == 1)
    assert (held.tally.lease_lost, held.receiver.closings) == (0, 0)


def test_what_is_finished_and_nobody_read_is_said_by_the_next_connection(make_kit):
    """The socket has taken it, and the server is gone before it has read it."""
    kit = make_kit()
    transport = kit.open()
    held = holding(kit, transport, 2)
    kit.server.freeze()
    held.connection.finish(held.taken[0])
    held.connection.terminate(held.taken[1])
    until(lambda: held.tally.finished == 2)
    kit.server.kill()
    until(lambda: held.connection.away)
    assert (held.tally.finished, held.connection.unsent() > 0) == (0, True)
    kit.server.start()
    until(lambda: held.tally.finished == 2)
    until(lambda: left(kit, transport) == 0)
    until(held.balanced)
    assert (held.tally.lease_lost, len(held.taken), held.receiver.closings) == (0, 2, 0)


def test_what_was_read_is_not_said_again(kit):
    held = holding(kit, kit.open(), 2)
    held.connection.finish(held.taken[0])
    until(lambda: held.tally.finished == 1 and held.connection._session.proven > held.connection._settlements._unread[0].at)
    held.connection._session.end(BrokerUnreachable("it broke"))
    assert (held.tally.finished, held.connection._settlements.acks) == (1, [])
    until(lambda: not held.connection.away)


@pytest.mark.parametrize("status", [b"409 Server Shutdown", b"503"])
def test_what_a_server_reads_whose_streams_have_ended_is_said_again(kit, status):
    """One that is told to stop reads on for seconds, and answers a PING behind what it drops."""
    transport = kit.open()
    held = holding(kit, transport, 2)
    ends = wire.Msg(b"x", 0, b"", b"NATS/1.0 %b\r\n\r\n" % status, b"")
    held.connection.heard([ends], time.monotonic())
    for message in held.taken:
        held.connection.finish(message)
    session = held.connection._session
    until(lambda: held.tally.finished == 2 and session.proven > held.connection._settlements._unread[-1].at)
    held.connection.heard([ends], time.monotonic())
    assert held.receiver.closings == 0
    session.end(BrokerUnreachable("it broke"))
    assert held.tally.finished == 0
    until(lambda: held.tally.finished == 2)
    until(lambda: left(kit, transport) == 0)
    assert (held.tally.lease_lost, held.receiver.closings) == (0, 0)


def test_a_server_that_lives_on_is_trusted_again_however_often_it_refuses(kit, monkeypatch):
    """As where one consumer of many has no leader: the others would wait for ever for what they said."""
    monkeypatch.setattr("framework.transports.nats.session.DISTRUST", 0.2)
    held = holding(kit, kit.open(), 2)
    session = held.connection._session
    session.distrust(ends=True)
    began = time.monotonic()
    while time.monotonic() < began + 1.0:
        session.ping()
        gevent.sleep(0.05)
        session.distrust(ends=time.monotonic() < began + 0.5)  # it takes long to end all of its streams
        assert session.heeded < began or time.monotonic() > began + 0.5
    assert session.heeded > began
    held.connection.drain()
    for message in held.taken:
        held.connection.finish(message)
    until(lambda: held.connection.unsent() == 0)


def test_a_pull_that_nobody_takes_ends_no_connection_whose_calls_run(kit, monkeypatch):
    """A consumer is without a leader for seconds when a member of a cluster ends."""
    transport = kit.open()
    busy = holding(kit, transport, 1)
    nobody = wire.Msg(b"x", 0, b"", b"NATS/1.0 503\r\n\r\n", b"")
    busy.connection.heard([nobody], time.monotonic())
    busy.grant(2)
    kit.producer(transport).publish("orders", [b"more"])
    until(lambda: len(busy.taken) == 2)
    for message in busy.taken:
        busy.connection.finish(message)
    until(busy.balanced)
    assert (busy.tally.finished, busy.receiver.closings) == (2, 0)
    monkeypatch.setattr("framework.transports.nats.session.DISTRUST", -1.0)  # it is long ago
    until(lambda: busy.connection._settlements.settled)  # the server has read what was done
    busy.connection.heard([nobody], time.monotonic())
    assert busy.receiver.closings == 1


def test_why_a_session_ends_is_said_once(kit, caplog):
    held = holding(kit, kit.open(), 1)
    held.connection._session.end(BrokerUnreachable("it broke"))
    said = [record.getMessage() for record in caplog.records if "it broke" in record.getMessage()]
    why = f"orders/billing: {kit.server.address}: it broke"
    assert said == [f"{why}; 1 messages in flight keep their leases while it is dialled again"]
    until(lambda: held.connection._session.error is None)
    held.connection.finish(held.taken[0])
    until(held.balanced)


def test_a_session_that_ends_at_once_is_dialled_again(kit):
    """Whoever is not there yet when a session ends is told of it by nobody."""
    held = holding(kit, kit.open(), 1)
    dial, dialled = held.connection._renew, []

    def renew():
        dialled.append(dial())
        if len(dialled) == 1:
            dialled[0].end(BrokerUnreachable("it broke at once"))
        return dialled[-1]

    held.connection._renew = renew
    held.connection._session.end(BrokerUnreachable("it broke"))
    until(lambda: len(dialled) == 2)
    held.connection.finish(held.taken[0])
    until(held.balanced)
    assert (held.tally.finished, held.receiver.closings) == (1, 0)


@pytest.mark.parametrize("sent", [True, False], ids=["as it is sent", "before it is"])
def test_what_is_given_back_with_a_delay_as_the_connection_breaks_comes_after_it_and_not_before(kit, sent):
    held = holding(kit, kit.open("?ack_wait=2s"), 2)
    session = held.connection._session
    if sent:
        held.connection.requeue(held.taken[0], 5.0)
        with session._lock:
            session._outbox.send(Nowhere())
        session._outbox.tell()
        assert held.tally.requeued == 1
    else:
        held.connection.requeue(held.taken[0], 5.0)
    began = time.monotonic()
    session.end(BrokerUnreachable("it broke"))
    assert (held.tally.requeued, held.tally.lease_lost) == (0, 0)
    held.connection.finish(held.taken[1])
    until(lambda: len(held.taken) == 3)
    assert 4.5 < time.monotonic() - began < 8.0
    held.connection.finish(held.taken[2])
    until(held.balanced)
    assert (held.tally.finished, held.tally.requeued, held.tally.lease_lost) == (2, 1, 0)


def test_what_was_due_again_before_there_is_a_session_is_left_to_its_lease(kit):
    held = holding(kit, kit.open("?ack_wait=2s"), 1)
    back, dial = gevent.event.Event(), held.connection._renew
    held.connection._renew = lambda: back.wait() and dial()
    held.connection.requeue(held.taken[0], 0.3)
    held.connection._session.end(BrokerUnreachable("it broke"))
    gevent.sleep(0.5)
    back.set()
    until(lambda: held.tally.lease_lost == 1)
    assert held.tally.requeued == 0


def test_what_was_given_back_is_not_said_again_when_its_lease_is_over_and_another_worker_has_it(kit, monkeypatch):
    """A connection that is dead without a word is found to be so after most of a lease."""
    held = holding(kit, kit.open("?ack_wait=2s"), 1)
    session = held.connection._session
    back, dial = gevent.event.Event(), held.connection._renew
    held.connection._renew = lambda: back.wait() and dial()
    monkeypatch.setattr(session, "_ponged", lambda: None)
    held.connection.requeue(held.taken[0], 4.0)
    with session._lock:
        session._outbox.send(Nowhere())
    session._outbox.tell()
    rival = kit.hold(kit.open(), grant=1)
    gevent.sleep(1.5)
    session.end(BrokerUnreachable("it broke"))
    until(lambda: rival.taken)
    back.set()
    until(lambda: held.tally.lease_lost == 1)
    assert held.tally.requeued == 0
    rival.connection.finish(rival.taken[0])
    until(lambda: left(kit, kit.open()) == 0)

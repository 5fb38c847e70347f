"""Somebody changes a consumer while a connection uses it: nothing is handled by what it was, and nobody waits for ever."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import gevent
import msgspec
import pytest

from framework.errors import AlreadySettled, FrameworkError, NegotiationRefused
from framework.testing.conformance.receiver import Held
from framework.testing.servers import free_port
from framework.transports.nats import changes

from .conftest import Kit, until

pytestmark = pytest.mark.real
BOTH = pytest.mark.parametrize("version", [pytest.param("2.9", marks=pytest.mark.slow), "2.15"])


def change(kit: Kit, **limits: Any) -> None:
    """Set these of the consumer orders/billing, which is there."""
    config = _asked(kit, "CONSUMER.INFO.orders.billing", {})["config"] | limits
    answer = _asked(kit, "CONSUMER.DURABLE.CREATE.orders.billing", {"stream_name": "orders", "config": config})
    assert "error" not in answer, answer


def _asked(kit: Kit, what: str, body: dict[str, Any]) -> dict[str, Any]:
    return msgspec.json.decode(kit.session.ask(f"$JS.API.{what}".encode(), msgspec.json.encode(body), 5.0).body)


def test_what_comes_without_its_body_is_handled_by_nobody_and_comes_again_whole(kit):
    transport = kit.open("?ack_wait=2s")
    held = kit.hold(transport)
    change(kit, headers_only=True)
    kit.producer(transport).publish("orders", [b"a", b"b", b"c"])
    until(lambda: held.receiver.closings)
    assert held.taken == []
    with pytest.raises(NegotiationRefused, match="leaves bodies out"):
        kit.hold(transport)
    change(kit, headers_only=False)
    again = kit.hold(transport)
    until(lambda: sorted(again.bodies) == [b"a", b"b", b"c"])


def test_an_empty_message_that_only_looks_as_if_it_lacked_its_body_is_handled(kit):
    held = kit.hold(kit.open())
    for size in (b"5", b"0"):
        kit.session.publish(b"orders", b"", b"", b"NATS/1.0\r\nNats-Msg-Size: " + size + b"\r\n\r\n")
    until(lambda: held.bodies == [b"", b""])
    for message in held.taken:
        held.connection.finish(message)
    until(lambda: not kit.api.consumer("orders", "billing").num_ack_pending)


def test_pulls_wait_no_longer_than_a_consumer_allows_from_now_on(kit):
    transport = kit.open()
    held = kit.hold(transport)
    producer = kit.producer(transport)
    producer.publish("orders", [b"before"])
    until(lambda: held.taken)
    change(kit, max_expires=10**9)
    for number in range(10):  # one for each place, so that a pull is over and the next is refused
        producer.publish("orders", [b"%d" % number])
        until(lambda: len(held.taken) == number + 2)  # noqa: B023
        held.connection.finish(held.taken[-1])


def test_a_message_that_comes_although_it_is_held_says_that_leases_are_shorter_now(kit):
    held = kit.hold(kit.open("?ack_wait=30s"))
    change(kit, ack_wait=10**9)
    kit.producer(kit.open()).publish("orders", [b"x"])
    until(lambda: held.connection.limits.lease == 1.0, 8.0)


def test_a_message_that_comes_although_it_is_held_is_run_once_and_settled_where_it_came_last(kit):
    """A server that is started again several times delivers early what is held (nats.py gets it so too)."""
    held = kit.hold(kit.open("?ack_wait=30s"), grant=2)
    change(kit, ack_wait=10**9)
    kit.producer(kit.open()).publish("orders", [b"x"])
    until(lambda: held.connection.limits.lease == 1.0, 8.0)
    change(kit, ack_wait=30 * 10**9)
    end = time.monotonic() + 2.5
    while time.monotonic() < end:
        gevent.sleep(0.1)
        held.connection.touch(held.taken[0])
    assert (len(held.taken), held.tally.received, len(held.connection.in_flight)) == (1, 1, 1)
    held.connection.finish(held.taken[0])
    until(lambda: not kit.api.consumer("orders", "billing").num_ack_pending)
    assert (held.tally.finished, held.tally.lease_lost) == (1, 0)


def test_leases_are_as_long_as_the_consumer_says_now(kit, monkeypatch):
    monkeypatch.setattr(changes, "REGULARLY", 0.5)
    held = kit.hold(kit.open("?ack_wait=30s"), grant=1)  # else it comes again just before, and is held anew
    change(kit, ack_wait=2 * 10**9)
    until(lambda: held.connection.limits.lease == 2.0)
    kit.producer(kit.open()).publish("orders", [b"x"])
    until(lambda: held.receiver.lost_messages)  # it was not touched
    until(lambda: len(held.taken) == 2)


def made_anew(kit: Kit, held: Held) -> Held:
    """The stream of what is held is deleted, made again, and has as many messages, which somebody else holds."""
    assert "error" not in _asked(kit, "STREAM.DELETE.orders", {})
    transport, count = kit.open(), len(held.taken)
    rival = kit.hold(transport, grant=count)
    kit.producer(transport).publish("orders", [b"new"] * count)
    until(lambda: len(rival.taken) == count)
    return rival


def come_again(kit: Kit, rival: Held) -> None:
    """None of what ``rival`` holds was settled by anybody."""
    count = len(rival.taken)
    assert kit.api.consumer("orders", "billing").num_ack_pending == count
    rival.connection.close()
    again = kit.hold(kit.open(), grant=2 * count)
    until(lambda: len(again.taken) == count)


@BOTH
def test_what_runs_is_not_settled_at_a_stream_that_is_made_anew_while_the_session_stays(make_kit, version):
    kit = make_kit(version=version)
    held = kit.hold(kit.open(), grant=3)
    kit.producer(kit.open()).publish("orders", [b"old"] * 3)
    until(lambda: len(held.taken) == 3)
    rival = made_anew(kit, held)
    for message in held.taken:
        with suppress(AlreadySettled):
            held.connection.finish(message)
    until(lambda: held.receiver.closings)
    assert (held.tally.finished, held.tally.lease_lost) == (0, 3)
    come_again(kit, rival)


def test_who_may_not_hear_of_deletions_sees_by_looking_that_a_stream_was_made_anew(make_kit, monkeypatch, caplog):
    monkeypatch.setattr(changes, "REGULARLY", 0.5)
    worker = '{ user: worker, password: w, permissions { subscribe { deny: ["$JS.EVENT.>"] } } }'
    kit = make_kit("authorization { users: [ " + worker + ", { user: any, password: any } ]\n }\nno_auth_user: any")
    held = kit.hold(kit.open(login="worker:w@"), grant=3)
    kit.producer(kit.open()).publish("orders", [b"old"] * 3)
    until(lambda: len(held.taken) == 3)
    rival = made_anew(kit, held)
    until(lambda: held.receiver.closings)
    assert (held.tally.finished, held.tally.lease_lost) == (0, 3)
    assert "ermissions" not in caplog.text
    come_again(kit, rival)


@pytest.mark.slow
@BOTH
def test_a_stream_of_a_cluster_that_is_deleted_at_another_server_ends_what_uses_it(start_nats, version):
    """The server that leads it tells of its deletion, whichever server we are connected to."""
    ports = [free_port() for _ in range(3)]
    routes = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in ports)
    blocks = [f'cluster {{ name: C1, listen: "127.0.0.1:{port}", routes: [{routes}] }}' for port in ports]
    members = [Kit(start_nats(block, version=version)) for block in blocks]
    try:
        for number, one in enumerate(members):  # each is connected to another member than who deletes
            held = _first_held(one, f"topic{number}")
            assert "error" not in _asked(members[number - 1], f"STREAM.DELETE.topic{number}", {})
            until(lambda: held.receiver.closings, 3.0)  # noqa: B023
            assert (held.tally.finished, held.tally.lease_lost) == (0, 1)
    finally:
        for one in members:
            one.close()


def _first_held(kit: Kit, topic: str) -> Held:
    """Holds the one message of ``topic``, when the cluster has found its leaders."""
    transport = kit.open("?replicas=3")

    def attempt() -> Held | None:
        try:
            return kit.hold(transport, topic, grant=1)
        except FrameworkError:
            gevent.sleep(0.2)
            return None

    held = until(attempt, 60.0)
    kit.producer(transport).publish(topic, [b"x"])
    until(lambda: held.taken)
    return held


def take_subject(kit: Kit) -> None:
    """The stream orders keeps it no more."""
    config = _asked(kit, "STREAM.INFO.orders", {})["config"] | {"subjects": ["old"]}
    answer = _asked(kit, "STREAM.UPDATE.orders", config)
    assert "error" not in answer, answer


def test_who_has_handled_all_of_a_stream_that_keeps_the_subject_no_more_goes_to_the_one_that_does(kit, monkeypatch, caplog):
    monkeypatch.setattr(changes, "REGULARLY", 0.3)
    monkeypatch.setattr(changes, "SUBJECT", 0.3)
    held = kit.hold(kit.open())
    producer = kit.producer(kit.open())
    producer.publish("orders", [b"before"])
    until(lambda: held.taken)
    take_subject(kit)
    assert "error" not in _asked(kit, "STREAM.CREATE.moved", {"name": "moved", "subjects": ["orders"]})
    producer.publish("orders", [b"after"])
    until(lambda: "keeps subject orders no more: stream moved does" in caplog.text)
    gevent.sleep(1.0)
    assert not held.receiver.closings
    held.connection.finish(held.taken[0])
    until(lambda: held.receiver.closings)
    assert (held.tally.finished, held.tally.lease_lost) == (1, 0)
    again = kit.hold(kit.open())
    until(lambda: again.bodies == [b"after"])


def test_a_subject_that_no_stream_keeps_any_more_is_named(kit, monkeypatch, caplog):
    monkeypatch.setattr(changes, "REGULARLY", 0.3)
    monkeypatch.setattr(changes, "SUBJECT", 0.3)
    held = kit.hold(kit.open())
    take_subject(kit)
    until(lambda: "keeps subject orders no more: no stream does" in caplog.text)
    gevent.sleep(1.0)
    assert caplog.text.count("no more") == 1
    assert not held.receiver.closings


def test_what_is_finished_and_waits_to_be_said_is_not_run_again_when_it_comes_early(kit, monkeypatch):
    held = kit.hold(kit.open("?ack_wait=30s"), grant=2)
    kit.producer(kit.open()).publish("orders", [b"x"])
    until(lambda: held.taken)
    look = changes.Changes.look_when_due
    monkeypatch.setattr(changes.Changes, "look_when_due", lambda self, now: None)
    held.connection._changes.doubt_consumer()
    held.connection.finish(held.taken[0])
    change(kit, ack_wait=10**9)
    until(lambda: _asked(kit, "CONSUMER.INFO.orders.billing", {})["num_redelivered"])
    gevent.sleep(0.5)
    assert (held.bodies, held.tally.received, len(held.connection.in_flight)) == ([b"x"], 1, 0)
    monkeypatch.setattr(changes.Changes, "look_when_due", look)
    until(lambda: held.tally.finished == 1)
    until(lambda: not kit.api.consumer("orders", "billing").num_ack_pending)
    assert (held.tally.received, held.tally.lease_lost) == (1, 0)


def test_a_consumer_that_is_given_all_that_its_stream_keeps_is_left_and_brings_nothing_before_its_time(kit, monkeypatch):
    """A stream that was made here keeps what is stored for later as well, under a subject of its own."""
    monkeypatch.setattr(changes, "REGULARLY", 0.3)
    held = kit.hold(kit.open())
    change(kit, filter_subject="")
    until(lambda: held.receiver.closings)
    kit.producer(kit.open()).publish("orders", [b"later"], delay=1.0)
    with pytest.raises(NegotiationRefused, match=r"is of all that the stream keeps \(orders, _at\.orders\.\*\)"):
        kit.hold(kit.open())
    change(kit, filter_subject="orders")
    again = kit.hold(kit.open())
    until(lambda: again.bodies == [b"later"])
    gevent.sleep(0.5)
    assert (again.bodies, held.taken) == ([b"later"], [])

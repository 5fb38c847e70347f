"""A subscription on a real nats-server, beyond the conformance suite: one socket, consumers left as they are, our own clock."""

from __future__ import annotations

import itertools
import math
import signal
import time

import gevent
import msgspec
import pytest

from framework.errors import AlreadySettled, NegotiationRefused
from framework.testing.servers import free_port
from framework.transports.nats import headers, pulling, wire

from .conftest import until

pytestmark = pytest.mark.real


def admin(kit, what: str, body: dict) -> dict:
    return msgspec.json.decode(kit.session.ask(f"$JS.API.{what}".encode(), msgspec.json.encode(body), 5.0).body)


def test_all_handlers_of_a_transport_share_one_socket_and_the_last_one_closes_it(make_kit):
    port = free_port()
    kit = make_kit(f"http: 127.0.0.1:{port}")
    kit.server.http_port = port
    transport = kit.open()
    held = [kit.hold(transport, f"topic-{number}") for number in range(5)]
    kit.producer(transport).publish("topic-3", [b"x"])  # on a socket of its own: it may be another thread's
    until(lambda: held[3].bodies == [b"x"])
    assert kit.server.http("/connz")["num_connections"] == 2
    for each in held:
        each.connection.close()
    until(lambda: kit.server.http("/connz")["num_connections"] == 1)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"filter_subject": "orders.eu", "ack_policy": "explicit"}, "is of orders.eu and not of orders.us"),
        ({"ack_policy": "all", "filter_subject": "orders.us"}, "ack_policy=all"),
        ({"ack_policy": "explicit", "deliver_subject": "there"}, "deliver_subject=there"),
        ({"ack_policy": "explicit", "filter_subject": "orders.us", "headers_only": True}, "leaves bodies out"),
    ],
)
def test_a_consumer_that_cannot_serve_is_refused_by_its_difference_and_not_changed(kit, config, words):
    admin(kit, "STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders.>"]})
    made = admin(
        kit, "CONSUMER.DURABLE.CREATE.ORDERS.billing", {"stream_name": "ORDERS", "config": {"durable_name": "billing", **config}}
    )
    with pytest.raises(NegotiationRefused, match=words):
        kit.hold(kit.open(), "orders.us")
    assert admin(kit, "CONSUMER.INFO.ORDERS.billing", {})["config"] == made["config"]


def test_a_stream_and_a_consumer_that_fit_are_used_as_they_are(kit):
    admin(kit, "STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders.>"], "max_age": 3600 * 10**9})
    config = {
        "durable_name": "billing",
        "ack_policy": "explicit",
        "ack_wait": 7 * 10**9,
        "filter_subject": "orders.eu",
        "max_ack_pending": 50,
    }
    made = admin(kit, "CONSUMER.DURABLE.CREATE.ORDERS.billing", {"stream_name": "ORDERS", "config": config})
    transport = kit.open("?ack_wait=20s")
    assert [info.limits.lease for info in transport.describe("orders.eu", "billing")] == [7.0]
    held = kit.hold(transport, "orders.eu")
    assert held.connection.limits.lease == 7.0
    kit.producer(transport).publish("orders.eu", [b"x"])
    until(lambda: held.bodies == [b"x"])
    assert admin(kit, "CONSUMER.INFO.ORDERS.billing", {})["config"] == made["config"]
    assert transport.topics() == {"orders.eu"}
    assert transport.channels("orders.eu") == {"billing"}
    assert transport.channels("orders.us") == set()


@pytest.mark.parametrize("longest", [10**9, 7 * 10**9])
def test_a_consumer_whose_pulls_may_not_wait_as_long_as_ours_do_is_asked_for_less(kit, longest):
    admin(kit, "STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders.>"]})
    config = {"durable_name": "billing", "ack_policy": "explicit", "filter_subject": "orders.eu", "max_expires": longest}
    admin(kit, "CONSUMER.DURABLE.CREATE.ORDERS.billing", {"stream_name": "ORDERS", "config": config})
    transport = kit.open()
    held = kit.hold(transport, "orders.eu")
    kit.producer(transport).publish("orders.eu", [b"x"])
    until(lambda: held.bodies == [b"x"], 5.0)


def test_what_waits_to_be_sent_is_counted_in_bytes(kit):
    """A stop waits for as long as there are any."""
    transport = kit.open()
    held = kit.hold(transport)
    kit.producer(transport).publish("orders", [b"a", b"b", b"c", b"d"])
    until(lambda: len(held.taken) == 4 and not held.connection.unsent())
    connection, (finished, failed, touched, buried) = held.connection, held.taken
    connection.finish(finished)
    connection.requeue(failed, 3600.0)
    connection.touch(touched)
    connection.terminate(buried)
    waits = connection.unsent()
    said, mark = connection.collect()
    assert waits == len(said) > 4 * len(b"PUB $JS.ACK.orders.billing 4\r\n+ACK\r\n")
    connection.rescuable.say(said)
    mark.sent()


def test_what_is_settled_after_its_lease_is_not_sent(kit):
    transport = kit.open("?ack_wait=1s")
    held = kit.hold(transport, grant=1)
    kit.producer(transport).publish("orders", [b"x"])
    until(lambda: held.taken)
    held.grant(0)
    time.sleep(1.0)  # nothing looks at leases meanwhile
    with pytest.raises(AlreadySettled):
        held.connection.finish(held.taken[0])
    assert (held.tally.lease_lost, held.tally.finished, held.receiver.lost_messages) == (1, 0, held.taken)
    held.grant(1)
    until(lambda: len(held.taken) == 2)
    assert held.taken[1].attempts == 2


def test_a_connection_is_closed_although_a_lease_has_just_ended(kit):
    held = kit.hold(kit.open("?ack_wait=1s"), grant=1)
    kit.producer(kit.open()).publish("orders", [b"x"])
    until(lambda: held.taken)
    time.sleep(1.0)  # nothing looks at leases meanwhile
    held.connection.close()
    until(lambda: held.receiver.closings)
    assert (held.tally.lease_lost, held.tally.requeued) == (1, 0)


@pytest.mark.parametrize("version", [pytest.param("2.9", marks=pytest.mark.slow), "2.15"])
def test_a_consumer_that_is_deleted_ends_its_connection_which_is_made_anew_with_all_that_is_stored(make_kit, version):
    kit = make_kit(version=version)
    transport = kit.open()
    held = kit.hold(transport)
    until(lambda: kit.api.consumer("orders", "billing"))
    gevent.sleep(0.1)  # the pull is there
    admin(kit, "CONSUMER.DELETE.orders.billing", {})
    until(lambda: held.receiver.closings, 25.0)
    kit.producer(transport).publish("orders", [b"x"])
    again = kit.hold(transport)
    until(lambda: again.bodies == [b"x"])


def test_what_other_clients_publish_comes_with_their_headers_whatever_is_in_them(kit):
    transport = kit.open()
    held = kit.hold(transport)
    block = (
        b"NATS/1.0\r\nNats-Msg-Id: 7\r\nName: Zo\xc3\xab \xe8\xa9\xb1\r\nBad: \xff\r\nno colon\r\nTwice: 1\r\nTwice: 2\r\n\r\n"
    )
    kit.session.say(wire.pub(b"orders", b"headed", headers=block) + wire.pub(b"orders", b"plain"))
    until(lambda: len(held.taken) == 2)
    assert [message.body for message in held.taken] == [b"headed", b"plain"]
    assert dict(held.taken[0].headers) == {"Name": "Zoë 話", "Bad": "\udcff", "Twice": "1, 2"}
    assert dict(held.taken[1].headers) == {}


def test_what_we_publish_other_clients_read(kit):
    transport = kit.open()
    seen = []

    class Reader:
        def heard(self, messages, at):
            seen.extend(messages)

        def lost(self, error): ...

    kit.session.say(wire.sub(b"orders", kit.session.sid(Reader())))
    producer = kit.producer(transport)
    transport.ensure("orders", [])
    producer.publish("orders", ["ä".encode()], headers={"Grosse": "ö 話"})
    until(lambda: seen)
    fields = dict(headers.decode(seen[0].headers))
    assert (seen[0].body, fields["Grosse"], len(fields["Nats-Msg-Id"])) == ("ä".encode(), "ö 話", 27)


def test_a_grant_is_asked_for_in_few_pulls_and_taken_back_when_it_falls(kit):
    transport = kit.open()
    held = kit.hold(transport, grant=100)
    until(lambda: admin(kit, "CONSUMER.INFO.orders.billing", {})["num_waiting"] == 1)
    assert held.connection.exposed == 100
    held.connection.grant(3)
    until(lambda: held.connection.exposed == 3)
    kit.producer(transport).publish("orders", [b"%d" % number for number in range(10)])
    until(lambda: len(held.taken) == 3)
    gevent.sleep(0.2)
    assert len(held.taken) == 3


def test_what_is_given_back_for_later_stays_among_what_max_ack_pending_counts(kit):
    transport = kit.open("?max_ack_pending=2")
    held = kit.hold(transport, grant=10)
    kit.producer(transport).publish("orders", [b"1", b"2", b"3"])
    until(lambda: len(held.taken) == 2)
    for message in list(held.taken):
        held.connection.requeue(message, 1.5)
    began = time.monotonic()
    until(lambda: len(held.taken) > 2)
    assert time.monotonic() - began > 1.2
    assert held.bodies[2] in (b"1", b"2")


@pytest.fixture
def patient(monkeypatch):
    """A server that is not run for a moment, on a busy machine, is not taken for one that has nothing to send."""
    monkeypatch.setattr(pulling, "QUIET", 2.0)
    monkeypatch.setattr(pulling, "HURRY", 20.0)


def flood(kit, transport, count: int) -> None:
    """Publish so many to orders, and do not wait until they are stored."""
    transport.ensure("orders", ["billing"])
    kit.session.say(b"".join(wire.pub(b"orders", b"%d" % number) for number in range(count)))


@pytest.mark.usefixtures("patient")
def test_a_grant_that_falls_in_a_flood_costs_no_message_an_attempt_that_nobody_has_seen(kit, monkeypatch):
    """What the server is sending on a pull that is taken back goes nowhere, and is delivered again as a second attempt."""
    monkeypatch.setattr(pulling, "HURRY", 0.05)  # which is for where nothing is wanted
    transport = kit.open()
    held = kit.hold(transport, grant=2000)
    flood(kit, transport, 20_000)
    numbers: set[bytes] = set()
    grants = itertools.cycle([1, 2000])

    def handle() -> bool:
        for message in list(held.connection.in_flight):
            numbers.add(message.body)
            held.connection.finish(message)
        held.grant(next(grants))
        return len(numbers) == 20_000

    until(handle, 40.0)
    assert {message.attempts for message in held.taken} == {1}


@pytest.mark.usefixtures("patient")
def test_a_drain_in_a_flood_costs_no_message_an_attempt_that_nobody_has_seen(kit):
    transport = kit.open()
    flood(kit, transport, 20_000)
    seen: set[bytes] = set()
    while len(seen) < 20_000:
        held = kit.hold(transport, grant=5000)
        until(lambda held=held: held.taken)
        held.connection.drain()
        until(lambda held=held: held.receiver.drains)
        for message in list(held.connection.in_flight):
            held.connection.finish(message)
        seen.update(held.bodies)
        assert {message.attempts for message in held.taken} == {1}


def test_a_drain_that_messages_keep_coming_in_ends_in_time(kit):
    transport = kit.open()
    held = kit.hold(transport, grant=5000)
    publishing = gevent.spawn(trickle, kit.producer(transport))
    until(lambda: len(held.taken) > 10)
    began = time.monotonic()
    held.connection.drain()
    until(lambda: held.receiver.drains)
    publishing.kill()
    assert time.monotonic() - began < held.connection.limits.goodbye


def test_a_drain_right_after_a_message_ends_when_no_other_has_come_for_a_moment(kit):
    transport = kit.open()
    held = kit.hold(transport, grant=100)
    kit.producer(transport).publish("orders", [b"x"])
    until(lambda: held.taken)
    held.connection.drain()
    until(lambda: held.receiver.drains, held.connection.limits.goodbye)


def test_a_delay_that_has_no_end_is_cut_to_the_longest(kit):
    transport = kit.open()
    held = kit.hold(transport)
    kit.producer(transport).publish("orders", [b"x"])
    until(lambda: held.taken)
    held.connection.requeue(held.taken[0], math.inf)
    until(lambda: held.tally.requeued == 1)
    gevent.sleep(0.3)
    assert len(held.taken) == 1
    assert kit.api.consumer("orders", "billing").num_ack_pending == 1


def trickle(producer) -> None:
    for number in itertools.count():
        producer.publish("orders", [b"%d" % number])
        gevent.sleep(0.02)


def test_a_server_in_lame_duck_mode_is_left_before_it_closes_and_what_is_in_flight_is_settled_first(kit):
    transport = kit.open()
    idle, busy = kit.hold(transport, "quiet"), kit.hold(transport, grant=1)
    producer = kit.producer(transport)
    producer.publish("orders", [b"1", b"2"])
    until(lambda: busy.taken)
    kit.server.process.send_signal(signal.SIGUSR2)  # it closes its clients 10 s later at the earliest
    until(lambda: idle.receiver.closings, 5.0)
    assert not busy.receiver.closings
    busy.connection.finish(busy.taken[0])
    until(lambda: busy.receiver.closings, 5.0)
    assert (busy.tally.finished, busy.tally.lease_lost, len(busy.taken)) == (1, 0, 1)


def test_a_server_in_lame_duck_mode_is_left_in_time_also_where_messages_keep_coming(kit):
    transport = kit.open()
    held = kit.hold(transport, grant=5000)
    transport.ensure("orders", ["billing"])

    def publish() -> None:
        while kit.session.error is None:
            kit.session.say(wire.pub(b"orders", b"x"))
            gevent.sleep(0.02)

    publishing = gevent.spawn(publish)
    until(lambda: len(held.taken) > 10)
    kit.server.process.send_signal(signal.SIGUSR2)

    def left() -> bool:
        for message in list(held.connection.in_flight):
            held.connection.finish(message)
        return held.receiver.closings > 0

    until(left, 6.0)
    publishing.kill()
    assert held.tally.lease_lost == 0


def test_while_the_hub_is_blocked_leases_are_kept_and_what_was_settled_is_sent(make_kit):
    kit = make_kit('ping_interval: "1s"\nping_max: 2')
    transport = kit.open("?ack_wait=1s")
    held = kit.hold(transport, grant=4)
    producer = kit.producer(transport)
    producer.publish("orders", [b"1", b"2", b"3"])
    until(lambda: len(held.taken) == 3)
    rival = kit.hold(kit.open(), grant=10)
    first, *others = held.taken
    held.connection.finish(first)
    before = dict(held.connection.in_flight)
    end = time.monotonic() + 3.5  # of more than three leases; and the server gives up a client that answers no PING for 3 s
    while time.monotonic() < end:
        held.connection.rescuable.rescue(time.monotonic(), ())
        time.sleep(0.1)  # pytest is not patched
    assert (held.tally.finished, held.tally.received) == (0, 3), "all of this is the hub's"
    held.connection.rescuable.rescued()
    gevent.sleep(0.05)
    assert (held.tally.finished, held.tally.lease_lost, list(held.connection.in_flight)) == (1, 0, others)
    assert all(held.connection.in_flight[message] > at for message, at in before.items()), "the hub knows that they were touched"
    for message in others:
        held.connection.finish(message)
    until(lambda: transport.backlog("orders", "billing") == {kit.server.address: 0})
    assert rival.taken == []


def test_what_expired_is_not_kept_while_the_hub_is_blocked(kit):
    transport = kit.open("?ack_wait=1s")
    held = kit.hold(transport, grant=1)
    kit.producer(transport).publish("orders", [b"1"])
    until(lambda: held.taken)
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        held.connection.rescuable.rescue(time.monotonic(), held.taken)
        time.sleep(0.1)
    held.connection.rescuable.rescued()
    until(lambda: held.tally.lease_lost == 1)


def test_what_nobody_could_read_is_said_again_though_nothing_is_asked_for(kit):
    """As what went to a server that is gone while the others go on."""
    transport = kit.open()
    held = kit.hold(transport)
    kit.producer(transport).publish("orders", [b"a"])
    until(lambda: held.bodies == [b"a"])
    held.grant(0)
    until(lambda: not held.connection._pulling.pulls)
    held.connection.finish(held.taken[0])
    said, mark = held.connection.collect()
    assert b"+ACK" in said
    gevent.sleep(0.1)  # the turn that was asked for finds nothing to say
    mark.lost()
    until(lambda: admin(kit, "CONSUMER.INFO.orders.billing", {})["num_ack_pending"] == 0)
    until(lambda: held.receiver.tally.finished == 1)

"""A worker that stops loses nothing: what it has not started goes to others, or is handled here after all."""

from __future__ import annotations

import gevent
import pytest

from framework.message import Message
from framework.transports.nats.route_wire import Routed

from .conftest import peer_of, until
from .workers import Worker, drained_again_and_again

pytestmark = pytest.mark.real


def test_no_message_is_lost_or_handled_twice_over_drains_under_load(one):
    """A hundred of them: ``python -m tests.chaos route-drains route-drains-2.9``."""
    done = drained_again_and_again(one, 5)
    assert (done.lost, len(done.seen), set(done.seen.values())) == (0, done.sent, {1})
    assert done.requeued > 0


def test_a_channel_that_leaves_takes_its_topic_from_no_other_channel(one):
    transport = one.open()
    leaves, stays = one.hold(transport, channel="billing"), one.hold(transport, channel="audit")
    leaves.connection.close()
    until(lambda: leaves.receiver.closings)
    one.client().publish("orders", b"to the server that was there")
    until(lambda: stays.taken)
    newcomer = one.add()  # it is told what is wanted when it comes
    until(lambda: len(peer_of(transport).routes) == 2)
    one.client(one.servers.index(newcomer)).publish("orders", b"to the one that came later")
    until(lambda: len(stays.taken) == 2)
    for message in stays.taken:
        stays.connection.finish(message)


def test_what_nobody_else_takes_is_handled_by_the_worker_that_stops(one):
    seen: list[bytes] = []

    def handle(message: Message) -> None:
        gevent.sleep(0.005)
        seen.append(message.body)

    worker = Worker(one.open(), handle, max_in_flight=10)
    bodies = [b"%d" % number for number in range(200)]
    one.client().publish("orders", *bodies)
    until(lambda: seen)
    assert len(seen) < 200
    ledger = worker.stop()
    assert (ledger.finished, ledger.lost) == (200, 0)
    assert sorted(seen) == sorted(bodies)


def test_a_drain_waits_for_what_is_on_the_wire_until_each_server_has_answered(one, start_proxy):
    proxy = start_proxy(f"127.0.0.1:{one.routes[0]}")
    held, client = one.hold(one.open(url=f"nats-route://{proxy.address}?advertise=127.0.0.1:1")), one.client()
    until(lambda: client.publish("orders", b"0") or held.taken)  # the server knows by now who wants them
    proxy.to_client.hold()
    client.publish("orders", b"1", b"2", b"3")
    held.connection.drain()
    gevent.sleep(0.3)
    assert not held.receiver.drains
    proxy.restore()
    until(lambda: held.receiver.drains)
    assert held.bodies[-3:] == [b"1", b"2", b"3"], "nobody else takes it"


def test_past_its_drain_a_worker_counts_what_it_loses(one):
    started: list[bytes] = []

    def handle(message: Message) -> None:
        started.append(message.body)
        gevent.sleep(60)

    worker = Worker(one.open(), handle, drain=0.3)
    one.client().publish("orders", *[b"%d" % number for number in range(10)])
    until(lambda: len(started) == 4 and worker.ledger.received > 0)
    ledger = worker.stop()
    assert (ledger.received, ledger.finished, ledger.lost) == (10, 0, 10)
    assert len(started) == 4


def test_what_comes_after_a_connection_has_closed_goes_to_another_worker_or_is_counted(one):
    first, second = one.open(), one.open()
    closing, held = one.hold(first), one.hold(second)
    until(lambda: peer_of(first).interests.wanted(b"orders").groups)
    closing.connection.close()
    closing.connection.heard([Routed(b"$G", b"orders", b"", (b"billing",), b"", b"late")])
    until(lambda: held.bodies == [b"late"])
    assert closing.tally.lost == 0
    held.connection.close()
    until(lambda: not peer_of(first).interests.wanted(b"orders"))
    closing.connection.heard([Routed(b"$G", b"orders", b"", (b"billing",), b"", b"too late")])
    assert (closing.tally.received, closing.tally.lost) == (1, 1)


def test_a_stopped_worker_is_sent_nothing_more_and_its_weight_is_gone(one):
    first, second = one.open(), one.open()
    worker, held = Worker(first, lambda message: None), one.hold(second, grant=1000)
    until(lambda: peer_of(second).interests.wanted(b"orders").groups)
    worker.stop()
    until(lambda: not peer_of(second).interests.wanted(b"orders"))
    one.client().publish("orders", *[b"%d" % number for number in range(50)])
    until(lambda: len(held.taken) == 50)

"""Somebody changes a consumer while a connection uses it: nothing is handled by what it was, and nobody waits for ever."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from framework.errors import NegotiationRefused
from framework.transports.nats import changes

from .conftest import Kit, until

pytestmark = pytest.mark.real


def change(kit: Kit, **limits: Any) -> None:
    """Set these of the consumer orders/billing, which is there."""
    config = _asked(kit, "CONSUMER.INFO.orders.billing", {})["config"] | limits
    answer = _asked(kit, "CONSUMER.CREATE.orders.billing.orders", {"stream_name": "orders", "config": config})
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
    until(lambda: len(held.taken) == 2, 8.0)
    until(lambda: held.connection.limits.lease == 1.0, 5.0)


def test_leases_are_as_long_as_the_consumer_says_now(kit, monkeypatch):
    monkeypatch.setattr(changes, "REGULARLY", 0.5)
    held = kit.hold(kit.open("?ack_wait=30s"))
    change(kit, ack_wait=2 * 10**9)
    until(lambda: held.connection.limits.lease == 2.0)
    kit.producer(kit.open()).publish("orders", [b"x"])
    until(lambda: held.receiver.lost_messages)  # it was not touched
    until(lambda: len(held.taken) == 2)

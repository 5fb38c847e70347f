"""A lease that runs out at a broker which does not say so is lost here, once, and nothing is said of its message any more."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import gevent
import pytest

from framework.errors import AlreadySettled
from framework.message import Message
from framework.testing.conformance.receiver import StrictReceiver
from framework.transports.contract import Limits
from framework.transports.lease_guard import LeaseGuard

LEASE = 0.3


class Silent:
    """A connection to a broker that answers whatever is said."""

    granted = 10
    exposed = 10
    rescuable: Any = None

    def __init__(self) -> None:
        self.limits = Limits(lease=LEASE, max_lease=60.0, max_grant=10)
        self.node, self.topic, self.channel = "a:1", "orders", "billing"
        self.in_flight: dict[Message, float] = {}
        self.said: list[str] = []
        self.forgotten: list[Message] = []
        self.receiver = StrictReceiver()
        self.guard = LeaseGuard(self, self.receiver)

    def deliver(self) -> Message:
        message = Message(b"id", 0, 1, b"x", self)
        self.in_flight[message] = time.monotonic()
        self.receiver.tally.received += 1
        return message

    def finish(self, message: Message) -> None:
        self.guard.take(message)
        self.said.append("finish")
        self.receiver.tally.finished += 1

    def touch(self, message: Message) -> None:
        self.guard.take(message)
        self.in_flight[message] = time.monotonic()

    def forget_lease(self, message: Message) -> None:
        self.forgotten.append(message)


@pytest.fixture
def silent() -> Iterator[Any]:
    made = Silent()
    yield made
    made.guard.close()


def test_a_lease_that_is_over_is_counted_once_and_its_message_cannot_be_settled(silent: Any) -> None:
    message = silent.deliver()
    gevent.sleep(LEASE * 1.5)
    tally = silent.receiver.tally
    assert (silent.receiver.lost_messages, silent.forgotten, silent.in_flight) == ([message], [message], {})
    assert (tally.lease_lost, tally.balance(0)) == (1, 0)
    with pytest.raises(AlreadySettled):
        silent.finish(message)
    gevent.sleep(LEASE)
    assert (tally.lease_lost, silent.said, silent.receiver.wrongs) == (1, [], [])


def test_what_is_settled_after_its_time_before_anybody_looked_is_lost_and_nothing_is_said(silent: Any) -> None:
    message, later = silent.deliver(), None
    time.sleep(LEASE * 1.1)  # the hub stands still
    later = silent.deliver()
    with pytest.raises(AlreadySettled):
        silent.finish(message)
    silent.finish(later)
    tally = silent.receiver.tally
    assert (tally.lease_lost, tally.finished, silent.said) == (1, 1, ["finish"])


def test_a_lease_that_is_touched_is_kept(silent: Any) -> None:
    message = silent.deliver()
    for _ in range(6):
        gevent.sleep(LEASE / 3)
        silent.touch(message)
    silent.finish(message)
    assert (silent.receiver.tally.lease_lost, silent.said) == (0, ["finish"])


def test_what_was_touched_in_the_place_of_a_hub_that_stood_still_is_kept(silent: Any) -> None:
    message = silent.deliver()

    class Rescued:
        def rescued(self) -> None:
            del silent.in_flight[message]
            silent.in_flight[message] = time.monotonic()

    silent.rescuable = Rescued()
    time.sleep(LEASE * 1.1)
    gevent.sleep(0.01)
    silent.finish(message)
    assert silent.receiver.tally.lease_lost == 0


def test_after_its_end_it_counts_nothing(silent: Any) -> None:
    silent.deliver()
    silent.guard.close()
    gevent.sleep(LEASE * 1.5)
    assert silent.receiver.tally.lease_lost == 0


def test_a_transport_may_know_better_when_a_lease_began(silent: Any) -> None:
    class Known:
        def is_over(self, message: Message, at: float, now: float) -> bool:
            return message.body == b"over"

        def over(self, in_flight: dict[Message, float], now: float) -> list[Message]:
            return [message for message in in_flight if message.body == b"over"]

    silent.guard.close()
    looks: list[int] = []
    silent.guard = guard = LeaseGuard(silent, silent.receiver, Known(), words="known", regularly=lambda: looks.append(1))
    kept, gone, late = silent.deliver(), silent.deliver(), silent.deliver()
    gone.body = late.body = b"over"
    with pytest.raises(AlreadySettled):
        silent.finish(gone)
    gevent.sleep(LEASE * 1.2)
    assert list(silent.in_flight) == [kept, late]
    assert len(looks) > 5, "the transport looks by itself, as often as in the guard's place"
    guard.look()
    silent.finish(kept)
    tally = silent.receiver.tally
    assert (tally.lease_lost, tally.finished, silent.forgotten) == (2, 1, [gone, late])

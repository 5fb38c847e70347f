"""Variants that break what the contract promises of leases, of what is kept beside a body, and of settlements.

A variant changes the module of ``examples/directory_broker``, freshly loaded; its name says the promise that it breaks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from framework.errors import AlreadySettled
from framework.testing.conformance import Leases, Publishing
from framework.transports.lease_guard import LeaseGuard
from tests.conformance.variant import around, dies_in

# -- leases


@dies_in("test_a_touch_begins_the_lease_anew_in_the_order_of_deadlines")
def touch_does_nothing(module: Any) -> None:
    module.DirectoryConnection.touch = lambda self, message: None


@dies_in("test_a_lease_that_is_touched_keeps_a_rival_away_and_one_that_is_not_ends_on_time", Leases)
def touch_is_not_told_to_the_broker(module: Any) -> None:
    def touch(self: Any, message: Any) -> None:
        del self.in_flight[message]
        self.in_flight[message] = time.monotonic()

    module.DirectoryConnection.touch = touch


@dies_in("test_a_lease_that_is_touched_keeps_a_rival_away_and_one_that_is_not_ends_on_time", Leases)
def a_lost_lease_is_not_counted(module: Any) -> None:
    def moved(original: Any, self: Any, message: Any, state: str, delay: float) -> Any:
        before = self.receiver.tally.lease_lost
        file = original(self, message, state, delay)
        self.receiver.tally.lease_lost = before
        return file

    around(module.DirectoryConnection, "moved", moved)


def reports_no_lost_lease(module: Any) -> None:
    """It takes whatever is said of a message that another has by now, as JetStream and RocketMQ do."""

    def finish(self: Any, message: Any) -> None:
        if self.in_flight.pop(message, None) is None:
            raise AlreadySettled(f"message {message.id!r} was settled before")
        if file := module.move(self.files.pop(message), "done", module.after(0.0)):
            file.unlink()
        self.receiver.tally.finished += 1

    module.DirectoryConnection.finish = finish


def guards_its_leases(module: Any) -> None:
    reports_no_lost_lease(module)

    def begin(original: Any, self: Any, *given: Any) -> None:
        original(self, *given)
        self.guard = LeaseGuard(self, self.receiver)

    def taken(original: Any, self: Any, message: Any, *more: Any) -> None:
        self.guard.take(message)
        self.in_flight[message] = 0.0  # the original takes it out itself
        original(self, message, *more)

    def close(original: Any, self: Any) -> None:
        if self.open:
            self.guard.close()
        original(self)

    connection = module.DirectoryConnection
    for name, wrapper in (("__init__", begin), ("finish", taken), ("touch", taken), ("close", close)):
        around(connection, name, wrapper)
    connection.forget_lease = lambda self, message: self.files.pop(message)


@dies_in("test_a_lease_that_is_touched_keeps_a_rival_away_and_one_that_is_not_ends_on_time", Leases, control=guards_its_leases)
def a_lost_lease_that_the_broker_does_not_report_is_not_counted(module: Any) -> None:
    reports_no_lost_lease(module)


@dies_in("test_a_lease_that_is_touched_keeps_a_rival_away_and_one_that_is_not_ends_on_time", Leases)
def a_lease_never_ends(module: Any) -> None:
    module.LIMITS = replace(module.LIMITS, lease=3600.0)


@dies_in("test_a_lease_that_is_touched_keeps_a_rival_away_and_one_that_is_not_ends_on_time", Leases)
def a_lease_ends_early(module: Any) -> None:
    module.LIMITS = replace(module.LIMITS, lease=module.LIMITS.lease / 10)


# -- what is found


@dies_in("test_what_a_node_says_of_itself_is_what_a_connection_to_it_is_granted")
def a_node_says_another_lease_than_it_grants(module: Any) -> None:
    limits = replace(module.LIMITS, lease=module.LIMITS.lease * 2)
    module.DirectoryTransport.describe = lambda self, *_: [replace(one, limits=limits) for one in self.probe()]


@dies_in("test_what_a_node_says_of_itself_is_what_a_connection_to_it_is_granted")
def to_describe_a_node_makes_the_topic(module: Any) -> None:
    def describe(original: Any, self: Any, topic: str, channel: str) -> Any:
        Path(min(self.nodes), topic).mkdir(parents=True)
        return original(self, topic, channel)

    around(module.DirectoryTransport, "describe", describe)


@dies_in("test_a_topic_that_was_ensured_keeps_for_its_channel_what_is_published_whoever_else_reads_it")
def to_ensure_a_topic_empties_it(module: Any) -> None:
    def ensure(self: Any, topic: str, channels: Any) -> None:
        for file in Path(min(self.nodes), topic).glob("ready*"):
            file.unlink()

    module.DirectoryTransport.ensure = ensure


# -- what travels beside the body


def carries_headers(module: Any) -> None:
    """In a file beside that of the message, as long as the module is loaded."""
    transport, connection, kept = module.DirectoryTransport, module.DirectoryConnection, {}
    transport.capabilities = replace(transport.capabilities, headers=True)

    def publish(original: Any, self: Any, topic: str, bodies: Any, *, headers: Any = None, **options: Any) -> None:
        before = set(Path(min(self.nodes), topic).glob("*"))
        original(self, topic, bodies, **options)
        for file in set(Path(min(self.nodes), topic).glob("*")) - before:
            kept[file.name.split(".")[2].encode()] = headers

    def received(original: Any, self: Any, file: Path) -> Any:
        message = original(self, file)
        message.headers = kept.get(message.id) or message.headers
        return message

    around(transport, "publish", publish)
    around(connection, "received", received)


@dies_in(
    "test_headers_come_with_each_message_whatever_its_body_or_are_refused",
    Publishing,
    control=carries_headers,
    verb="publish_each",
)
def headers_are_declared_and_dropped(module: Any) -> None:
    module.DirectoryTransport.capabilities = replace(module.DirectoryTransport.capabilities, headers=True)


@dies_in(
    "test_headers_come_again_with_their_message_and_one_without_has_the_empty_ones_of_all", Publishing, control=carries_headers
)
def headers_are_lost_when_a_message_comes_again(module: Any) -> None:
    carries_headers(module)

    def received(original: Any, self: Any, file: Path) -> Any:
        message = original(self, file)
        message.headers = {} if message.attempts > 1 else message.headers
        return message

    around(module.DirectoryConnection, "received", received)


# -- what is shared


@dies_in("test_a_transport_that_has_closed_is_no_loss_to_another_of_the_same_broker")
def to_close_a_transport_takes_what_is_stored_with_it(module: Any) -> None:
    def close(self: Any) -> None:
        for file in Path(min(self.nodes)).glob("*/ready*"):
            file.unlink()

    module.DirectoryTransport.close = close


# -- what comes again, and when


def _later(seconds: float) -> Callable[[Any], None]:
    def change(module: Any) -> None:
        def requeue(original: Any, self: Any, message: Any, delay: float) -> None:
            original(self, message, delay + seconds)

        around(module.DirectoryConnection, "requeue", requeue)

    return change


@dies_in("test_what_is_requeued_comes_again_at_once_to_whoever_has_room")
def what_is_requeued_comes_5_s_late(module: Any) -> None:
    _later(5.0)(module)


@dies_in("test_what_is_requeued_comes_again_at_once_to_whoever_has_room")
def what_is_requeued_comes_20_s_late(module: Any) -> None:
    _later(20.0)(module)


@dies_in("test_what_is_requeued_with_a_delay_comes_after_it_and_not_much_later")
def a_delay_is_5_s_longer(module: Any) -> None:
    _later(5.0)(module)


@dies_in("test_what_is_requeued_with_a_delay_comes_after_it_and_not_much_later")
def a_delay_of_a_requeue_is_ignored(module: Any) -> None:
    around(module.DirectoryConnection, "requeue", lambda original, self, message, delay: original(self, message, 0.0))


@dies_in("test_on_stop_running_calls_finish_and_what_has_not_started_is_with_another_worker_at_once")
def what_is_given_back_at_stop_comes_15_s_late(module: Any) -> None:
    def requeue(original: Any, self: Any, message: Any, delay: float) -> None:
        original(self, message, delay + (0.0 if self.granted else 15.0))

    around(module.DirectoryConnection, "requeue", requeue)


@dies_in("test_what_is_requeued_comes_again_at_once_to_whoever_has_room")
def what_is_requeued_is_lost(module: Any) -> None:
    around(module.DirectoryConnection, "requeue", lambda original, self, message, delay: original(self, message, 1e6))


@dies_in("test_what_is_requeued_comes_again_at_once_to_whoever_has_room")
def attempts_are_not_counted(module: Any) -> None:
    around(module, "move", lambda original, file, state, moment="", more=0: None)
    real = _real_move(module)
    module.move = lambda file, state, moment, more=0: real(file, state, moment, 0)


def _real_move(module: Any) -> Any:
    from tests.conformance.directories import load

    return load(module.LIMITS.lease).move


# -- settlements


@dies_in("test_what_is_settled_cannot_be_settled_or_touched_again", before="finish", again="finish")
def a_second_finish_is_taken(module: Any) -> None:
    around(module.DirectoryConnection, "finish", _unless_settled)


@dies_in("test_what_is_settled_cannot_be_settled_or_touched_again", before="finish", again="requeue")
def a_requeue_after_a_finish_is_taken(module: Any) -> None:
    around(module.DirectoryConnection, "requeue", _unless_settled)


@dies_in("test_what_is_settled_cannot_be_settled_or_touched_again", before="requeue", again="touch")
def a_touch_after_a_requeue_is_taken(module: Any) -> None:
    around(module.DirectoryConnection, "touch", _unless_settled)


def _unless_settled(original: Any, self: Any, message: Any, *given: Any) -> None:
    if message in self.in_flight:
        original(self, message, *given)


@dies_in("test_a_settlement_takes_it_out_of_flight_at_once_and_is_counted_when_it_has_left")
def a_finish_is_counted_twice(module: Any) -> None:
    def finish(original: Any, self: Any, message: Any) -> None:
        original(self, message)
        self.receiver.tally.finished += 1

    around(module.DirectoryConnection, "finish", finish)


@dies_in("test_a_settlement_takes_it_out_of_flight_at_once_and_is_counted_when_it_has_left")
def a_settlement_stays_in_flight(module: Any) -> None:
    def finish(original: Any, self: Any, message: Any) -> None:
        original(self, message)
        self.in_flight[message] = 0.0

    around(module.DirectoryConnection, "finish", finish)


@dies_in("test_a_settlement_takes_it_out_of_flight_at_once_and_is_counted_when_it_has_left")
def a_requeue_is_counted_as_a_finish(module: Any) -> None:
    def requeue(original: Any, self: Any, message: Any, delay: float) -> None:
        original(self, message, delay)
        self.receiver.tally.requeued -= 1
        self.receiver.tally.finished += 1

    around(module.DirectoryConnection, "requeue", requeue)


@dies_in("test_what_is_finished_never_comes_again")
def what_is_finished_stays_with_the_broker(module: Any) -> None:
    def finish(self: Any, message: Any) -> None:
        if self.moved(message, "ready", 0.0):
            self.receiver.tally.finished += 1

    module.DirectoryConnection.finish = finish

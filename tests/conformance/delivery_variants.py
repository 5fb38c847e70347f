"""Variants that break what the contract promises of grants, deliveries, publishing, and the end of a connection.

A variant changes the module of ``examples/directory_broker``, freshly loaded; its name says the promise that it breaks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gevent
from gevent import get_hub

from framework.testing.conformance import Publishing
from tests.conformance.variant import around, dies_in

# -- grants and deliveries


@dies_in("test_it_is_exposed_to_what_was_granted_and_to_nothing_more_once_that_was_taken_back")
def a_connection_is_exposed_to_less_than_was_granted(module: Any) -> None:
    module.DirectoryConnection.exposed = property(lambda self: len(self.in_flight))


@dies_in("test_it_is_exposed_to_what_was_granted_and_to_nothing_more_once_that_was_taken_back")
def a_connection_stays_exposed_to_what_was_taken_back(module: Any) -> None:
    def grant(original: Any, self: Any, n: int) -> None:
        original(self, n)
        self.most = max(n, getattr(self, "most", 0))

    around(module.DirectoryConnection, "grant", grant)
    module.DirectoryConnection.exposed = property(lambda self: getattr(self, "most", 0) if self.open else 0)


@dies_in("test_nothing_comes_without_a_grant_and_never_more_than_was_granted")
def one_more_comes_than_was_granted(module: Any) -> None:
    def grant(self: Any, n: int) -> None:
        self.granted = n + 1 if n else 0

    module.DirectoryConnection.grant = grant


@dies_in("test_nothing_comes_without_a_grant_and_never_more_than_was_granted")
def messages_come_without_a_grant(module: Any) -> None:
    module.DirectoryConnection.granted = 1


@dies_in("test_a_grant_of_nothing_pauses_and_a_new_one_goes_on")
def a_grant_is_never_taken_back(module: Any) -> None:
    def grant(self: Any, n: int) -> None:
        self.granted = max(self.granted, n)

    module.DirectoryConnection.grant = grant


@dies_in("test_nothing_comes_without_a_grant_and_never_more_than_was_granted")
def what_is_delivered_is_not_counted(module: Any) -> None:
    def received(original: Any, self: Any, file: Path) -> Any:
        self.receiver.tally.received -= 1
        return original(self, file)

    around(module.DirectoryConnection, "received", received)


@dies_in("test_what_is_requeued_comes_again_at_once_to_whoever_has_room")
def a_message_that_comes_again_is_the_same_object(module: Any) -> None:
    known: dict[bytes, Any] = {}

    def received(original: Any, self: Any, file: Path) -> Any:
        fresh = original(self, file)
        message = known.setdefault(fresh.id, fresh)
        self.in_flight[message], self.files[message] = self.in_flight.pop(fresh), self.files.pop(fresh)
        message.attempts = fresh.attempts
        return message

    around(module.DirectoryConnection, "received", received)


@dies_in("test_every_byte_value_and_every_line_end_arrives_unchanged")
def line_ends_are_stripped(module: Any) -> None:
    def received(original: Any, self: Any, file: Path) -> Any:
        message = original(self, file)
        message.body = message.body.rstrip(b"\n") or b"\n"
        return message

    around(module.DirectoryConnection, "received", received)


def _ordered(module: Any) -> None:
    module.DirectoryTransport.capabilities = replace(module.DirectoryTransport.capabilities, ordered=True)


@dies_in("test_one_at_a_time_they_come_in_the_order_of_publishing_where_that_is_declared", control=_ordered)
def the_order_is_reversed_although_declared(module: Any) -> None:
    _ordered(module)
    module.sorted = lambda files: sorted(files, reverse=True)


# -- publishing


def _stored_later(module: Any, begin: Callable[[Callable[[], None]], object]) -> None:
    def publish(original: Any, self: Any, topic: str, bodies: Sequence[bytes], **options: Any) -> None:
        begin(lambda: original(self, topic, bodies, **options))

    around(module.DirectoryTransport, "publish", publish)


@dies_in("test_what_a_publish_returned_for_is_with_the_broker_at_that_moment")
def a_publish_is_answered_before_it_is_stored_by_the_hub(module: Any) -> None:
    _stored_later(module, lambda store: gevent.spawn_later(0.05, store))


@dies_in("test_what_a_publish_returned_for_is_with_the_broker_at_that_moment")
def a_publish_is_answered_before_it_is_stored_by_a_thread(module: Any) -> None:
    _stored_later(module, lambda store: threading.Timer(0.05, store).start())


@dies_in("test_what_a_publish_returned_for_is_with_the_broker_at_that_moment")
def the_last_of_many_is_not_stored(module: Any) -> None:
    def publish(original: Any, self: Any, topic: str, bodies: Sequence[bytes], **options: Any) -> None:
        original(self, topic, bodies[:-1] if len(bodies) > 1 else bodies, **options)

    around(module.DirectoryTransport, "publish", publish)


@dies_in("test_messages_published_one_by_one_each_have_an_answer")
def one_of_many_has_no_answer(module: Any) -> None:
    around(module.DirectoryTransport, "publish_each", lambda original, *given, **named: original(*given, **named)[:-1])


@dies_in("test_what_a_publish_returned_for_is_with_the_broker_at_that_moment")
def each_of_many_is_stored_twice(module: Any) -> None:
    def publish_each(original: Any, self: Any, topic: str, bodies: Sequence[bytes], **options: Any) -> Any:
        return original(self, topic, [*bodies, *bodies], **options)[: len(bodies)]

    around(module.DirectoryTransport, "publish_each", publish_each)


@dies_in("test_an_empty_body_is_refused_and_nothing_of_its_request_is_sent", Publishing)
def an_empty_body_is_taken(module: Any) -> None:
    module.all = lambda bodies: True


@dies_in("test_a_deferred_message_comes_after_its_delay_and_not_before", Publishing)
def the_delay_of_a_publish_is_ignored(module: Any) -> None:
    around(
        module.DirectoryTransport, "publish", lambda original, self, topic, bodies, delay=0.0, **_: original(self, topic, bodies)
    )


# -- the end


def _drain_without_stopping(self: Any) -> None:
    get_hub().loop.run_callback(self.receiver.drained, self)


@dies_in("test_after_drained_nothing_comes_and_what_is_in_flight_can_still_be_settled")
def more_comes_after_drained(module: Any) -> None:
    module.DirectoryConnection.drain = _drain_without_stopping


@dies_in("test_after_drained_nothing_comes_and_what_is_in_flight_can_still_be_settled")
def drained_is_never_said(module: Any) -> None:
    module.DirectoryConnection.drain = lambda self: self.grant(0)


@dies_in("test_after_drained_nothing_comes_and_what_is_in_flight_can_still_be_settled")
def drained_is_said_twice(module: Any) -> None:
    def drain(original: Any, self: Any) -> None:
        original(self)
        original(self)

    around(module.DirectoryConnection, "drain", drain)


@dies_in("test_a_connection_that_closes_says_so_once_and_the_broker_keeps_what_it_had")
def close_drops_what_is_in_flight(module: Any) -> None:
    def close(original: Any, self: Any) -> None:
        for message in list(self.in_flight):
            self.files[message].unlink()
            self.receiver.tally.lease_lost += 1
        self.in_flight.clear()
        original(self)

    around(module.DirectoryConnection, "close", close)


@dies_in("test_a_connection_that_closes_says_so_once_and_the_broker_keeps_what_it_had")
def close_forgets_to_count_what_is_in_flight(module: Any) -> None:
    def close(original: Any, self: Any) -> None:
        self.in_flight.clear()
        original(self)

    around(module.DirectoryConnection, "close", close)


@dies_in("test_a_connection_that_closes_says_so_once_and_the_broker_keeps_what_it_had")
def closed_is_said_twice(module: Any) -> None:
    def close(original: Any, self: Any) -> None:
        original(self)
        self.receiver.closed(self, None)

    around(module.DirectoryConnection, "close", close)


@dies_in("test_a_connection_that_closes_says_so_once_and_the_broker_keeps_what_it_had")
def closed_is_never_said(module: Any) -> None:
    def close(original: Any, self: Any) -> None:
        self.receiver.closed, said = (lambda *_: None), self.receiver.closed
        original(self)
        self.receiver.closed = said

    around(module.DirectoryConnection, "close", close)


@dies_in("test_a_connection_that_closes_says_so_once_and_the_broker_keeps_what_it_had")
def a_grant_outlives_the_connection(module: Any) -> None:
    def close(original: Any, self: Any) -> None:
        self.receiver.closed, said = (lambda *_: None), self.receiver.closed
        original(self)
        self.granted, self.receiver.closed = 5, said
        said(self, None)

    around(module.DirectoryConnection, "close", close)


# -- what is said at start


@dies_in("test_each_channel_gets_its_own_copy_or_two_channels_are_refused_at_start")
def two_channels_without_fan_out_are_taken(module: Any) -> None:
    module.DirectoryTransport.accept = lambda self, topic, channels: None


@dies_in("test_a_url_with_parts_that_it_does_not_know_is_refused_by_a_sentence_that_shows_it")
def a_wrong_url_is_taken(module: Any) -> None:
    def init(self: Any, urls: Sequence[str]) -> None:
        self.nodes = {url.removeprefix("dir://") for url in urls}

    module.DirectoryTransport.__init__ = init


@dies_in("test_a_message_is_handled_once_and_tells_where_it_came_from")
def the_time_of_publishing_is_not_told(module: Any) -> None:
    def received(original: Any, self: Any, file: Path) -> Any:
        message = original(self, file)
        message.timestamp = 0
        return message

    around(module.DirectoryConnection, "received", received)

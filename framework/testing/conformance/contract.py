"""The contract by itself: a connection without an engine, each promise of ``transports.contract`` asked for once, in time."""

from __future__ import annotations

import time

import gevent
import pytest

from framework.errors import AlreadySettled
from framework.testing.conformance.bench import CHANNEL, Bench, Cases, bodies
from framework.testing.conformance.subject import Subject

QUIET = 0.3
"""Seconds in which what must not come would have come."""


class Contract(Cases):
    """The promises of a connection, to any caller. A part of ``Core``."""

    # -- what is found

    def test_what_a_node_says_of_itself_is_what_a_connection_to_it_is_granted(self, bench: Bench) -> None:
        (found,) = bench.open().describe(bench.topic, CHANNEL)
        assert bench.topic not in bench.open().topics()
        held = bench.hold()
        said, granted = found.limits, held.connection.limits
        assert found.node == held.connection.node
        assert (said.lease, said.max_lease, said.max_grant) == (granted.lease, granted.max_lease, granted.max_grant)
        assert said.max_requeue == granted.max_requeue

    def test_a_topic_that_was_ensured_keeps_for_its_channel_what_is_published_whoever_else_reads_it(self, bench: Bench) -> None:
        bench.needs_storage()
        transport = bench.open()
        for _ in range(2):  # what is there stays as it is
            transport.ensure(bench.topic, [CHANNEL])
        rival = bench.hold(grant=10, channel="rival") if bench.capabilities.fan_out else None
        bench.publish(*bodies(3))
        if rival is not None:
            bench.until(lambda: len(rival.taken) == 3)
        transport.ensure(bench.topic, [CHANNEL])
        held = bench.hold(grant=10)
        bench.until(lambda: sorted(held.bodies) == bodies(3))

    # -- grants

    def test_nothing_comes_without_a_grant_and_never_more_than_was_granted(self, bench: Bench) -> None:
        held = bench.hold()
        bench.publish(*bodies(10))
        bench.stays(lambda: not held.taken, QUIET)
        held.grant(3)
        bench.until(lambda: len(held.taken) == 3)
        bench.stays(lambda: len(held.taken) == 3, QUIET)
        held.connection.finish(held.taken[0])
        bench.until(lambda: len(held.taken) == 4)

    def test_a_grant_of_nothing_pauses_and_a_new_one_goes_on(self, bench: Bench) -> None:
        held = bench.hold(grant=2)
        bench.publish(*bodies(2))
        bench.until(lambda: len(held.taken) == 2)
        held.grant(0)
        gevent.sleep(0.1)  # the engine leaves what is on its way half as long
        for message in held.taken:
            held.connection.finish(message)
        bench.publish(*bodies(4, "later"))
        bench.stays(lambda: len(held.taken) == 2, QUIET)
        held.grant(4)
        bench.until(lambda: len(held.taken) == 6)

    def test_it_is_exposed_to_what_was_granted_and_to_nothing_more_once_that_was_taken_back(self, bench: Bench) -> None:
        held = bench.hold()
        assert held.connection.exposed == 0
        held.grant(3)
        assert held.connection.exposed == 3
        bench.publish(*bodies(2))
        bench.until(lambda: len(held.taken) == 2)
        held.grant(0)
        assert held.connection.exposed >= 2
        held.connection.finish(held.taken[0])
        held.connection.finish(held.taken[1])
        bench.until(lambda: held.connection.exposed == 0, held.connection.limits.goodbye + QUIET)
        bench.publish(b"later")
        bench.stays(lambda: len(held.taken) == 2, QUIET)

    # -- settlements

    def test_a_settlement_takes_it_out_of_flight_at_once_and_is_counted_when_it_has_left(self, bench: Bench) -> None:
        held = bench.hold(grant=3)
        bench.publish(*bodies(3))
        bench.until(lambda: len(held.taken) == 3)
        first, second, third = held.taken
        held.connection.finish(first)
        held.connection.requeue(second, 0.0)
        held.grant(0)
        assert list(held.connection.in_flight) == [third]
        bench.until(lambda: (held.tally.finished, held.tally.requeued + held.tally.lost) == (1, 1))
        assert held.tally.lost == (not bench.capabilities.acknowledges)
        assert held.tally.balance(len(held.connection.in_flight)) == 0

    @pytest.mark.parametrize("before", ["finish", "requeue"])
    @pytest.mark.parametrize("again", ["finish", "requeue", "touch"])
    def test_what_is_settled_cannot_be_settled_or_touched_again(self, bench: Bench, before: str, again: str) -> None:
        held = bench.hold(grant=1)
        bench.publish(b"once")
        bench.until(lambda: held.taken)
        held.grant(0)
        said = {"finish": held.connection.finish, "touch": held.connection.touch}
        said["requeue"] = lambda message: held.connection.requeue(message, 0.0)
        said[before](held.taken[0])
        with pytest.raises(AlreadySettled):
            said[again](held.taken[0])
        bench.until(held.balanced)
        assert held.tally.settled == 1
        bench.until(lambda: bench.left() == (0 if before == "finish" or not bench.capabilities.acknowledges else 1))

    def test_what_is_finished_never_comes_again(self, bench: Bench) -> None:
        first = bench.hold(grant=10)
        bench.publish(*bodies(5))
        bench.until(lambda: len(first.taken) == 5)
        for message in first.taken:
            first.connection.finish(message)
        bench.until(lambda: bench.left() == 0)
        first.connection.close()
        rival = bench.hold(grant=10)
        bench.stays(lambda: not rival.taken, QUIET)

    def test_what_is_requeued_comes_again_at_once_to_whoever_has_room(self, bench: Bench, subject: Subject) -> None:
        bench.needs_a_second_delivery()
        first = bench.hold(grant=4)
        bench.publish(*bodies(4))
        bench.until(lambda: len(first.taken) == 4)
        rival = bench.hold(grant=4)
        first.grant(0)
        for message in list(first.taken):
            first.connection.requeue(message, 0.0)
        bench.until(lambda: len(first.taken) + len(rival.taken) == 8, subject.max_late)
        if bench.capabilities.attempts:
            assert {message.attempts for message in [*first.taken[4:], *rival.taken]} == {2}

    def test_what_comes_again_has_its_time_again_or_an_id_that_lasts(self, bench: Bench) -> None:
        bench.needs_a_second_delivery()
        held = bench.hold(grant=1)
        bench.publish(b"twice")
        bench.until(lambda: held.taken)
        held.connection.requeue(held.taken[0], 0.0)
        bench.until(lambda: len(held.taken) == 2)
        first, second = held.taken
        assert first.id == second.id
        assert held.connection.lasting_ids or first.timestamp == second.timestamp
        held.connection.finish(second)

    def test_what_is_requeued_with_a_delay_comes_after_it_and_not_much_later(self, bench: Bench, subject: Subject) -> None:
        if bench.capabilities.max_requeue < 1:
            pytest.skip("this broker delays nothing that comes again")
        held = bench.hold(grant=1)
        bench.publish(b"later")
        bench.until(lambda: held.taken)
        began = time.monotonic()
        held.connection.requeue(held.taken[0], 1.0)
        bench.until(lambda: len(held.taken) == 2, 1.0 + subject.max_late)
        assert time.monotonic() - began >= 0.95

    def test_one_at_a_time_they_come_in_the_order_of_publishing_where_that_is_declared(self, bench: Bench) -> None:
        if not bench.capabilities.ordered:
            pytest.skip("this broker declares no order")
        bench.publish(*bodies(30))
        held = bench.hold(grant=1)
        for number in range(30):
            bench.until(lambda number=number: len(held.taken) > number)  # type: ignore[misc]
            held.connection.finish(held.taken[number])
        assert held.bodies == bodies(30)

    # -- leases

    def test_a_touch_begins_the_lease_anew_in_the_order_of_deadlines(self, bench: Bench) -> None:
        if not bench.capabilities.touch:
            pytest.skip("this broker's leases cannot be prolonged")
        held = bench.hold(grant=3)
        bench.publish(*bodies(3))
        bench.until(lambda: len(held.taken) == 3)
        touched = next(iter(held.connection.in_flight))
        before = held.connection.in_flight[touched]
        gevent.sleep(0.02)
        held.connection.touch(touched)
        assert list(held.connection.in_flight)[-1] is touched
        assert held.connection.in_flight[touched] > before
        gevent.sleep(0.1)
        held.connection.finish(touched)
        bench.until(lambda: held.tally.finished == 1)
        assert held.receiver.lost_messages == []

    # -- publishing

    def test_what_a_publish_returned_for_is_with_the_broker_at_that_moment(self, bench: Bench) -> None:
        bench.needs_storage()
        publisher = bench.publisher()
        for number in range(1, 4):
            publisher.publish(bench.topic, b"%d" % number)
            assert bench.left() == number
        publisher.publish_many(bench.topic, bodies(20))
        assert bench.left() == 23
        publisher.publish_each(bench.topic, bodies(20))
        assert bench.left() == 43

    # -- the end

    def test_after_drained_nothing_comes_and_what_is_in_flight_can_still_be_settled(self, bench: Bench) -> None:
        bench.needs_storage()
        held = bench.hold(grant=2)
        bench.publish(*bodies(4))
        bench.until(lambda: len(held.taken) == 2)
        held.connection.drain()
        bench.until(lambda: held.receiver.drains)
        held.connection.finish(held.taken[0])
        held.connection.requeue(held.taken[1], 0.0)
        bench.publish(*bodies(4, "later"))
        bench.stays(lambda: len(held.taken) == 2, 2 * QUIET)
        bench.until(held.balanced)
        tally = held.tally
        assert (tally.finished, tally.requeued + tally.lost, tally.lease_lost) == (1, 1, 0)

    def test_a_connection_that_closes_says_so_once_and_the_broker_keeps_what_it_had(self, bench: Bench) -> None:
        held = bench.hold(grant=5)
        bench.publish(*bodies(5))
        bench.until(lambda: len(held.taken) == 5)
        held.connection.finish(held.taken[0])
        held.connection.close()
        bench.until(lambda: held.receiver.closings)
        assert (held.tally.received, held.tally.finished) == (5, 1)
        bench.until(lambda: bench.left() == (4 if bench.capabilities.acknowledges else 0))
        assert held.tally.lost == (0 if bench.capabilities.acknowledges else 4)
        bench.stays(lambda: held.receiver.closings == 1, QUIET)

    def test_a_connection_that_has_closed_takes_no_settlement(self, bench: Bench) -> None:
        held = bench.hold(grant=1)
        bench.publish(b"mine no more")
        bench.until(lambda: held.taken)
        held.connection.close()
        bench.until(lambda: held.receiver.closings)
        with pytest.raises(AlreadySettled):
            held.connection.finish(held.taken[0])
        held.connection.close()  # twice is no mistake

    def test_a_transport_that_has_closed_is_no_loss_to_another_of_the_same_broker(self, bench: Bench) -> None:
        first, held = bench.open(), bench.hold(grant=5)
        producer = first.producer()
        producer.publish(bench.topic, [b"before"])
        producer.close()
        for _ in range(2):  # twice is no mistake
            first.close()
        bench.publish(b"after")
        bench.until(lambda: sorted(held.bodies) == [b"after", b"before"])


class Rivals(Cases):
    """Two connections that want the same message. A part of ``Leases``."""

    def test_a_lease_that_is_touched_keeps_a_rival_away_and_one_that_is_not_ends_on_time(
        self, bench: Bench, subject: Subject
    ) -> None:
        held = bench.hold(on=bench.brief, grant=1)
        bench.publish(b"wanted", on=bench.brief)
        bench.until(lambda: held.taken)
        (message,) = held.taken
        rival = bench.hold(on=bench.brief, grant=1)
        if bench.capabilities.touch:
            for _ in range(12):
                bench.stays(lambda: not rival.taken, subject.brief / 8)
                held.connection.touch(message)
        held.grant(0)
        bench.until(lambda: rival.taken, subject.brief + subject.max_late)
        assert rival.bodies == [b"wanted"]
        rival.connection.finish(rival.taken[0])
        try:
            held.connection.finish(message)  # too late: refused here, or answered so by the broker
        except AlreadySettled:
            pass
        bench.until(lambda: held.tally.lease_lost == 1)
        bench.until(lambda: held.balanced() and rival.balanced())
        assert (held.tally.finished, rival.tally.finished) == (0, 1)
        bench.until(lambda: bench.left(bench.brief) == 0)

    def test_what_a_closed_connection_had_comes_to_another_when_its_lease_ends_at_the_latest(
        self, bench: Bench, subject: Subject
    ) -> None:
        held = bench.hold(on=bench.brief, grant=5)
        bench.publish(*bodies(5), on=bench.brief)
        bench.until(lambda: len(held.taken) == 5)
        held.connection.finish(held.taken[0])
        held.connection.close()
        rival = bench.hold(on=bench.brief, grant=10)
        bench.until(lambda: len(rival.taken) == 4, subject.brief + subject.max_late)
        assert sorted(rival.bodies) == sorted(set(bodies(5)) - {held.taken[0].body})
        bench.stays(lambda: len(rival.taken) == 4, QUIET)

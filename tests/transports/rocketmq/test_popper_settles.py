"""A connection by POP, on paper: what it says and counts of what is settled, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from time import monotonic
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from framework.errors import AlreadySettled, BrokerUnreachable
from framework.transports.contract import TOUCH_AT
from framework.transports.rocketmq import connection as popping
from framework.transports.rocketmq.settling import SIZE
from framework.transports.rocketmq.wire.codes import Answer, Request
from framework.transports.rocketmq.wire.frames import Frame
from tests.transports.rocketmq.paper import Popper

POP, ACK, CHANGE = Request.POP_MESSAGE, Request.ACK_MESSAGE, Request.CHANGE_MESSAGE_INVISIBLETIME


def changes(popper: Popper) -> list[str]:
    """The leases that are asked for in this turn, in milliseconds."""
    return [one.fields["invisibleTime"] for one in popper.turn(CHANGE)]


# --- settlements -------------------------------------------------------------------------------------------


def test_what_is_finished_is_counted_when_it_is_sent(popper: Popper) -> None:
    first, second = popper.taken(2)
    tally = popper.receiver.tally
    popper.connection.finish(first)
    assert popper.connection.unsent() == SIZE
    assert popper.paper.wanted == 1
    popper.connection.finish(second)
    assert (popper.connection.unsent(), popper.paper.wanted) == (2 * SIZE, 1)
    popper.paper.turn()
    assert (popper.connection.unsent(), tally.finished) == (2 * SIZE, 0)
    popper.paper.flush()
    assert (popper.connection.unsent(), tally.finished) == (0, 2)


@pytest.mark.parametrize(("delay", "lease"), [(0.0, "0"), (7.25, "7250"), (259000.0, "259000000"), (259001.0, "259000000")])
def test_a_requeue_is_a_lease_as_long_as_its_delay_and_no_longer_than_the_limit(delay: float, lease: str, popper: Popper) -> None:
    (message,) = popper.taken(1)
    popper.connection.requeue(message, delay)
    assert changes(popper) == [lease]
    popper.paper.flush()
    assert (popper.receiver.tally.requeued, popper.receiver.tally.finished) == (1, 0)


def test_a_touch_asks_for_the_lease_anew(popper: Popper) -> None:
    first, second = popper.taken(2)
    before = popper.connection.in_flight[first]
    popper.paper.turn()
    popper.connection.touch(first)
    assert popper.connection.in_flight[first] > before
    assert list(popper.connection.in_flight) == [second, first]
    assert changes(popper) == ["60000"]


@pytest.mark.parametrize("settle", ["finish", "terminate", "touch", "requeue"])
def test_what_is_settled_or_over_is_settled_no_more(settle: str) -> None:
    popper = Popper(lease=1.0)
    first, second = popper.taken(2)
    how: Callable[..., None] = getattr(popper.connection, settle)
    more = (0.0,) if settle == "requeue" else ()
    popper.connection.finish(first)
    with pytest.raises(AlreadySettled):
        how(first, *more)
    popper.connection._deliveries[second].began = monotonic() - 1.0
    with pytest.raises(AlreadySettled):
        how(second, *more)
    assert (popper.receiver.lost_messages, popper.connection.in_flight, popper.receiver.tally.lease_lost) == ([second], {}, 1)
    assert [one.code for one in popper.paper.turn() if one.code != POP] == [ACK], "of the first"
    popper.connection.lost(BrokerUnreachable("the end"))
    assert popper.receiver.wrongs == []


def test_a_lease_is_over_when_its_time_is(popper: Popper, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = popper.taken(2)
    now = monotonic()
    monkeypatch.setattr(popping, "monotonic", lambda: now)
    popper.connection._deliveries[first].began = now - 59.999
    popper.connection.finish(first)
    popper.connection._deliveries[second].began = now - 60.0
    with pytest.raises(AlreadySettled):
        popper.connection.finish(second)


def test_what_is_over_is_lost_by_itself_and_makes_room(popper: Popper) -> None:
    (message,) = popper.taken(1, granted=1)
    popper.connection._deliveries[message].over = True
    popper.connection._look()
    assert popper.receiver.lost_messages == [message]
    assert len(popper.turn(POP)) == 1


@pytest.mark.parametrize("over", ["closed", "session"])
def test_nothing_is_looked_at_when_all_is_over(over: str, popper: Popper) -> None:
    (message,) = popper.taken(1)
    popper.connection._deliveries[message].over = True
    if over == "closed":
        popper.connection.lost(BrokerUnreachable("gone"))
        popper.connection._refusals.until = monotonic() - 0.01
        popper.paper.wanted = 0
        popper.connection._look()
        assert popper.paper.wanted == 0
    else:
        popper.paper.error = BrokerUnreachable("gone")
        popper.connection._look()
        assert popper.receiver.lost_messages == []


def test_an_ack_that_is_refused_is_a_lease_that_was_lost(popper: Popper) -> None:
    (message,) = popper.taken(1)
    popper.connection.finish(message)
    (ack,) = popper.turn(ACK)
    popper.paper.flush()
    ack.then(Frame(Answer.INVALID_PARAMETER, remark="no such offset"), monotonic())
    tally = popper.receiver.tally
    assert (tally.finished, tally.lease_lost, popper.receiver.lost_messages) == (0, 1, [None])
    popper.connection.lost(BrokerUnreachable("gone"))
    ack.then(Frame(Answer.INVALID_PARAMETER, remark="no such offset"), monotonic())
    assert (tally.finished, tally.lease_lost) == (0, 1)


def test_settlements_that_were_late_are_told_together(popper: Popper) -> None:
    popper.taken(1)
    popper.receiver.tally.received += 2  # of theirs
    popper.connection._settling.late = 2
    popper.connection.answered()
    assert (popper.receiver.tally.lease_lost, popper.receiver.lost_messages) == (2, [None])
    popper.connection.answered()
    assert popper.receiver.tally.lease_lost == 2


def test_what_is_over_before_it_is_said_is_lost(popper: Popper) -> None:
    first, second, *_ = popper.taken(4)
    popper.connection.finish(first)
    popper.paper.turn()  # the socket has not taken it
    popper.connection.requeue(second, 1.0)
    popper.connection.lost(BrokerUnreachable("gone"))
    tally = popper.receiver.tally
    assert (tally.received, tally.finished, tally.requeued, tally.lease_lost) == (4, 0, 0, 4)
    popper.paper.flush()
    assert (tally.finished, tally.lease_lost) == (0, 4)
    with pytest.raises(AlreadySettled):
        popper.connection.finish(first)


def test_an_answer_to_a_settlement_that_is_an_error_ends_the_connection(popper: Popper) -> None:
    (message,) = popper.taken(1)
    popper.connection.finish(message)
    (ack,) = popper.turn(ACK)
    ack.then(BrokerUnreachable("gone"), monotonic())
    assert popper.receiver.closings == 1


def test_a_handler_that_waits_to_hear_of_its_settlements_hears_of_each(popper: Popper) -> None:
    heard: list[Any] = []
    popper.receiver.settled = heard.append  # type: ignore[method-assign]
    first, second = popper.taken(2)
    popper.paper.turn()
    assert heard == []
    popper.connection.finish(first)
    popper.paper.turn()
    popper.connection.requeue(second, 0.0)
    popper.paper.turn()
    assert heard == [popper.connection] * 2


# --- while the hub is blocked ------------------------------------------------------------------------------


def test_in_the_hubs_place_leases_are_renewed_that_are_a_third_over(popper: Popper) -> None:
    early, late, expired, over = popper.taken(4)
    now = monotonic()
    deliveries = popper.connection._deliveries
    for one in deliveries.values():
        one.touched = now - 60.0 * TOUCH_AT
    deliveries[early].touched = now - 60.0 * TOUCH_AT + 0.01
    deliveries[over].over = True
    popper.paper.asked = []
    popper.connection.keep(now, [expired])
    assert [one.fields["offset"] for one in popper.paper.asked if one.code == CHANGE] == ["1"]
    assert POP not in [one.code for one in popper.paper.asked]
    assert popper.connection.in_flight[late] < now, "the hub alone changes it"
    popper.connection._spoken, popper.paper.wanted = False, 0
    popper.connection.resumed()
    assert popper.paper.wanted == 1
    assert popper.connection.in_flight[late] == now
    assert list(popper.connection.in_flight)[-1] is late
    popper.connection.in_flight[late] = 5.0
    popper.connection.resumed()
    assert popper.connection.in_flight[late] == 5.0, "of that time nothing is left"


def test_what_was_settled_meanwhile_is_not_in_flight_again(popper: Popper) -> None:
    (message,) = popper.taken(1)
    popper.connection.keep(monotonic() + 30.0, ())
    popper.connection.in_flight.pop(message)
    popper.connection.resumed()
    assert popper.connection.in_flight == {}
    popper.connection.in_flight[message] = 0.0


def test_in_the_hubs_place_nothing_is_said_for_one_that_has_ended(popper: Popper) -> None:
    popper.taken(1)
    popper.connection.lost(BrokerUnreachable("gone"))
    popper.paper.asked = []
    popper.connection.keep(monotonic() + 30.0, ())
    assert popper.paper.asked == []


def test_what_waits_is_said_in_the_hubs_place(popper: Popper) -> None:
    (message,) = popper.taken(1)
    popper.paper.turn()
    popper.connection.finish(message)
    popper.paper.asked = []
    popper.connection.keep(monotonic(), ())
    assert [one.code for one in popper.paper.asked] == [ACK]


# --- the end -----------------------------------------------------------------------------------------------


def test_a_close_gives_back_what_is_in_flight_and_is_over_when_that_is_answered(popper: Popper) -> None:
    _, second, third = popper.taken(3)
    popper.connection._deliveries[second].over = True
    popper.connection.finish(third)
    popper.connection.close()
    popper.connection.close()
    asked = popper.paper.turn()
    (change,) = [one for one in asked if one.code == CHANGE]
    (ack,) = [one for one in asked if one.code == ACK]
    assert (change.fields["offset"], change.fields["invisibleTime"]) == ("0", "0")
    assert popper.receiver.lost_messages == [second]
    popper.paper.flush()
    ack.then(Frame(Answer.SUCCESS), monotonic())
    gevent.sleep(0)
    assert popper.receiver.closings == 0
    answer = {"popTime": str(round(monotonic() * 1000)), "invisibleTime": "0", "reviveQid": "0"}
    change.then(Frame(Answer.SUCCESS, fields=answer), monotonic())
    gevent.sleep(0.01)
    assert (popper.receiver.closings, popper.connection.in_flight) == (1, {})
    tally = popper.receiver.tally
    assert (tally.finished, tally.requeued, tally.lease_lost) == (1, 1, 1)


def test_a_close_with_nothing_to_say_is_over_in_the_next_turn(popper: Popper) -> None:
    popper.connection.close()
    popper.paper.turn()
    gevent.sleep(0.01)
    assert popper.receiver.closings == 1


def test_a_close_that_gets_no_answer_is_over_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(popping, "CLOSE_FLUSH", 0.01)
    popper = Popper()
    popper.taken(1)
    popper.connection.close()
    popper.paper.turn()
    gevent.sleep(0.05)
    assert popper.receiver.closings == 1
    popper.connection.close()
    assert popper.receiver.wrongs == []


def test_a_second_close_gives_it_no_more_time(popper: Popper) -> None:
    started: list[Any] = []
    popper.connection._deadline.close()
    popper.connection._deadline = SimpleNamespace(start=lambda *how: started.append(how), close=lambda: None)
    popper.connection.close()
    popper.connection.close()
    assert len(started) == 1


def test_what_is_settled_in_another_thread_is_said_by_the_hub(popper: Popper) -> None:
    """While it is blocked; a session is spoken to by its own thread alone."""
    first, second = popper.taken(2)
    popper.paper.turn()
    (thread := Thread(target=popper.connection.finish, args=(first,))).start()
    thread.join()
    assert popper.paper.wanted == 0
    popper.connection.finish(second)
    assert popper.paper.wanted == 1


def test_what_is_given_up_is_acknowledged_and_put_into_the_dlq_where_that_is_wanted() -> None:
    for dlq in (False, True):
        popper = Popper(dlq=dlq)
        (message,) = popper.taken(1)
        popper.connection.terminate(message)
        codes = {one.code for one in popper.paper.turn()}
        assert (Request.CONSUMER_SEND_MSG_BACK in codes) is dlq
        assert (ACK in codes) is not dlq
        popper.connection.lost(BrokerUnreachable("the end"))


def test_all_of_one_read_is_in_flight_before_the_first_is_handled(popper: Popper) -> None:
    popper.connection.grant(64)
    popper.answers(popper.pops(), *range(32), rest=50)
    popper.answers(popper.pops(), *range(32, 64), rest=50)
    seen: list[int] = []
    popper.receiver.deliver = lambda by, batch: seen.append(len(by.in_flight))  # type: ignore[method-assign]
    popper.connection.arrive()
    assert seen == [64]


def test_requests_of_a_pop_name_no_time_where_nothing_is_signed(popper: Popper) -> None:
    popper.connection.grant(1)
    assert popper.pops().fields["bornTime"] == "0"

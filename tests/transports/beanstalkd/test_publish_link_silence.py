"""One publishing link whose server is silent, by a clock that the tests set: who is told what, and when nothing more is sent."""

from __future__ import annotations

import time
from collections.abc import Callable

import gevent
import pytest

from framework.errors import PublishError
from framework.transports.beanstalkd import publish_link, wire
from framework.transports.publish_link import NotStored
from tests.transports.beanstalkd.links import USE, Ends, clock, ends, make_ends, put, told
from tests.transports.ruled import Clock, soon

__all__ = ["clock", "ends", "make_ends"]
X = wire.put(b"x")
USING = b"USING orders"


# -- whoever has waited for long enough


def test_who_waited_for_long_enough_waits_no_more_and_the_others_get_their_own_answers(ends: Ends, clock: Clock) -> None:
    hasty = ends.ask(put(), put(), put(), seconds=4)
    calm = ends.ask(put(), put(), seconds=60)
    ends.read(USE, X * 5)
    ends.answer(USING, b"INSERTED 1")
    ends.look()
    clock.now += 4
    stored, *others = told(hasty)
    assert stored is None
    assert [(type(one), one.stored) for one in others] == [(PublishError, None)] * 2
    assert "beanstalkd b:11300 gave no answer for 4.0 s; whether the messages are stored is not known" in str(others[0])
    assert (ends.said > 0, ends.link.usable(), ends.link.error) == (True, False, None)
    ends.answer(b"INSERTED 2", b"INSERTED 3", b"INSERTED 4")
    ends.look()
    assert not calm.ready()
    assert ends.link.usable()
    ends.answer(b"BURIED 5")
    first, second = told(calm)
    assert (first, second.stored) == (None, True)


def test_the_time_of_each_begins_anew_whenever_anything_is_heard(ends: Ends, clock: Clock) -> None:
    asked, other = ends.ask(seconds=4), ends.ask(seconds=60)
    ends.read(USE, X * 2)
    clock.now += 3.5
    ends.answer(USING)
    ends.look()
    clock.now += 3.5
    ends.look()
    assert not asked.ready()
    clock.now += 0.5
    assert told(asked)[0].stored is None
    assert not other.ready()


def test_it_begins_when_it_is_asked_however_long_nothing_was_heard(ends: Ends, clock: Clock) -> None:
    clock.now += 9
    asked = ends.ask(seconds=0.5)
    ends.read(USE, X)
    clock.now += 0.25
    ends.look()
    assert (asked.ready(), ends.said) == (False, 0)
    clock.now += 0.25
    assert "gave no answer for 0.5 s; whether" in str(told(asked)[0])
    assert ends.said > 0
    ends.look()
    assert ends.link.error is None


def test_where_nobody_waits_any_more_a_silent_one_is_given_up(ends: Ends, clock: Clock) -> None:
    asked = [ends.ask(seconds=4), ends.ask(seconds=2)]
    ends.read(USE, X * 2)
    clock.now += 4
    assert [told(one)[0].stored for one in asked] == [None, None]
    assert "beanstalkd b:11300 gave no answer for 4.0 s" == str(ends.link.error)
    assert "gave no answer for 4.0 s; whether the messages are stored is not known" in str(told(asked[1])[0])


def test_one_of_which_only_late_answers_are_owed_is_given_up_when_it_is_silent(ends: Ends, clock: Clock) -> None:
    asked = ends.ask(seconds=0.5)
    ends.read(USE, X)
    clock.now += 0.5
    assert told(asked)[0].stored is None
    ends.look()
    assert ends.link.error is None
    clock.now += 0.5
    assert "gave no answer for 1.0 s" in str(soon(lambda: ends.link.error))


@pytest.mark.parametrize(("missing", "stuck"), [(0, False), (1, True)])
def test_what_is_not_sent_yet_is_never_sent_once_its_publisher_was_told(
    ends: Ends, clock: Clock, missing: int, stuck: bool
) -> None:
    ends.socket.room = len(USE + X * 3) - missing
    asked = [ends.ask(seconds=4), ends.ask(put(), put(), seconds=4), ends.ask(seconds=60)]
    soon(lambda: ends.socket.room == 0)
    gevent.sleep(0)
    clock.now += 4
    if stuck:
        assert [type(each) for one in asked for each in told(one)] == [PublishError, PublishError, NotStored, NotStored]
    else:
        assert [type(each) for one in asked[:2] for each in told(one)] == [PublishError] * 3
        ends.look()
        assert (asked[2].ready(), ends.link.error) == (False, None)


def test_one_alone_that_is_not_sent_yet_is_never_sent_either(ends: Ends, clock: Clock) -> None:
    ends.socket.room = len(USE)
    hasty, calm = ends.ask(seconds=4), ends.ask(seconds=60)
    soon(lambda: ends.socket.room == 0)
    gevent.sleep(0)
    clock.now += 4
    assert [type(told(one)[0]) for one in (hasty, calm)] == [NotStored, NotStored]


def test_what_has_come_meanwhile_is_read_before_anyone_is_told_that_nothing_has(ends: Ends, clock: Clock) -> None:
    asked = ends.ask(seconds=4)
    ends.read(USE, X)
    ends.answer(USING, b"INSERTED 1")
    clock.now += 100
    assert told(asked) == [None]


# -- doubt


def test_nothing_is_sent_where_nothing_is_heard_while_an_answer_is_owed_until_it_is(
    ends: Ends, clock: Clock, capfd: pytest.CaptureFixture[str]
) -> None:
    first, second = ends.ask(seconds=60), ends.ask(seconds=60)
    ends.read(USE, X * 2)
    clock.now += 0.75
    ends.look()
    assert (ends.said, ends.link.usable()) == (0, True)
    clock.now += 0.25
    ends.look()
    assert ends.said > 0
    assert (ends.link.usable(), ends.link.error) == (False, None)
    ends.answer(USING, b"INSERTED 1")
    assert told(first) == [None]
    assert ends.link.usable()
    assert not second.ready()
    assert capfd.readouterr().err == "", "the hub prints what a timer raises"


def test_silence_counts_from_the_oldest_that_is_owed_an_answer(ends: Ends, clock: Clock) -> None:
    ends.ask(seconds=60)
    ends.read(USE, X)
    clock.now += 0.75
    ends.ask(seconds=60)
    ends.read(X)
    clock.now += 0.25
    ends.look()
    assert ends.said > 0


# -- where nothing is owed


def test_one_without_traffic_is_asked_now_and_then_whether_it_is_there(ends: Ends, clock: Clock) -> None:
    clock.now += 10
    ends.look()
    assert ends.socket.sends == []
    clock.now += 0.25
    ends.read(wire.LIST_TUBE_USED)
    ends.look()
    ends.answer(b"USING default")
    ends.look()
    assert (ends.socket.sends, ends.link.usable(), ends.said) == ([wire.LIST_TUBE_USED], True, 0)
    clock.now += 10
    ends.look()
    assert ends.socket.sends == [wire.LIST_TUBE_USED]
    clock.now += 0.25
    ends.read(wire.LIST_TUBE_USED)
    clock.now += 0.75
    ends.look()
    assert ends.link.error is None
    clock.now += 0.25
    assert "beanstalkd b:11300 gave no answer for 1.0 s" == str(soon(lambda: ends.link.error))


def test_it_is_not_asked_before_it_was_without_traffic_for_so_long(ends: Ends, clock: Clock) -> None:
    clock.now += 5
    asked = ends.ask()
    ends.read(USE, X)
    clock.now += 5
    ends.answer(USING, b"INSERTED 1")
    assert told(asked) == [None]
    clock.now += 10
    ends.look()
    assert ends.socket.sends == [USE + X]
    clock.now += 0.25
    ends.read(wire.LIST_TUBE_USED)


def test_the_next_look_is_never_behind(ends: Ends, clock: Clock) -> None:
    """Or an answer that is due before it would not be looked for in time."""
    clock.now += 5
    ends.look()
    assert ends.link._looks.next > clock.now


def test_the_next_look_is_when_the_next_of_those_who_wait_has_waited_for_long_enough(
    make_ends: Callable[..., Ends], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither later, nor at once and then again and again."""
    ends, dues = make_ends(3600.0), list[float]()
    began = clock.now
    monkeypatch.setattr(ends.link._looks, "looked", dues.append)
    asked = [ends.ask(seconds=seconds) for seconds in (6, 4, 9)]
    ends.read(USE, X * 3)
    clock.now += 1
    ends.answer(USING)
    for passed, due in ((0, 5.0), (4, 7.0), (2, 10.0)):
        clock.now += passed
        looks = len(dues)
        gevent.get_hub().loop.run_callback(ends.link._look)
        soon(lambda: len(dues) > looks)  # noqa: B023
        assert dues[-1] == began + due
    assert [one.ready() for one in asked] == [True, True, False]


def test_that_question_counts_among_what_was_sent(ends: Ends, clock: Clock) -> None:
    clock.now += 11
    ends.read(wire.LIST_TUBE_USED)
    ends.socket.room = len(USE + X) - 1
    asked = ends.ask()
    soon(lambda: ends.socket.room == 0)
    ends.link.close()
    assert isinstance(told(asked)[0], NotStored)


def test_one_that_owes_answers_is_not_asked(ends: Ends, clock: Clock) -> None:
    ends.ask(seconds=60)
    ends.read(USE, X)
    clock.now += 30
    ends.look()
    assert ends.socket.sends == [USE + X]


@pytest.mark.parametrize("idle", [0.25, 0.5])
def test_one_that_lay_idle_is_read_before_it_is_trusted(
    make_ends: Callable[..., Ends], clock: Clock, monkeypatch: pytest.MonkeyPatch, idle: float
) -> None:
    monkeypatch.setattr(publish_link, "_IDLE", 0.25)
    ends = make_ends(3600.0)
    clock.now += idle
    ends.end()
    assert ends.link.usable() == (idle == 0.25)
    assert ends.socket.reads == (idle > 0.25)


@pytest.mark.parametrize("silent", [1.0, 1.5])
def test_where_answers_are_owed_for_long_the_hub_has_a_turn_to_give_them(
    make_ends: Callable[..., Ends], clock: Clock, silent: float
) -> None:
    ends = make_ends(3600.0)
    asked = ends.ask(seconds=60)
    ends.read(USE, X)
    ends.answer(USING, b"INSERTED 1")
    clock.now += silent
    gevent.get_hub().loop.run_callback(time.sleep, 0.005)  # the hub is at work for longer than a turn takes
    assert ends.link.usable()
    assert asked.ready() == (silent > 1.0)

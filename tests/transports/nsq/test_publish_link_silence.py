"""One publishing link whose peer is silent, by a clock that the tests set: who is told what, and when nothing more is sent."""

from __future__ import annotations

import time
from collections.abc import Callable

import gevent
import pytest

from framework.errors import PublishError
from framework.transports import looks
from framework.transports.nsq import asking, publish_link, wire
from framework.transports.nsq.asking import NoAnswer
from framework.transports.publish_link import NotStored
from framework.transports.stream import RECV_SIZE
from tests.transports.nsq.links import Pair, Plain, command, make_link, told
from tests.transports.ruled import Clock, soon

__all__ = ["make_link"]
pytestmark = pytest.mark.real
Make = Callable[..., Pair]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (publish_link, asking, looks):
        monkeypatch.setattr(module, "monotonic", made)
    return made


class Quiet:
    """A link that looks after itself all the time, and how often it said that its peer is silent."""

    def __init__(self, make_link: Make, **options: object) -> None:
        self.pair = make_link(tick=0.001, **options)
        self.said = 0
        self.pair.link.silent = self._silent
        gevent.sleep(0.001)

    def _silent(self) -> None:
        self.said += 1

    def hear(self, *answers: bytes) -> None:
        self.pair.peer.respond(*answers)
        self.pair.look()


@pytest.fixture
def quiet(make_link: Make, clock: Clock) -> Quiet:
    return Quiet(make_link)


# --- whoever has waited for long enough --------------------------------------------------------------------


def test_who_waited_for_long_enough_waits_no_more_and_the_others_get_their_own_answers(quiet: Quiet, clock: Clock) -> None:
    hasty, calm = quiet.pair.ask(command(b"hasty"), seconds=4), quiet.pair.ask(command(b"calm"), seconds=60)
    quiet.pair.peer.read(command(b"hasty") + command(b"calm"))
    clock.now += 4
    outcome = told(hasty)
    assert (type(outcome), outcome.stored) == (NoAnswer, None)
    assert "nsqd n:4150 gave no answer for 4.0 s; whether the messages are stored is not known" in str(outcome)
    assert (quiet.said > 0, quiet.pair.link.usable(), quiet.pair.link.error) == (True, False, None)
    quiet.hear(wire.OK)
    assert not calm.ready()
    assert quiet.pair.link.usable()
    quiet.hear(wire.OK)
    assert told(calm) is None


def test_none_waits_no_more_before_its_time(quiet: Quiet, clock: Clock) -> None:
    asked = quiet.pair.ask(seconds=4)
    quiet.pair.peer.read(command())
    clock.now += 3.5
    quiet.pair.look()
    assert not asked.ready()
    quiet.hear(wire.OK)
    assert told(asked) is None


def test_where_nobody_waits_any_more_a_silent_connection_is_given_up(quiet: Quiet, clock: Clock) -> None:
    asked = [quiet.pair.ask(seconds=4), quiet.pair.ask(seconds=2)]
    quiet.pair.peer.read(command() * 2)
    clock.now += 4
    outcomes = list(map(told, asked))
    assert [(type(one), one.stored) for one in outcomes] == [(PublishError, None)] * 2
    assert "n:4150 broke: it gave no answer for 4.0 s" in str(outcomes[0])
    assert quiet.pair.link.fileno() == -1


def test_a_connection_of_which_something_is_heard_is_kept_until_it_is_silent(quiet: Quiet, clock: Clock) -> None:
    asked = quiet.pair.ask(seconds=4)
    quiet.pair.peer.read(command())
    clock.now += 3.5
    quiet.hear(wire.HEARTBEAT)
    clock.now += 0.5
    assert isinstance(told(asked), NoAnswer)
    quiet.pair.look()
    assert quiet.pair.link.error is None
    clock.now += 0.25
    quiet.pair.look()
    assert quiet.pair.link.error is None
    clock.now += 0.25
    assert "it gave no answer for 1.0 s" in str(soon(lambda: quiet.pair.link.error))


def test_silence_begins_when_something_is_asked(quiet: Quiet, clock: Clock) -> None:
    clock.now += 100
    asked = quiet.pair.ask(seconds=0.5)
    quiet.pair.peer.read(command())
    clock.now += 0.5
    assert isinstance(told(asked), NoAnswer)
    quiet.pair.look()
    assert quiet.pair.link.error is None


@pytest.mark.parametrize(("missing", "stuck"), [(0, False), (1, True)])
def test_what_is_not_sent_yet_is_never_sent_once_its_publisher_was_told(
    quiet: Quiet, clock: Clock, missing: int, stuck: bool
) -> None:
    first, last, calm = command(b"first"), command(b"last"), command(b"calm")
    quiet.pair.socket.room = len(first + last) - missing
    asked = [quiet.pair.ask(first, seconds=4), quiet.pair.ask(last, seconds=4), quiet.pair.ask(calm, seconds=60)]
    soon(lambda: quiet.pair.socket.room == 0)
    clock.now += 4
    if stuck:
        assert [type(told(one)) for one in asked] == [PublishError, NotStored, NotStored]
    else:
        assert [type(told(one)) for one in asked[:2]] == [NoAnswer, NoAnswer]
        quiet.pair.look()
        assert not asked[2].ready()
        assert quiet.pair.link.error is None


def test_what_is_begun_through_a_layer_counts_as_sent(make_link: Make, clock: Clock) -> None:
    quiet = Quiet(make_link, codec=Plain())
    quiet.pair.socket.room = 4
    hasty, calm = quiet.pair.ask(seconds=4), quiet.pair.ask(seconds=60)
    soon(lambda: quiet.pair.socket.room == 0)
    clock.now += 4
    assert isinstance(told(hasty), NoAnswer)
    quiet.pair.look()
    assert not calm.ready()


# --- doubt -------------------------------------------------------------------------------------------------


def test_nothing_is_sent_where_nothing_is_heard_while_an_answer_is_owed_until_it_is(quiet: Quiet, clock: Clock) -> None:
    asked = quiet.pair.ask(seconds=60)
    quiet.pair.peer.read(command())
    clock.now += 0.75
    quiet.pair.look()
    assert (quiet.said, quiet.pair.link.usable()) == (0, True)
    clock.now += 0.25
    quiet.pair.look()
    assert quiet.said > 0
    assert not quiet.pair.link.usable()
    clock.now += 0.5
    quiet.hear(wire.HEARTBEAT)
    assert quiet.pair.link.usable()
    assert not asked.ready()


def test_silence_counts_from_the_oldest_of_those_that_wait(quiet: Quiet, clock: Clock) -> None:
    for seconds in (0.75, 0.25):
        quiet.pair.ask(seconds=60)
        quiet.pair.peer.read(command())
        clock.now += seconds
    quiet.pair.look()
    assert quiet.said > 0


def test_where_nothing_is_owed_silence_is_no_cause_for_doubt(quiet: Quiet, clock: Clock) -> None:
    clock.now += 100
    quiet.pair.look()
    assert (quiet.said, quiet.pair.link.usable()) == (0, True)


def test_one_that_sends_heartbeats_and_answers_nothing_is_doubted_as_soon_as_one_has_waited_in_vain(
    quiet: Quiet, clock: Clock
) -> None:
    asked = quiet.pair.ask(seconds=0.5)
    quiet.pair.peer.read(command())
    clock.now += 0.25
    quiet.hear(wire.HEARTBEAT)
    assert quiet.said == 0
    clock.now += 0.25
    assert isinstance(told(asked), NoAnswer)
    assert quiet.said > 0


def test_one_that_answers_slowly_is_not_doubted(quiet: Quiet, clock: Clock) -> None:
    """It has answered since: only the oldest of those that waited in vain counts."""
    asked = [quiet.pair.ask(seconds=60), quiet.pair.ask(seconds=0.5)]
    quiet.pair.peer.read(command() * 2)
    clock.now += 0.25
    quiet.hear(wire.OK)
    assert told(asked[0]) is None
    clock.now += 0.125
    asked.append(quiet.pair.ask(seconds=0.125))
    quiet.pair.peer.read(command())
    clock.now += 0.125
    assert [type(told(one)) for one in asked[1:]] == [NoAnswer, NoAnswer]
    assert quiet.said == 0
    quiet.pair.ask()
    quiet.pair.peer.read(command())
    assert not quiet.pair.link.usable(), "what nobody waits for is answered next"


def test_where_an_answer_is_waited_for_that_comes_before_the_one_that_nobody_waits_for_it_is_used(
    quiet: Quiet, clock: Clock
) -> None:
    asked = [quiet.pair.ask(seconds=60), quiet.pair.ask(seconds=60), quiet.pair.ask(seconds=0.5)]
    quiet.pair.peer.read(command() * 3)
    clock.now += 0.25
    quiet.hear(wire.OK)
    clock.now += 0.25
    assert isinstance(told(asked[2]), NoAnswer)
    assert (quiet.said, quiet.pair.link.usable(), asked[1].ready()) == (0, True, False)


# --- a hub that stood still --------------------------------------------------------------------------------


def test_after_twice_the_time_between_heartbeats_without_a_word_it_is_at_its_end(make_link: Make, clock: Clock) -> None:
    quiet = Quiet(make_link, heartbeat=30.0)
    clock.now += 60
    quiet.pair.look()
    assert quiet.pair.link.error is None
    clock.now += 1
    assert "n:4150 broke: it was silent for 60 s" in str(soon(lambda: quiet.pair.link.error))


def test_what_has_come_meanwhile_is_read_before_anyone_is_told_that_nothing_has(quiet: Quiet, clock: Clock) -> None:
    asked = quiet.pair.ask(seconds=4)
    quiet.pair.peer.read(command())
    quiet.pair.peer.respond(wire.OK)
    clock.now += 100
    assert told(asked) is None


@pytest.mark.parametrize("idle", [0.25, 0.5])
def test_one_that_lay_idle_is_read_before_it_is_trusted(
    make_link: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch, idle: float
) -> None:
    monkeypatch.setattr(publish_link, "_IDLE", 0.25)
    pair = make_link()
    gevent.sleep(0)
    clock.now += idle
    pair.peer.end()
    reads = pair.socket.reads
    assert pair.link.usable() == (idle == 0.25)
    assert pair.socket.reads - reads == (idle > 0.25)


def test_one_that_lay_idle_for_long_is_read_to_the_end(make_link: Make, clock: Clock) -> None:
    """The heartbeats of a night stand before it."""
    pair = make_link()
    gevent.sleep(0)
    clock.now += 100
    pair.peer.respond(*[wire.HEARTBEAT] * (RECV_SIZE // 8))
    pair.peer.end()
    assert not pair.link.usable()


def test_one_that_was_read_just_now_is_not_read_again(make_link: Make, clock: Clock) -> None:
    pair = make_link()
    gevent.sleep(0)
    clock.now += 100
    assert pair.link.usable()
    reads = pair.socket.reads
    assert pair.link.usable()
    assert pair.socket.reads == reads


@pytest.mark.parametrize("silent", [1.0, 1.5])
def test_where_answers_are_owed_for_long_the_hub_has_a_turn_to_give_them(make_link: Make, clock: Clock, silent: float) -> None:
    pair = make_link()
    asked = pair.ask(seconds=60)
    pair.peer.read(command())
    pair.peer.respond(wire.OK)
    clock.now += silent
    gevent.get_hub().loop.run_callback(time.sleep, 0.005)  # the hub is at work for longer than a turn takes
    assert pair.link.usable()
    assert asked.ready() == (silent > 1.0)

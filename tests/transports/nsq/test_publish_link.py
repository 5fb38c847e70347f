"""One publishing link by itself: when it sends, whose answer an answer is, and what each publisher is told at its end."""

from __future__ import annotations

import gc
import time
import types
from collections.abc import Callable
from typing import Any

import gevent
import pytest

from framework.errors import BrokerError, BrokerUnreachable, FrameworkError, MessageRefused, ProtocolError, PublishError
from framework.transports.nsq import publish_link, wire
from framework.transports.nsq.asking import WINDOW, NoAnswer
from framework.transports.nsq.delays import LongestDelays
from framework.transports.nsq.urls import Options
from framework.transports.publish_link import NotStored
from tests.transports.nsq.links import FOREVER, Pair, Plain, command, make_link, told
from tests.transports.ruled import soon

__all__ = ["make_link"]
pytestmark = pytest.mark.real
Make = Callable[..., Pair]


# --- sending -----------------------------------------------------------------------------------------------


def test_who_publishes_alone_is_sent_for_at_once_and_what_others_publish_meanwhile_goes_together(make_link: Make) -> None:
    pair = make_link()
    sent = [command(b"%d" % number) for number in range(4)]
    asked = [pair.ask(one) for one in sent]
    pair.peer.read(b"".join(sent))
    assert pair.socket.sends == [sent[0], b"".join(sent[1:])]
    pair.peer.respond(*[wire.OK] * 4)
    assert list(map(told, asked)) == [None] * 4
    last = pair.ask()
    pair.peer.read(command())
    pair.peer.respond(wire.OK)
    assert told(last) is None


def test_what_the_socket_did_not_take_is_sent_from_there_as_soon_as_it_does(make_link: Make) -> None:
    pair = make_link()
    pair.socket.room = 5
    sent = [command(b"one"), command(b"two"), command(b"three")]
    asked = [pair.ask(one) for one in sent]
    soon(lambda: pair.socket.room == 0)
    gevent.sleep(0.01)
    pair.socket.room = 3
    soon(lambda: pair.socket.room == 0)
    pair.socket.room = 1 << 30
    pair.peer.read(b"".join(sent))
    pair.peer.respond(*[wire.OK] * 3)
    assert list(map(told, asked)) == [None] * 3


def test_a_link_of_which_the_socket_has_taken_all_leaves_the_hub_at_rest(make_link: Make) -> None:
    pair = make_link()
    pair.socket.room = 5
    asked = pair.ask()
    soon(lambda: pair.socket.room == 0)
    pair.socket.room = 1 << 30
    pair.peer.read(command())
    turns: list[int] = []
    watcher = gevent.get_hub().loop.prepare()
    watcher.start(lambda: turns.append(1))
    gevent.sleep(0.05)
    watcher.stop()
    assert len(turns) < 20
    pair.peer.respond(wire.OK)
    assert told(asked) is None


def test_heartbeats_are_answered_in_their_place(make_link: Make) -> None:
    pair = make_link()
    pair.peer.respond(wire.HEARTBEAT, wire.HEARTBEAT)
    pair.peer.read(wire.NOP * 2)
    asked = pair.ask()
    pair.peer.read(command())
    pair.peer.respond(wire.HEARTBEAT, wire.OK)
    assert told(asked) is None
    pair.peer.read(wire.NOP)


def test_what_came_with_the_last_answer_of_the_introduction_is_not_lost(make_link: Make) -> None:
    pair = make_link(early=wire.encode_frame(wire.FRAME_RESPONSE, wire.HEARTBEAT))
    pair.peer.read(wire.NOP)


# --- the end -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [0, 1, 2])
@pytest.mark.parametrize("heartbeat", [False, True], ids=["", "after a heartbeat"])
def test_a_command_of_which_the_socket_took_all_may_be_stored_and_no_other(
    make_link: Make, missing: int, heartbeat: bool
) -> None:
    pair = make_link()
    if heartbeat:
        pair.peer.respond(wire.HEARTBEAT)
        pair.peer.read(wire.NOP)
    whole, cut, unsent = command(b"whole"), command(b"cut"), command(b"unsent")
    pair.socket.room = len(whole + cut) - missing
    asked = [pair.ask(whole), pair.ask(cut), pair.ask(unsent)]
    soon(lambda: pair.socket.room == 0)
    pair.peer.end()
    outcomes = list(map(told, asked))
    assert [type(one) for one in outcomes] == [PublishError, PublishError if missing == 0 else NotStored, NotStored]
    assert outcomes[0].stored is None
    assert "n:4150 broke: it was closed; whether the messages are stored is not known" in str(outcomes[0])
    assert str(outcomes[2]) == "the connection to nsqd n:4150 broke: it was closed"
    assert pair.link.fileno() == -1
    assert not pair.link.usable()
    assert str(told(pair.ask())) == str(outcomes[2])


def test_what_is_begun_through_a_layer_may_be_stored(make_link: Make) -> None:
    """It is encoded as a whole: a part of it that arrives may hold the whole command."""
    pair = make_link(codec=Plain())
    pair.socket.room = 4
    asked = pair.ask()
    soon(lambda: pair.socket.room == 0)
    pair.link.close()
    outcome = told(asked)
    assert (type(outcome), outcome.stored) == (PublishError, None)
    assert "the producer was closed" in str(outcome)


def test_what_nsqd_said_before_it_went_is_what_publishers_are_told(make_link: Make) -> None:
    """The next send of ours fails before that was read."""
    pair = make_link()
    gevent.sleep(0.001)
    pair.peer.refuse(b"E_INVALID because")
    pair.socket.error = BrokenPipeError(32, "Broken pipe")
    assert "E_INVALID because" in str(told(pair.ask()))


def test_a_send_that_fails_ends_the_link(make_link: Make) -> None:
    pair = make_link()
    pair.socket.error = BrokenPipeError(32, "Broken pipe")
    outcome = told(pair.ask())
    assert isinstance(outcome, NotStored)
    assert "n:4150 broke: [Errno 32] Broken pipe" in str(outcome)


def test_the_hub_holds_none_that_has_ended(make_link: Make) -> None:
    link = make_link().link
    gevent.sleep(0)
    link.close()
    gevent.sleep(0)
    assert not [one for one in gc.get_referrers(link) if isinstance(one, types.MethodType)]


def test_shutting_it_twice_is_no_error(make_link: Make) -> None:
    pair = make_link()
    pair.link.shut()
    assert soon(lambda: pair.link.error)
    pair.link.shut()


# --- answers -----------------------------------------------------------------------------------------------


def refused(words: bytes, make_link: Make, **options: Any) -> Any:
    pair = make_link(**options)
    asked, behind = pair.ask(), pair.ask(command(b"behind"))
    pair.peer.read(command() + command(b"behind"))
    pair.peer.refuse(words)
    answer, other = told(asked), told(behind)
    assert isinstance(other, NotStored), "nsqd reads nothing after an error"
    assert isinstance(pair.link.error, BrokerError)
    return answer


@pytest.mark.parametrize(("words", "kind", "stored"), [
    (b"E_BAD_MESSAGE PUB message too big", MessageRefused, False),
    (b"E_BAD_BODY MPUB invalid", MessageRefused, False),
    (b"E_MPUB_FAILED MPUB failed disk full", PublishError, None),
    (b"E_DPUB_FAILED DPUB failed disk full", PublishError, None),
    (b"E_INVALID DPUB timeout 5000 out of range 0-3000", MessageRefused, False),
    (b"E_UNAUTHORIZED AUTH failed", PublishError, False),
])  # fmt: skip
def test_a_refusal_says_whether_the_messages_may_be_stored_and_whether_they_are_the_reason(
    make_link: Make, words: bytes, kind: type[PublishError], stored: bool | None
) -> None:
    answer = refused(words, make_link, delays=LongestDelays(Options()))
    assert (type(answer), answer.stored) == (kind, stored)
    assert isinstance(answer.__cause__, BrokerError)
    assert "n:4150" in str(answer)


def test_what_an_nsqd_refuses_that_is_exiting_may_be_published_elsewhere(make_link: Make) -> None:
    assert type(refused(b"E_PUB_FAILED PUB failed exiting", make_link)) is NotStored


def test_without_a_memory_of_delays_one_that_is_too_long_is_refused_all_the_same(make_link: Make) -> None:
    answer = refused(b"E_INVALID DPUB timeout 5000 out of range 0-3000", make_link)
    assert (type(answer), answer.stored) == (PublishError, False)


@pytest.mark.parametrize(("said", "error"), [
    (wire.encode_frame(wire.FRAME_RESPONSE, wire.OK), ProtocolError),
    (wire.encode_message(1, 1, b"0" * 16, b"x"), ProtocolError),
    (wire.encode_frame(wire.FRAME_ERROR, b"E_INVALID what"), BrokerError),
])  # fmt: skip
def test_what_nothing_asked_for_ends_the_link(make_link: Make, said: bytes, error: type[FrameworkError]) -> None:
    pair = make_link()
    pair.peer.sock.sendall(said)
    assert isinstance(soon(lambda: pair.link.error), error)
    assert isinstance(told(pair.ask()), NotStored)


@pytest.mark.parametrize(("answer", "proves"), [
    (b"E_BAD_MESSAGE PUB invalid message body size 0", True), (b"E_PUB_FAILED PUB failed disk full", False), (b"", False),
])  # fmt: skip
def test_what_asks_whether_nsqd_reads_is_answered_by_a_refusal(make_link: Make, answer: bytes, proves: bool) -> None:
    pair = make_link()
    proof = gevent.spawn(pair.link.prove, time.monotonic() + 20)
    pair.peer.read(publish_link._EMPTY)
    if answer:
        pair.peer.refuse(answer)
    else:
        pair.peer.end()
    assert (told(proof) is None) == proves


# --- time --------------------------------------------------------------------------------------------------


def test_an_answer_that_does_not_come_is_looked_for_when_it_is_due_and_again_for_the_next(make_link: Make) -> None:
    """There is no other look for an hour."""
    pair = make_link()
    asked = [pair.ask(seconds=seconds) for seconds in (FOREVER, 0.02, 0.05)]
    pair.peer.read(command() * 3)
    assert [type(told(one)) for one in asked[1:]] == [NoAnswer, NoAnswer]
    pair.peer.respond(wire.OK)
    assert told(asked[0]) is None


def test_answers_that_came_while_the_hub_stood_still_came_in_time(make_link: Make) -> None:
    pair = make_link()
    asked = pair.ask(seconds=0.05)
    pair.peer.read(command())
    pair.peer.respond(wire.OK)
    time.sleep(0.06)
    assert told(asked) is None


# --- many at once ------------------------------------------------------------------------------------------


def test_while_several_of_one_publisher_are_under_way_the_socket_wakes_for_as_many_answers_as_are_left_up_to_a_quarter(
    make_link: Make,
) -> None:
    pair = make_link(tick=0.02)
    size = len(wire.encode_frame(wire.FRAME_RESPONSE, wire.OK))
    each = gevent.spawn(pair.link.ask_each, [command()] * 30, 20.0)
    pair.peer.read(command() * 30)
    pair.peer.respond(*[wire.OK] * 28)
    soon(lambda: pair.socket.lows[-1:] == [2 * size])
    pair.peer.respond(wire.OK, wire.OK)
    assert told(each) == [None] * 30
    assert pair.socket.lows == [25 * size, 2 * size, 1]


def test_one_that_has_ended_answers_each_of_many_at_once(make_link: Make) -> None:
    pair = make_link()
    pair.link.close()
    answers = pair.link.ask_each([command()] * 3, 20.0)
    assert [(type(one), str(one)) for one in answers] == [(NotStored, "the producer was closed")] * 3
    assert isinstance(pair.link.error, BrokerUnreachable)


def test_one_that_ends_while_many_are_under_way_answers_each_of_them(make_link: Make) -> None:
    pair = make_link()
    each = gevent.spawn(pair.link.ask_each, [command()] * 200, FOREVER)
    pair.peer.read(command() * WINDOW)
    pair.peer.respond(wire.OK)
    pair.peer.end()
    answers = told(each)
    assert answers[0] is None
    assert [(type(one), getattr(one, "stored", False)) for one in answers[1:]] == [(PublishError, None)] * 99 + [
        (NotStored, False)
    ] * 100

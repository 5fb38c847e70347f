"""Whose answer an answer is on a publishing link, what is made of each, and what is known of the rest when it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gevent
import pytest

from framework.errors import BrokerError, BrokerUnreachable, MessageRefused, ProtocolError, PublishError
from framework.transports.beanstalkd import publish_link, wire
from framework.transports.beanstalkd.publish_link import PublishLink
from framework.transports.publish_link import NotStored, Refused
from tests.transports.beanstalkd.links import USE, Ends, clock, ends, make_ends, put, told
from tests.transports.ruled import soon

__all__ = ["clock", "ends", "make_ends"]
X = wire.put(b"x")


def test_a_tube_is_named_when_it_is_another_and_all_goes_together(ends: Ends) -> None:
    first = ends.ask(put(b"1"), put(b"2"), put(b"3", "news"), put(b"4"))
    one, two, three, four = (wire.put(b"%d" % number) for number in (1, 2, 3, 4))
    said = [USE, one, two, b"use news\r\n", three, USE, four]
    ends.read(*said)
    assert ends.socket.sends == [b"".join(said)]
    second = ends.ask()
    ends.read(X)
    ends.answer(b"USING orders", b"INSERTED 1", b"BURIED 2", b"USING news", b"INSERTED 3", b"USING orders", b"INSERTED 4")
    answers = told(first)
    assert [answers[0], *answers[2:]] == [None] * 3
    assert answers[1].stored is True
    assert not second.ready()
    ends.answer(b"INSERTED 5")
    assert told(second) == [None]


@pytest.mark.parametrize(("word", "kind", "stored"), [
    (b"DRAINING", Refused, None), (b"OUT_OF_MEMORY", Refused, None), (b"JOB_TOO_BIG", MessageRefused, False),
    (b"BURIED 7", PublishError, True), (b"INTERNAL_ERROR", PublishError, None), (b"EXPECTED_CRLF", PublishError, False),
    (b"BAD_FORMAT", PublishError, False), (b"UNKNOWN_COMMAND", PublishError, False),
])  # fmt: skip
def test_each_refusal_says_whether_the_job_is_stored(ends: Ends, word: bytes, kind: type[Exception], stored: bool | None) -> None:
    ends.link.elsewhere = lambda: False
    asked = ends.ask()
    ends.read(USE, X)
    ends.answer(b"USING orders", word)
    [answer] = told(asked)
    assert (type(answer), getattr(answer, "stored", None)) == (kind, stored)
    assert f"beanstalkd b:11300: {word.decode()}" in str(answer)
    out_of_step = stored is False and kind is PublishError
    assert (ends.link.error is not None, ends.link.usable()) == (out_of_step, not out_of_step)


def test_behind_an_answer_that_shows_it_out_of_step_nothing_is_believed(ends: Ends) -> None:
    """What it says then is of a body that it read as commands."""
    asked, other = ends.ask(put(), put(), put()), ends.ask()
    ends.read(USE, X * 4)
    ends.answer(b"USING orders", b"INSERTED 1", b"EXPECTED_CRLF", b"INSERTED 2", b"INSERTED 3")
    stored, refused, unknown = told(asked)
    assert (stored, refused.stored, unknown.stored, told(other)[0].stored) == (None, False, None, None)
    assert isinstance(ends.link.error, BrokerError)
    assert "whether the messages are stored is not known" in str(unknown)


def test_whoever_had_all_answers_before_it_was_out_of_step_hears_of_them(ends: Ends) -> None:
    done, refused = ends.ask(), ends.ask()
    ends.read(USE, X * 2)
    ends.answer(b"USING orders", b"INSERTED 1", b"EXPECTED_CRLF", b"UNKNOWN_COMMAND")
    assert told(done) == [None]
    assert told(refused)[0].stored is False


@pytest.mark.parametrize("word", [b"DRAINING", b"OUT_OF_MEMORY"])
def test_one_that_takes_no_jobs_is_left_when_nobody_waits_for_it_any_more(ends: Ends, word: bytes) -> None:
    first, second = ends.ask(), ends.ask()
    ends.read(USE, X * 2)
    ends.answer(b"USING orders", word)
    assert isinstance(told(first)[0], Refused)
    assert (ends.link.usable(), ends.link.error, second.ready()) == (False, None, False)
    ends.link.elsewhere = lambda: False
    ends.answer(b"DRAINING")
    assert isinstance(told(second)[0], Refused)
    assert "beanstalkd b:11300 takes no jobs" in str(ends.link.error)
    assert ends.link.fileno() == -1


@pytest.mark.parametrize("asks", [True, False])
def test_what_nothing_asked_for_ends_it(ends: Ends, asks: bool) -> None:
    asked = ends.ask() if asks else None
    if asked is not None:
        ends.read(USE, X)
    ends.answer(b"INSERTED 1")  # in place of what was asked first
    error = soon(lambda: ends.link.error)
    assert type(error) is (BrokerError if asks else ProtocolError)
    if asked is not None:
        assert told(asked)[0].stored is None


@pytest.mark.parametrize(("answer", "proves"), [
    (b"EXPECTED_CRLF", True), (b"DRAINING", True), (b"INTERNAL_ERROR", False), (b"BURIED 7", False), (None, False),
    (b"INSERTED 7", True),
])  # fmt: skip
def test_what_asks_whether_it_reads_is_answered_by_a_refusal_and_changes_no_tube(
    ends: Ends, answer: bytes | None, proves: bool
) -> None:
    ends.ask()
    ends.read(USE, X)
    ends.answer(b"USING orders", b"INSERTED 1")
    proof = gevent.spawn(ends.link.prove, publish_link.monotonic() + 20)
    ends.read(publish_link._BROKEN)
    if answer is None:
        ends.end()
    else:
        ends.answer(answer)
    assert (proof.get(timeout=20) is None) == proves


# -- the beginning


def test_one_that_says_nothing_is_no_server_to_publish_to(listening: Callable[..., str]) -> None:
    """It is dialled for as long as there is time, and no longer."""
    node = listening(lambda sock: sock.makefile("rb").read())
    with pytest.raises(BrokerUnreachable, match=f"beanstalkd {node} did not answer within 0.02 s"):
        PublishLink.to(node, 0.02)


def test_one_that_says_which_tube_it_uses_is_one(listening: Callable[..., str]) -> None:
    def serve(sock: Any) -> None:
        assert sock.recv(100) == wire.LIST_TUBE_USED
        sock.sendall(b"USING default\r\n")
        sock.recv(100)

    link = PublishLink.to(listening(serve), 20.0)
    assert (link.usable(), link.error) == (True, None)
    link.close()


# -- the end


@pytest.mark.parametrize("missing", [0, 1])
def test_a_put_of_which_the_socket_took_all_may_be_stored_and_no_other(ends: Ends, missing: int) -> None:
    ends.socket.room = len(USE + X * 2) - missing
    asked = ends.ask(put(), put(), put())
    ends.read(USE)
    soon(lambda: ends.socket.room == 0)
    ends.end()
    outcomes = told(asked)
    assert [type(one) for one in outcomes] == [PublishError, NotStored if missing else PublishError, NotStored]
    assert outcomes[0].stored is None
    assert "whether the messages are stored is not known" in str(outcomes[0])
    assert str(outcomes[2]) == "the connection to beanstalkd b:11300 broke: the server closed it"
    answers = told(ends.ask(put(), put()))
    assert [(type(one), str(one)) for one in answers] == [(NotStored, str(outcomes[2]))] * 2
    assert not ends.link.usable()


def test_what_the_socket_took_later_counts_as_sent(ends: Ends) -> None:
    ends.socket.room = 5
    asked = ends.ask(put(), put())
    soon(lambda: ends.socket.room == 0)
    ends.socket.room = len(USE + X) - 5
    ends.read(USE, X)
    soon(lambda: ends.socket.room == 0)
    ends.link.close()
    first, second = told(asked)
    assert (type(first), type(second)) == (PublishError, NotStored)
    assert isinstance(ends.link.error, BrokerUnreachable)


def test_shut_from_another_thread_it_ends_when_its_server_does(ends: Ends) -> None:
    asked = ends.ask()
    ends.read(USE, X)
    ends.link.shut()
    assert ends.server.recv(1) == b""
    ends.end()
    assert told(asked)[0].stored is None
    ends.link.shut()


def test_the_hub_holds_none_that_has_ended(ends: Ends) -> None:
    link: Any = ends.link
    looks = link._looks
    link.close()
    assert not any(one.active for one in (looks._ticker, looks._alarm, link._hub_socket._reader, link._hub_socket._writer))


def test_one_put_is_waited_for_until_then(ends: Ends) -> None:
    before = time.monotonic()
    asked = gevent.spawn(ends.link.ask, put(), publish_link.monotonic() + 0.02)
    ends.read(USE, X)
    ends.answer(b"USING orders", b"INSERTED 1")
    assert asked.get(timeout=20) is None
    assert time.monotonic() - before < 20

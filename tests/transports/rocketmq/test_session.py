"""A session over a pair of sockets: which answer is whose, what is asked of us, and what is overdue."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from time import monotonic
from typing import Any

import gevent
import msgspec
import pytest

from framework.errors import BrokerUnreachable, FrameworkError
from framework.transports.rocketmq import session as module
from framework.transports.rocketmq import urls
from framework.transports.rocketmq.heartbeat import Subscription
from framework.transports.rocketmq.session import BEAT, QUIET, Session
from framework.transports.rocketmq.wire import frames
from framework.transports.rocketmq.wire.codes import Answer, Request
from framework.transports.rocketmq.wire.frames import RESPONSE, Decoder, Frame

POP = Request.POP_MESSAGE


class Owner:
    """``owner.Owner``."""

    shown, has_queues = True, False

    def __init__(self, group: str = "g") -> None:
        self.subscription = Subscription("t", group, "", pulls=True)
        self.heard: list[Any] = []

    def turn(self) -> None:
        self.heard.append("turn")

    def collect(self) -> None:
        self.heard.append("collect")

    def arrive(self) -> None:
        self.heard.append("arrive")

    def others_changed(self, group: str) -> None:
        self.heard.append(group)

    def lost(self, error: FrameworkError) -> None:
        self.heard.append(str(error))

    def keep(self, now: float, expired: Any) -> None:
        self.heard.append("keep")


class Ends:
    """A session and the other end of its socket. Its own timers do not run: the hub does not turn but where a test has it."""

    def __init__(self, url: str = "rocketmq://names:9876") -> None:
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._theirs.setblocking(False)
        read = urls.read([url])
        sock: Any = self._ours
        self.session = Session("names:9876", sock, read.options, read.secrets, "me")
        self.answers: list[tuple[Any, float]] = []
        self._decoder = Decoder()

    def then(self, answer: Frame | FrameworkError, at: float) -> None:
        self.answers.append((answer, at))

    def asked(self) -> list[Frame]:
        """What came since at the other end, when all was flushed."""
        self.session._guarded(lambda: None)
        with suppress(BlockingIOError):
            return self._decoder.feed(self._theirs.recv(1 << 20))
        return []

    def says(self, *said: Frame) -> None:
        """The server does, and it is read."""
        self._theirs.sendall(b"".join(map(frames.encode, said)))
        self.session._guarded(self.session._read)

    def attach(self, owner: Owner) -> Owner:
        one: Any = owner
        self.session.attach(one)
        return owner

    def close(self) -> None:
        self.session.close()
        self._theirs.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    yield (made := Ends())
    made.close()


def answer(number: int, code: int = Answer.SUCCESS) -> Frame:
    return Frame(code, number, flag=RESPONSE)


def late(ends: Ends, seconds: float) -> None:
    """So much time goes by, in silence."""
    for asked in ends.session._pending.values():
        asked.due -= seconds
    ends.session.heard_at -= seconds
    ends.session._soonest -= seconds


def test_answers_are_handed_on_by_their_number(ends: Ends) -> None:
    first, second = (ends.session.call(POP, {"n": str(n)}, ends.then) for n in range(2))
    asked = ends.asked()
    assert [(one.code, one.opaque, one.fields["n"]) for one in asked] == [(POP, first, "0"), (POP, second, "1")]
    ends.says(answer(second), answer(99), answer(first))
    assert [one.opaque for one, _ in ends.answers] == [second, first]
    assert all(at == ends.session.heard_at for _, at in ends.answers)
    ends.says(answer(first))
    assert len(ends.answers) == 2


def test_numbers_begin_anew_where_they_do_not_fit(ends: Ends) -> None:
    ends.session._numbers = iter([2**31 - 1, 2**31, 2**31 + 5])  # type: ignore[assignment]
    assert [ends.session.call(POP, {}, ends.then) for _ in range(3)] == [2**31 - 1, 0, 5]


def test_an_answer_that_was_given_up_is_passed_over(ends: Ends) -> None:
    number = ends.session.call(POP, {}, ends.then)
    ends.session.give_up(number)
    ends.session.give_up(77)
    ends.says(answer(number))
    assert ends.answers == []


def test_nothing_is_asked_of_one_that_is_over(ends: Ends) -> None:
    ends.session.call(POP, {}, ends.then)
    ends.session.end(BrokerUnreachable("gone"))
    assert [str(error) for error, _ in ends.answers] == ["gone"]
    with pytest.raises(BrokerUnreachable, match="gone"):
        ends.session.question(POP, {})


def test_what_is_answered_to_an_owner_that_left_is_passed_over_and_its_group_is_taken_off(ends: Ends) -> None:
    one, other = ends.attach(Owner()), ends.attach(Owner())
    number, its = (ends.session.put(each, POP, {}, ends.then) for each in (one, other))
    session: Any = ends.session
    session.leave(one)
    assert Request.UNREGISTER_CLIENT not in [asked.code for asked in ends.asked()]
    ends.says(answer(number), answer(its))
    assert [frame.opaque for frame, _ in ends.answers] == [its]
    session.leave(other)
    (told,) = [asked.fields for asked in ends.asked() if asked.code == Request.UNREGISTER_CLIENT]
    assert told == {"clientID": "me", "consumerGroup": "g", "producerGroup": "g"}


def test_what_came_arrives_when_what_is_asked_for_next_has_been_sent(ends: Ends) -> None:
    owner = ends.attach(Owner())
    session: Any = ends.session

    def then(said: Frame | FrameworkError, at: float) -> None:
        session.brings(owner)
        session.wants_to_speak(owner)

    numbers = [session.put(owner, POP, {}, then) for _ in range(2)]
    ends.asked()
    owner.heard.clear()
    arrive = owner.arrive
    owner.arrive = lambda: (arrive(), session.wants_to_speak(owner))[0]  # type: ignore[method-assign]
    ends.says(*map(answer, numbers))
    assert owner.heard == ["collect", "arrive", "collect"]


def test_one_that_has_nothing_more_to_say_arrives_at_once(ends: Ends) -> None:
    owner = ends.attach(Owner())
    session: Any = ends.session
    number = session.put(owner, POP, {}, lambda said, at: session.brings(owner))
    ends.asked()
    ends.says(answer(number))
    assert owner.heard == ["arrive"]


def test_a_server_that_goes_is_left_by_all_at_the_next_pulse(ends: Ends) -> None:
    owner, other = ends.attach(Owner()), ends.attach(Owner("h"))
    ends.session._guarded(ends.session._check_pulse)
    assert (owner.heard, ends.session.leaving) == ([], False)
    number = ends.session.call(POP, {}, ends.then)
    ends.says(answer(number, Answer.GO_AWAY))
    assert ends.session.leaving
    ends.session._guarded(ends.session._check_pulse)
    assert owner.heard == other.heard == ["RocketMQ at names:9876 is about to stop"]


def test_only_those_of_its_group_are_told_that_it_has_changed(ends: Ends) -> None:
    owner, other = ends.attach(Owner()), ends.attach(Owner("h"))
    ends.says(Frame(Request.NOTIFY_CONSUMER_IDS_CHANGED, 5, {"consumerGroup": "g"}, flag=frames.ONEWAY))
    assert (owner.heard, other.heard, ends.asked()) == (["g"], [], [])


def test_what_else_a_server_asks_is_refused_where_it_wants_an_answer(ends: Ends) -> None:
    owner = ends.attach(Owner())
    ends.says(Frame(Request.CHECK_TRANSACTION_STATE, 5, {"consumerGroup": "g"}))
    (refused,) = ends.asked()
    assert (refused.code, refused.opaque, refused.is_answer) == (Answer.REQUEST_CODE_NOT_SUPPORTED, 5, True)
    assert refused.remark == f"request type {Request.CHECK_TRANSACTION_STATE} not supported"
    assert owner.heard == []


# --- time --------------------------------------------------------------------------------------------------


def test_a_silent_server_is_asked_for_a_word_where_somebody_subscribes(ends: Ends) -> None:
    def pulse() -> list[Frame]:
        ends.session._guarded(ends.session._check_pulse)
        return ends.asked()

    ends.session.heard_at = ends.session._probed = monotonic() - QUIET
    assert pulse() == [], "nobody does"
    ends.attach(Owner())
    (beat,) = pulse()
    assert (beat.code, msgspec.json.decode(beat.body)["consumerDataSet"]) == (Request.HEART_BEAT, [])
    assert pulse() == [], "it was asked a moment ago"
    ends.session._probed = monotonic() - QUIET
    ends.session.heard_at = monotonic() - QUIET / 2
    assert pulse() == [], "it said something"


def test_a_request_may_take_as_long_as_it_said_and_the_time_of_an_answer(ends: Ends) -> None:
    ends.session.put(None, POP, {}, ends.then, wait=2.0)
    ends.asked()
    late(ends, 11.9)
    ends.session.heard_at = monotonic()
    ends.session._guarded(ends.session._check_pulse)
    assert ends.answers == []
    late(ends, 0.1)
    ends.session.heard_at = monotonic()
    ends.session._guarded(ends.session._check_pulse)
    assert [str(error) for error, _ in ends.answers] == ["RocketMQ at names:9876 does not answer"]
    assert ends.session.error is None, "it says other things"
    ends.session._guarded(ends.session._check_pulse)
    assert len(ends.answers) == 1


def test_a_server_that_owes_an_answer_and_says_nothing_is_given_up(ends: Ends) -> None:
    ends.session.call(POP, {}, ends.then)
    ends.asked()
    late(ends, 10.0)
    ends.session._guarded(ends.session._check_pulse)
    assert str(ends.session.error) == "RocketMQ at names:9876 was silent for 10 s"


def test_an_answer_that_waits_in_the_socket_is_read_before_a_server_is_given_up(ends: Ends) -> None:
    """The hub was blocked."""
    number = ends.session.call(POP, {}, ends.then)
    ends.asked()
    late(ends, 10.0)
    ends._theirs.sendall(frames.encode(answer(number)))
    ends.session._guarded(ends.session._check_pulse)
    assert (len(ends.answers), ends.session.error) == (1, None)


def test_a_server_that_hung_up_while_the_hub_was_blocked_is_told_as_that(ends: Ends) -> None:
    ends.session.call(POP, {}, ends.then)
    late(ends, 10.0)
    ends._theirs.close()
    ends.session._guarded(ends.session._check_pulse)
    assert "closed it" in str(ends.session.error)
    assert len(ends.answers) == 1


def test_all_that_waits_is_looked_at_now_and_then_although_nothing_seems_due(ends: Ends) -> None:
    """Another thread may have asked something meanwhile."""
    now = monotonic()
    ends.session.put(None, POP, {}, ends.then, wait=1000.0)
    ends.session._soonest = now - 1
    assert ends.session._overdue() == []
    assert now < ends.session._soonest <= monotonic() + QUIET
    (number,) = ends.session._pending
    ends.session._pending[number].due = now
    assert ends.session._overdue() == [], "it is not looked at before"
    ends.session._soonest = now
    assert ends.session._overdue() == [number]


def test_heartbeats_are_said_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BEAT", 0.02)
    ends = Ends()
    gevent.sleep(0.05)
    assert Request.HEART_BEAT in [one.code for one in ends.asked()]
    ends.close()


# --- in the hub's place ------------------------------------------------------------------------------------


def test_in_the_hubs_place_only_what_may_be_anywhere_is_handed_on(ends: Ends) -> None:
    anywhere = ends.session.put(None, POP, {}, ends.then, anywhere=True)
    here = ends.session.put(None, POP, {}, ends.then)
    asked = Frame(Request.CHECK_TRANSACTION_STATE, anywhere)
    assert ends.session._sift([answer(here), asked, answer(anywhere), answer(99)], 7.0) == [answer(here), asked, answer(99)]
    assert ends.answers == [(answer(anywhere), 7.0)]
    assert list(ends.session._pending) == [here]


@pytest.mark.parametrize(("since", "beats"), [(BEAT - 0.01, 0), (BEAT, 1)])
def test_in_the_hubs_place_owners_keep_what_is_theirs_and_heartbeats_go_on(since: float, beats: int, ends: Ends) -> None:
    owner = ends.attach(Owner())
    now = ends.session._beaten + since
    ends.session._keep(now, ())
    ends.session._keep(now, ())
    assert owner.heard == ["keep", "keep"]
    found = [one for one in ends._decoder.feed(ends._theirs.recv(1 << 20)) if one.code == Request.HEART_BEAT] if beats else []
    assert len(found) == beats
    if found:
        (consumer,) = msgspec.json.decode(found[0].body)["consumerDataSet"]
        assert consumer["groupName"] == "g"
    else:
        assert ends.asked() == []


def test_the_end_is_told_to_all_who_share_it_and_to_all_who_wait(ends: Ends) -> None:
    owner, other = ends.attach(Owner()), ends.attach(Owner("h"))
    ends.session.put(owner, POP, {}, ends.then)
    ends._theirs.close()
    ends.session._guarded(ends.session._read)
    (word,) = owner.heard
    assert other.heard == [word]
    assert word.endswith("where it asks for TLS, write rocketmq+tls:// in the broker URL")
    assert [str(error) for error, _ in ends.answers] == [word]


def test_one_that_spoke_before_it_hung_up_is_not_taken_for_one_that_asks_for_tls(ends: Ends) -> None:
    gevent.sleep(0.001)
    ends.says(answer(99))
    ends._theirs.close()
    ends.session._guarded(ends.session._read)
    assert str(ends.session.error).endswith("the server closed it")


def test_requests_are_signed_where_there_is_a_key() -> None:
    ends = Ends("rocketmq://key:secret@names:9876")
    assert ends.session.signs
    ends.session.call(POP, {"n": "1"}, ends.then)
    (asked,) = ends.asked()
    assert asked.fields["AccessKey"] == "key"
    assert "Signature" in asked.fields
    ends.close()

"""Where a queue goes on by PULL that may not be the one that was read, on paper."""

from __future__ import annotations

import struct
from time import monotonic
from typing import Any

import pytest

from framework.transports.rocketmq import sameness
from framework.transports.rocketmq.heartbeat import Subscription
from framework.transports.rocketmq.queues import Cut, Past, Place, Reading
from framework.transports.rocketmq.sameness import CUT, LOOKED, Sameness, one_of
from framework.transports.rocketmq.wire.codes import Answer, Request
from framework.transports.rocketmq.wire.frames import Frame
from tests.transports.rocketmq.group import Answered
from tests.transports.rocketmq.log import BORN, HERE, THERE, Log, cut, id_of, trail_of
from tests.transports.rocketmq.paper import GROUP, NODE, TOPIC


def sameness_of(log: Log, past: Past | None = None, *, tags: str = "", ours: tuple[Place, ...] = ()) -> Sameness:
    session: Any = log
    return Sameness(session, NODE, Subscription(TOPIC, GROUP, tags, pulls=True), past or Past(), ours)


@pytest.mark.parametrize(("there", "goes_on"), [
    (range(30), 21), (cut(30, 15, 30), 11), (cut(30, 5, 40), 0), (range(15), 11), ([], 0), (range(25), 21),
])  # fmt: skip
def test_a_reader_goes_on_behind_the_last_message_that_is_the_same(there: range | list[int], goes_on: int) -> None:
    reading = Reading(HERE, 21, trail_of(10, 20))
    sameness_of(Log(there)).find(reading)
    assert (reading.next, reading.astray) == (goes_on, False)


@pytest.mark.parametrize("error", [Frame(Answer.SYSTEM_BUSY, remark="busy"), Frame(Answer.NO_PERMISSION, remark="no")])
def test_a_broker_that_does_not_say_is_asked_again_and_one_that_may_not_is_not(error: Frame) -> None:
    log, reading = Log(range(30)), Reading(HERE, 21, trail_of(10, 20))
    log.refuses[Request.PULL_MESSAGE] = error
    sameness_of(log).find(reading)
    assert reading.next == 21
    assert reading.astray is (error.code == Answer.SYSTEM_BUSY)


def test_what_a_reader_of_a_log_that_was_cut_finds_is_true_of_all_its_queues() -> None:
    """Another has read the second one, and is further than we ever were: where it began to be another, its log tells."""
    log = Log(cut(30, 15, 30), cut(30, 15, 30))
    past = Past()
    at_all = sameness_of(log, past)
    assert not at_all.is_cut
    at_all.find(Reading(HERE, 21, trail_of(10, 20)))
    assert (at_all.is_cut, past.cuts[NODE].kept) == (True, 100)
    second = Reading(THERE, 25)
    second.astray = True
    at_all.find(second)
    assert second.next == 11, "what lies behind 100 in the log"


@pytest.mark.parametrize(("since", "thinks_of_it"), [(CUT - 1.0, True), (CUT, False)])
def test_a_cut_is_thought_of_for_a_time(since: float, thinks_of_it: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    past, now = Past(), monotonic()
    monkeypatch.setattr(sameness, "monotonic", lambda: now)
    past.cuts[NODE] = Cut(0, now - since)
    one = sameness_of(Log(range(30)), past)
    assert one.is_cut is thinks_of_it
    reading = Reading(HERE, 25)
    reading.astray = True
    one.find(reading)
    assert reading.next == (1 if thinks_of_it else 25)


def test_where_nothing_was_cut_a_queue_that_others_read_on_is_not_read_again() -> None:
    reading = Reading(HERE, 25, trail_of(10))
    sameness_of(Log(range(30))).find(reading)
    assert reading.next == 25


def test_a_queue_that_was_never_read_here_goes_on_where_the_group_is() -> None:
    reading = Reading(HERE, 25)
    sameness_of(Log(range(30))).find(reading)
    assert reading.next == 25


@pytest.mark.parametrize(("before", "first", "second", "kept"), [
    (None, 100, 50, 100), (None, 50, 100, 100), (70, 100, 120, 70), (170, 100, 120, 120),
])  # fmt: skip
def test_of_what_one_connection_finds_the_last_tells_most_and_of_two_losses_the_first(
    before: int | None, first: int, second: int, kept: int
) -> None:
    past = Past()
    if before is not None:
        past.cuts[NODE] = Cut(before, monotonic() - 1.0)
    one = sameness_of(Log([]), past)
    one._note_cut(first)
    one._note_cut(second)
    assert past.cuts[NODE].kept == kept


def test_a_cut_that_was_found_long_ago_is_no_loss_of_now() -> None:
    past = Past()
    past.cuts[NODE] = Cut(70, monotonic() - CUT)
    sameness_of(Log([]), past)._note_cut(120)
    assert past.cuts[NODE].kept == 120


@pytest.mark.parametrize(("there", "points", "words"), [
    (range(15), (10,), []), (cut(30, 15, 30), (10, 20), ["is another from 11 on"]), (range(30), (10, 20), []),
])  # fmt: skip
def test_a_loss_is_told_and_an_end_that_was_not_read_by_us_is_not(
    there: range | list[int], points: tuple[int, ...], words: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    sameness_of(Log(there)).find(Reading(HERE, 21, trail_of(*points)))
    assert [word in record.getMessage() for record, word in zip(caplog.records, words, strict=True)] == [True] * len(words)


def test_behind_a_cut_a_queue_that_may_be_another_is_told_as_that(caplog: pytest.LogCaptureFixture) -> None:
    past = Past()
    past.cuts[NODE] = Cut(0, monotonic())
    reading = Reading(HERE, 25)
    reading.astray = True
    sameness_of(Log(range(30)), past).find(reading)
    assert ["may be another from 1 on" in record.getMessage() for record in caplog.records] == [True]


def test_what_we_have_read_ourselves_is_not_looked_for_behind_a_cut() -> None:
    past = Past()
    past.cuts[NODE] = Cut(50, monotonic())
    reading = Reading(HERE, 21, trail_of(10, 20))
    sameness_of(Log(range(30)), past).find(reading)
    assert reading.next == 21


def test_a_message_that_says_that_it_lies_elsewhere_lies_where_its_broker_says() -> None:
    log = Log(range(30))
    answer = log._lies(0, 10)
    moved = Frame(0, fields=answer.fields, body=answer.body[:20] + struct.pack(">q", 17) + answer.body[28:])
    question: Any = Answered(moved)
    found, _ = one_of(question, 10)
    assert found is not None
    several: Any = Answered(Frame(0, fields={"nextBeginOffset": "12"}, body=answer.body + log._lies(0, 11).body))
    found, _ = one_of(several, 11)
    assert found is not None
    assert found.queue_offset == 11
    assert one_of(several, 12)[0] is None


# --- while it is read --------------------------------------------------------------------------------------


def test_a_queue_is_looked_at_now_and_then_whether_it_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [monotonic()]
    monkeypatch.setattr(sameness, "monotonic", lambda: now[0])
    log = Log(range(30))
    one, reading = sameness_of(log), Reading(HERE, 0, trail_of(10, 20))
    reading.goes_on_at(21)
    now[0] += LOOKED - 0.01
    assert (one.is_lost([reading]), log.asked) == (False, [])
    now[0] += 0.01
    assert not one.is_lost([reading])
    assert [fields["queueOffset"] for fields in log.said(Request.PULL_MESSAGE)] == ["10"], (
        "of the first, as the last is sure then"
    )
    now[0] += LOOKED
    assert not one.is_lost([reading])
    assert len(log.asked) == 1, "all of it is known"
    reading.trail.add(25, id_of(25), BORN)
    log.queues[0] = list(range(1000, 1030))
    assert (one.is_lost([reading]), len(log.asked)) == (False, 1)
    now[0] += LOOKED
    assert one.is_lost([reading])


@pytest.mark.parametrize("why", ["astray", "leaving", "moved", "denied", "expired"])
def test_it_is_not_lost_where_that_is_known_by_another_way(why: str) -> None:
    log = Log(range(1000, 1030))
    one, reading = sameness_of(log), Reading(HERE, 0, trail_of(10, 20))
    reading.goes_on_at(21)
    one._looked -= LOOKED
    if why in ("astray", "leaving"):
        setattr(reading, why, True)
    elif why == "denied":
        log.refuses[Request.PULL_MESSAGE] = Frame(Answer.NO_PERMISSION, remark="no")
    elif why == "expired":
        log.begins = 11
    else:
        question = log.question

        def moves(*asked: Any) -> Answered:
            found = question(*asked)
            reading.trail.keep(0)
            return found

        log.question = moves  # type: ignore[method-assign, assignment]
    assert not one.is_lost([reading])


def test_a_reader_of_some_tags_notes_what_others_lie_before_it() -> None:
    """It may be long until one comes that is for us."""
    log = Log(range(30))
    one, reading = sameness_of(log, tags="a"), Reading(HERE, 21)
    one.begin(reading)
    assert reading.trail.points == [20]
    reading.goes_on_at(26)
    one._looked -= LOOKED
    assert not one.is_lost([reading])
    assert reading.trail.points[-1] == 25
    asked = len(log.asked)
    one.begin(reading)
    assert (reading.trail.points[-1], len(log.asked)) == (25, asked), "nothing lies behind it"
    reading.goes_on_at(27)
    one.begin(reading)
    assert (reading.trail.points[-1], len(log.asked)) == (26, asked + 1)
    again = Reading(Place(f"%RETRY%{GROUP}", NODE, 0), 21)
    one.begin(again)
    assert again.trail.points == []
    sameness_of(Log(range(30))).begin(again := Reading(HERE, 21))
    assert again.trail.points == [], "of all tags each one comes"


@pytest.mark.parametrize("why", ["refused", "nothing", "astray"])
def test_nothing_is_noted_of_what_is_not_known(why: str) -> None:
    log, reading = Log(range(30)), Reading(HERE, 21)
    if why == "refused":
        log.refuses[Request.PULL_MESSAGE] = Frame(Answer.SYSTEM_BUSY, remark="busy")
    elif why == "nothing":
        log.queues[0] = []
    else:
        reading.astray = True
    sameness_of(log, tags="a").begin(reading)
    assert reading.trail.points == []


# --- what was ours -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wanted", "kept"), [([], 100), ([HERE], None)])
def test_what_was_ours_and_is_anothers_now_tells_of_a_cut_as_well(wanted: list[Place], kept: int | None) -> None:
    past = Past()
    past.trails[HERE] = trail_of(10, 20)
    one = sameness_of(Log(cut(30, 15, 30)), past, ours=(HERE, THERE))
    one.look_back(wanted)
    assert past.cuts.get(NODE, Cut(-1, 0.0)).kept == (-1 if kept is None else kept)
    assert one._unseen == []


@pytest.mark.parametrize(("there", "code", "left"), [
    (range(30), None, 0), (cut(30, 5, 30), None, 0), (cut(30, 15, 30), Answer.NO_PERMISSION, 0),
    (cut(30, 15, 30), Answer.SYSTEM_BUSY, 1),
])  # fmt: skip
def test_where_nothing_of_it_is_left_or_all_is_or_nothing_is_said_there_is_no_cut(
    there: range | list[int], code: int | None, left: int
) -> None:
    past, log = Past(), Log(there)
    past.trails[HERE] = trail_of(10, 20)
    if code is not None:
        log.refuses[Request.PULL_MESSAGE] = Frame(code, remark="no")
    one = sameness_of(log, past, ours=(HERE,))
    one.look_back([])
    assert (past.cuts, len(one._unseen)) == ({}, left)


def test_where_nothing_of_what_was_ours_is_left_its_log_does_not_tell() -> None:
    past = Past()
    past.trails[HERE] = trail_of(10, 20)
    past.trails[HERE].is_sure_of(20)
    sameness_of(Log(cut(30, 5, 30)), past, ours=(HERE,)).look_back([])
    assert past.cuts == {}

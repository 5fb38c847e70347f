"""Settlements on paper: how many go together, when a change may be sent, what is busy, and who is to speak again."""

from __future__ import annotations

from time import monotonic
from typing import Any

import msgspec
import pytest

from framework.errors import BrokerUnreachable
from framework.transports.rocketmq import settling
from framework.transports.rocketmq.delivery import APART, Delivery
from framework.transports.rocketmq.settling import FURTHEST, MOST_ACKS, PAUSE
from framework.transports.rocketmq.wire.codes import Answer
from framework.transports.rocketmq.wire.frames import Frame
from framework.transports.rocketmq.wire.handles import NORMAL, Handle
from tests.transports.rocketmq.test_settling import ACK, BATCH, BORN, CHANGE, Desk, changed

BUSY = Frame(Answer.SYSTEM_BUSY, remark="busy")


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    at = [monotonic()]
    monkeypatch.setattr(settling, "monotonic", lambda: at[0])
    return at


def spoken(desk: Desk) -> dict[str, int]:
    """How often it asked to be collected, from now on."""
    counts = {"speak": 0, "soon": 0}

    def count(name: str) -> Any:
        def speak() -> None:
            counts[name] += 1

        return speak

    desk.settling._speak, desk.settling._speak_soon = count("speak"), count("soon")
    return counts


def of_queue(desk: Desk, queue: int, offset: int) -> Delivery:
    one = desk.delivery(offset)
    one.first = Handle(0, BORN, 60000, 0, NORMAL, "b", queue, offset)
    return one


def test_acks_of_several_pops_are_one_request_with_an_entry_for_each(desk: Desk) -> None:
    others = Handle(5, BORN + 1, 60000, 0, NORMAL, "b", 3, 5)
    for offset in (5, 6, 7):
        desk.settling.finish(desk.delivery(offset))
        other = desk.delivery(offset)
        other.first = others
        desk.settling.finish(other)
    ((code, _, _, body),) = desk.take()
    acks = msgspec.json.decode(body)["acks"]
    assert (code, [(one["q"], one["so"], one["b"]) for one in acks]) == (BATCH, [(2, 5, "Bw=="), (3, 5, "Bw==")])


@pytest.mark.parametrize(("count", "requests"), [(MOST_ACKS, 1), (MOST_ACKS + 1, 2), (2 * MOST_ACKS, 2)])
def test_so_many_acks_go_together(count: int, requests: int, desk: Desk) -> None:
    for number in range(count):
        desk.settling.finish(of_queue(desk, number, 7))
    asked = desk.take()
    assert [code for code, _, _, _ in asked] == [BATCH] * requests
    assert sum(len(msgspec.json.decode(body)["acks"]) for _, _, _, body in asked) == count
    assert desk.paper.told == [("sending", count)]


@pytest.mark.parametrize(("offset", "code"), [(4, ACK), (5, BATCH), (5 + FURTHEST - 1, BATCH), (5 + FURTHEST, ACK)])
def test_what_lies_too_far_from_the_start_of_its_pop_is_said_by_itself(offset: int, code: int, desk: Desk) -> None:
    """A broker makes a set of bits that is as long."""
    desk.settling.finish(of_queue(desk, 9, 1))
    desk.settling.finish(desk.delivery(offset))
    assert sorted({one for one, _, _, _ in desk.take()}) == sorted({BATCH, code})


def test_what_was_settled_is_touched_no_more(desk: Desk) -> None:
    first, second, third = (desk.delivery(offset) for offset in (5, 6, 7))
    desk.settling.requeue(first, 1.0)
    desk.settling.finish(second)
    desk.settling.terminate(third)
    desk.take()
    assert [desk.settling.touch(one, monotonic()) for one in (first, second, third)] == [False] * 3
    assert desk.take() == []


def test_a_touch_notes_when_it_was_asked_for(desk: Desk) -> None:
    one = desk.delivery()
    assert desk.settling.touch(one, 77.0)
    assert one.touched == 77.0
    assert not desk.settling.touch(one, 78.0)
    assert one.touched == 78.0


def test_what_is_to_be_given_up_waits_as_others_do(desk: Desk) -> None:
    one = desk.delivery()
    one.back = {"offset": "1"}
    desk.settling.terminate(one)
    assert (desk.settling.waits, desk.settling.idle) == (1, False)
    ((_, _, then, _),) = desk.take()
    assert desk.settling.waits == 1, "until it is in %DLQ%, nothing of it is finished"
    then(Frame(Answer.SUCCESS), monotonic())
    assert desk.settling.waits == 1
    ((_, _, acked, _),) = desk.take()
    assert (desk.settling.waits, desk.settling.idle) == (0, False)
    acked(Frame(Answer.SUCCESS), monotonic())
    assert desk.settling.idle


@pytest.mark.parametrize(("code", "warned"), [(Answer.SUCCESS, 0), (Answer.SYSTEM_ERROR, 1)])
def test_what_did_not_get_into_the_brokers_own_queue_is_told(
    code: int, warned: int, desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    one = desk.delivery()
    one.back = {"offset": "1"}
    desk.settling.terminate(one)
    ((_, _, then, _),) = desk.take()
    then(Frame(code, remark="no such topic"), monotonic())
    assert len(caplog.records) == warned


def test_what_follows_on_one_that_is_not_ours_any_more_is_said(desk: Desk) -> None:
    first, second = desk.delivery(7), desk.delivery(8)
    desk.settling.requeue(first, 1.0)
    desk.settling.requeue(second, 1.0)
    first.over = True
    assert [fields["offset"] for _, fields, _, _ in desk.take()] == ["8"]
    assert desk.paper.told == [("sending", 1)]


def test_a_settlement_has_whoever_collects_come(desk: Desk) -> None:
    counts = spoken(desk)
    desk.settling.requeue(desk.delivery(), 1.0)
    desk.settling.terminate(desk.delivery(8))
    assert counts == {"speak": 2, "soon": 0}


def test_a_change_goes_when_its_delivery_was_long_enough_ago(desk: Desk, now: list[float]) -> None:
    counts, one = spoken(desk), desk.delivery()
    one.heard = now[0]
    desk.settling.requeue(one, 1.0)
    now[0] = one.heard + APART / 2
    assert (desk.take(), counts["soon"], desk.settling.waits, desk.settling.idle) == ([], 1, 1, False)
    now[0] = one.ready
    ((code, _, _, _),) = desk.take()
    assert (code, counts["soon"], desk.settling.waits) == (CHANGE, 1, 0)
    assert desk.paper.told == [("sending", 1)]


def test_a_change_of_what_is_not_ours_any_more_is_not_said(desk: Desk) -> None:
    one = desk.delivery()
    desk.settling.touch(one, monotonic())
    one.over = True
    assert desk.take() == []
    assert desk.settling.idle


@pytest.mark.parametrize("how", ["finish", "requeue"])
def test_what_a_busy_broker_did_not_look_at_is_said_again_after_a_pause(how: str, desk: Desk, now: list[float]) -> None:
    counts, one = spoken(desk), desk.delivery(age=10.0)
    getattr(desk.settling, how)(one, *([1.0] if how == "requeue" else []))
    ((code, _, then, _),) = desk.take()
    then(BUSY, now[0])
    assert counts["soon"] == 1
    assert desk.paper.told[-1] == ("postponed", *((0, 1) if how == "requeue" else (1, 0)))
    assert desk.settling.waits == 1
    now[0] += PAUSE - 0.001
    assert desk.take() == []
    assert counts["soon"] == 2
    now[0] += 1.0
    ((again, _, _, _),) = desk.take()
    assert (again, desk.settling.waits) == (code, 0)
    assert desk.paper.told[-1] == ("sending", 1)


@pytest.mark.parametrize(("left", "told"), [(PAUSE + 0.001, "postponed"), (PAUSE, "refused")])
def test_it_is_said_again_where_its_lease_lasts_until_then(left: float, told: str, desk: Desk, now: list[float]) -> None:
    one = desk.delivery()
    one.began = now[0] - 60.0 + left
    desk.settling.finish(one)
    ((_, _, then, _),) = desk.take()
    then(BUSY, now[0])
    assert told in [said[0] for said in desk.paper.told]


def test_of_acks_that_were_said_together_those_whose_lease_is_over_are_lost(desk: Desk, now: list[float]) -> None:
    lasting, over = desk.delivery(5), desk.delivery(6)
    over.began = now[0] - 59.99
    for one in (lasting, over):
        desk.settling.finish(one)
    ((_, _, then, _),) = desk.take()
    then(BUSY, now[0])
    assert [said[:3] for said in desk.paper.told if said[0] in ("postponed", "refused")] == [
        ("postponed", 1, 0), ("refused", 1, 0),
    ]  # fmt: skip
    assert [said[4] for said in desk.paper.told if said[0] == "refused"] == [b""], "which of them, is not told"
    assert desk.settling.waits == 1


@pytest.mark.parametrize("how", ["touch", "requeue", "terminate", "finish"])
def test_what_is_not_answered_breaks_the_connection_once(how: str, desk: Desk) -> None:
    one = desk.delivery()
    one.back = {"offset": "1"}
    more = {"touch": [monotonic()], "requeue": [1.0]}.get(how, [])
    getattr(desk.settling, how)(one, *more)
    ((_, _, then, _),) = desk.take()
    then(BrokerUnreachable("gone"), monotonic())
    assert [said for said in desk.paper.told if said[0] == "broken"] == [("broken", "gone")]


@pytest.mark.parametrize(("since", "late"), [(59.99, 0), (60.0, 1)])
def test_what_waited_for_a_touch_is_late_when_its_lease_is_over(since: float, late: int, desk: Desk, now: list[float]) -> None:
    counts, one = spoken(desk), desk.delivery()
    desk.settling.touch(one, now[0])
    ((_, _, then, _),) = desk.take()
    desk.settling.requeue(one, 1.0)
    assert desk.settling.waits == 1
    one.began = now[0] - since
    counts.update(speak=0)
    then(Frame(Answer.SYSTEM_ERROR, remark="no"), now[0])
    assert (desk.settling.late, one.over, counts["speak"]) == (late, bool(late), 1)
    assert desk.settling.waits == 1 - late
    assert desk.settling.drop() == 1


def test_a_touch_that_was_answered_leaves_it_free_for_the_next(desk: Desk, now: list[float]) -> None:
    one = desk.delivery()
    desk.settling.touch(one, now[0])
    ((_, _, then, _),) = desk.take()
    then(changed(BORN + 5000), now[0])
    now[0] += 1.0
    assert desk.settling.touch(one, now[0])
    ((_, fields, _, _),) = desk.take()
    assert fields["extraInfo"].split()[1] == str(BORN + 5000)

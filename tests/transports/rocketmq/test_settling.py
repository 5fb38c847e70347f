"""What is said of deliveries, in which order, to a session that only writes it down: one change at a time."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

import msgspec
import pytest

from framework.errors import BrokerUnreachable, FrameworkError
from framework.transports.rocketmq import settling
from framework.transports.rocketmq.delivery import Delivery
from framework.transports.rocketmq.heartbeat import Subscription
from framework.transports.rocketmq.settling import Settling
from framework.transports.rocketmq.wire.codes import Answer, Request
from framework.transports.rocketmq.wire.frames import Frame
from framework.transports.rocketmq.wire.handles import NORMAL, Handle

BORN = 1_700_000_000_000
ACK, CHANGE, BATCH = Request.ACK_MESSAGE, Request.CHANGE_MESSAGE_INVISIBLETIME, Request.BATCH_ACK_MESSAGE


class Paper:
    """A session, and the books, that write down what they are told."""

    error: FrameworkError | None = None

    def __init__(self) -> None:
        self.asked: list[tuple[int, dict[str, str], Callable[..., None], bytes]] = []
        self.sent: list[Callable[[], None]] = []
        self.told: list[tuple[Any, ...]] = []

    def put(
        self, owner: object, code: int, fields: dict[str, str], then: Any, *, body: bytes = b"", anywhere: bool = False
    ) -> int:
        self.asked.append((code, fields, then, body))
        return 0

    def mark(self, owner: object, then: Callable[[], None]) -> None:
        self.sent.append(then)

    def sending(self, count: int) -> None:
        self.told.append(("sending", count))

    def settled(self, finished: int, requeued: int) -> None:
        self.told.append(("settled", finished, requeued))

    def refused(self, finished: int, requeued: int, words: str, id: bytes) -> None:
        self.told.append(("refused", finished, requeued, words, id))

    def postponed(self, finished: int, requeued: int) -> None:
        self.told.append(("postponed", finished, requeued))

    def answered(self) -> None:
        self.told.append(("answered",))

    def broken(self, error: FrameworkError) -> None:
        self.told.append(("broken", str(error)))


class Desk:
    """Settling over paper; ``take`` what was asked since."""

    def __init__(self) -> None:
        self.paper = Paper()
        self.first = Handle(5, BORN, 60000, 0, NORMAL, "b", 2, 7)
        paper: Any = self.paper
        self.settling = Settling(
            paper, Subscription("t", "g"), 60.0, books=paper, speak=lambda: None, speak_soon=lambda: None
        )  # fmt: skip

    def delivery(self, offset: int = 7, *, age: float = 1.0) -> Delivery:
        return Delivery(self.first, offset, *[monotonic() - age] * 3, b"id-%d" % offset)

    def take(self) -> list[tuple[int, dict[str, str], Callable[..., None], bytes]]:
        self.settling.collect()
        asked, self.paper.asked = self.paper.asked, []
        return asked


def changed(pop_time: int, invisible: int = 60000) -> Frame:
    return Frame(0, fields={"popTime": str(pop_time), "invisibleTime": str(invisible), "reviveQid": "0"})


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_an_ack_has_the_handle_of_its_delivery(desk: Desk) -> None:
    desk.settling.finish(desk.delivery())
    ((code, fields, then, _),) = desk.take()
    assert (code, fields["extraInfo"], fields["offset"], fields["queueId"]) == (ACK, f"5 {BORN} 60000 0 0 b 2 7", "7", "2")
    assert not desk.settling.idle
    then(Frame(0), monotonic())
    assert desk.settling.idle
    desk.paper.sent[0]()
    assert desk.paper.told == [("sending", 1), ("answered",), ("settled", 1, 0)]


def test_many_acks_are_one_request(desk: Desk) -> None:
    for offset in (5, 6, 8):
        desk.settling.finish(desk.delivery(offset))
    ((code, fields, _, body),) = desk.take()
    said = msgspec.json.decode(body)
    assert (code, fields, said["brokerName"], [one["b"] for one in said["acks"]]) == (BATCH, {}, "b", ["Cw=="])
    assert desk.paper.told == [("sending", 3)]


def test_a_broker_that_knows_no_batches_is_told_one_by_one_from_then_on(desk: Desk) -> None:
    for offset in (5, 6):
        desk.settling.finish(desk.delivery(offset))
    ((_, _, then, _),) = desk.take()
    then(Frame(Answer.REQUEST_CODE_NOT_SUPPORTED, remark="request type 200151 not supported"), monotonic())
    assert [(code, fields["offset"]) for code, fields, _, _ in desk.take()] == [(ACK, "5"), (ACK, "6")]
    for offset in (7, 8):
        desk.settling.finish(desk.delivery(offset))
    assert [code for code, _, _, _ in desk.take()] == [ACK, ACK]


def test_what_is_settled_while_a_touch_is_under_way_waits_for_the_new_handle(desk: Desk) -> None:
    one = desk.delivery()
    desk.settling.touch(one, monotonic())
    ((code, _, then, _),) = desk.take()
    desk.settling.finish(one)
    assert (code, desk.take(), desk.settling.waits) == (CHANGE, [], 1)
    then(changed(BORN + 500), monotonic())
    ((code, fields, _, _),) = desk.take()
    assert (code, fields["extraInfo"]) == (ACK, f"7 {BORN + 500} 60000 0 0 b 2 7")


def test_what_is_touched_in_the_hubs_place_while_it_is_finished_is_said_one_after_the_other(desk: Desk) -> None:
    """The other thread saw it in flight, and the hub has finished it since."""
    one = desk.delivery()
    desk.settling.finish(one)
    assert desk.settling.touch(one, monotonic())
    ((code, _, then, _),) = desk.take()
    assert (code, desk.take(), desk.settling.waits) == (CHANGE, [], 1)
    then(changed(BORN + 500), monotonic())
    ((code, fields, _, _),) = desk.take()
    assert (code, fields["extraInfo"]) == (ACK, f"7 {BORN + 500} 60000 0 0 b 2 7")
    assert not desk.settling.touch(one, monotonic()), "its ACK is under way"
    assert (desk.take(), desk.settling.waits) == ([], 0)


def test_a_second_touch_goes_out_only_when_the_first_has_been_answered(desk: Desk) -> None:
    one = desk.delivery()
    assert desk.settling.touch(one, monotonic())
    ((_, _, then, _),) = desk.take()
    assert not desk.settling.touch(one, monotonic())
    assert desk.take() == []
    then(changed(BORN + 500), monotonic() - 1)
    assert desk.settling.touch(one, monotonic())
    ((_, fields, _, _),) = desk.take()
    assert fields["extraInfo"].startswith(f"7 {BORN + 500} ")


@pytest.mark.parametrize("what", ["requeue", "touch"])
def test_a_change_in_the_millisecond_of_the_delivery_is_made_again_with_its_new_handle(desk: Desk, what: str) -> None:
    """Without that the message is lost: both checkpoints have one name, and the ACK of the first hides the second."""
    one = desk.delivery()
    desk.settling.requeue(one, 0.5) if what == "requeue" else desk.settling.touch(one, monotonic())
    ((_, fields, then, _),) = desk.take()
    invisible = fields["invisibleTime"]
    then(changed(BORN, int(invisible)), monotonic() - 1)
    assert not desk.settling.idle
    ((code, fields, then, _),) = desk.take()
    assert (code, fields["invisibleTime"], fields["extraInfo"]) == (CHANGE, invisible, f"7 {BORN} {invisible} 0 0 b 2 7")
    then(changed(BORN + 2, int(invisible)), monotonic())
    assert (desk.take(), desk.settling.idle) == ([], True)
    assert [told for told in desk.paper.told if told[0] == "sending"] == ([("sending", 1)] if what == "requeue" else [])


def test_no_change_is_sent_in_the_milliseconds_after_the_delivery(desk: Desk) -> None:
    one = desk.delivery(age=0.0)
    one.heard = monotonic() + 30.0
    desk.settling.requeue(one, 0.0)
    assert (desk.take(), desk.settling.waits) == ([], 1)
    one.heard = 0.0
    assert [code for code, _, _, _ in desk.take()] == [CHANGE]


def test_what_was_too_late_when_its_touch_was_answered_is_not_said(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    one = desk.delivery()
    desk.settling.touch(one, monotonic())
    with monkeypatch.context() as long_ago:
        long_ago.setattr(settling, "monotonic", lambda: monotonic() - 1000.0)
        one.heard -= 1000.0
        ((_, _, then, _),) = desk.take()
    desk.settling.requeue(one, 0.0)
    desk.settling.clock.at(BORN, monotonic() - 1000.0, monotonic() - 1000.0)
    then(changed(BORN + 1), monotonic())
    assert (desk.take(), desk.settling.late, desk.settling.waits) == ([], 1, 0)


def test_a_touch_that_is_refused_leaves_the_lease_as_it_was(desk: Desk) -> None:
    one = desk.delivery()
    began = one.began
    desk.settling.touch(one, monotonic())
    ((_, _, then, _),) = desk.take()
    then(Frame(1, remark="no"), monotonic())
    assert (one.began, one.handle.offset, one.busy) == (began, 7, False)


def test_a_settlement_that_is_refused_is_told(desk: Desk) -> None:
    desk.settling.finish(desk.delivery())
    desk.settling.requeue(desk.delivery(8), 1.0)
    (_, _, ack, _), (_, _, change, _) = desk.take()
    ack(Frame(Answer.NO_MESSAGE, remark="offset is illegal"), monotonic())
    change(Frame(Answer.SERVICE_NOT_AVAILABLE, remark="stopping"), monotonic())
    assert [told for told in desk.paper.told if told[0] == "refused"] == [
        ("refused", 1, 0, "NO_MESSAGE offset is illegal", b"id-7"),
        ("refused", 0, 1, "SERVICE_NOT_AVAILABLE stopping", b"id-8"),
    ]


def test_an_answer_that_never_comes_breaks_the_connection(desk: Desk) -> None:
    desk.settling.finish(desk.delivery())
    ((_, _, then, _),) = desk.take()
    then(BrokerUnreachable("no answer"), monotonic())
    assert ("broken", "no answer") in desk.paper.told


@pytest.mark.parametrize("answer", [Frame(0), Frame(Answer.NO_PERMISSION, remark="no")], ids=["taken", "refused"])
def test_what_is_given_up_is_in_the_brokers_own_queue_before_it_is_finished(desk: Desk, answer: Frame) -> None:
    one = desk.delivery()
    one.back = {"delayLevel": "-1"}
    desk.settling.terminate(one)
    ((code, fields, then, _),) = desk.take()
    assert (code, fields, desk.settling.waits) == (Request.CONSUMER_SEND_MSG_BACK, {"delayLevel": "-1"}, 1)
    then(answer, monotonic())
    assert [code for code, _, _, _ in desk.take()] == [ACK]
    assert desk.paper.told == [("sending", 1)]


def test_what_is_given_up_while_a_touch_is_under_way_waits_for_that(desk: Desk) -> None:
    one = desk.delivery()
    one.back = {"delayLevel": "-1"}
    desk.settling.touch(one, monotonic())
    ((_, _, then, _),) = desk.take()
    desk.settling.terminate(one)
    assert desk.take() == []
    then(changed(BORN + 500), monotonic())
    assert [code for code, _, _, _ in desk.take()] == [Request.CONSUMER_SEND_MSG_BACK]
    assert desk.settling.drop() == 1


def test_at_the_end_what_was_not_said_is_counted(desk: Desk) -> None:
    touched = desk.delivery(9)
    desk.settling.touch(touched, monotonic())
    desk.take()
    desk.settling.finish(touched)
    desk.settling.finish(desk.delivery(5))
    desk.settling.requeue(desk.delivery(6), 1.0)
    assert (desk.settling.drop(), desk.settling.waits, desk.settling.idle) == (3, 0, True)


BUSY = Frame(Answer.SYSTEM_BUSY, remark="[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while")


@pytest.mark.parametrize("count", [1, 3], ids=["one", "several"])
def test_acks_that_a_busy_broker_did_not_look_at_are_said_again_and_counted_once(desk: Desk, count: int) -> None:
    given = [desk.delivery(offset) for offset in range(5, 5 + count)]
    for one in given:
        desk.settling.finish(one)
    ((code, fields, then, body),) = desk.take()
    then(BUSY, monotonic())
    assert (desk.take(), desk.settling.waits, desk.settling.idle) == ([], count, False)
    for one in given:
        one.heard = 0.0  # the pause is over
    ((again, same, then, text),) = desk.take()
    assert (again, same, text) == (code, fields, body)
    then(Frame(0), monotonic())
    assert desk.settling.idle
    counts = [("sending", count), ("postponed", count, 0), ("sending", count), ("answered",)]
    assert desk.paper.told == counts


def test_a_requeue_that_a_busy_broker_did_not_look_at_is_said_again(desk: Desk) -> None:
    one = desk.delivery()
    desk.settling.requeue(one, 0.5)
    ((_, fields, then, _),) = desk.take()
    then(BUSY, monotonic())
    assert (desk.take(), desk.settling.waits) == ([], 1)
    one.heard = 0.0
    ((code, again, then, _),) = desk.take()
    assert (code, again) == (CHANGE, fields)
    then(changed(BORN + 500, 500), monotonic())
    assert desk.settling.idle
    assert desk.paper.told == [("sending", 1), ("postponed", 0, 1), ("sending", 1), ("answered",)]


@pytest.mark.parametrize("what", ["finish", "requeue"])
def test_what_a_busy_broker_did_not_look_at_is_lost_where_its_lease_is_over(desk: Desk, what: str) -> None:
    one = desk.delivery(age=59.9)
    desk.settling.finish(one) if what == "finish" else desk.settling.requeue(one, 0.5)
    ((_, _, then, _),) = desk.take()
    then(BUSY, monotonic())
    assert desk.settling.idle
    assert [told[:3] for told in desk.paper.told if told[0] in ("refused", "postponed")] == [
        ("refused", int(what == "finish"), int(what == "requeue"))
    ]


def test_acks_that_wait_for_a_busy_broker_at_the_end_are_lost(desk: Desk) -> None:
    desk.settling.finish(desk.delivery())
    ((_, _, then, _),) = desk.take()
    then(BUSY, monotonic())
    assert (desk.settling.drop(), desk.settling.idle) == (1, True)

"""Where a group is set back that reads by POP, on paper."""

from __future__ import annotations

from typing import Any

import pytest

from framework.errors import BrokerUnreachable
from framework.transports.rocketmq.heartbeat import Subscription
from framework.transports.rocketmq.queues import Past, Place
from framework.transports.rocketmq.requests import LOOKS
from framework.transports.rocketmq.set_back import SetBack
from framework.transports.rocketmq.trail import Trail
from framework.transports.rocketmq.wire.codes import Answer, Request
from framework.transports.rocketmq.wire.frames import Frame
from tests.transports.rocketmq.log import HERE, THERE, Log, cut, trail_of
from tests.transports.rocketmq.paper import GROUP, NODE, TOPIC

# --- by POP ------------------------------------------------------------------------------------------------


def set_back(log: Log, **trails: Trail) -> list[int]:
    """Where the group is set to, by the place that is looked at."""
    past, session = Past(), log
    places = {"here": HERE, "there": THERE, "elsewhere": Place(TOPIC, "other", 0), "another": Place("u", NODE, 0)}
    past.trails.update({places[name]: trail for name, trail in trails.items()})
    one: Any = session
    SetBack(one, NODE, Subscription(TOPIC, GROUP), past, lambda topic: ()).look()
    return [int(fields["offset"]) for fields in log.said(Request.INVOKE_BROKER_TO_RESET_OFFSET)]


@pytest.mark.parametrize(("there", "offset", "to"), [
    (range(30), "21", []), (cut(30, 15, 30), "21", [11]), (cut(30, 15, 30), "11", []), (cut(30, 15, 30), "10", []),
    (cut(30, 5, 30), "21", [0]), (range(15), "21", [11]), (range(21), "25", [21]), (range(30), None, []),
    (cut(30, 15, 30), None, []), (range(1000, 1005), "21", [0]), ([], "21", [0]),
])  # fmt: skip
def test_a_group_is_set_back_to_behind_what_is_the_same(there: range | list[int], offset: str | None, to: list[int]) -> None:
    log = Log(there)
    log.offset = offset
    assert set_back(log, here=trail_of(10, 20)) == to
    assert {fields["consumerGroup"] for fields in log.said(Request.PULL_MESSAGE)} == {LOOKS}


def test_only_queues_of_this_broker_and_topic_of_which_something_was_read_are_looked_at() -> None:
    log = Log(cut(30, 15, 30))
    assert set_back(log, elsewhere=trail_of(10, 20), another=trail_of(10, 20), here=Trail()) == []
    assert log.asked == []


def test_where_it_was_set_back_it_is_told_with_what_a_broker_needs() -> None:
    log = Log(cut(30, 15, 30))
    log.offset = "21"
    set_back(log, here=trail_of(10, 20))
    (said,) = log.said(Request.INVOKE_BROKER_TO_RESET_OFFSET)
    assert said == {
        "topic": TOPIC, "group": GROUP, "queueId": "0", "offset": "11", "timestamp": "-1", "isForce": "true",
    }  # fmt: skip
    log = Log(cut(30, 15, 30))
    log.offset = "21"
    log.refuses[Request.INVOKE_BROKER_TO_RESET_OFFSET] = Frame(Answer.NO_PERMISSION, remark="no")
    set_back(log, here=trail_of(10, 20))
    assert [fields["commitOffset"] for fields in log.said(Request.UPDATE_CONSUMER_OFFSET)] == ["11"]


def test_what_others_read_on_behind_a_cut_is_set_back_as_well() -> None:
    """In the second queue all that was read here is there: others were further, and that was lost."""
    log = Log(cut(30, 15, 30), cut(30, 15, 30))
    log.offset = "25"
    assert set_back(log, here=trail_of(10, 20), there=trail_of(5)) == [11, 11]
    log = Log(range(30), range(30))
    log.offset = "25"
    assert set_back(log, here=trail_of(10, 20), there=trail_of(5)) == []


@pytest.mark.parametrize("offset", [6, 7])
def test_where_nobody_read_on_it_is_left(offset: int) -> None:
    log = Log(cut(30, 2, 30), cut(30, 15, 30))
    log.physical = lambda queue, at: 10 * at if queue == 0 else 10 * at + 5
    log.offset = str(offset)
    found = set_back(log, here=trail_of(1, 20), there=trail_of(5))
    assert found == [2, *([1] if offset == 7 else [])]


@pytest.mark.parametrize("code", [Answer.SYSTEM_BUSY, Answer.NO_PERMISSION])
def test_a_broker_that_does_not_say_holds_up_nothing(code: int, caplog: pytest.LogCaptureFixture) -> None:
    log = Log(cut(30, 15, 30), cut(30, 15, 30))
    log.offset = "21"
    log.refuses[Request.PULL_MESSAGE] = Frame(code, remark="no")
    assert set_back(log, here=trail_of(10, 20), there=trail_of(10, 20)) == []
    told = {record.getMessage() for record in caplog.records}
    assert len(told) == (1 if code == Answer.NO_PERMISSION else 2), "all are refused alike"


@pytest.mark.parametrize("ended", [True, False])
def test_a_session_that_ends_while_it_looks_is_an_error(ended: bool) -> None:
    log = Log(range(30))
    log.refuses[Request.PULL_MESSAGE] = BrokerUnreachable("no answer")
    if ended:
        log.error = BrokerUnreachable("gone")
        with pytest.raises(BrokerUnreachable, match="no answer"):
            set_back(log, here=trail_of(10, 20))
    else:
        assert set_back(log, here=trail_of(10, 20)) == []

"""What brokers keep, as who asks gets it: at once and as it was, or of this moment for those who ask seldom."""

from __future__ import annotations

import gevent
import pytest

from framework.admin import backlog
from framework.admin.backlog import Backlog
from framework.errors import BrokerUnreachable
from framework.transports.kept import Kept

CHANNEL = ("orders", "billing")


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages wait, last, and for how long the broker thinks about it."""
    said = [0, 0]

    def kept_of(transport: object, topic: str, channel: str) -> dict[str, Kept]:
        gevent.sleep(said[1])
        return {"node": Kept(said[0])}

    monkeypatch.setattr(backlog, "kept_of", kept_of)
    return said


def test_who_scales_gets_what_is_there_now_and_no_other_channel_is_waited_for(waiting: list[int]) -> None:
    waiting[:] = [243, 0.2]  # type: ignore[list-item]
    known = Backlog(lambda: [None])  # type: ignore[list-item]
    known.refresh((f"tenant-{n}", "sync") for n in range(1000))
    assert known.work_for("orders", "bill", "later", 1.0) == 243
    waiting[0] = 0
    assert known.work_for("orders", "bill", "later", 1.0) == 0
    assert known.counts == {}, "the thousand take 25 s"


def test_a_broker_that_thinks_for_too_long_is_not_waited_for(waiting: list[int]) -> None:
    waiting[1] = 60
    assert Backlog(lambda: [None]).work_for(*CHANNEL, "later", 0.05) is None  # type: ignore[list-item]


def test_a_channel_that_nobody_had_asked_of_is_asked_of_at_once(waiting: list[int]) -> None:
    waiting[0] = 7
    known = Backlog(lambda: [None])  # type: ignore[list-item]
    known.refresh([])
    gevent.sleep(0.01)
    known.refresh([CHANNEL])
    gevent.sleep(0.01)
    assert known.counts == {CHANNEL: {"node": 7}}


def test_a_broker_that_cannot_be_asked_is_asked_again_now_and_then_and_said_once(
    waiting: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And not for each that looks: of a broker that is down many ask."""
    asked = [0]

    def fails(*_: object) -> None:
        asked[0] += 1
        raise BrokerUnreachable("no broker")

    monkeypatch.setattr(backlog, "kept_of", fails)
    known = Backlog(lambda: [None])  # type: ignore[list-item]
    for _ in range(5):
        known.refresh([CHANNEL])
        gevent.sleep(0.005)
    assert (asked, known.counts) == ([1], {})
    monkeypatch.setattr(backlog, "FRESH", 0.0)
    for _ in range(5):
        known.refresh([CHANNEL])
        gevent.sleep(0.005)
    assert asked[0] > 2
    assert caplog.text.count("backlogs are not known while a broker cannot be asked: no broker") == 1


def test_what_is_due_of_what_waited_elsewhere_is_counted_where_a_broker_tells_it_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tells:
        def kept(self, topic: str, channel: str) -> dict[str, Kept]:
            return {"a": Kept(3, in_flight=2, deferred=100), "b": Kept(1)} if (topic, channel) == ("x.later", "x") else {}

    class DoesNot:
        def backlog(self, topic: str, channel: str) -> dict[str, int]:
            return {"a": 100} if topic == "x.later" else {}

    known = Backlog(lambda: [Tells(), DoesNot()])  # type: ignore[list-item]
    assert known.work_for("x", "x", "x.later", 5.0) == 4
    slow = Backlog(lambda: [Tells()])  # type: ignore[list-item]
    monkeypatch.setattr(Tells, "kept", lambda *_: gevent.sleep(60))
    assert slow.work_for("x", "x", "x.later", 0.05) is None

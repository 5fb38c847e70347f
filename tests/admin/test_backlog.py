"""What brokers keep, as who asks gets it: at once and as it was, or of this moment for those who ask seldom."""

from __future__ import annotations

import gevent
import pytest

from framework.admin import backlog
from framework.admin.backlog import Backlog
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


def asked() -> Backlog:
    made = Backlog(lambda: [None])  # type: ignore[list-item]
    made.refresh([CHANNEL])
    return made


def test_who_waits_gets_what_is_there_now_however_long_nobody_asked(waiting: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    waiting[0] = 243
    known = asked()
    assert known.wait(1.0)
    assert known.counts == {CHANNEL: {"node": 243}}
    waiting[0] = 0
    monkeypatch.setattr(backlog, "FRESH", 0.0)  # half a minute later
    known.refresh([CHANNEL])
    assert known.counts == {CHANNEL: {"node": 243}}
    assert known.wait(1.0)
    assert known.counts == {CHANNEL: {"node": 0}}


def test_a_broker_that_thinks_for_too_long_is_not_waited_for(waiting: list[int]) -> None:
    waiting[1] = 60
    assert not asked().wait(0.05)


def test_a_channel_that_nobody_had_asked_of_is_asked_of_at_once(waiting: list[int]) -> None:
    waiting[0] = 7
    known = Backlog(lambda: [None])  # type: ignore[list-item]
    known.refresh([])
    assert known.wait(1.0)
    known.refresh([CHANNEL])
    assert known.wait(1.0)
    assert known.counts == {CHANNEL: {"node": 7}}


def test_what_is_due_of_what_waited_elsewhere_is_counted_where_a_broker_tells_it_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tells:
        def kept(self, topic: str, channel: str) -> dict[str, Kept]:
            return {"a": Kept(3, in_flight=2, deferred=100), "b": Kept(1)} if (topic, channel) == ("x.later", "x") else {}

    class DoesNot:
        def backlog(self, topic: str, channel: str) -> dict[str, int]:
            return {"a": 100}

    known = Backlog(lambda: [Tells(), DoesNot()])  # type: ignore[list-item]
    assert known.due_later("x.later", "x", 5.0) == 4
    slow = Backlog(lambda: [Tells()])  # type: ignore[list-item]
    monkeypatch.setattr(Tells, "kept", lambda *_: gevent.sleep(60))
    assert slow.due_later("x.later", "x", 0.05) is None

"""What was there before a run began, by the clock of the node that holds it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from framework.message import Message
from framework.spark import start
from framework.spark.start import Start

AHEAD, BEHIND = 3600.0, -3600.0


@pytest.mark.parametrize("skew", [0.0, AHEAD, BEHIND])
@pytest.mark.parametrize(
    ("ages", "precedes"), [([5.0], True), ([-5.0], False), ([-5.0, 5.0, -9.0], True), ([-5.0, -9.0], False), ([], False)]
)
def test_a_message_is_from_before_where_its_node_had_it_when_the_run_began(
    monkeypatch: pytest.MonkeyPatch, skew: float, ages: list[float], precedes: bool
) -> None:
    """``ages``: how many seconds before the start they were stored. The run has lasted 10 s."""
    wall, monotonic = 1_700_000_000.0, 100.0
    monkeypatch.setattr(start, "time", SimpleNamespace(time=lambda: wall, monotonic=lambda: monotonic))
    began = Start()
    monotonic += 10.0
    wall += 10.0

    class Telling:
        def clock_of(self, _node: str) -> float:
            return wall + skew

    node_began = wall - 10.0 + skew
    line = SimpleNamespace(node="a:4150", topic="t")
    messages = [Message(b"%d" % n, int((node_began - age) * 1e9), 1, b"x", line) for n, age in enumerate(ages)]
    transports: Any = [Telling()]
    assert began.precedes(messages, transports) is precedes

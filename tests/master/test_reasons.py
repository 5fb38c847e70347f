"""What the master says of a process that starts for long: a reload that hangs must not be waited for in silence."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from framework.master import reasons
from framework.master.master import Master
from framework.master.seat import Seat
from framework.settings import Settings


def child(**changes: Any) -> Any:
    known = {
        "pid": 7,
        "ready": False,
        "said_late": False,
        "age": 31.0,
        "due": "",
        "report": {},
        "silent": 0.0,
        "tasks": 0,
        "rss": 0,
    }
    return SimpleNamespace(**{**known, "kill_at": float("inf"), **changes})


@pytest.mark.parametrize("changes", [{"ready": True}, {"said_late": True}, {"age": 29.0}])
def test_nothing_is_said_of_one_that_is_ready_or_young_or_was_told_of(changes: dict[str, Any]) -> None:
    assert reasons.late(child(**changes)) == ""


def test_a_reload_that_hangs_is_told_of_once_beside_a_process_at_work(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    master = Master(Settings(brokers=["nsq://127.0.0.1:1"]), Settings)
    master._seats = [Seat(1, child(ready=True, age=999.0), child())]
    master._look()
    master._look()
    assert [record.getMessage() for record in caplog.records] == [
        "process 1 (7) has not subscribed 31 s after its start; it is waited for, and nothing else is started meanwhile"
    ]

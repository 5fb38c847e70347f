"""What the master says of a process that starts for long: a reload that hangs must not be waited for in silence."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from framework.master import reasons
from framework.master.child import Child
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


@pytest.mark.parametrize(
    ("changes", "deadline", "is_overdue"),
    [({}, 31.0, True), ({}, 31.5, False), ({"ready": True}, 5.0, False), ({}, None, False)],
)
def test_the_first_of_a_reload_is_overdue_at_the_deadline_where_there_is_one(
    changes: dict[str, Any], deadline: float | None, is_overdue: bool
) -> None:
    assert bool(reasons.overdue(child(**changes), deadline)) is is_overdue


@pytest.mark.parametrize(
    ("changes", "is_stuck"),
    [
        ({"silent": reasons.SILENCE}, False),
        ({"silent": reasons.SILENCE + 0.5}, True),
        ({"silent": reasons.SILENCE + 60.0, "report": {"patience": 60.0}}, False),
        ({"silent": reasons.SILENCE + 60.5, "report": {"patience": 60.0}}, True),
        ({"silent": 999.0, "ready": False}, False),
        ({"report": {"stuck": ["the hub stands"]}}, True),
        ({"report": {"stuck": []}}, False),
    ],
)
def test_one_is_stuck_that_says_so_or_is_silent_for_longer_than_a_call_may_take(changes: dict[str, Any], is_stuck: bool) -> None:
    assert bool(reasons.stuck(child(**{"ready": True, **changes}))) is is_stuck


def test_of_several_reasons_the_first_is_told() -> None:
    assert reasons.stuck(child(report={"stuck": ["the hub stands", "all calls are late"]})) == "the hub stands"


@pytest.mark.parametrize(
    ("settings", "changes", "is_worn"),
    [
        ({"max_tasks": 100}, {"tasks": 104}, False),
        ({"max_tasks": 100}, {"tasks": 105}, True),
        ({"max_rss": 100}, {"rss": 95}, False),
        ({"max_rss": 100}, {"rss": 96}, True),
        ({}, {"tasks": 10**9, "rss": 10**9}, False),
    ],
)
def test_limits_differ_by_a_part_of_them_so_that_not_all_reach_them_together(
    settings: dict[str, int], changes: dict[str, Any], is_worn: bool
) -> None:
    assert bool(reasons.worn(child(chance=0.5, **changes), settings_of(1, **settings))) is is_worn


def test_a_reload_that_hangs_is_told_of_once_beside_a_process_at_work(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    master = Master(Settings(brokers=["nsq://127.0.0.1:1"]), Settings)
    master._seats = [Seat(1, child(ready=True, age=999.0), child())]
    master._look()
    master._look()
    assert [record.getMessage() for record in caplog.records] == [
        "process 1 (7) has not subscribed 31 s after its start; it is waited for, and nothing else is started meanwhile"
    ]


def settings_of(processes: int, **more: Any) -> Settings:
    return Settings(brokers=["nsq://127.0.0.1:1"], processes=processes, **more)


@pytest.mark.parametrize("reloads", [1, 2, 3])
def test_a_reload_that_fails_leaves_what_last_worked_whatever_was_asked_for_meanwhile(
    reloads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("framework.master.master.setup", lambda *_, **__: None)
    asked = iter(range(3, 10))
    first = settings_of(2)
    master = Master(first, lambda: settings_of(next(asked)))
    master._generation = master._proven = master._newest = 1
    for _ in range(reloads):
        master._reload()
    assert master._wanted == 2 + reloads
    master._resize(2)
    assert master._wanted == 4 + reloads
    master._keep_old("has ended")
    assert (master._settings, master._wanted, master._generation) == (first, 4, 1)
    assert master._condition().status.endswith("; not reloaded: the first new process has ended")


class Gone(SimpleNamespace):
    """A child that has ended."""

    __hash__ = object.__hash__


@pytest.mark.parametrize(("reloading", "code", "tries"), [(True, -9, 3), (True, 2, 1), (False, -9, None), (False, 2, 1)])
def test_a_new_process_that_dies_is_tried_again_while_that_may_help(
    reloading: bool, code: int, tries: int | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A reload three times, as the old ones work on; a start for ever, as a broker may come up. Wrong use is wrong each time."""
    caplog.set_level(logging.WARNING)
    master = Master(settings_of(1), Settings)
    master._generation, master._proven, master._reloading = (2, 1, True) if reloading else (1, 0, False)
    master._seats = [Seat(1, child(ready=True) if reloading else None)]
    monkeypatch.setattr(master, "_stop", caplog.clear)
    for died in range(1, 6):
        gone: Any = Gone(ledgers={}, published={}, code=code, end=f"ended with exit status {code}", pid=7, age=0.1)
        master._seats[0].successor = gone
        caplog.clear()
        master._ended(gone)
        again = [record.getMessage() for record in caplog.records if "another is started" in record.getMessage()]
        assert len(again) == (died != tries)
        if died == tries:
            break
    assert master._exit_code == (0 if reloading or tries is None else code)


@pytest.mark.parametrize(
    ("code", "end"),
    [
        (0, "ended with exit status 0"),
        (3, "ended with exit status 3"),
        (-9, "was killed by SIGKILL"),
        (-99, "was killed by signal 99"),
    ],
)
def test_the_end_of_a_process_is_told_in_words(code: int, end: str) -> None:
    gone = object.__new__(Child)
    gone._process = SimpleNamespace(returncode=code)
    assert gone.end == end


def test_of_one_that_has_said_nothing_yet_nothing_is_known_and_that_is_no_reason(tmp_path: Path) -> None:
    """The master looks at it all the time from its start on."""
    heard: list[Any] = []
    silent = Child(["true"], str(tmp_path), generation=1, heard=lambda one, report: heard.append(report))
    assert (silent.ready, silent.tasks, silent.report, silent.ledgers, silent.published) == (False, 0, {}, {}, {})
    while not heard:
        gevent.sleep(0.01)
    assert (heard, silent.end) == ([None], "ended with exit status 0")


@pytest.mark.parametrize("shown", [True, False])
def test_what_a_process_did_that_has_ended_is_kept_for_who_looks(shown: bool) -> None:
    master, ended = Master(settings_of(2), Settings), []
    if shown:
        master._source = SimpleNamespace(ended=ended.append)  # type: ignore[assignment]
    gone: Any = Gone(ledgers={"orders/billing": {"finished": 3}}, published={}, code=0, end="ended", pid=7)
    master._leaving.add(gone)
    master._ended(gone)
    assert (ended, master._leaving) == ([gone] * shown, set())
    assert master._ledgers == {"orders/billing": {"finished": 3}}


@pytest.mark.parametrize("embedded", [True, False])
def test_who_looks_asks_the_brokers_that_the_handlers_have(embedded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []

    @contextmanager
    def serving(_settings: Any, _source: Any, transports: Any) -> Iterator[None]:
        transports()
        yield

    monkeypatch.setattr("framework.admin.serving", serving)
    monkeypatch.setattr("framework.master.master.open_transports", opened.extend)
    master = Master(settings_of(2, admin="127.0.0.1:0"), Settings)
    with master._admin(SimpleNamespace(url="nsq://127.0.0.1:2") if embedded else None):  # type: ignore[arg-type]
        assert opened == [f"nsq://127.0.0.1:{2 if embedded else 1}"]

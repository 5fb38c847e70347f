"""Snapshots as values: several become one, counters never fall when a process ends, and what is asked for is checked."""

from __future__ import annotations

import copy
import json
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from gevent import monkey
from gevent.threadpool import ThreadPool

from framework.admin import where
from framework.admin.actions import checked, has_effect, in_words
from framework.admin.here import STEP, WINDOW, Here, _Sample
from framework.admin.latest import FRESH, Latest
from framework.admin.pages import stuck, unready
from framework.admin.snapshot import MOST, left_over, merged, of_books, percentiles
from framework.admin.where import positions
from framework.engine.ledger import OUTCOMES
from framework.engine.times import RUNNING, WAITING
from framework.errors import WrongUse


def row(name: str = "orders/bill", **given: Any) -> dict[str, Any]:
    topic, _, channel = name.partition("/")
    made = {
        "handler": name, "topic": topic, "channel": channel, "slots": "greenlet", "processes": 1, "concurrency": 10,
        "max_in_flight": 100, "timeout": 60.0, "batch": 0, "running": 1, "waiting": 2, "in_flight": 3,
        "counts": {"received": 10, **dict.fromkeys(OUTCOMES, 0), "finished": 7}, "rate": {"finished": 2.0}, "rate_seconds": 9.0,
        "failures": 1, "calls": 7, "busy": 1.5, "slow": [0, 7] + [0] * (len(RUNNING) - 1), "waits": [0] * (len(WAITING) + 1),
        "waited": 0.5, "recent_calls": None, "recent_waits": None, "took": None, "waited_for": None, "pause": None,
        "connected": 1, "wanted": 1, "stalled": 0.0, "started": 5.0, "published": {"a": 1},
    }  # fmt: skip
    return made | given


def snapshot(*handlers: dict[str, Any], pid: int = 1, **process: Any) -> dict[str, Any]:
    one = {"pid": pid, "stuck": [], "unready": [], "blocked": 0.0, **process}
    running = [{"handler": "orders/bill", "since": pid}]
    return {"at": float(pid), "processes": [one], "handlers": list(handlers), "running": running,
            "failures": [{"handler": "orders/bill", "at": pid}], "connections": [{"node": "a:1", "pid": pid}]}  # fmt: skip


def test_rows_of_one_handler_add_up_and_others_stand_side_by_side() -> None:
    calls = [5, 5] + [0] * (len(RUNNING) - 1)
    one = snapshot(row(recent_calls=calls, published={"a": 1, "b": 2}), row("x/y"), pid=1)
    two = snapshot(row(recent_calls=calls, stalled=4.0, started=9.0), pid=2)
    before = copy.deepcopy([one, two])
    found = merged([one, two])
    assert [one, two] == before, "what is merged is not changed"
    assert json.loads(json.dumps(found)) == found
    assert found["at"] == 2.0
    assert [one["handler"] for one in found["handlers"]] == ["orders/bill", "x/y"]
    both = found["handlers"][0]
    assert (both["processes"], both["concurrency"], both["in_flight"], both["calls"], both["busy"]) == (2, 20, 6, 14, 3.0)
    assert both["counts"]["received"] == 20
    assert both["rate"]["finished"] == 4.0
    assert both["published"] == {"a": 2, "b": 2}
    assert (both["stalled"], both["started"]) == (4.0, 9.0)
    assert sum(both["recent_calls"]) == 20
    assert both["took"]["p50"] <= RUNNING[0] < both["took"]["p99"] <= RUNNING[1]
    assert [one["pid"] for one in found["processes"]] == [1, 2]
    assert [one["since"] for one in found["running"]] == [2, 1]
    hundreds = {**snapshot(pid=3), "running": [{"handler": "a/b", "since": since} for since in range(10, MOST + 20)]}
    rows = merged([snapshot(), hundreds])["running"]
    assert (len(rows), rows[0]["since"], rows[-1]) == (MOST, MOST + 19, {"handler": "orders/bill", "since": 1})
    assert [one["at"] for one in found["failures"]] == [2, 1]


@pytest.mark.parametrize("first", [True, False])
def test_what_is_recent_of_one_that_has_ended_takes_nothing_from_the_others(first: bool) -> None:
    calls = [5, 5] + [0] * (len(RUNNING) - 1)
    rows = [snapshot(row(), pid=1), snapshot(row(recent_calls=calls), pid=2)]
    found = merged(rows if first else rows[::-1])
    assert found["handlers"][0]["recent_calls"] == calls


def test_rates_are_those_of_the_last_seconds_and_at_first_of_all() -> None:
    here = Here(SimpleNamespace())  # type: ignore[arg-type]
    began, now = here._began, 1000.0
    here._began = time.time() - 5.0
    seconds: list[float] = []
    for tick in range(60):  # ten a second for 15 s, then nothing
        count = min(tick / 2 * 10, 150)
        sample = _Sample(now + tick / 2, (int(count),) * (1 + len(OUTCOMES)), (int(count),), (0,))
        recent = here._recent("orders/bill", sample)
        seconds.append(recent["rate_seconds"])
        if tick == 29:
            assert recent["rate"]["finished"] == pytest.approx(10, rel=0.1)
            assert sum(recent["recent_calls"]) == pytest.approx(seconds[-1] * 10, rel=0.1)
    assert began > here._began
    assert seconds[0] == pytest.approx(5.0, abs=0.2), "since the start"
    assert all(WINDOW <= one <= WINDOW + 2 * STEP for one in seconds[30:])
    assert set(recent["rate"].values()) == {0.0}


def test_a_call_that_runs_at_this_moment_is_where_its_thread_is_and_one_that_waits_where_it_waits() -> None:
    """The one that runs has no frame of its own to look at: a handler that blocks the hub is what is looked for."""
    waits = gevent.spawn(gevent.sleep, 60)
    gevent.sleep(0)
    ended = gevent.spawn(bool)
    ended.join()
    calls = [SimpleNamespace(greenlet=one, thread=0) for one in (gevent.getcurrent(), waits)]
    blocking, waiting = positions(calls, threading.get_ident())
    waits.kill()
    assert blocking.rpartition(" in ")[2] == sys._getframe().f_code.co_name
    assert waiting == "", "it is in none of the app's functions"


def test_a_pause_says_of_how_many_processes() -> None:
    pause = {"by": "backoff", "until": 50.0, "why": "down", "processes": 1}
    both = merged([snapshot(row(pause=pause)), snapshot(row())])["handlers"][0]
    assert both["pause"]["processes"] == 1 < both["processes"]
    longer = {**pause, "by": "operator", "until": None}
    both = merged([snapshot(row(pause=pause)), snapshot(row(pause=longer))])["handlers"][0]
    assert both["pause"] == {**longer, "processes": 2}


def test_what_remains_of_a_process_that_ended_keeps_the_counters_and_adds_up() -> None:
    gone = left_over(snapshot(row(), pid=1))
    found = merged([snapshot(row(), pid=2), gone])
    both = found["handlers"][0]
    assert both["counts"]["received"] == 20 == sum(both["counts"][one] for one in OUTCOMES) + both["in_flight"]
    assert (both["running"], both["in_flight"], both["concurrency"], both["processes"]) == (1, 3, 10, 1)
    assert [one["pid"] for one in found["processes"]] == [2]
    assert len(found["failures"]) == 2


@pytest.mark.parametrize(("beyond", "finished"), [(2, 9), (0, 7), (-2, 7)])
def test_of_a_process_that_ended_the_books_count_unless_somebody_looked_later(beyond: int, finished: int) -> None:
    books = {"orders/bill": {"received": 10 + beyond, "finished": 7 + beyond}, "x/y": {"received": 1, "finished": 1}}
    found = {one["handler"]: one for one in of_books(snapshot(row()), books, {"x/y": {"a": 3}})["handlers"]}
    assert (found["orders/bill"]["counts"]["finished"], found["orders/bill"]["calls"]) == (finished, finished)
    assert (found["x/y"]["counts"]["finished"], found["x/y"]["published"]) == (1, {"a": 3})
    assert of_books(None, {}, {})["handlers"] == []


def test_the_books_of_one_that_nobody_had_looked_at_add_to_what_others_show() -> None:
    unseen = left_over(of_books(None, {"orders/bill": {"received": 3, "finished": 3}}, {"orders/bill": {"a": 1}}))
    [both] = merged([unseen, snapshot(row())])["handlers"]
    assert (both["counts"]["finished"], both["calls"], both["published"], both["slots"]) == (10, 10, {"a": 2}, "")
    assert (both["processes"], both["timeout"]) == (1, 0.0)


def test_of_many_handlers_twenty_are_named_to_who_asks_for_one_that_is_not_here() -> None:
    for count, more in ((20, False), (21, True)):
        with pytest.raises(WrongUse) as refused:
            checked({"action": "pause", "handler": "no/such"}, [f"a/{number:02}" for number in range(count)])
        assert str(refused.value).endswith("a/19, …" if more else "a/19")


def test_where_only_a_library_s_code_is_its_innermost_frame_is_shown() -> None:
    libraries = [("/x/site-packages/socket_.py", 3, "recv"), ("/x/lib/python3.11/http.py", 4, "read")]
    ours = [(str(Path(where.__file__).parents[1] / "engine" / "slots.py"), 1, "run"), ("src/gevent/hub.py", 2, "switch")]
    assert where._words([*ours, *libraries]) == "/x/site-packages/socket_.py:3 in recv"
    assert where._words([*libraries, ("/app/shop.py", 5, "bill"), ("/app/main.py", 6, "run")]) == "/app/shop.py:5 in bill"
    assert where._words(ours) == ""
    assert where._words([("/caf\udce9/shop.py", 5, "bill")]) == "/caf\\udce9/shop.py:5 in bill", "not every path is UTF-8"


def test_threads_are_where_they_are() -> None:
    frames = where.threads()[threading.get_ident()]
    names = [name for _, _, name in frames]
    assert names.index("threads") < names.index(sys._getframe().f_code.co_name)
    file, line, _ = frames[names.index(sys._getframe().f_code.co_name)]
    assert (file, line > 0) == (__file__, True)


def test_a_handler_that_called_a_library_which_goes_deep_is_shown() -> None:
    def goes_deep(more: int) -> dict[int, list[tuple[str, int, str]]]:
        return goes_deep(more - 1) if more else where.threads()

    names = [name for _, _, name in goes_deep(60)[threading.get_ident()]]
    assert sys._getframe().f_code.co_name in names
    assert len(where.threads()[threading.get_ident()]) <= len(names) <= 100
    assert len(goes_deep(200)[threading.get_ident()]) == 100


def test_the_oldest_of_many_threads_is_shown_too() -> None:
    """It is the hub's: with a hundred thread slots, a handler that blocked the hub was nowhere to be seen."""
    count = 120
    pool, over = ThreadPool(count), monkey.get_original("_thread", "allocate_lock")()
    there: list[int] = []

    def waits_here() -> None:
        there.append(1)
        with over:
            pass

    with over:
        waiting = [pool.spawn(waits_here) for _ in range(count)]
        while len(there) < count:
            gevent.sleep(0.01)
        found = [[name for _, _, name in frames] for frames in where.threads().values()]
    gevent.joinall(waiting, raise_error=True)
    pool.kill()
    mine = sys._getframe().f_code.co_name
    assert [sum(name in names for names in found) for name in ("waits_here", mine)] == [count, 1]


def test_of_several_processes_one_that_works_is_enough() -> None:
    good, bad = {"stuck": [], "unready": []}, {"stuck": ["stuck"], "unready": ["away"]}
    assert stuck([good, bad]) == [] == unready([good, bad])
    assert stuck([bad, bad]) == ["stuck"] * 2
    assert unready([bad]) == ["away"]
    assert (stuck([]), unready([])) == ([], ["no process runs"])


def test_percentiles_lie_within_the_bucket() -> None:
    assert percentiles((1.0, 2.0), None) is percentiles((1.0, 2.0), [0, 0, 0]) is None
    found = percentiles((1.0, 2.0), [98, 1, 1])
    assert found is not None
    assert found["p50"] == pytest.approx(0.51, abs=0.01)
    assert found["p99"] == 2.0
    assert percentiles((1.0, 2.0), [0, 0, 5]) == {"p50": 2.0, "p99": 2.0}


@pytest.mark.parametrize(("asked", "words"), [
    ([], "an action is a JSON object"),
    ({"action": "pause", "handlers": "a/b"}, "unknown field 'handlers': an action has action, handler, value"),
    ({"action": "paus"}, "there is no action 'paus': did you mean 'pause'"),
    ({}, "there is no action None"),
    ({"action": ["pause"]}, "there is no action ['pause']"),
    ({"action": "pause", "handler": "a/c"}, "there is no handler 'a/c' here: name one of a/b"),
    ({"action": "pause", "handler": ["a/b"]}, "there is no handler"),
    ({"action": "pause", "value": 3}, "pause has no value: leave it out"),
    ({"action": "concurrency", "value": 3}, "concurrency is for one handler: name it"),
    ({"action": "concurrency", "handler": "a/b"}, "concurrency=None is not a whole number of calls"),
    ({"action": "max_in_flight", "handler": "a/b", "value": "3"}, "max_in_flight='3' is not a whole number"),
    ({"action": "max_in_flight", "handler": "a/b", "value": True}, "max_in_flight=True is not a whole number"),
])  # fmt: skip
def test_what_cannot_be_done_is_refused_in_a_sentence(asked: Any, words: str) -> None:
    with pytest.raises(WrongUse) as refused:
        checked(asked, ["a/b"])
    assert str(refused.value).startswith(words)


def test_what_is_done_is_said() -> None:
    assert in_words(checked({"action": "drain"}, ["a/b"])) == "drained all handlers"
    assert in_words(checked({"action": "concurrency", "handler": "a/b", "value": 3}, ["a/b"])) == "concurrency of a/b is now 3"


@pytest.mark.parametrize(("command", "given", "held"), [
    ({"action": "pause"}, {"pause": None}, False),
    ({"action": "pause"}, {"pause": {"by": "backoff", "processes": 2}}, False),
    ({"action": "pause"}, {"pause": {"by": "operator", "processes": 1}}, False),
    ({"action": "pause"}, {"pause": {"by": "operator", "processes": 2}}, True),
    ({"action": "drain"}, {"pause": {"by": "operator", "processes": 2}}, False),
    ({"action": "drain"}, {"pause": {"by": "drain", "processes": 2}}, True),
    ({"action": "resume"}, {"pause": {"by": "drain", "processes": 1}}, False),
    ({"action": "resume"}, {"pause": {"by": "backoff", "processes": 2}}, True),
    ({"action": "concurrency", "value": 5}, {"concurrency": 10}, True),
    ({"action": "concurrency", "value": 5}, {"concurrency": 5}, False),
])  # fmt: skip
def test_what_was_asked_for_holds_when_it_does_in_each_process(command: Any, given: Any, held: bool) -> None:
    assert has_effect(command, row(processes=2, **given)) is held


class Waiting:
    """A source whose process takes a while to answer, and computes nothing meanwhile."""

    made = 0

    def snapshot(self, _: object) -> Any:
        self.made += 1
        time.sleep(0.5)
        return {"handlers": []}


def test_health_is_no_older_for_a_process_that_answers_late() -> None:
    source = Waiting()
    latest = Latest(source, None)  # type: ignore[arg-type]
    for _ in range(3):
        latest()
        time.sleep(1.5 * FRESH)
    assert source.made == 3

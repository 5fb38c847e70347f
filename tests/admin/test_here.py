"""What is read of one process: each value of a handler's row, of calls, failures and connections, and what is wrong with it."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from framework.admin import health
from framework.admin import here as module
from framework.admin.here import Here
from framework.admin.snapshot import MOST
from framework.engine.ledger import OUTCOMES, Ledger
from framework.engine.times import RUNNING, WAITING
from framework.message import Message
from framework.middleware.failures import Failure

NOW = 1000.0


@pytest.fixture(autouse=True)
def clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for where in (module, health):
        monkeypatch.setattr(where, "clock", lambda: NOW)
    monkeypatch.setattr(module.time, "time", lambda: 50_000.0)


def consumer(name: str = "orders/bill", **given: Any) -> Any:
    topic, _, channel = name.partition("/")
    breaker = SimpleNamespace(pause=given.pop("pause", None), pausing=False)
    flow = SimpleNamespace(
        max_in_flight=100, paused=given.pop("paused", False), drained=given.pop("drained", False), breaker=breaker
    )
    calls = given.pop("calls", [])
    made: dict[str, Any] = {
        "spec": SimpleNamespace(name=name, topic=topic, channel=channel, slots="greenlet", timeout=60.0, batch=5),
        "flow": flow, "running": SimpleNamespace(calls=lambda: calls, computing=given.pop("computing", False)),
        "times": SimpleNamespace(
            slow_calls=[0, 2, *[0] * (len(RUNNING) - 1)], waits=[3, *[0] * len(WAITING)], busy=1.23456789, waited=2.3456789,
            ended_at=NOW - 5.0, started=49_000.0,
        ),
        "concurrency": 4, "calls_ended": 7, "waiting": 2, "connected": 1, "able": True, "accounts": [],
    }  # fmt: skip
    return SimpleNamespace(**{**made, **given})


def supervisor(*consumers: Any, **given: Any) -> Any:
    names = [one.spec.name for one in consumers]
    made: dict[str, Any] = {
        "of_consumers": lambda: [(one, [SimpleNamespace(wanted=2), SimpleNamespace(wanted=1)]) for one in consumers],
        "ledgers": {name: Ledger(received=10, finished=6, requeued=1) for name in names},
        "failures": {name: SimpleNamespace(count=3, last=[]) for name in names},
        "published": {name: {"mail": 2} for name in names},
        "stopping": False, "ready": True, "blocked": 0.12345, "hub_thread": 1,
    }  # fmt: skip
    return SimpleNamespace(**{**made, **given})


def call(number: int, started: float, *messages: int) -> Any:
    origin: Any = SimpleNamespace(topic="orders", channel="bill", node="a:4150")
    jobs = [Message(b"%d" % one, 0, 3, b"x", origin) for one in messages or (number,)]
    return SimpleNamespace(job=jobs if len(jobs) > 1 else jobs[0], started=started, thread=0, greenlet=None)


def test_a_handler_s_row_is_what_its_parts_say() -> None:
    [row] = Here(supervisor(consumer(calls=[call(1, NOW - 2.0)]))).snapshot()["handlers"]
    assert {name: row[name] for name in (
        "handler", "topic", "channel", "slots", "processes", "concurrency", "max_in_flight", "timeout", "batch", "running",
        "waiting", "in_flight", "failures", "calls", "busy", "waited", "pause", "connected", "wanted", "stalled", "started",
        "published",
    )} == {
        "handler": "orders/bill", "topic": "orders", "channel": "bill", "slots": "greenlet", "processes": 1, "concurrency": 4,
        "max_in_flight": 100, "timeout": 60.0, "batch": 5, "running": 1, "waiting": 2, "in_flight": 3, "failures": 3, "calls": 7,
        "busy": 1.234568, "waited": 2.345679, "pause": None, "connected": 1, "wanted": 3, "stalled": 2.0, "started": 49_000.0,
        "published": {"mail": 2},
    }  # fmt: skip
    assert row["counts"] == {"received": 10, **dict.fromkeys(OUTCOMES, 0), "finished": 6, "requeued": 1}
    assert (row["slow"][:2], row["waits"][:2], len(row["waits"])) == ([0, 2], [3, 0], len(WAITING) + 1)


def test_rates_are_of_the_time_since_the_start_however_the_wall_clock_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    one = supervisor(consumer())
    here, now = Here(one), NOW
    monkeypatch.setattr(module, "clock", lambda: now)
    assert here.snapshot()["handlers"][0]["rate"]["received"] == 10_000.0, "a millisecond, at the least"
    back = Here(one)
    monkeypatch.setattr(module.time, "time", lambda: 40_000.0)
    back.snapshot()
    now += 5.0
    [row] = back.snapshot()["handlers"]
    assert (row["rate_seconds"], row["rate"]["received"]) == (5.0, pytest.approx(2.0, rel=0.01))


def test_what_is_recent_is_of_the_last_seconds_and_before_of_the_time_since_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    one, now = consumer(), NOW
    here = Here(watched := supervisor(one))
    monkeypatch.setattr(module, "clock", lambda: now)

    def recent() -> tuple[Any, ...]:
        [row] = here.snapshot()["handlers"]
        return row["rate_seconds"], row["rate"]["received"], row["recent_calls"], row["recent_waits"]

    def buckets(first: int, second: int, count: int) -> list[int]:
        return [first, second, *[0] * (count - 1)]

    assert recent()[2:] == (buckets(5, 2, len(RUNNING)), buckets(3, 0, len(WAITING)))
    for second in range(1, 13):
        now = NOW + second
        one.calls_ended += 1
        one.times.waits[0] += 2
        watched.ledgers["orders/bill"].received += 3
        seen = recent()
        now += 0.4
        assert len(here._samples["orders/bill"]) == min(second + 1, 11), "no more often than is asked for"
        recent()
        if second == 9:
            assert seen == (
                9.0,
                pytest.approx(37 / 9, rel=0.01),
                buckets(5 + 9, 2, len(RUNNING)),
                buckets(3 + 18, 0, len(WAITING)),
            )
    assert seen == (module.WINDOW, 3.0, buckets(10, 0, len(RUNNING)), buckets(20, 0, len(WAITING)))
    for second in range(13, 26):
        now = NOW + second
        seen = recent()
    assert seen == (module.WINDOW, 0.0, None, None)
    now += 0.26
    assert recent()[0] == 10.3
    first, *others = here._samples["orders/bill"]
    assert all(one.calls is first.calls and one.waits is first.waits for one in others), "a thousand may be idle for days"


def test_what_is_counted_between_two_looks_adds_up_all_the_same() -> None:
    here = Here(supervisor(consumer(calls_ended=1), ledgers={"orders/bill": Ledger(received=5, finished=6, dead=1)}))
    [row] = here.snapshot()["handlers"]
    assert (row["counts"]["received"], row["in_flight"], row["calls"]) == (7, 0, 2)


@pytest.mark.parametrize(
    ("given", "pause"),
    [
        ({}, None),
        ({"paused": True}, {"by": "operator", "until": None, "why": "an operator has paused it", "processes": 1}),
        ({"paused": True, "drained": True}, {"by": "drain", "until": None, "why": "an operator has drained it", "processes": 1}),
        (
            {"pause": ("it is down", 7.5)},
            {"by": "backoff", "until": 50_007.5, "why": "it is down", "processes": 1, "trying": False},
        ),
        (
            {"pause": ("it is down", 0.0)},
            {"by": "backoff", "until": 50_000.0, "why": "it is down", "processes": 1, "trying": True},
        ),
    ],
)
def test_a_pause_says_whose_it_is_and_until_when(given: dict[str, Any], pause: Any) -> None:
    [row] = Here(supervisor(consumer(**given))).snapshot()["handlers"]
    assert row["pause"] == (pause and {**pause, "processes": 1})


@pytest.mark.parametrize(
    ("stopping", "ready", "state"), [(True, True, "draining"), (False, True, "ready"), (False, False, "starting")]
)
def test_a_process_says_how_it_is(stopping: bool, ready: bool, state: str) -> None:
    here = Here(supervisor(consumer(), stopping=stopping, ready=ready))
    [row] = here.snapshot()["processes"]
    assert (row["pid"], row["state"], row["blocked"], row["started"]) == (os.getpid(), state, 0.123, 50_000.0)
    assert row["memory"] > 1 << 20
    assert [{"stuck": row["stuck"], "unready": row["unready"]}] == here.health()


def test_calls_are_shown_longest_first_and_no_more_than_anybody_looks_at(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def positions(calls: Any, thread: int) -> list[str]:
        asked.append((len(calls), thread))
        return [f"shop.py:{int(one.started)}" for one in calls]

    monkeypatch.setattr(module, "positions", positions)
    many = consumer(calls=[call(number, NOW - number) for number in range(MOST + 5)])
    batch = consumer("a/b", calls=[call(0, NOW + 5.0, 7, 8)])
    rows = Here(supervisor(many, batch)).snapshot()["running"]
    assert (len(rows), asked) == (MOST, [(MOST, 1)])
    assert [row["handler"] for row in rows] == ["orders/bill"] * (MOST - 1) + ["a/b"], "who has hundreds hides no other's"
    assert [row["since"] for row in rows] == sorted((row["since"] for row in rows), reverse=True)
    assert rows[0] == {
        "handler": "orders/bill", "id": f"{MOST + 4}", "attempt": 3, "node": "a:4150", "messages": 1, "since": MOST + 4.0,
        "where": f"shop.py:{int(NOW - MOST - 4)}", "slot": "greenlet", "pid": os.getpid(),
    }  # fmt: skip
    ended = call(1, NOW)
    ended.job = None
    rows = Here(supervisor(consumer(calls=[ended]), batch)).snapshot()["running"]
    assert [(row["handler"], row["id"], row["messages"], row["since"]) for row in rows] == [("a/b", "7", 2, 0.0)]
    assert Here(supervisor(consumer())).snapshot()["running"] == []
    assert len(asked) == 2, "where nothing runs, nobody looks for it"


def test_failures_are_shown_latest_first() -> None:
    def failed(*at: float) -> Any:
        return SimpleNamespace(count=len(at), last=[Failure(one, "1", 2, "a:4150", 1, "ValueError", "", "dead") for one in at])

    one, other = consumer(), consumer("a/b")
    here = Here(supervisor(one, other, failures={"orders/bill": failed(1.0, 4.0), "a/b": failed(2.0, *range(5, MOST + 9))}))
    rows = here.snapshot()["failures"]
    assert (len(rows), rows[0]["at"], rows[0]["handler"], rows[0]["pid"]) == (MOST, MOST + 8, "a/b", os.getpid())
    assert [row["at"] for row in rows] == sorted((row["at"] for row in rows), reverse=True)
    assert [row["at"] for row in rows if row["handler"] == "orders/bill"] == [4.0, 1.0]


def test_connections_are_shown_with_what_they_hold_and_why_they_are_away() -> None:
    made = SimpleNamespace(
        topic="orders", node="a:4150", granted=7, in_flight={1: 0.0, 2: 0.0}, unsent=lambda: 9, away="it is down"
    )
    assert Here(supervisor(consumer(accounts=[made]))).snapshot()["connections"] == [{
        "handler": "orders/bill", "topic": "orders", "node": "a:4150", "granted": 7, "in_flight": 2, "unsent": 9,
        "pid": os.getpid(), "away": "it is down",
    }]  # fmt: skip


@pytest.mark.parametrize("fails", [1, 2, 3])
def test_what_changes_while_it_is_read_is_read_again(fails: int) -> None:
    left = [fails]

    def of_consumers() -> list[Any]:
        if left[0]:
            left[0] -= 1
            raise RuntimeError("set changed size during iteration")
        return []

    here = Here(supervisor(of_consumers=of_consumers))
    if fails < module.TRIES:
        assert here.snapshot()["handlers"] == []
    else:
        with pytest.raises(RuntimeError):
            here.snapshot()


def test_what_is_asked_of_all_handlers_each_is_told() -> None:
    told: list[Any] = []
    calls = {
        name: lambda *what, name=name: told.append((name, *what)) for name in ("pause", "set_max_in_flight", "set_concurrency")
    }
    here = Here(supervisor(consumer(), consumer("a/b"), **calls))
    here.act({"action": "pause", "handler": None, "value": None})
    here.act({"action": "pause", "handler": "a/b"})
    here.act({"action": "max_in_flight", "handler": "a/b", "value": 3})
    here.act({"action": "concurrency", "handler": "a/b", "value": 2})
    assert told == [
        ("pause", "orders/bill"), ("pause", "a/b"), ("pause", "a/b"), ("set_max_in_flight", "a/b", 3),
        ("set_concurrency", "a/b", 2),
    ]  # fmt: skip


def test_steps_are_taken_between_handlers_and_between_their_connections() -> None:
    steps: list[int] = []
    Here(supervisor(consumer(), consumer("a/b"))).snapshot(lambda: steps.append(1))
    assert len(steps) == 4


# --- what is wrong -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("blocked", "computing", "words"),
    [
        (60.5, True, []),
        (60.6, True, ["handler a/b, whose timeout is 60 s, has blocked the hub for 60.6 s"]),
        (30.0, False, []),
        (30.1, False, ["something has blocked the hub for 30.1 s"]),
    ],
)
def test_a_hub_that_is_blocked_is_stuck_past_the_time_of_who_blocks_it(blocked: float, computing: bool, words: list[str]) -> None:
    assert health.stuck(supervisor(consumer(), consumer("a/b", computing=computing), blocked=blocked)) == words


@pytest.mark.parametrize(("ages", "stuck"), [([61.0] * 4, True), ([61.0] * 3 + [60.5], False), ([60.5] * 4, False), ([], False)])
def test_a_handler_is_stuck_when_all_that_can_run_is_past_its_time(ages: list[float], stuck: bool) -> None:
    one = consumer(calls=[call(number, NOW - age) for number, age in enumerate(ages)])
    words = "handler orders/bill: all of its 4 calls are past their timeout and do not return"
    assert health.stuck(supervisor(one, blocked=0.0)) == [words] * stuck


def test_a_worker_is_unready_while_it_drains_or_a_handler_cannot_be_called() -> None:
    assert health.unready(supervisor(consumer(), stopping=True)) == ["draining: it takes no more messages"]
    assert health.unready(supervisor(consumer(), ready=False)) == ["starting: it has not subscribed yet"]
    assert health.unready(supervisor(consumer())) == []
    down = [SimpleNamespace(away="a is down"), SimpleNamespace(away="a is down"), SimpleNamespace(away="b is down")]
    assert health.unready(supervisor(consumer(connected=0, accounts=down), consumer("a/b", connected=0), ready=False)) == [
        "handler orders/bill has no connection to a broker (a is down; b is down)",
        "handler a/b has no connection to a broker",
    ]
    assert health.unready(supervisor(consumer(able=False))) == [
        "handler orders/bill has no thread or process that can take a call"
    ]

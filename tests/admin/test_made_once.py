"""What many clients share: events made once for all of them, backlogs asked for now and then, and counters that never fall."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from framework.admin import backlog as of_backlog
from framework.admin import feed as of_feed
from framework.admin import fresh
from framework.admin.api import Api
from framework.admin.backlog import Backlog
from framework.admin.exposition import sample
from framework.admin.feed import Feed
from framework.admin.figures import Figures
from framework.admin.latest import Latest
from framework.admin.requests import Refused, Request
from framework.engine.ledger import OUTCOMES
from framework.errors import BrokerUnreachable
from framework.transports.kept import Kept
from tests.admin.test_snapshot import row, snapshot

CHANNEL = ("orders", "bill")
NOW = 50_000.0


# --- events ------------------------------------------------------------------------------------------------


class State:
    """Stands for ``Latest``."""

    def __init__(self, **running: int) -> None:
        self.made = 0
        self.running = running
        self.connections: list[dict[str, Any]] = []

    def __call__(self) -> Any:
        return {"at": 7.0, "processes": [1], "running": [2], "failures": [3], "connections": self.connections}

    def handlers(self) -> Any:
        self.made += 1
        return [{"handler": name, "running": running, "slow": [1], "topic": "t"} for name, running in self.running.items()]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(of_feed.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(of_feed.gevent, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


def listen(feed: Feed) -> Any:
    """The events of one more client."""
    body: Any = feed.answer().body
    return (json.loads(piece.removeprefix(b"data: ")) for piece in body)


def told(event: dict[str, Any]) -> tuple[dict[str, int], list[str]]:
    return {one["handler"]: one["running"] for one in event["handlers"]}, event["gone"]


def test_a_client_hears_of_all_and_then_of_what_has_changed_or_gone(clock: list[float]) -> None:
    state = State(a=1, b=1)
    mine = listen(Feed(state))  # type: ignore[arg-type]
    first = next(mine)
    assert told(first) == ({"a": 1, "b": 1}, [])
    assert first["handlers"][0].keys() == {"handler", "running"}, "what the page makes nothing of is not sent"
    assert {name: first[name] for name in ("at", "processes", "running", "failures", "nodes")} == {
        "at": 7.0, "processes": [1], "running": [2], "failures": [3], "nodes": []
    }  # fmt: skip
    assert told(next(mine)) == ({}, [])
    state.running = {"b": 2, "c": 1}
    assert told(next(mine)) == ({"b": 2, "c": 1}, ["a"])
    assert told(next(mine)) == ({}, [])


def test_what_one_client_hears_is_made_for_all(clock: list[float]) -> None:
    state = State(a=1)
    feed = Feed(state)  # type: ignore[arg-type]
    one, other = listen(feed), listen(feed)
    next(one)
    assert told(next(other)) == ({"a": 1}, [])
    assert state.made == 1
    clock[0] += of_feed.EVERY / 2 - 0.01
    third = listen(feed)
    next(third)
    assert state.made == 1
    clock[0] += 0.01
    next(listen(feed))
    assert state.made == 2


def test_the_connections_are_told_by_node(clock: list[float]) -> None:
    state = State()
    state.connections = [
        {"node": "b:1", "away": "", "granted": 5, "in_flight": 2, "unsent": 1},
        {"node": "a:1", "away": "", "granted": 1, "in_flight": 0, "unsent": 0},
        {"node": "b:1", "away": "it is down", "granted": 3, "in_flight": 1, "unsent": 4},
    ]
    assert next(listen(Feed(state)))["nodes"] == [  # type: ignore[arg-type]
        {"node": "a:1", "connections": 1, "granted": 1, "in_flight": 0, "unsent": 0},
        {"node": "b:1", "connections": 1, "granted": 8, "in_flight": 3, "unsent": 5},
    ]


def test_there_is_an_end_to_each_answer_and_to_how_many_listen(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_feed, "READERS", 2)
    feed = Feed(State(a=1))  # type: ignore[arg-type]
    one, other = listen(feed), listen(feed)
    next(one)
    listen(feed)  # one that has not begun holds no place
    next(other)
    with pytest.raises(Refused, match="2 clients listen") as caught:
        feed.answer()
    assert caught.value.status == 503
    one.close()
    third = listen(feed)
    clock[0] = 1000.0
    assert len(list(third)) == of_feed.LONGEST / of_feed.EVERY
    assert feed._readers == 1


# --- backlogs ----------------------------------------------------------------------------------------------


class Broker:
    """A transport, as far as it is asked what it keeps."""

    def __init__(self, **nodes: int) -> None:
        self.nodes = nodes
        self.asked: list[tuple[str, str]] = []
        self.fails: Exception | None = None
        self.under_way = self.most = 0

    def backlog(self, topic: str, channel: str) -> dict[str, int]:
        self.asked.append((topic, channel))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        gevent.sleep(0)
        self.under_way -= 1
        if self.fails is not None:
            raise self.fails
        return dict(self.nodes)


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The wall clock, which the tests rule; so they do the other."""
    now = [NOW]
    monkeypatch.setattr(of_backlog.time, "time", lambda: now[0])
    monkeypatch.setattr(of_backlog.time, "monotonic", lambda: now[0])
    return now


def known(*brokers: Broker) -> Backlog:
    return Backlog(lambda: brokers)  # type: ignore[arg-type, return-value]


def refreshed(backlog: Backlog, *channels: tuple[str, str]) -> Backlog:
    backlog.refresh(channels or [CHANNEL])
    while backlog._asking is not None:
        gevent.sleep(0)
    return backlog


def test_all_brokers_are_asked_and_again_when_that_is_old_or_there_is_another_channel(times: list[float]) -> None:
    one, other = Broker(a=3), Broker(b=4)
    backlog = refreshed(known(one, other))
    assert backlog.counts == {CHANNEL: {"a": 3, "b": 4}}
    assert len(one.asked) == 1
    for passed, asked in ((of_backlog.FRESH, 1), (0.01, 2)):
        times[0] += passed
        refreshed(backlog)
        assert len(one.asked) == asked
    refreshed(backlog, CHANNEL, ("mail", "send"))
    assert one.asked[2:] == [("mail", "send"), CHANNEL]
    refreshed(backlog, ("mail", "send"))
    assert len(one.asked) == 4, "one less is no news"


def test_no_more_than_a_few_are_asked_of_at_a_time(times: list[float]) -> None:
    broker = Broker(a=1)
    channels = [("orders", f"c{number:02}") for number in range(20)]
    backlog = refreshed(known(broker), *channels)
    assert (broker.most, broker.asked) == (of_backlog.AT_ONCE, channels)
    assert len(backlog.counts) == 20


def test_while_a_broker_cannot_be_asked_nothing_is_known_and_that_is_said_anew_after_it_could(
    times: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker(a=1)
    backlog = refreshed(known(broker))
    for error, traced in ((BrokerUnreachable("no broker"), False), (ZeroDivisionError("odd"), True)):
        broker.fails = error
        for _ in range(2):
            times[0] += of_backlog.FRESH + 1
            refreshed(backlog)
            assert (backlog.counts, backlog.asked_at) == ({}, times[0])
        [record] = caplog.records
        assert f"cannot be asked: {error}" in record.getMessage()
        assert bool(record.exc_info and record.exc_info[0]) is traced, "of what is a fault of ours"
        caplog.clear()
        broker.fails = None
        times[0] += of_backlog.FRESH + 1
        refreshed(backlog)
        assert backlog.counts == {CHANNEL: {"a": 1}}


def test_how_long_the_oldest_may_have_waited(times: list[float]) -> None:
    broker = Broker(a=0)
    backlog = refreshed(known(broker))
    assert backlog.age_at_most(CHANNEL, 0.0) == 0.0, "nothing waits"
    broker.nodes = {"a": 1}
    times[0] += 60
    refreshed(backlog)
    assert backlog.age_at_most(CHANNEL, 0.0) == 60.0, "it was empty then"
    assert backlog.age_at_most(CHANNEL, NOW + 50) == 10.0, "since the last that was started was published"
    assert backlog.age_at_most(CHANNEL, NOW + 99) == 0.0, "by a clock that is ahead"
    times[0] += 60
    other = refreshed(known(broker))
    times[0] += 5
    assert other.age_at_most(CHANNEL, 0.0) == 5.0, "since anybody looks"
    assert other.age_at_most(CHANNEL, NOW) == 125.0
    assert other.age_at_most(("no", "such"), 0.0) == 0.0


def test_brokers_are_opened_once_and_by_who_needs_them() -> None:
    opened: list[int] = []
    backlog = Backlog(lambda: opened.append(1) or ())  # type: ignore[func-returns-value, arg-type, return-value]
    assert opened == []
    assert backlog.work_for("orders", "bill", "later", 5.0) == 0
    backlog.transports()
    assert opened == [1]


@pytest.mark.parametrize("nodes", [None, {"a": Kept(3, in_flight=2, deferred=1), "b": Kept(4)}])
def test_a_handler_s_row_says_what_is_kept_where_that_is_known(nodes: Any, times: list[float]) -> None:
    backlog = known()
    backlog.refresh = lambda channels: None  # type: ignore[method-assign]
    backlog.kept = {CHANNEL: nodes} if nodes else {}
    source: Any = SimpleNamespace(snapshot=lambda _: snapshot(row(started=NOW - 7.26)))
    latest = Latest(source, backlog)
    [found] = latest.handlers()
    if nodes is None:
        assert (found["backlog"], found["kept"], found["oldest_age"]) == (None, None, None)
        return
    assert found["backlog"] == {"a": 6, "b": 4}
    assert found["kept"] == {"waiting": 7, "in_flight": 2, "deferred": 1, "consumers": None, "paused": False}
    assert found["oldest_age"] == 7.3


# --- figures -----------------------------------------------------------------------------------------------


def figures(*rows: Any, kept: Any = None) -> list[str]:
    backlog = known()
    backlog.refresh = lambda channels: None  # type: ignore[method-assign]
    backlog.kept = kept or {}
    return Figures(lambda: snapshot(*rows, blocked=0.5), backlog).text().splitlines()


def test_counters_do_not_fall_and_what_is_in_flight_is_what_has_not_ended() -> None:
    rows = [row(calls=7, counts={"received": 10, **dict.fromkeys(OUTCOMES, 0), "finished": 7, "dead": 1})]
    made = Figures(lambda: snapshot(*rows), SimpleNamespace(refresh=lambda _: None, counts={}))  # type: ignore[arg-type]
    of = 'handler="orders/bill",topic="orders",channel="bill"'

    def says(name: str, value: float, more: str = "") -> bool:
        return sample(f"messaging_{name}", of + more, value) in made.text()

    assert says("client_received_messages_total", 10)
    assert says("client_in_flight_messages", 2)
    rows[0] = row(calls=5, counts={"received": 10, **dict.fromkeys(OUTCOMES, 0), "finished": 8, "dead": 0})
    assert says("client_consumed_messages_total", 1, ',outcome="dead"')
    assert says("client_consumed_messages_total", 8, ',outcome="finished"')
    assert says("client_in_flight_messages", 1)
    assert says("process_duration_seconds_count", 7)
    rows[0] = row(counts={"received": 3, **dict.fromkeys(OUTCOMES, 0), "finished": 20})
    assert says("client_received_messages_total", 21), "as many as have ended"
    assert says("client_in_flight_messages", 0)


@pytest.mark.parametrize(
    ("pause", "asks_none"),
    [
        (None, 0), ({"by": "operator", "processes": 2}, 1), ({"by": "operator", "processes": 1}, 0),
        ({"by": "backoff", "processes": 2, "trying": False}, 1), ({"by": "backoff", "processes": 2, "trying": True}, 0),
    ],
)  # fmt: skip
def test_a_handler_is_paused_where_none_of_its_processes_asks_for_messages(pause: Any, asks_none: int) -> None:
    lines = figures(row(processes=2, pause=pause))
    assert f'messaging_client_paused{{handler="orders/bill",topic="orders",channel="bill"}} {asks_none}' in lines


def test_what_nodes_keep_is_there_for_the_channels_that_are_known(times: list[float]) -> None:
    lines = figures(row(started=NOW - 7.0), row("a/b"), kept={CHANNEL: {"n:1": Kept(3, in_flight=2), "n:2": Kept(1)}})
    assert [line for line in lines if line.startswith("messaging_channel")] == [
        'messaging_channel_backlog_messages{topic="orders",channel="bill",node="n:1"} 5',
        'messaging_channel_backlog_messages{topic="orders",channel="bill",node="n:2"} 1',
        'messaging_channel_oldest_age_seconds{topic="orders",channel="bill"} 7.0',
    ]
    assert "messaging_hub_blocked_seconds 0.5" in lines
    states = {line.partition("{")[0]: line.rpartition(" ")[2] for line in lines if 'handler="orders/bill"' in line}
    assert {name: states[f"messaging_{name}"] for name in (
        "process_slots", "process_running_calls", "client_max_in_flight_messages", "client_connections",
        "client_connections_wanted", "process_stalled_seconds",
    )} == {
        "process_slots": "10", "process_running_calls": "1", "client_max_in_flight_messages": "100", "client_connections": "1",
        "client_connections_wanted": "1", "process_stalled_seconds": "0.0",
    }  # fmt: skip


def test_of_no_process_the_hub_is_not_blocked() -> None:
    made = Figures(lambda: {**snapshot(), "processes": []}, SimpleNamespace(refresh=lambda _: None, counts={}))  # type: ignore[arg-type]
    assert "messaging_hub_blocked_seconds 0.0\n" in made.text()


def test_what_is_dear_is_made_so_seldom_that_it_takes_its_share_of_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    now, cpu, made = 1000.0, 0.0, []
    monkeypatch.setattr(fresh.time, "monotonic", lambda: now)
    monkeypatch.setattr(fresh.time, "thread_time", lambda: cpu)

    def make(breathe: Any) -> int:
        nonlocal cpu
        cpu += 1.5
        breathe()
        cpu += 0.5
        made.append(1)
        return len(made)

    kept = fresh.Fresh(make, 0.5)
    for passed, count in ((0.0, 1), (20.0, 1), (0.01, 2), (0.6, 2)):
        now += passed
        assert kept() == count
    cheap = fresh.Fresh(lambda _: len(made), 0.5)
    cheap()
    made.clear()
    for passed, count in ((0.5, 2), (0.01, 0)):
        now += passed
        assert cheap() == count


# --- actions -----------------------------------------------------------------------------------------------


class Worker:
    """A source whose handlers take an action after a few looks."""

    def __init__(self, after: int) -> None:
        self.left, self.asked = after, False

    def snapshot(self, _: object) -> Any:
        self.left -= self.asked
        paused = {"by": "operator", "processes": 1} if self.asked and self.left <= 0 else None
        return snapshot(row("orders/bill", pause=paused), row("a/b"))

    def act(self, command: Any) -> None:
        self.asked = True


@pytest.mark.parametrize(
    ("after", "handler", "pending"),
    [(0, "orders/bill", False), (3, "orders/bill", False), (10**9, "orders/bill", True), (0, None, True)],
)
def test_an_action_is_waited_for_a_moment_and_what_has_yet_to_be_done_is_said(
    after: int, handler: str | None, pending: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here one handler of two takes it."""
    monkeypatch.setattr("framework.admin.api.PATIENCE", 0.1 if pending else 60.0)
    monkeypatch.setattr("framework.admin.api.LOOK", 0.001)
    source: Any = Worker(after)
    access: Any = SimpleNamespace(read_only=False)
    api = Api(source, Latest(source, known()), access)
    request = Request("POST", "/api/actions", body=json.dumps({"action": "pause", "handler": handler}).encode())
    with gevent.Timeout(20):
        answer: Any = api.changes["/api/actions"](request).body
    words = f"paused {handler or 'all handlers'}"
    assert json.loads(answer) == {"done": words, **({"pending": True} if pending else {})}

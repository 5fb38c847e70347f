"""One admin endpoint for all processes: what it shows is their sum, and what is asked of it all of them do."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
import pytest

from framework.admin.snapshot import merged, of_books
from framework.errors import WrongUse
from framework.master import master as leader
from framework.master import source as of_children
from framework.master.source import Children
from framework.settings import Settings
from framework.testing.servers import Server
from tests.admin.asking import api, get, port_of, shown, soon, until
from tests.cli.shop import put
from tests.master.conftest import SAY, Master
from tests.master.test_replaced import STUCK

Lead = Callable[..., Master]
Write = Callable[..., Path]
real = pytest.mark.real


@real
@pytest.mark.slow
def test_the_figures_of_all_processes_add_up_and_never_fall(lead: Lead, write: Write, nsqd: Server) -> None:
    write(SAY)
    master = lead("--admin", "127.0.0.1:0")
    port = port_of(master)
    put(nsqd, *map(str, range(300)))
    finished = ("messaging_client_consumed_messages_total", "say", "finished")
    until(port, *finished, is_=lambda count: count == 300)
    [row] = api(port, "/api/handlers")[1]
    assert (row["processes"], row["concurrency"], row["max_in_flight"]) == (2, 8, 40)
    assert {one["pid"] for one in api(port, "/api/processes")[1]} == set(master.started)
    assert {one["pid"] for one in api(port, "/api/connections")[1]} == set(master.started)
    put(nsqd, *map(str, range(1000, 1100)))
    master.wait_until(lambda: len(master.got()) >= 400)
    time.sleep(1.0)  # it reports twice a second, and nobody looks at it meanwhile
    os.kill(master.started[0], signal.SIGKILL)
    master.until_started(3)
    until(port, *finished, is_=lambda count: count == 400)
    master.signal(signal.SIGHUP)
    master.wait_for("reloaded: all 2 processes")
    put(nsqd, *map(str, range(300, 400)))
    until(port, *finished, is_=lambda count: count >= 500)
    shown(port, "processes", lambda rows: {one["pid"] for one in rows} == set(master.started[-2:]))
    until(port, *finished, is_=lambda count: count == 500)
    assert get(port, "/readyz")[0] == get(port, "/livez")[0] == 200
    empty = (200, '{"value":0}\n')
    master.wait_until(lambda: get(port, "/scale?handler=orders/say") == empty)  # it may be what the broker said seconds ago
    assert master.stop() == 0


@real
@pytest.mark.slow
def test_an_action_is_done_by_all_and_by_those_that_come_later(lead: Lead, write: Write, nsqd: Server) -> None:
    write(SAY)
    master = lead("--admin", "127.0.0.1:0")
    port = port_of(master)
    assert api(port, "/api/actions", {"action": "concurrency", "handler": "orders/say", "value": 3})[0] == 200
    assert api(port, "/api/actions", {"action": "pause"})[0] == 200
    shown(port, "handlers", lambda rows: (rows[0]["pause"] or {}).get("processes") == 2 and rows[0]["concurrency"] == 6)
    master.signal(signal.SIGHUP)
    master.wait_for("reloaded: all 2 processes")
    put(nsqd, "1")
    shown(port, "handlers", lambda rows: rows[0]["processes"] == 2 and rows[0]["pause"]["processes"] == 2)
    assert api(port, "/api/handlers")[1][0]["concurrency"] == 6
    assert master.got() == []
    assert api(port, "/api/actions", {"action": "resume", "handler": "orders/say"})[0] == 200
    master.wait_until(lambda: master.got() == [1])
    status, words = api(port, "/api/actions", {"action": "pause", "handler": "orders/nothing"})
    assert (status, "there is no handler 'orders/nothing' here" in words["error"]) == (400, True)
    assert master.stop() == 0


@real
@pytest.mark.slow
def test_one_process_that_is_stuck_or_gone_does_not_make_all_of_them_so(lead: Lead, write: Write, nsqd: Server) -> None:
    write(STUCK)
    master = lead("--admin", "127.0.0.1:0", "--drain", "1s")
    port = port_of(master)
    put(nsqd, "block")
    master.wait_for("got block")
    master.wait_until(lambda: any("is stuck, and is replaced" in line for line in master.err))
    assert get(port, "/livez")[0] == get(port, "/readyz")[0] == 200
    master.wait_until(lambda: len(master.alive) == 2)
    for pid in master.alive:
        os.kill(pid, signal.SIGSTOP)
    assert get(port, "/metrics")[0] == 200, "of one that does not answer the last snapshot is shown"
    for pid in master.alive:
        os.kill(pid, signal.SIGCONT)
    soon(lambda: get(port, "/readyz"), 200)
    master.signal(signal.SIGTERM)
    assert master.wait() == 0


class Answering:
    """A child that answers as it is told to."""

    def __init__(self, answer: Any) -> None:
        self.ready, self.report, self.silent, self.snapshot = True, {}, 0.0, None
        self.code, self.health = None, []
        self._answer = answer

    def ask(self, what: dict[str, Any]) -> int:
        return 1

    def has_answered(self, question: int) -> bool:
        return self._answer is not None

    def answer(self, question: int) -> Any:
        return self._answer


class Ended:
    """A child that has ended."""

    def __init__(self, snapshot: Any, counts: dict[str, int]) -> None:
        self.ready, self.report, self.silent, self.snapshot = False, {}, 0.0, snapshot
        self.ledgers, self.published = {"orders/say": counts}, {"orders/say": {"out": 2}}


def children(*answers: Any) -> Children:
    found: list[Any] = [Answering(answer) for answer in answers]
    return Children(gevent.get_hub().loop, lambda: found)


def shows(*pids: int) -> dict[str, Any]:
    """A snapshot of processes that run no handler."""
    return {**merged([]), "processes": [{"pid": pid, "stuck": []} for pid in pids]}


def test_all_that_take_messages_are_asked_and_of_one_that_does_not_answer_the_last_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(of_children, "PATIENCE", 0.05)
    answers, late, new, starting = (Answering(answer) for answer in (shows(1), None, None, shows(4)))
    late.snapshot, starting.ready = shows(2), False
    source = Children(gevent.get_hub().loop, lambda: [answers, late, new, starting])  # type: ignore[list-item]
    assert [row["pid"] for row in source.snapshot()["processes"]] == [1, 2]
    answers._answer = None
    assert [row["pid"] for row in source.snapshot()["processes"]] == [1, 2], "they are remembered"


def test_nobody_waits_longer_than_for_the_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_children, "PATIENCE", 600.0)
    with gevent.Timeout(20):
        assert [row["pid"] for row in children(shows(1), shows(2)).snapshot()["processes"]] == [1, 2]


def test_the_slowest_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    quick, slow = Answering(shows(1)), Answering(shows(2))
    looks, answer = iter([False, False]), slow.answer
    monkeypatch.setattr(slow, "has_answered", lambda question: next(looks, True))
    monkeypatch.setattr(slow, "answer", lambda question: None if next(looks, None) is False else answer(question))
    source = Children(gevent.get_hub().loop, lambda: [slow, quick])  # type: ignore[list-item]
    assert [row["pid"] for row in source.snapshot()["processes"]] == [2, 1]


def test_health_is_of_those_that_run_and_a_silent_one_is_stuck_as_its_master_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_children, "PATIENCE", 0.05)
    well, silent, gone = (Answering([{"stuck": [], "unready": [], "pid": pid}]) for pid in (1, 2, 3))
    silent.health, silent._answer, silent.silent = silent._answer, None, 99.0
    silent.snapshot, gone.code = shows(2), 0
    source = Children(gevent.get_hub().loop, lambda: [well, silent, gone])  # type: ignore[list-item]
    assert [(row["pid"], len(row["stuck"])) for row in source.health()] == [(1, 0), (2, 1)]
    well._answer = gone._answer = None
    [row] = source.snapshot()["processes"]
    assert "it has said nothing for 99 s" in row["stuck"][0]


def test_why_a_process_is_stuck_is_told_once_though_it_and_its_master_say_so() -> None:
    one = Answering([{"stuck": ["the hub stands", "all calls are late"], "unready": []}])
    one.report = {"stuck": ["the hub stands"]}
    source = Children(gevent.get_hub().loop, lambda: [one])  # type: ignore[list-item]
    assert source.health()[0]["stuck"] == ["the hub stands", "all calls are late"]


def test_what_one_process_cannot_do_or_none_answers_is_not_remembered() -> None:
    source = children({"error": ""}, {"error": "it cannot"})
    with pytest.raises(WrongUse, match="it cannot"):
        source.act({"action": "pause", "handler": "a/b"})
    silent = children(None, None)
    with pytest.raises(WrongUse, match="no process has answered"):
        silent.act({"action": "pause", "handler": "a/b"})
    assert source.commands() == silent.commands() == []


def test_of_what_was_asked_for_the_last_of_its_kind_counts() -> None:
    source = children({"error": ""})
    for action, handler, value in (
        ("pause", "a/b", None), ("concurrency", "a/b", 3), ("pause", "c/d", None), ("concurrency", "a/b", 5),
        ("resume", None, None), ("drain", "c/d", None),
    ):  # fmt: skip
        source.act({"action": action, "handler": handler, "value": value})
    assert [(one["action"], one["handler"]) for one in source.commands()] == [
        ("concurrency", "a/b"), ("resume", None), ("drain", "c/d"),
    ]  # fmt: skip
    assert source.commands()[0]["value"] == 5


def test_of_one_that_was_killed_before_anybody_looked_the_ledger_is_shown() -> None:
    counts = {"received": 9, "finished": 5, "requeued": 1, "dead": 0, "lease_lost": 3}
    source = Children(gevent.get_hub().loop, list)
    for snapshot in (None, of_books(None, {"orders/say": {**counts, "received": 4, "finished": 0}}, {})):
        source.ended(Ended(snapshot, counts))  # type: ignore[arg-type]
    [row] = source.snapshot()["handlers"]
    assert row["counts"] == {name: 2 * count for name, count in counts.items()} | {"lost": 0}
    assert (row["published"], row["calls"], row["processes"]) == ({"out": 4}, 12, 0)


def test_one_that_ends_while_somebody_looks_is_counted_once() -> None:
    """The master's hub goes on meanwhile: it has ended by then, and is still listed."""
    counts = {"received": 9, "finished": 5, "requeued": 1, "dead": 0, "lease_lost": 3}
    snapshot = of_books(None, {"orders/say": counts}, {})
    child: Any = Ended(snapshot, counts)
    source = Children(gevent.get_hub().loop, lambda: [child])
    for _ in range(2):
        [row] = source.snapshot()["handlers"]
        assert row["counts"]["received"] == 9
        source.ended(child)


def test_who_looks_is_not_disturbed_by_a_process_that_ends_meanwhile() -> None:
    """It looks from another thread than the master's."""
    master = leader.Master(Settings(), Settings)
    master._leaving.update(Answering(None) for _ in range(100))  # type: ignore[misc]
    found = master._children()
    next(found)
    master._leaving.pop()
    assert len(list(found)) == 99


def test_a_source_of_no_process_is_an_empty_snapshot() -> None:
    assert Children(gevent.get_hub().loop, lambda: []).snapshot()["handlers"] == []

"""What a process tells its master of itself, without either: what waits too long, and the books at its end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from framework import log_thread
from framework.engine.ledger import Ledger
from framework.errors import WrongUse
from framework.master import dump, state, to_master
from framework.master.state import IDLE, About, _could_begin
from framework.systemd import Condition


def consumer(*, linger: float = 0.0, calls: int = 0, in_flight: int = 1, **held: Any) -> Any:
    held = {"paused": False, "pausing": False, "able": True, **held}
    return SimpleNamespace(
        spec=SimpleNamespace(name="orders/billing", linger=linger),
        running=SimpleNamespace(calls=lambda: [None] * calls),
        times=SimpleNamespace(ended_at=1.0),
        flow=SimpleNamespace(paused=held["paused"], breaker=SimpleNamespace(pausing=held["pausing"])),
        able=held["able"],
        accounts=[SimpleNamespace(in_flight=[None] * in_flight)],
    )


@pytest.mark.parametrize("paused", [True, False])
@pytest.mark.parametrize("pausing", [True, False])
@pytest.mark.parametrize("able", [True, False])
@pytest.mark.parametrize("in_flight", [0, 1])
def test_a_call_could_begin_where_messages_are_and_nothing_holds_them_back(
    paused: bool, pausing: bool, able: bool, in_flight: int
) -> None:
    one = consumer(paused=paused, pausing=pausing, able=able, in_flight=in_flight)
    assert _could_begin(one) is (not paused and not pausing and able and in_flight > 0)


@pytest.mark.parametrize(("linger", "calls", "stuck_at"), [(0.0, 0, IDLE), (20.0, 0, IDLE + 20.0), (0.0, 1, None)])
def test_messages_that_wait_longer_than_their_batch_may_take_to_fill_are_said(
    monkeypatch: pytest.MonkeyPatch, linger: float, calls: int, stuck_at: float | None
) -> None:
    now = 100.0
    monkeypatch.setattr(state, "clock", lambda: now)
    supervisor: Any = SimpleNamespace(of_consumers=lambda: [(consumer(linger=linger, calls=calls), None)])
    about, said = About(), []
    list(about._standing_still(supervisor))
    for _ in range(30):
        now += 2.0
        if list(about._standing_still(supervisor)):
            said.append(now - 100.0)
    assert said[:1] == ([stuck_at + 2.0] if stuck_at else [])


class Running:
    """An app, as far as it is asked for here."""

    def __init__(self, *consumers: Any, ready: bool = True, stopping: bool = False) -> None:
        self.ready = ready
        self.supervisor: Any = SimpleNamespace(
            stopping=stopping, ready=ready, blocked=0.0, of_consumers=lambda: [(one, []) for one in consumers],
            ledgers={"orders/billing": Ledger(received=9, finished=4, requeued=2, dead=1)},
            published={"orders/billing": {"mail": 2}, "mail/send": {}},
        )  # fmt: skip


def test_of_what_has_not_begun_only_that_is_told_and_of_what_runs_what_its_master_asks_about() -> None:
    about, starting = About(), Running()
    starting.supervisor = None
    assert about(starting) == {"ready": False}
    assert state.condition(starting, about) == Condition(False, False, False, "not subscribed")
    one, other = consumer(), consumer()
    for each, seconds, name in ((one, 5.0, "orders/billing"), (other, 60.0, "mail/send")):
        each.spec = SimpleNamespace(name=name, linger=0.0, timeout=seconds, concurrency=3)
        each.flow.max_in_flight, each.concurrency, each.connected = 20, 3, 1
    told = about(Running(one, other, stopping=True))
    assert (told["ready"], told["draining"], told["stuck"], told["tasks"], told["patience"]) == (True, True, [], 7, 60.0)
    assert told["handlers"] == {"orders/billing": [3, 20], "mail/send": [3, 20]}
    assert told["ledgers"]["orders/billing"]["received"] == 9
    assert told["published"] == {"orders/billing": {"mail": 2}}
    assert about(Running())["patience"] == 0.0


@pytest.mark.parametrize(
    ("ready", "stopping", "words"),
    [(True, False, "1 handlers subscribed"), (False, True, "draining"), (False, False, "not subscribed")],
)
def test_systemd_is_told_how_a_process_without_a_master_is(ready: bool, stopping: bool, words: str) -> None:
    def about(stuck: list[str]) -> Any:
        return lambda _: {"ready": ready, "draining": stopping, "stuck": stuck, "handlers": {"a/b": [3, 20]}}

    app: Any = None
    assert state.condition(app, about([])) == Condition(ready, stopping, False, words)
    assert state.condition(app, about(["it stands"])).stuck


def test_messages_wait_for_nothing_once_a_call_has_begun_or_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    now, one = 100.0, consumer()
    monkeypatch.setattr(state, "clock", lambda: now)
    about = About()
    assert [about._waited_of(one, passed) for passed in (1.0, 2.0, 3.0)] == [0.0, 2.0, 5.0]
    one.flow.paused = True
    assert about._waited_of(one, 9.0) == 5.0, "held back, it waits no longer than it did"
    one.flow.paused, one.times.ended_at = False, 2.0
    assert [about._waited_of(one, passed) for passed in (1.0, 2.0)] == [0.0, 2.0]
    one.running.calls = lambda: [None]
    assert about._waited_of(one, 1.0) == 0.0
    one.running.calls = list
    assert about._waited_of(one, 4.0) == 4.0


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The child's end, whose thread does not run, and the master's, which takes a few bytes at a time. Neither ends this process,
    whose tests would seem to have passed."""
    monkeypatch.setattr(to_master.os, "_exit", lambda code: pytest.fail(f"it ends the process with {code}"))
    for name in ("dump", "signal", "_start_new_thread"):
        monkeypatch.setattr(to_master, name, SimpleNamespace(on_signal=print, signal=print, SIGHUP=0, SIG_IGN=0) if name[0] != "_"
                            else lambda *_: None)  # fmt: skip
    monkeypatch.setattr(log_thread, "_start_new_thread", lambda *_: None)
    mine, theirs = socket.socketpair()
    theirs.settimeout(10)
    mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    made: Any = to_master.ToMaster(mine.detach(), lambda _: {})
    yield made, theirs
    made.stop = lambda: None  # a test that has failed may have left its thread
    theirs.close()


def test_the_books_are_told_though_the_master_reads_late(ends: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    child, theirs = ends
    naps: list[float] = []
    monkeypatch.setattr(to_master, "_sleep", lambda seconds: (naps.append(seconds), time.sleep(seconds)))
    ledgers = {f"orders/{number}": {"finished": number} for number in range(3_000)}
    heard = b""

    def read() -> None:
        nonlocal heard
        while not heard.endswith(b"\n"):
            heard += theirs.recv(1 << 20)

    reader = threading.Timer(0.05, read)
    reader.start()
    assert child.tell_books(ledgers, {})
    assert set(naps) == {0.01}, "it does not keep a core busy meanwhile"
    reader.join()
    assert json.loads(heard)["ledgers"] == ledgers


def test_that_there_is_nobody_to_tell_is_known_at_once_and_that_nobody_reads_in_a_while(
    ends: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    child, theirs = ends
    monkeypatch.setattr(to_master, "PATIENCE", 0.05)
    assert not child.tell_books({"orders/billing": {"finished": "x" * 1_000_000}}, {})
    theirs.close()
    assert not child.tell_books({}, {})


def test_what_the_socket_does_not_take_at_once_follows_as_the_master_reads(ends: Any) -> None:
    """A thousand handlers are more than it takes, and a master that hears nothing for long replaces the process."""
    child, theirs = ends
    snapshot = {"handlers": ["x" * 1_000] * 3_000}
    child._here = lambda: SimpleNamespace(snapshot=lambda: snapshot)
    serving = threading.Thread(target=child._serve, daemon=True)
    serving.start()
    theirs.sendall(b'{"do": "snapshot", "question": 7}\n')
    heard = b""
    while not heard.endswith(b"\n"):
        heard += theirs.recv(1 << 20)
    assert json.loads(heard) == {"question": 7, "answer": snapshot}
    child.stop = lambda: None
    theirs.close()
    serving.join(20)
    assert not serving.is_alive()


def test_who_asks_before_there_are_handlers_is_told_that_there_is_nothing_yet(ends: Any) -> None:
    child, theirs = ends
    serving = threading.Thread(target=child._serve, daemon=True)
    serving.start()
    answers: dict[int, Any] = {}
    with theirs.makefile("rb") as lines:
        for number, what in enumerate(("snapshot", "health")):
            theirs.sendall(json.dumps({"do": what, "question": number}).encode() + b"\n")
            said = json.loads(lines.readline())
            answers[said["question"]] = said["answer"]
    assert answers == {0: None, 1: []}
    child.stop = lambda: None
    theirs.close()
    serving.join(20)
    assert not serving.is_alive()


def test_what_operators_have_asked_for_before_there_are_handlers_is_done_in_that_order_before_it_subscribes(ends: Any) -> None:
    child, _ = ends
    done: list[Any] = []
    here = SimpleNamespace(act=done.append)
    commands = [{"action": "pause", "handler": None}, {"action": "concurrency", "handler": "orders/say", "value": 3}]
    for command in commands:
        assert child._act(command) == ""
    assert done == []
    child._here = lambda: here
    child.begun(SimpleNamespace())
    assert done == commands
    child._act(commands[0])
    assert done == [*commands, commands[0]]


@pytest.mark.parametrize("shown", [True, False])
def test_what_is_shown_of_a_process_is_counted_from_its_beginning_on_where_somebody_can_look(ends: Any, shown: bool) -> None:
    """And not from the first look on."""
    child, _ = ends
    child.serve(SimpleNamespace(), shown=shown)
    child.begun(SimpleNamespace())
    assert (child._seen is not None) is shown
    assert child._here() is child._here() is child._seen, "rates are of what it saw before"


@pytest.mark.parametrize("asked", [True, False])
def test_who_asks_for_what_a_process_cannot_do_is_told_why(ends: Any, asked: bool) -> None:
    child, theirs = ends

    def cannot(command: Any) -> None:
        raise WrongUse("there is no such handler")

    child._supervisor, child._here = SimpleNamespace(), lambda: SimpleNamespace(act=cannot, health=lambda: [])
    child._heed({"do": "act", "command": {"action": "pause"}} | ({"question": 7} if asked else {}))
    child._heed({"do": "health", "question": 8})
    with theirs.makefile("rb") as lines:
        if asked:
            assert json.loads(lines.readline()) == {"question": 7, "answer": {"error": "there is no such handler"}}
        assert json.loads(lines.readline()) == {"question": 8, "answer": []}


@pytest.mark.parametrize("shown", [True, False])
def test_a_snapshot_is_in_the_last_words_where_somebody_looks(ends: Any, shown: bool) -> None:
    child, theirs = ends
    child._here = lambda: SimpleNamespace(snapshot=lambda: {"at": 1.0})
    child.serve(SimpleNamespace(), shown=shown)
    assert child.tell_books({"a/b": {}}, {"a/b": {"c": 1}})
    last = {"ledgers": {"a/b": {}}, "published": {"a/b": {"c": 1}}, "last": True}
    with theirs.makefile("rb") as lines:
        assert json.loads(lines.readline()) == last | ({"snapshot": {"at": 1.0}} if shown else {})


def test_a_second_signal_of_who_sends_them_to_all_processes_is_none_and_one_that_means_now_is(ends: Any) -> None:
    child, _ = ends
    stops: list[bool] = []
    child.serve(SimpleNamespace(stop=lambda now=False: stops.append(now)), shown=False)
    child.stop()
    child.stop()
    child.stop(now=True)
    assert stops == [False, True]
    child.serve(SimpleNamespace(stop=lambda now=False: stops.append(now)), shown=False)
    assert stops == [False, True, False], "what is run later than the signal ends as well"


def test_when_the_master_is_gone_there_is_nobody_to_tell_and_that_is_said(ends: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    child, _ = ends
    stops: list[bool] = []
    said: list[Any] = []
    monkeypatch.setattr(log_thread, "_start_new_thread", lambda does, what: said.append((does, what[0])))
    child.serve(SimpleNamespace(stop=stops.append), shown=False)
    child._orphaned()
    assert stops == [False]
    assert said == [(to_master.log.error, "the master has gone: this process finishes what runs, and ends")]
    assert not child.tell_books({}, {})


def test_where_no_more_threads_are_to_be_had_the_master_is_heeded_and_its_end_as_well(
    ends: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is to be written to the log is not, as the kernel has it that refuses one."""

    def refuses(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    child, _ = ends
    stops: list[bool] = []
    monkeypatch.setattr(log_thread, "_start_new_thread", refuses)
    monkeypatch.setattr(to_master, "dump", dump)
    child.serve(SimpleNamespace(stop=stops.append), shown=False)
    child._heed({"do": "dump", "why": "SIGUSR2"})
    child._orphaned()
    assert stops == [False]


def test_the_end_of_a_process_waits_for_nothing_once_its_books_are_told_or_nobody_is_there(
    ends: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    child, theirs = ends
    monkeypatch.setattr(to_master, "PATIENCE", 600.0)
    began = time.monotonic()
    assert child.tell_books({}, {})
    child._unsent = b"x"
    theirs.close()
    assert not child.tell_books({}, {})
    assert time.monotonic() - began < 60


def test_all_that_a_process_tells_of_itself_is_imported_before_another_thread_tells_it() -> None:
    """Two threads that import the same modules at once see each other's half: now and then a reload failed of it."""
    code = "import sys; from framework.master.state import About; About(); print('framework.admin.here' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "True\n"


def test_a_child_leaves_what_is_for_its_master_to_it_and_its_socket_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the handlers start is not the master's."""
    did: list[Any] = []
    monkeypatch.setattr(to_master.signal, "signal", lambda *what: did.append(what))
    monkeypatch.setattr(to_master, "_start_new_thread", lambda work, _: did.append(work.__name__))
    monkeypatch.setattr(to_master.dump, "on_signal", lambda: did.append("dump"))
    mine, theirs = socket.socketpair()
    fd = mine.detach()
    os.set_inheritable(fd, True)
    monkeypatch.setenv(to_master.FD, str(fd))
    about: Any = SimpleNamespace()
    made = to_master.ToMaster.inherited(lambda: about)
    assert made is not None
    assert made._about is about
    assert did == ["dump", (signal.SIGHUP, signal.SIG_IGN), "_serve"]
    assert (made._socket.fileno(), os.get_inheritable(fd), made._socket.getblocking()) == (fd, False, False)
    assert to_master.FD not in os.environ
    assert to_master.ToMaster.inherited(lambda: pytest.fail("there is none")) is None
    theirs.close()
    made._socket.close()


def test_who_is_told_to_stop_before_it_has_begun_ends_at_once(ends: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    child, _ = ends
    ended: list[int] = []

    def exit_(code: int) -> None:
        ended.append(code)
        raise SystemExit

    monkeypatch.setattr(to_master.os, "_exit", exit_)
    with pytest.raises(SystemExit):
        child.stop()
    assert ended == [0]


def test_reports_are_made_now_and_then_and_when_it_is_ready_and_none_while_one_is_on_its_way(
    ends: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    child, theirs = ends
    monkeypatch.setattr(to_master, "SOON", 0.005)
    monkeypatch.setattr(to_master, "EVERY", 0.02)
    app = SimpleNamespace(ready=False, stop=lambda now=False: None)
    child._about = lambda one: {"ready": one.ready}
    serving = threading.Thread(target=child._serve, daemon=True)
    serving.start()
    child.serve(app, shown=False)
    with theirs.makefile("rb") as lines:
        assert [json.loads(lines.readline()) for _ in range(3)] == [{"ready": False}] * 3
        app.ready = True
        while not json.loads(lines.readline())["ready"]:
            pass
    theirs.close()
    serving.join(20)
    assert not serving.is_alive()
    child._unsent, told = b"on its way", []
    monkeypatch.setattr(child, "_say", told.append)
    child._report(app)
    assert told == []
    child._unsent = b""
    child._report(app)
    assert told == [{"ready": True}]

    def changes(_: Any) -> Any:
        raise RuntimeError("changed size during iteration")

    child._about = changes
    child._report(app)
    assert len(told) == 1

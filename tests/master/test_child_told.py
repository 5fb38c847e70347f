"""What a master tells one of its processes and what it takes from it, line by line: with a socket and no process."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import gevent.socket
import pytest
from gevent import subprocess

from framework.master import child as module
from framework.master import dump
from framework.master.child import Child, command, folder

LEDGER = {"received": 5, "finished": 3, "requeued": 0, "dead": 0, "lease_lost": 0}


class Process:
    """In the place of the one that is started."""

    pid = 4711

    def __init__(self, command: Any, **how: Any) -> None:
        self.command, self.how = command, how
        self.returncode: int | None = None
        self.signals: list[int] = []
        self.its = gevent.socket.socket(fileno=os.dup(how["pass_fds"][0]))

    def wait(self) -> None:
        while self.returncode is None:
            gevent.sleep(0.001)

    def send_signal(self, number: int) -> None:
        if self.returncode is not None:
            raise ProcessLookupError
        self.signals.append(number)

    def says(self, *lines: Any) -> None:
        for line in lines:
            self.its.sendall(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")

    def ends(self, code: int) -> None:
        self.its.close()
        self.returncode = code


@pytest.fixture
def heard() -> list[Any]:
    return []


@pytest.fixture
def child(heard: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Child]:
    monkeypatch.setattr(module, "socket", gevent.socket)
    monkeypatch.setattr(module, "subprocess", SimpleNamespace(Popen=Process, DEVNULL=subprocess.DEVNULL))
    made = Child(["run", "shop"], str(tmp_path), generation=3, heard=lambda one, report: heard.append(report))
    with gevent.Timeout(30):
        yield made
    if process(made).returncode is None:
        process(made).ends(0)


def process(child: Child) -> Process:
    return child._process  # type: ignore[no-any-return]


def until(condition: Any) -> None:
    while not condition():
        gevent.sleep(0.001)


def test_it_is_started_in_its_folder_with_a_socket_and_in_a_group_of_its_own(child: Child, tmp_path: Path) -> None:
    made = process(child)
    assert (made.command, made.how["cwd"], made.how["process_group"]) == (["run", "shop"], str(tmp_path), 0)
    [fd] = made.how["pass_fds"]
    assert made.how["env"]["WORKERS_MASTER_FD"] == str(fd)
    assert made.how["env"]["PATH"] == os.environ["PATH"]
    assert made.how["stdin"] == subprocess.DEVNULL
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    assert (child.generation, child.pid, child.code, child.ready) == (3, 4711, None, False)
    assert 0 <= child.age < 20
    assert 0 <= child.chance <= 1
    assert (child.silent, child.said_late, child.due, child.report, child.health) == (0.0, False, "", {}, [])


def test_each_order_is_a_line(child: Child) -> None:
    child.dump("it is stuck")
    child.open_log()
    child.tell({"action": "pause"})
    question = child.ask({"do": "health"})
    child.stop(60.0)
    child.stop(4.0, now=True)
    lines = process(child).its.makefile("rb")
    assert [json.loads(lines.readline()) for _ in range(6)] == [
        {"do": "dump", "why": "it is stuck"}, {"do": "open log"}, {"do": "act", "command": {"action": "pause"}},
        {"do": "health", "question": question}, {"do": "stop", "now": False}, {"do": "stop", "now": True},
    ]  # fmt: skip
    lines.close()


def test_it_is_killed_at_the_earliest_of_the_times_that_it_was_given(child: Child) -> None:
    assert child.kill_at == float("inf")
    for within, expected in ((60.0, 60.0), (4.0, 4.0), (90.0, 4.0)):
        now = time.monotonic()
        child.stop(within)
        assert child.kill_at - now == pytest.approx(expected, abs=3.0)
        assert child.kill_at - now <= expected + 1


def test_a_report_is_heard_and_what_it_shows_is_kept_until_there_is_something_newer(child: Child, heard: list[Any]) -> None:
    child.silent = 9.0
    first = {"ready": True, "tasks": 7, "ledgers": {"a/b": LEDGER}, "published": {"a/b": {"c": 1}}, "snapshot": {"at": 1.0}}
    process(child).says(first, {"ready": False})
    until(lambda: len(heard) == 2)
    assert heard == [first, {"ready": False}]
    assert (child.report, child.silent, child.tasks) == ({"ready": False}, 0.0, 0)
    assert (child.ledgers, child.published, child.snapshot) == ({"a/b": LEDGER}, {"a/b": {"c": 1}}, {"at": 1.0})
    child.report = first
    assert child.tasks == 7


@pytest.mark.parametrize("said_last", [True, False])
def test_of_one_that_did_not_say_its_last_what_was_in_flight_is_lost(said_last: bool, child: Child, heard: list[Any]) -> None:
    process(child).says({"ready": True, "ledgers": {"a/b": LEDGER}})
    if said_last:
        process(child).says({"ledgers": {"a/b": {**LEDGER, "finished": 4}}, "published": {"a/b": {"c": 2}}, "last": True})
    until(lambda: heard and (child.published or not said_last))
    assert child.ledgers["a/b"]["lease_lost"] == 0
    process(child).says(b'{"ready": fal')  # in the middle of which it was killed
    process(child).ends(-9)
    until(lambda: heard[-1] is None)
    assert len(heard) == 2, "its last words are no report"
    assert child.ledgers["a/b"]["lease_lost"] == (0 if said_last else 2), "its last words stand as they are"
    assert (child.end, child._said_last) == ("was killed by SIGKILL", said_last)


def test_what_is_asked_is_answered_once_and_never_by_one_that_has_ended(child: Child, heard: list[Any]) -> None:
    one, other, given_up = (child.ask({"do": "snapshot"}) for _ in range(3))
    assert (one, other, given_up) == (1, 2, 3)
    assert not child.has_answered(one)
    assert child.answer(given_up) is None
    row = {"handler": "a/b", "counts": {**LEDGER, "lost": 0}, "published": {"c": 2}}
    process(child).says(
        {"question": one, "answer": {"handlers": [row]}}, {"question": given_up, "answer": 7}, {"question": other, "answer": [1]}
    )
    until(lambda: child.has_answered(other))
    assert (child.ledgers, child.published) == ({"a/b": LEDGER}, {"a/b": {"c": 2}}), "what is shown of it is in its books"
    assert [child.answer(one), child.answer(one), child.answer(other)] == [{"handlers": [row]}, None, [1]]
    assert child._answers == {}
    assert heard == []
    acted = child.ask({"do": "act"})
    process(child).says({"question": acted, "answer": {"error": ""}})
    until(lambda: child.has_answered(acted))
    assert (child.answer(acted), child.ledgers) == ({"error": ""}, {"a/b": LEDGER})
    last = child.ask({"do": "health"})
    process(child).ends(0)
    until(lambda: child.has_answered(last))
    assert child.answer(last) is None


def test_who_holds_its_socket_open_beyond_its_end_is_not_waited_for_long(
    child: Child, heard: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has started may have it."""
    monkeypatch.setattr(module, "LAST_WORDS", 0.05)
    process(child).returncode = 1
    until(lambda: heard == [None])
    assert child._socket.fileno() == -1
    process(child).its.close()


def test_a_signal_goes_to_it_while_it_is_there(child: Child, heard: list[Any]) -> None:
    child.signal(signal.SIGUSR2)
    process(child).ends(0)
    child.signal(signal.SIGKILL)
    assert process(child).signals == [signal.SIGUSR2]


def test_what_cannot_be_started_leaves_no_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fds: list[int] = []

    def fails(*_: Any, pass_fds: list[int], **__: Any) -> None:
        fds.extend(pass_fds)
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(module, "subprocess", SimpleNamespace(Popen=fails, DEVNULL=subprocess.DEVNULL))
    with pytest.raises(OSError, match="Cannot allocate memory"):
        Child(["run"], str(tmp_path), generation=1, heard=print)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fds[0])


def test_a_child_is_started_as_this_process_was_in_the_folder_as_the_shell_calls_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "framework.cli", "run", "shop"])
    assert command() == [sys.executable, "-m", "framework.cli", "run", "shop"]
    (tmp_path / "release-1").mkdir()
    (tmp_path / "newest").symlink_to("release-1")
    monkeypatch.chdir(tmp_path / "newest")
    real = str(tmp_path / "release-1")
    for shown, found in (
        (str(tmp_path / "newest"), str(tmp_path / "newest")), (str(tmp_path), real), ("", real), (str(tmp_path / "none"), real)
    ):  # fmt: skip
        monkeypatch.setenv("PWD", shown)
        assert folder() == found
    monkeypatch.delenv("PWD")
    assert folder() == real


# --- dumps -------------------------------------------------------------------------------------------------


def test_a_dump_has_the_innermost_last_and_no_more_places_than_anybody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    def outer() -> None:
        inner()

    def inner() -> None:
        gevent.sleep(60)

    waiting = gevent.spawn(outer)
    waiting.name = "the one that waits"
    gevent.sleep(0)
    entry = next(one for one in dump.text().split("\n\n") if one.startswith("greenlet the one that waits:"))
    assert 0 < entry.index("in outer") < entry.index("in inner")
    assert not dump.text().endswith(" more places")
    monkeypatch.setattr(dump, "MOST", 1)
    text = dump.text()
    assert text.splitlines()[-1].startswith("and ")
    assert text.endswith(" more places")
    assert text.count("greenlet ") + text.count("thread ") == 1
    waiting.kill()


def test_it_is_written_by_another_thread_with_why(caplog: pytest.LogCaptureFixture) -> None:
    here = threading.get_ident()
    dump.write("it is stuck")
    until_ = time.monotonic() + 20
    while not caplog.records and time.monotonic() < until_:
        time.sleep(0.001)
    [record] = caplog.records
    assert record.getMessage().startswith("it is stuck; where all of it is:\n")
    assert record.thread != here


def test_a_signal_has_the_threads_written_by_the_system_s_own_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGUSR2, which reaches all processes where somebody sends it to the whole service, does nothing."""
    registered: list[Any] = []
    before = signal.getsignal(signal.SIGUSR2)
    monkeypatch.setattr(dump.faulthandler, "register", lambda *what, **how: registered.append((what, how)))
    try:
        dump.on_signal()
        assert signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert registered == [((signal.SIGRTMAX,), {"file": 2, "all_threads": True})]

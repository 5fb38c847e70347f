"""Process slots: what no thread can bear, and that a process which dies, hangs or is left behind costs what was promised."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import gevent
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.engine import slot_process, valve
from framework.engine import slot_wire as wire
from framework.errors import BadHandler, Reject, Retry
from framework.testing.processes import has_ended
from framework.testing.workers import working

FEW = """
from framework import Message, handler

@handler("orders", "few", slots="process", concurrency=1)
def few(message: Message): ...
"""
MODULES = Path(__file__).parent / "modules"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.setattr("framework.engine.backoff.RETRY_BASE", 0.01)
    monkeypatch.syspath_prepend(str(MODULES))
    monkeypatch.setenv("JOURNAL", str(tmp_path / "journal"))
    monkeypatch.setenv("GATE", str(tmp_path / "gate"))
    return importlib.import_module("process_jobs")


@pytest.fixture
def journal(tmp_path: Path) -> Callable[[], list[str]]:
    return lambda: (tmp_path / "journal").read_text().split() if (tmp_path / "journal").exists() else []


def children() -> list[psutil.Process]:
    """Those of slots: servers of other tests stay as long as this process does."""
    alive = [one for one in psutil.Process().children() if one.status() != psutil.STATUS_ZOMBIE]
    return [one for one in alive if any("framework.engine.slot_child" in word for word in one.cmdline())]


def longest_standstill(worker, condition: Callable[[], object]) -> float:
    """Seconds that the hub did not turn, at most, until ``condition`` holds."""
    longest, before = 0.0, time.monotonic()
    while not condition():
        gevent.sleep(0.001)
        now = time.monotonic()
        longest, before = max(longest, now - before), now
        assert worker.greenlet or worker.greenlet.get()
    return longest


def how_long(jobs: ModuleType) -> tuple[bytes, float]:
    """A body that keeps the regular expression busy for about a second, and its own part of that: others compute as well."""
    for letters in range(20, 40):
        began = time.thread_time()
        jobs.re.match(r"(a+)+$", "a" * letters + "b")
        if (took := time.thread_time() - began) > 0.7:
            return b"%d" % letters, took
    raise AssertionError("the regular expression is no catastrophe any more")


@pytest.mark.slow
def test_a_catastrophic_regular_expression_stops_the_hub_from_a_thread_but_not_from_a_process(broker, run, jobs):
    body, seconds = how_long(jobs)
    stood = {}
    for kind in ("thread", "process"):
        worker = run(jobs.catastrophe, slots=kind, concurrency=1)
        worker.until(lambda w=worker: w.supervisor.ready)
        broker.publish("orders", body)
        done = len(broker.finished)
        stood[kind] = longest_standstill(worker, lambda before=done: len(broker.finished) > before)
        worker.stop()
    assert stood["thread"] > seconds / 2
    assert stood["process"] < stood["thread"] / 2


def test_processes_are_kept_and_there_are_as_many_as_slots(broker, run, jobs, journal):
    worker = run(jobs.say_pid, slots="process", concurrency=2)
    broker.publish("orders", *[b"x"] * 50)
    worker.until(lambda: len(broker.finished) == 50)
    assert len(set(journal())) <= 2
    assert len(children()) == 2
    worker.stop()
    assert children() == []


@pytest.mark.parametrize(("body", "words"), [(b"exit", "exited with 3"), (b"segfault", "was killed by SIGSEGV")])
def test_a_process_that_dies_costs_its_own_message_an_attempt_and_nothing_else(  # noqa: PLR0917
    broker, run, jobs, journal, tmp_path, caplog, body, words
):  # fmt: skip
    worker = run(jobs.die, slots="process", concurrency=2)
    broker.publish("orders", b"slow")
    worker.until(journal)
    broker.publish("orders", body, *[b"fine"] * 10)
    worker.until(lambda: len(broker.finished) == 11)
    (tmp_path / "gate").touch()
    worker.until(lambda: len(broker.finished) == 12)
    assert len(journal()) == 1  # the slow one ran on, undisturbed
    assert f"SlotDied: its slot process {words} in the middle of the call" in caplog.text
    assert worker.stop() == {"received": 13, "finished": 12, "requeued": 1, "dead": 0, "lease_lost": 0}


def test_what_always_kills_its_process_ends_as_a_dead_letter(broker, run, jobs, monkeypatch):
    letters = []
    worker = run(
        jobs.hang, slots="process", concurrency=1, timeout=0.3, max_attempts=1, dead=lambda topic, body: letters.append(body)
    )
    broker.publish("orders", b"x")
    worker.until(lambda: letters)
    assert b'"reason":"HandlerTimeout: it has run longer than its timeout of 0.3 s"' in letters[0]
    assert worker.stop()["dead"] == 1


@pytest.mark.parametrize(("body", "words"), [(b"exit", b"exited with 3"), (b"segfault", b"was killed by SIGSEGV")])
def test_the_letter_of_a_message_that_kills_its_process_says_how(broker, run, jobs, body, words):
    letters = []
    worker = run(jobs.die, slots="process", concurrency=1, max_attempts=1, dead=lambda topic, body: letters.append(body))
    broker.publish("orders", body)
    worker.until(lambda: letters)
    assert b'"reason":"SlotDied: its slot process ' + words + b' in the middle of the call"' in letters[0]
    assert worker.stop()["dead"] == 1


def test_over_its_time_a_process_is_killed_with_all_that_it_has_started(broker, run, jobs, journal, monkeypatch):
    monkeypatch.setattr(valve, "JAMMED", 60.0)  # a busy machine takes its time to start the next one
    worker = run(jobs.hang, slots="process", concurrency=1, timeout=0.5)
    broker.publish("orders", b"x")
    worker.until(lambda: len(journal()) == 2)
    pids = list(map(int, journal()))
    worker.until(lambda: broker.finished, seconds=20)
    worker.until(lambda: all(map(has_ended, pids)))
    assert worker.stop() == {"received": 2, "finished": 1, "requeued": 1, "dead": 0, "lease_lost": 0}


def test_a_process_that_is_told_to_end_by_a_signal_for_all_waits_for_the_worker(broker, run, jobs, journal):
    worker = run(jobs.say_pid, slots="process", concurrency=1)
    worker.until(lambda: worker.supervisor.ready)
    (child,) = children()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        child.send_signal(number)
    broker.publish("orders", b"x")
    worker.until(lambda: broker.finished)
    assert journal() == [str(child.pid)]
    assert os.getpgid(child.pid) != os.getpgid(0)  # Ctrl-C does not even reach it
    worker.stop()


def test_a_killed_idle_process_is_replaced(broker, run, jobs, caplog):
    worker = run(jobs.say_pid, slots="process", concurrency=1)
    worker.until(lambda: worker.supervisor.ready)
    (child,) = children()
    child.kill()
    worker.until(lambda: "another is started" in caplog.text and worker.supervisor.ready)
    assert child.pid not in [one.pid for one in children()]
    assert "was killed by SIGKILL; another is started" in caplog.text
    broker.publish("orders", b"x")
    worker.until(lambda: broker.finished)
    assert worker.stop()["requeued"] == 0


def test_one_is_started_where_few_files_can_be_opened(tmp_path):
    (tmp_path / "shop.py").write_text(FEW)
    with working("run", "shop", "--broker", "memory://few", cwd=tmp_path) as worker:
        worker.wait_for("ready")
        process = psutil.Process(worker.process.pid)
        (child,) = process.children()
        process.rlimit(psutil.RLIMIT_NOFILE, (60, process.rlimit(psutil.RLIMIT_NOFILE)[1]))
        child.kill()
        worker.wait_for("another is started")
        worker.wait_until(lambda: process.children() not in ([], [child]))
        assert worker.stop() == 0
    assert not any("can be started" in line for line in worker.err)


def test_a_process_that_says_what_cannot_be_read_is_killed_and_its_message_comes_again(broker, run, jobs, monkeypatch, caplog):
    worker = run(jobs.say_pid, slots="process", concurrency=1)
    worker.until(lambda: worker.supervisor.ready)
    (child,) = children()
    garbled = [b"the first frame"]

    def said(frame: bytes) -> wire.Said:
        if garbled:
            garbled.pop()
            raise ValueError("no such frame")
        return understood(frame)

    understood = wire.said
    monkeypatch.setattr(wire, "said", said)
    broker.publish("orders", b"x")
    worker.until(lambda: broker.finished)
    assert "what a slot process said cannot be read, which is a bug; it is killed" in caplog.text
    assert child.pid not in [one.pid for one in children()]
    counts = worker.stop()  # on a busy machine it is given back once more, while it waits for the next process
    assert counts == {
        "received": counts["requeued"] + 1,
        "finished": 1,
        "requeued": max(1, counts["requeued"]),
        "dead": 0,
        "lease_lost": 0,
    }


def test_a_module_that_cannot_be_imported_there_is_refused_at_the_start(run, jobs, monkeypatch):
    monkeypatch.setenv("WORKER", str(os.getpid()))
    worker = run(importlib.import_module("only_once").function, slots="process", concurrency=1)
    with pytest.raises(BadHandler, match=r"orders/billing: a slot process cannot import only_once: RuntimeError: only in the"):
        worker.greenlet.get(timeout=30)


def test_a_process_that_is_let_go_before_it_is_ready_ends_without_a_traceback(jobs, capfd):
    """A stop soon after the start: the process has read what it is for, and still imports it."""
    ours, theirs = socket.socketpair()
    with theirs, slot_process._shared(1) as shared:
        ours.sendall(wire.frame(wire.Setup(jobs.__name__, "say_pid", "orders", "billing", 0, logging.INFO)))
        pid = slot_process._spawn(theirs.fileno(), shared.fileno(), None)
    ours.close()
    _, status = slot_process._waitpid(pid, 0)
    assert (os.waitstatus_to_exitcode(status), capfd.readouterr().err) == (0, "")


def test_nothing_is_granted_before_a_process_takes_calls(broker, run, jobs):
    worker = run(jobs.say_pid, slots="process", concurrency=1)
    worker.until(broker.connections)
    if not worker.supervisor.ready:
        assert broker.connections()[0].granted == 0
    worker.until(lambda: worker.supervisor.ready)
    worker.until(lambda: broker.connections()[0].granted > 0)
    worker.stop()


def test_log_records_of_a_process_reach_the_workers_log(broker, run, jobs, caplog, capfd):
    with caplog.at_level(logging.INFO):
        worker = run(jobs.talk, slots="process", concurrency=1)
        broker.publish("orders", b"a body")
        worker.until(lambda: broker.finished)
        worker.until(lambda: sum("from thread" in record.getMessage() for record in caplog.records) == 20)
        worker.stop()
    record = next(one for one in caplog.records if one.getMessage() == "heard a body")
    assert (record.name, record.levelname, record.funcName) == ("shop", "INFO", "talk")
    assert record.process != os.getpid()
    failed = next(one for one in caplog.records if one.getMessage() == "went wrong")
    assert "ValueError: aside" in failed.exc_text
    assert [one.pathname for one in caplog.records if one.getMessage() == "from elsewhere"] == ["/caf\\udce9/shop.py"]
    assert "nobody wants to know" not in caplog.text
    assert "printed" in capfd.readouterr().out


def test_a_body_of_megabytes_goes_through(broker, run, jobs):
    worker = run(jobs.big, slots="process", concurrency=2)
    broker.publish("orders", *[b"x" * 3_000_000] * 6)
    worker.until(lambda: len(broker.finished) == 6, seconds=30)
    assert worker.stop()["requeued"] == 0


def test_an_exception_keeps_its_class_so_that_policies_find_it(broker, run, jobs, caplog):
    letters = []
    policy = ((jobs.ShopError, Reject),)
    worker = run(jobs.raises, slots="process", concurrency=1, policy=policy, dead=lambda topic, body: letters.append(body))
    broker.publish("orders", b"x")
    worker.until(lambda: letters)
    assert b"ShopError: order 7 at the corner" in letters[0]
    assert b"process_jobs.py" in letters[0]  # the traceback there
    assert worker.stop()["dead"] == 1


def test_errors_of_single_messages_of_a_batch_come_back(broker, run, jobs, caplog):
    worker = run(jobs.batch_of_errors, slots="process", concurrency=1, batch=3, linger=0.05)
    broker.publish("orders", b"1", b"2", b"3")
    worker.until(lambda: len(broker.finished) == 3)
    assert "ShopError: order 2 at the corner" in caplog.text
    assert worker.stop()["requeued"] == 3


def test_a_process_has_no_descriptor_of_the_worker(broker, run, jobs):
    worker = run(jobs.say_pid, slots="process", concurrency=2)
    worker.until(lambda: worker.supervisor.ready and worker.supervisor._consumers[0]._remote.usable == 2)
    for child in children():
        names = [os.readlink(f"/proc/{child.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{child.pid}/fd")]
        assert sum(name.startswith("socket:") for name in names) == 1
    worker.stop()


WORKER = """
import sys
sys.path.insert(0, sys.argv[1])
import gevent
from framework.engine.supervisor import Supervisor
from framework.handler import HandlerSpec
from framework.transports import open_transports
import process_jobs

spec = HandlerSpec("orders", "billing", process_jobs.catastrophe, None, 2, 10, 60.0, 0, 0, 0.0, slots="process")
transports = open_transports([sys.argv[2]])
gevent.spawn_later(1.0, transports[0].producer().publish, "orders", [b"60", b"60"])
Supervisor([spec], transports, publish=print).run()
"""


@pytest.mark.real
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own promise, on Linux")
def test_no_process_outlives_a_worker_that_is_killed_even_in_the_middle_of_a_call(nsqd, tmp_path):
    started = tmp_path / "started"
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(MODULES), f"nsq://{nsqd.address}"],
        cwd=ROOT,
        env={**os.environ, "STARTED": str(started)},
    )
    try:
        until, pids = time.monotonic() + 60, []
        while len(pids) < 2 or nsqd.channel_stats("orders", "billing").get("in_flight_count") != 2:
            assert time.monotonic() < until
            assert worker.poll() is None
            time.sleep(0.05)
            written = started.read_text().split() if started.exists() else []
            pids = [pid for pid in map(int, written) if pid != worker.pid]
    finally:
        worker.kill()
        worker.wait()
    assert len(pids) == 2
    until = time.monotonic() + 20
    while not all(map(has_ended, pids)):
        assert time.monotonic() < until
        time.sleep(0.02)


# -- the wire


@given(st.lists(st.binary(max_size=300), max_size=20), st.integers(1, 50))
def test_frames_come_out_as_they_went_in_wherever_the_stream_is_cut(bodies: list[bytes], step: int) -> None:
    stream = b"".join(wire.frame(wire.Job([wire.Delivery(b"id", 1, 1, body, "n")], 0.0)) for body in bodies)
    frames, found = wire.Frames(), []
    for at in range(0, len(stream), step):
        found += frames.feed(stream[at : at + step])
    assert [wire.asked(each).messages[0].body for each in found] == bodies


class Odd(Exception):
    def __init__(self, *, needed: object) -> None:
        self.needed = needed

    def __str__(self) -> str:
        return f"odd: {self.needed!r}"


class Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def local_error() -> Exception:
    class Local(Exception):
        pass

    return Local("here")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("plain"), KeyError("key"), OSError(2, "No such file", "name"), Retry("later", delay=3.5), Reject("no"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), Odd(needed=object()), Wordless(), local_error(), SystemExit(3),
        ValueError("\udcff"), ValueError("x" * 100_000), ValueError(10**40), StopIteration(),
        ExceptionGroup("two", [ValueError("a")]),
    ],
)  # fmt: skip
def test_any_exception_comes_back_with_its_words_and_of_a_class_that_policies_know(error: BaseException) -> None:
    try:
        raise error
    except BaseException as raised:
        there = wire.failure(raised)
    travelled = wire.said(wire.frame(wire.Done(there, []))[4:])
    back = wire.error_of(travelled.error)
    assert type(back).__name__ == type(error).__name__
    assert wire._words(back) == there.words
    if not isinstance(error, ExceptionGroup) and "<locals>" not in type(error).__qualname__:
        assert isinstance(back, type(error))
    if isinstance(error, Retry):
        assert isinstance(back, Retry)
        assert (back.reason, back.delay) == ("later", 3.5)
    assert "Traceback" in str(back.__cause__)

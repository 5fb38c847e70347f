"""What a master does at each step: whom it starts, whom it ends, what it gives up. Its processes are stand-ins here, which have
subscribed or ended when a test says so: with real ones the other files see the same, in tens of seconds."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import gevent
import pytest

from framework.master import master as of_master
from framework.master import reasons
from framework.master.master import MARGIN, Master
from framework.settings import Settings

Lead = Callable[..., "Led"]
CORES = 2
DRAIN = 7.0


class StandIn:
    """In the place of a ``Child``."""

    pids = itertools.count(1001)

    def __init__(self, *_: Any, generation: int, heard: Callable[..., object]) -> None:
        self.generation, self._heard = generation, heard
        self.pid = next(self.pids)
        self.ready = self.said_late = False
        self.age = self.silent = self.chance = 0.0
        self.kill_at = float("inf")
        self.due, self.end = "", "ended with exit status 0"
        self.code: int | None = None
        self.tasks = self.rss = 0
        self.report: dict[str, Any] = {"handlers": {"orders/say": (4, 20)}}
        self.ledgers: Any = {}
        self.published: Any = {}
        self.told: list[Any] = []

    def stop(self, within: float, *, now: bool = False) -> None:
        self.told.append(("stop", within, now))

    def dump(self, why: str) -> None:
        self.told.append(("dump", why))

    def open_log(self) -> None:
        self.told.append("open log")

    def signal(self, number: int) -> None:
        self.told.append(("signal", number))

    def subscribes(self) -> None:
        self._heard(self, {"ready": True})

    def ends(self, code: int = 0) -> None:
        self.code = code
        self._heard(self, None)


class Led:
    """A master that takes its steps when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.wanted = Settings(brokers=("nsq://127.0.0.1:1",), drain=DRAIN, **settings)
        self.started: list[StandIn] = []
        self.logs: list[dict[str, Any]] = []
        self.fails: OSError | None = None
        monkeypatch.setattr(of_master, "Child", self._start)
        monkeypatch.setattr(of_master, "cores", lambda: CORES)
        monkeypatch.setattr(of_master, "setup", lambda level, **more: self.logs.append({"level": level, **more}))
        self.master = Master(self.wanted, lambda: self.wanted)
        self.master._generation = self.master._newest = 1
        self.step()

    def _start(self, *arguments: Any, **more: Any) -> StandIn:
        if self.fails is not None:
            raise self.fails
        self.started.append(StandIn(*arguments, **more))
        return self.started[-1]

    def step(self) -> None:
        """What ``run`` does, until nothing more is to be done."""
        self.master._fill()
        while not self.master._events.empty():
            self.master._next()()
            self.master._fill()
        self.master._look()

    @property
    def starting(self) -> list[StandIn]:
        return [seat.successor for seat in self.master._seats if seat.successor is not None]  # type: ignore[misc]

    @property
    def at_work(self) -> list[StandIn]:
        return [seat.child for seat in self.master._seats if seat.child is not None]  # type: ignore[misc]

    def subscribe(self, *those: StandIn) -> None:
        for one in those or list(self.starting):
            one.subscribes()
        self.step()

    def until_all_work(self) -> list[StandIn]:
        while self.starting:
            self.subscribe()
        return self.at_work

    def reload(self, **settings: Any) -> None:
        self.wanted = replace(self.wanted, **settings)
        self.master._events.put(self.master._reload)
        self.step()


@pytest.fixture
def lead(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Lead:
    caplog.set_level(logging.INFO)
    return lambda **settings: Led(monkeypatch, **settings)


def test_one_is_started_alone_and_when_it_can_work_as_many_at_a_time_as_there_are_cores(lead: Lead) -> None:
    led = lead(processes=6)
    assert len(led.starting) == 1
    led.step()
    assert len(led.starting) == 1
    led.subscribe()
    assert (len(led.at_work), len(led.starting)) == (1, CORES)
    led.subscribe(led.starting[0])
    assert (len(led.at_work), len(led.starting)) == (2, CORES)
    assert len(led.until_all_work()) == len(led.started) == 6


def test_a_process_is_at_work_from_its_first_word_that_it_is_ready_on(lead: Lead, caplog: pytest.LogCaptureFixture) -> None:
    led = lead(processes=1)
    [one] = led.starting
    for ready, at_work in ((False, []), (True, [one]), (True, [one]), (False, [one])):
        one._heard(one, {"ready": ready})
        led.step()
        assert (led.at_work, led.starting, one.ready) == (at_work, [one] * (not at_work), bool(at_work))
    assert caplog.text.count("is at work") == 1


def test_empty_seats_are_filled_before_one_that_is_worn_is_replaced(lead: Lead) -> None:
    led = lead(processes=3)
    first, second, died = led.until_all_work()
    first.due = second.due = "as if they were worn"
    died.ends(-9)
    led.master._next()()
    led.step()
    assert [seat.successor is not None for seat in led.master._seats] == [True, False, True]
    led.until_all_work()
    assert [one.told for one in (first, second, died)] == [
        [("stop", DRAIN + MARGIN, False)],
        [("stop", DRAIN + MARGIN, False)],
        [],
    ]


def test_a_reload_is_tried_with_one_process_and_only_then_with_the_others(lead: Lead, caplog: pytest.LogCaptureFixture) -> None:
    led = lead(processes=3)
    old = led.until_all_work()
    led.reload(log_level="debug", log_format="json", processes=3)
    [first] = led.starting
    assert (first.generation, led.at_work) == (2, old)
    assert [one.told for one in old] == [[], [], []]
    assert led.logs == [], "should it not work, the log is as it was"
    led.subscribe(first)
    assert led.logs == [{"level": "debug", "timed": True, "form": "json", "frames": led.wanted.log_frames}]
    assert [one.told for one in old] == [[("stop", DRAIN + MARGIN, False)], [], []]
    assert len(led.starting) == CORES
    assert "reloaded: all" not in caplog.text
    new = led.until_all_work()
    assert [one.generation for one in new] == [2, 2, 2]
    assert [len(one.told) for one in old] == [1, 1, 1]
    assert len(led.logs) == 1
    assert caplog.text.count("reloaded: all 3 processes have the new code and settings") == 1


def test_the_first_of_a_reload_has_its_deadline_and_those_that_follow_are_waited_for(lead: Lead) -> None:
    led = lead(processes=3, reload_deadline=5.0)
    old = led.until_all_work()
    old[0].due = "as if it was worn"
    led.step()
    [follower] = led.starting
    follower.age = 6.0
    led.step()
    assert (led.starting, follower.told) == ([follower], []), "no reload: it is waited for"
    led.subscribe()
    led.reload()
    [first] = led.starting
    first.age = 4.9
    led.step()
    assert led.starting == [first]
    led.subscribe(first)
    for one in led.starting:
        one.age = 6.0
    led.step()
    assert len(led.starting) == CORES
    assert len(led.until_all_work()) == 3
    at_work = led.at_work
    led.reload()
    led.starting[0].age = 5.1
    led.step()
    led.step()
    assert led.starting == []
    assert led.at_work == at_work
    assert led.started[-1].told == [("stop", DRAIN + MARGIN, False)]


def test_one_that_cannot_be_started_is_tried_again_after_a_pause(lead: Lead, caplog: pytest.LogCaptureFixture) -> None:
    led = lead(processes=2)
    led.until_all_work()
    led.fails = OSError(12, "Cannot allocate memory")
    led.at_work[0].ends(-9)
    led.step()
    [seat] = [seat for seat in led.master._seats if seat.child is None]
    assert seat.deaths == 2
    led.step()
    assert seat.deaths == 2, "it waits"
    assert "process 1 cannot be started: [Errno 12] Cannot allocate memory; this is tried again in 1 s" in caplog.text
    led.fails, seat.not_before = None, 0.0
    led.step()
    assert len(led.until_all_work()) == 2


def test_a_reload_whose_first_process_cannot_be_started_changes_nothing(lead: Lead, caplog: pytest.LogCaptureFixture) -> None:
    led = lead(processes=2)
    old, before = led.until_all_work(), led.master._settings
    led.fails = OSError(24, "Too many open files")
    led.reload(processes=5)
    assert (led.at_work, led.master._settings, led.starting) == (old, before, [])
    assert "not reloaded: the first new process could not be started: [Errno 24]" in caplog.text
    led.fails = None
    led.step()
    assert led.at_work == old


def test_what_is_worn_is_replaced_once_and_drains_when_the_other_can_work(lead: Lead) -> None:
    led = lead(processes=1, max_tasks=10)
    [worn] = led.until_all_work()
    worn.tasks = 10
    led.step()
    led.step()
    assert (len(led.started), worn.told) == (2, [])
    led.subscribe()
    assert worn.told == [("stop", DRAIN + MARGIN, False)]
    worn.ends()
    led.step()
    assert len(led.started) == 2
    [seat] = led.master._seats
    assert seat.deaths == 1, "if the next is worn as soon, the one after it comes later and later"
    led.reload()
    led.until_all_work()
    assert (len(led.started), seat.deaths) == (3, 1)


def test_one_that_is_stuck_writes_where_it_is_and_is_replaced(lead: Lead) -> None:
    led = lead(processes=1)
    [stuck] = led.until_all_work()
    stuck.report["stuck"], stuck.silent = ["the hub stands"], reasons.SILENCE
    led.step()
    led.step()
    assert (stuck.told, stuck.due, len(led.started)) == ([("dump", "the hub stands")], "the hub stands", 2)


def test_one_that_says_nothing_writes_where_its_threads_are(lead: Lead) -> None:
    led = lead(processes=1)
    [silent] = led.until_all_work()
    silent.ready, silent.silent, silent.report = True, 31.0, {}
    led.step()
    assert [what for what, *_ in silent.told] == ["dump", "signal"]
    assert silent.told[-1] == ("signal", signal.SIGRTMAX)


def test_what_does_not_end_in_time_is_killed_once(lead: Lead) -> None:
    led = lead(processes=2)
    slow, other = led.until_all_work()
    slow.kill_at = 0.0
    led.step()
    led.step()
    assert (slow.told, other.told) == ([("signal", signal.SIGKILL)], [])


def test_a_stop_drains_all_and_a_second_one_gives_back(lead: Lead) -> None:
    led = lead(processes=2)
    led.until_all_work()
    led.reload()
    every = list(led.started)
    for round_, now in enumerate((False, True), 1):
        led.master._stop()
        assert [one.told[-1] for one in every] == [("stop", MARGIN if now else DRAIN + MARGIN, now)] * 3
        assert [len(one.told) for one in every] == [round_] * 3
    led.step()
    assert len(led.started) == 3, "nobody is started any more"
    for one in every:
        assert not led.master._over()
        one.ends()
        led.step()
    assert led.master._over()


@pytest.fixture
def heeding(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a master has until its process ends is taken from this one again."""
    watchers, handle = [], gevent.signal_handler
    monkeypatch.setattr(gevent, "signal_handler", lambda *arguments: watchers.append(handle(*arguments)))
    yield
    for watcher in watchers:
        watcher.cancel()


@pytest.mark.usefixtures("heeding")
def test_signals_change_how_many_there_are_and_reach_all(lead: Lead, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    monkeypatch.setattr(of_master.logfile, "open_again", lambda: opened.append(1))
    led = lead(processes=2)
    led.master._heed_signals()
    first, second = led.until_all_work()

    def send(number: int) -> None:
        os.kill(os.getpid(), number)
        with gevent.Timeout(20):
            led.master._events.peek()
        led.step()

    send(signal.SIGTTIN)
    assert len(led.until_all_work()) == 3
    third = led.at_work[2]
    send(signal.SIGTTOU)
    assert led.at_work == [first, second]
    assert third.told == [("stop", DRAIN + MARGIN, False)]
    send(signal.SIGUSR1)
    assert (first.told, second.told, opened) == (["open log"], ["open log"], [1])
    send(signal.SIGUSR2)
    assert first.told[1:] == second.told[1:] == [("dump", "SIGUSR2")]
    send(signal.SIGTTOU)
    send(signal.SIGTTOU)
    assert led.at_work == [first], "the last one stays"
    send(signal.SIGHUP)
    assert (led.starting[0].generation, led.master._reloading) == (2, True)


LATE_SIGNAL = """
    import os, signal, sys
    import gevent
    from gevent import monkey
    monkey.patch_all()
    from framework.master import master as of_master
    from framework.settings import Settings

    def write(*_):
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))
        gevent.sleep(0.05)
        print("written", flush=True)

    of_master.books.write = write
    master = of_master.Master(Settings(brokers=("nsq://127.0.0.1:1",)), Settings)
    master.stop()
    master._fill = lambda: None
    sys.exit(master.run())
"""


@pytest.mark.parametrize("name", ["SIGHUP", "SIGUSR1", "SIGUSR2", "SIGTTIN"])
def test_a_signal_that_comes_while_the_ledger_is_written_ends_nothing(name: str) -> None:
    """As logrotate sends to a worker that is just about to end."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LATE_SIGNAL), name], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "written\n", "")

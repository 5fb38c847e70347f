"""A signal interrupts the verb, never what the hub is in the middle of; and one that is ignored stays ignored."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import gevent
import pytest

from framework.cli.signals import Interrupted, interrupting, stopping


def test_a_callback_of_the_hub_comes_to_its_end_before_the_verb_is_interrupted() -> None:
    steps: list[str] = []

    def callback() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000):  # the handler runs somewhere in here
            pass
        steps.append("done")

    gevent.get_hub().loop.run_callback(callback)
    with pytest.raises(Interrupted) as caught, interrupting():
        gevent.sleep(10)
    assert steps == ["done"]
    assert caught.value.exit_code == 143


def test_another_greenlet_goes_on_when_the_verb_is_interrupted() -> None:
    def work() -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        gevent.sleep(0.01)
        return "done"

    other = gevent.spawn(work)
    with pytest.raises(Interrupted), interrupting():
        gevent.sleep(10)
    assert other.get(timeout=5) == "done"


def test_a_verb_that_computes_is_interrupted_at_once() -> None:
    with pytest.raises(Interrupted), interrupting():
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(10_000_000):
            pass
        pytest.fail("it went on")


def test_a_sighup_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupting():
            os.kill(os.getpid(), signal.SIGHUP)
            gevent.sleep(0.01)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


class Stopped:
    """What is stopped, and how often with ``now``."""

    def __init__(self) -> None:
        self.calls: list[bool] = []

    def stop(self, now: bool = False) -> None:
        self.calls.append(now)


def within_seconds(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_the_first_signal_stops_and_the_second_stops_now() -> None:
    target = Stopped()
    with stopping(target) as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        within_seconds(lambda: target.calls == [False])
        assert signals.exit_code == 0
        os.kill(os.getpid(), signal.SIGINT)
        within_seconds(lambda: target.calls == [False, True])
        assert signals.exit_code == 130
    assert target.calls == [False, True]


def test_a_signal_is_heeded_though_somebody_else_took_the_wake_up_for_himself() -> None:
    target = Stopped()
    with stopping(target):
        ours = signal.set_wakeup_fd(-1)  # as asyncio does, and does not give it back
        os.kill(os.getpid(), signal.SIGTERM)
        within_seconds(lambda: target.calls == [False])
        signal.set_wakeup_fd(ours)
        os.kill(os.getpid(), signal.SIGTERM)
        within_seconds(lambda: target.calls == [False, True])


def test_a_signal_for_a_forked_child_does_not_stop_its_parent() -> None:
    target = Stopped()
    with stopping(target):
        child = os.fork()
        if not child:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0)
        os.waitpid(child, 0)
        time.sleep(0.05)
        assert target.calls == []
        os.kill(os.getpid(), signal.SIGTERM)
        within_seconds(lambda: target.calls == [False])


def test_afterwards_signals_and_the_wake_up_are_as_they_were() -> None:
    before = signal.getsignal(signal.SIGTERM), open_files()
    with stopping(Stopped()):
        pass
    assert (signal.getsignal(signal.SIGTERM), open_files()) == before
    assert signal.set_wakeup_fd(-1) == -1


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


ENDING = """
import atexit, sys, time
def tell_and_wait(what):
    print(what, flush=True)
    time.sleep({wait})
if {late}:  # the exit functions run in the opposite order
    atexit.register(tell_and_wait, "going")
from framework.cli.signals import stopping
if not {late}:
    atexit.register(tell_and_wait, "going")
class Target:
    def stop(self, now=False):
        self.stopped = True
target = Target()
target.stopped = False
with stopping(target, to_the_end=True):
    print("up", flush=True)
    while not target.stopped:
        time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("late", "wait", "code"), [(False, 30, 143), (True, 1, 0)], ids=["in an exit function", "behind the last"]
)
def test_a_signal_in_the_last_moments_ends_at_once_or_changes_nothing(late: bool, wait: int, code: int) -> None:
    command = [sys.executable, "-c", ENDING.format(late=late, wait=wait)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "going\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == code

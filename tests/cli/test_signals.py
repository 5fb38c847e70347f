"""A signal interrupts the verb, never what the hub is in the middle of; and one that is ignored stays ignored."""

from __future__ import annotations

import os
import signal

import gevent
import pytest

from framework.cli.signals import Interrupted, interrupting


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

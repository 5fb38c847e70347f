"""A process that is stuck is dumped and replaced; one that has done or taken enough is replaced; its siblings notice nothing."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from framework.testing.processes import left_after
from framework.testing.servers import Server
from framework.testing.workers import call
from tests.cli.shop import adds_up, put
from tests.master.conftest import Master
from tests.master.test_reload import fewest_consumers, publishing

pytestmark = [pytest.mark.real, pytest.mark.slow]

Lead = Callable[..., Master]
Write = Callable[..., Path]
STUCK = """
    from time import sleep
    from gevent import monkey
    from framework.admin import health
    from framework.engine import slots
    from framework.master import reasons, state

    state.IDLE = 1.0
    never = monkey.get_original("time", "sleep")

    @handler("orders", "say", timeout=1, max_in_flight=5)
    def say(text: str) -> None:
        say_at_once(f"got {text}")
        if text == "block":
            stands_here()
        if text == "still":
            slots.Slots.pump = lambda self: None

    def stands_here():
        never(600)
"""


def test_a_process_whose_hub_a_handler_blocks_is_dumped_and_replaced_and_the_others_go_on(
    lead: Lead, write: Write, nsqd: Server
) -> None:
    write(STUCK)
    master = lead("--drain", "1s")
    put(nsqd, "block")
    master.wait_for("got block")
    put(nsqd, "a", "b")
    (stuck,) = _until_replaced(master)
    master.wait_until(lambda: {"got a", "got b"} <= set(master.out))
    assert any("handler orders/say, whose timeout is 1 s, has blocked the hub" in line for line in master.err)
    assert any(f" {stuck} WARNING framework.master.dump" in line and "in stands_here" in line for line in master.err)
    assert left_after([stuck], 20) == []
    assert not any("is killed" in line for line in master.err), "it gives back what it has, and ends by itself"


def test_one_in_which_messages_wait_though_nothing_runs_is_replaced(lead: Lead, write: Write, nsqd: Server) -> None:
    write(STUCK)
    master = lead("--drain", "1s")
    put(nsqd, "still")
    master.wait_for("got still")
    put(nsqd, *"abcdefgh")
    _until_replaced(master)
    master.wait_until(lambda: {f"got {letter}" for letter in "abcdefgh"} <= set(master.out))
    assert any("messages have waited for" in line and "and nothing runs" in line for line in master.err)
    assert master.stop() == 0


def _until_replaced(master: Master) -> list[int]:
    master.wait_until(lambda: len(master.told(r"(\d+) drains: ")) == 1, deadline=40)
    return [int(pid) for pid in master.told(r"(\d+) drains: ")]


IMPATIENT = """
from framework.cli.patching import patch
patch()
from framework.master import reasons
reasons.SILENCE = 1.0
from framework.cli import main
main()
"""


def test_one_that_says_nothing_is_replaced_and_killed(
    lead: Lead, write: Write, nsqd: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Suspended, as it were by native code that holds the GIL: it can neither report nor drain."""
    monkeypatch.setattr("framework.testing.workers.command", lambda *rest: [sys.executable, "-c", IMPATIENT, *rest])
    write(STUCK)
    master = lead("--drain", "0s")
    silent = master.started[0]
    os.kill(silent, signal.SIGSTOP)
    put(nsqd, *"abcdefgh")
    master.until_started(3)
    master.wait_until(lambda: {f"got {letter}" for letter in "abcdefgh"} <= set(master.out))
    assert any(f"{silent} is stuck, and is replaced: it has said nothing for" in line for line in master.err)
    assert left_after([silent], 20) == []
    master.wait_for(f"{silent}, which was to end, was killed by SIGKILL")
    assert master.stop() == 0


def test_processes_are_recycled_by_the_messages_they_ended_and_nothing_is_lost(lead: Lead, write: Write, nsqd: Server) -> None:
    folder = write()
    master = lead("--max-tasks", "200")
    with fewest_consumers(nsqd) as seen, publishing(nsqd) as stored:
        master.until_started(5, deadline=60)
    master.wait_until(lambda: set(master.got()) >= set(stored), deadline=60)
    assert min(seen) >= 2
    assert master.stop() == 0
    assert sorted(master.got()) == stored
    assert adds_up(folder / "ledger.json")["finished"] == len(stored)
    assert all(int(count) >= 200 for count in master.told(r"drains: it has ended (\d+) messages \(--max-tasks\)"))


def test_one_that_takes_too_much_memory_is_recycled(lead: Lead, write: Write, nsqd: Server) -> None:
    write("""
        kept = []
        @handler("orders", "say")
        def say(text: str) -> None:
            kept.append(b"x" * (300 << 20))
            say_at_once(f"got {text}")
    """)
    master = lead("--max-rss", "250MB", processes=1)
    put(nsqd, "1")
    master.wait_for("of memory (--max-rss)")
    assert len(master.started) == 2
    put(nsqd, "2")
    master.wait_until(lambda: set(master.got()) == {1, 2})
    assert master.stop() == 0


@pytest.mark.parametrize("flags", [("--max-tasks", "5"), ("--max-rss", "1GB")])
def test_limits_of_processes_need_a_master(write: Write, nsqd: Server, flags: tuple[str, str]) -> None:
    done = call("run", "shop", "--broker", f"nsq://{nsqd.address}", *flags, cwd=write())
    assert done.returncode == 2
    assert f"workers: {flags[0]} has a master replace processes: give --processes as well" in done.stderr

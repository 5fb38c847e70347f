"""A master keeps its processes at work: nothing is lost when one dies, all do, or it dies itself; and no process is left over."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from framework.testing.processes import has_ended, left_after
from framework.testing.servers import Server
from tests.cli.shop import adds_up, put
from tests.master.conftest import Master, consumers

pytestmark = pytest.mark.real

Lead = Callable[..., Master]
Write = Callable[..., Path]


def test_all_work_from_one_channel_and_one_ledger_counts_what_they_did(lead: Lead, write: Write, nsqd: Server) -> None:
    folder = write()
    master = lead(processes=3)
    assert len(set(master.started)) == 3
    assert consumers(nsqd) == 3
    put(nsqd, *map(str, range(600)))
    master.wait_until(lambda: len(master.got()) >= 600)
    assert master.stop() == 0
    assert sorted(master.got()) == list(range(600))
    assert len({line.split()[2] for line in master.out}) == 3
    assert adds_up(folder / "ledger.json")["finished"] == 600
    assert len([line for line in master.err if "ledger orders/say received=600 finished=600" in line]) == 1
    assert any("max_in_flight 3 x 20 = 60, concurrency 3 x 4 = 12" in line for line in master.err)
    assert left_after(master.started, 5) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_has_all_drain_and_nothing_is_lost(lead: Lead, write: Write, nsqd: Server, number: signal.Signals) -> None:
    folder = write()
    master = lead()
    put(nsqd, *map(str, range(2000)))
    master.wait_until(lambda: len(master.got()) > 100)
    master.signal(number)
    assert master.wait() == 0
    counts = adds_up(folder / "ledger.json")
    assert counts["finished"] == len(master.got()) == len(set(master.got())) < 2000
    assert nsqd.channel_stats("orders", "say")["depth"] == 2000 - counts["finished"]
    assert nsqd.channel_stats("orders", "say")["in_flight_count"] == 0


def test_a_second_signal_gives_everything_back_at_once(lead: Lead, write: Write, nsqd: Server) -> None:
    folder = write("""
        from time import sleep
        @handler("orders", "say", max_in_flight=1)
        def say(text: str) -> None:
            say_at_once(f"got {text}")
            sleep(50)
    """)
    master = lead()
    put(nsqd, "1", "2")
    master.wait_until(lambda: len(master.got()) == 2)
    master.signal(signal.SIGTERM)
    master.wait_for("stopping 2 processes")
    master.signal(signal.SIGTERM)
    assert master.wait(deadline=15) == 143
    assert adds_up(folder / "ledger.json") == {"received": 2, "finished": 0, "requeued": 2, "dead": 0, "lease_lost": 0}


def test_a_stop_that_reaches_every_process_is_no_second_one(lead: Lead, write: Write, nsqd: Server) -> None:
    """systemd's default sends SIGTERM to all of a service, and the master tells its processes as well."""
    folder = write("""
        from time import sleep
        @handler("orders", "say", max_in_flight=1)
        def say(text: str) -> None:
            say_at_once(f"got {text}")
            sleep(1)
    """)
    master = lead()
    put(nsqd, "1", "2")
    master.wait_until(lambda: len(master.got()) == 2)
    for pid in [*master.started, master.process.pid]:
        os.kill(pid, signal.SIGTERM)
    assert master.wait() == 0
    assert adds_up(folder / "ledger.json")["finished"] == 2


@pytest.mark.slow
def test_a_process_that_is_killed_is_replaced_and_its_messages_come_again(lead: Lead, write: Write, nsqd: Server) -> None:
    folder = write()
    master = lead()
    put(nsqd, *map(str, range(2000)))
    master.wait_until(lambda: len(master.got()) > 100)
    first, second = master.started
    os.kill(first, signal.SIGKILL)
    master.until_started(3)
    assert master.told(r"process \d \((\d+)\) was killed by SIGKILL; another is started") == [str(first)]
    assert has_ended(first)
    assert not has_ended(second)
    os.kill(second, 40)  # one of those without a name
    master.until_started(4)
    assert master.told(r"process \d \((\d+)\) was killed by signal 40; another is started") == [str(second)]
    master.wait_until(lambda: set(master.got()) == set(range(2000)), deadline=60)
    assert master.stop() == 0
    counts = adds_up(folder / "ledger.json")
    assert counts["lease_lost"] <= 40
    assert nsqd.channel_stats("orders", "say")["depth"] == 0


@pytest.mark.slow
def test_one_that_cannot_be_started_is_tried_again_and_the_others_go_on(lead: Lead, write: Write, nsqd: Server) -> None:
    """A release that is removed while it runs, or a system without memory or file descriptors for another process."""
    folder = write()
    master = lead()
    away = folder.rename(folder.with_name("away"))
    os.kill(master.started[0], signal.SIGKILL)
    master.wait_for("process 1 cannot be started: [Errno 2]")
    master.signal(signal.SIGHUP)
    master.wait_for("not reloaded: the first new process could not be started")
    put(nsqd, *map(str, range(100)))
    master.wait_until(lambda: set(master.got()) == set(range(100)))
    away.rename(folder)
    master.until_started(3)
    assert master.stop() == 0
    assert adds_up(folder / "ledger.json")["finished"] >= 100


@pytest.mark.slow
def test_one_that_dies_again_and_again_is_started_ever_more_slowly(lead: Lead, write: Write) -> None:
    write()
    master = lead(processes=1)
    for deaths in range(1, 4):
        master.until_started(deaths)
        os.kill(master.started[-1], signal.SIGKILL)
    master.wait_until(lambda: len(master.told(r"was killed by SIGKILL; another is started( in .*|$)")) == 3)
    assert master.told(r"was killed by SIGKILL; another is started(.*)") == ["", " in 1 s", " in 2 s"]
    master.until_started(4)
    assert master.stop() == 0


def test_when_the_master_is_killed_its_processes_finish_what_runs_and_end(lead: Lead, write: Write, nsqd: Server) -> None:
    write("""
        from time import sleep
        @handler("orders", "say", max_in_flight=2)
        def say(text: str) -> None:
            sleep(0.5)
            say_at_once(f"got {text}")
    """)
    master = lead()
    put(nsqd, *map(str, range(20)))
    master.wait_until(lambda: len(master.got()) > 2)
    master.process.kill()
    master.process.wait()
    assert left_after(master.started, 20) == []
    master.wait()
    stats = nsqd.channel_stats("orders", "say")
    assert (stats["depth"], stats["in_flight_count"]) == (20 - len(set(master.got())), 0)
    assert stats["timeout_count"] == 0
    assert len(master.got()) == len(set(master.got()))
    assert len([line for line in master.err if "the master has gone" in line]) == 2


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("raise RuntimeError('no database')", 2, "workers: module 'shop' cannot be imported: RuntimeError: no database"),
        ("", 2, "workers: shop: no function there is decorated with @handler"),
    ],
)
def test_what_cannot_work_is_said_once_and_ends_it(write: Write, lead: Lead, text: str, code: int, words: str) -> None:
    write(text)
    master = lead(ready="workers: ", processes=4)
    assert master.wait() == code
    assert len([line for line in master.err if line.startswith("workers: ")]) == 1
    assert any(line.startswith(words) for line in master.err)


def test_a_broker_that_cannot_be_reached_is_exit_3(write: Write, lead: Lead) -> None:
    write()
    master = lead("--broker", "nsq://127.0.0.1:1", "--connect-deadline", "500ms", ready="workers: ")
    assert master.wait() == 3


@pytest.mark.slow
def test_one_embedded_nsqd_serves_all_and_ends_with_them(write: Write, tmp_path: Path) -> None:
    write()
    addresses = ("--nsqd-tcp-address", "127.0.0.1:0", "--nsqd-http-address", "127.0.0.1:0")
    master = Master("run", "shop", "--processes", "2", *addresses, cwd=tmp_path)
    try:
        master.wait_for("processes are ready", deadline=40)
        nsqd = json.loads((tmp_path / "var" / "nsqd" / "nsqd.json").read_text())["pid"]
        assert psutil.Process(nsqd).ppid() == master.process.pid
        os.kill(master.started[0], signal.SIGKILL)
        master.until_started(3)
        assert not has_ended(nsqd)
        assert master.stop() == 0
        assert has_ended(nsqd)
    finally:
        master.process.kill()
        master.wait()


@pytest.mark.slow
def test_an_embedded_nsqd_that_has_ended_ends_all(write: Write, tmp_path: Path) -> None:
    write()
    addresses = ("--nsqd-tcp-address", "127.0.0.1:0", "--nsqd-http-address", "127.0.0.1:0")
    master = Master("run", "shop", "--processes", "2", *addresses, cwd=tmp_path)
    try:
        master.wait_for("processes are ready", deadline=40)
        os.kill(json.loads((tmp_path / "var" / "nsqd" / "nsqd.json").read_text())["pid"], signal.SIGKILL)
        assert master.wait() == 3
        assert master.err[-1].startswith("workers: the embedded nsqd on var/nsqd has ended")
        assert left_after(master.started, 5) == []
    finally:
        master.process.kill()
        master.wait()

"""SIGHUP puts new code and settings to work without a moment with fewer processes, and without a loss."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from framework import Publisher
from framework.testing.processes import left_after
from framework.testing.servers import Server
from tests.cli.shop import adds_up, put
from tests.master.conftest import ALL_READY, Master, consumers

pytestmark = [pytest.mark.real, pytest.mark.slow]

Lead = Callable[..., Master]
Write = Callable[..., Path]


@contextmanager
def fewest_consumers(nsqd: Server) -> Iterator[list[int]]:
    """How many there were, looked at again and again while the block runs."""
    seen: list[int] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.02):
            seen.append(consumers(nsqd))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


@contextmanager
def publishing(nsqd: Server) -> Iterator[list[int]]:
    """Numbers come all the time; those that are stored."""
    stored: list[int] = []
    over = threading.Event()

    def publish() -> None:
        publisher = Publisher(f"nsq://{nsqd.address}")
        while not over.wait(0.01):
            some = range(len(stored), len(stored) + 10)
            publisher.publish_many("orders", [b"%d" % number for number in some])
            stored.extend(some)
        publisher.close()

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield stored
    finally:
        over.set()
        thread.join()


def version_of(line: str) -> int:
    return int(line.split()[3])


@pytest.mark.long_run
def test_under_load_new_processes_subscribe_before_the_old_drain_and_nothing_is_lost(
    lead: Lead, write: Write, nsqd: Server
) -> None:
    rounds = 3
    folder = write()
    master = lead(processes=2)
    with fewest_consumers(nsqd) as seen, publishing(nsqd) as stored:
        for round_ in range(1, rounds + 1):
            write(version=round_ + 1)
            master.signal(signal.SIGHUP)
            master.wait_until(lambda r=round_: len(master.told(r"reloaded: all (2) processes")) == r, deadline=40)
        until = len(stored) + 50
        master.wait_until(lambda: len(stored) > until)
    master.wait_until(lambda: set(master.got()) >= set(stored), deadline=30)
    assert len(master.started) == 2 * (rounds + 1)
    assert left_after(master.started[:-2], 10) == []
    assert min(seen) >= 2
    assert master.stop() == 0
    counts = adds_up(folder / "ledger.json")
    assert sorted(master.got()) == stored, "each once: an old process finishes what it has"
    assert counts["finished"] == len(stored)
    assert counts["lease_lost"] == counts["dead"] == 0
    assert {version_of(line) for line in master.out} == set(range(1, rounds + 2))
    assert version_of(master.out[-1]) == rounds + 1


def test_what_cannot_be_imported_changes_nothing_and_is_said(lead: Lead, write: Write, nsqd: Server) -> None:
    write()
    master = lead()
    before = master.started
    write("raise RuntimeError('half deployed')")
    master.signal(signal.SIGHUP)
    master.wait_for("not reloaded: the first new process ended with exit status 2")
    assert len([line for line in master.err if "RuntimeError: half deployed" in line]) == 1
    put(nsqd, "1")
    master.wait_until(lambda: master.got() == [1])
    assert master.alive == before
    write(version=3)
    master.signal(signal.SIGHUP)
    master.wait_for("reloaded: all 2 processes")
    master.wait_until(lambda: len(master.alive) == 2)  # until then an old one may take a message
    put(nsqd, "2")
    master.wait_until(lambda: master.got() == [1, 2])
    assert version_of(master.out[-1]) == 3
    assert master.stop() == 0


@pytest.mark.parametrize(
    ("line", "end"), [("os.kill(os.getpid(), 9)", "was killed by SIGKILL"), ("os._exit(0)", "ended with exit status 0")]
)
def test_what_ends_its_process_at_the_import_is_given_up_and_said(
    lead: Lead, write: Write, nsqd: Server, line: str, end: str
) -> None:
    folder = write()
    master = lead()
    old = master.alive
    write(f"{line}\n")
    master.signal(signal.SIGHUP)
    master.wait_for(f"not reloaded: the first new process {end}", deadline=40)
    assert master.alive == old
    put(nsqd, *map(str, range(50)))
    master.wait_until(lambda: set(master.got()) == set(range(50)))
    assert master.stop() == 0
    assert adds_up(folder / "ledger.json")["finished"] == 50


def test_what_hangs_at_the_import_is_given_up_and_the_number_asked_for_meanwhile_stays(
    lead: Lead, write: Write, nsqd: Server
) -> None:
    write()
    master = lead("--reload-deadline", "4", "--drain", "0.5")
    old = master.alive
    folder = write("open('importing', 'w').close(); import time; time.sleep(600)\n")
    master.signal(signal.SIGHUP)
    master.wait_until((folder / "importing").exists)
    write(version=2)
    master.signal(signal.SIGTTIN)
    master.wait_for("3 processes from now on")
    said = r"not (reloaded): the first new process had not subscribed \d+ s after its start \(--reload-deadline 4\)"
    master.wait_until(lambda: len(master.told(said)) == 1)
    master.until_started(3)
    assert set(old) <= set(master.alive), "the old ones go on"
    put(nsqd, *map(str, range(50)))
    master.wait_until(lambda: set(master.got()) == set(range(50)))
    assert master.stop() == 0


def test_settings_are_read_anew_and_a_bad_one_changes_nothing(lead: Lead, write: Write, tmp_path: Path) -> None:
    write()
    config = tmp_path / "workers.yaml"
    config.write_text("handlers: {orders/say: {concurrency: 2}}\n")
    master = lead("--config", "workers.yaml")
    config.write_text("drian: 5\n")
    master.signal(signal.SIGHUP)
    master.wait_for("not reloaded: workers.yaml: unknown setting 'drian': did you mean 'drain'?")
    config.write_text("handlers: {orders/nothing: {concurrency: 2}}\n")
    master.signal(signal.SIGHUP)
    master.wait_for("not reloaded: the first new process")
    assert len(master.started) == 2
    config.write_text("handlers: {orders/say: {concurrency: 7}}\nlog_level: debug\n")
    master.signal(signal.SIGHUP)
    master.wait_for("reloaded: all 2 processes")
    master.wait_for("concurrency 2 x 7 = 14")
    assert master.stop() == 0


def test_a_second_reload_while_the_first_is_under_way_takes_its_place(lead: Lead, write: Write, nsqd: Server) -> None:
    write()
    master = lead()
    for version in (2, 3):
        write(version=version)
        master.signal(signal.SIGHUP)
        time.sleep(0.2)
    master.wait_until(lambda: len(master.told(r"(reloaded): all")) >= 1, deadline=40)
    master.wait_until(lambda: len(master.alive) == 2)  # until then an old one may take a message
    put(nsqd, *map(str, range(20)))
    master.wait_until(lambda: len(master.got()) == 20)
    assert {version_of(line) for line in master.out} == {3}
    assert master.stop() == 0


@pytest.mark.long_run
def test_a_storm_of_reloads_of_processes_that_are_recycled_at_once_loses_nothing(lead: Lead, write: Write, nsqd: Server) -> None:
    write()
    master = lead("--max-rss", "20MB", "--admin", "127.0.0.1:0")
    for first in range(0, 300, 20):
        put(nsqd, *map(str, range(first, first + 20)))
        master.signal(signal.SIGHUP)
        time.sleep(0.15)
    master.wait_until(lambda: len(set(master.got())) == 300, deadline=60)
    master.wait_for("(--max-rss)", deadline=40)
    assert master.stop() == 0
    assert sorted(master.got()) == list(range(300))
    assert not [line for line in master.err if "Traceback" in line or "not reloaded" in line]


def test_more_and_fewer_processes(lead: Lead, write: Write, nsqd: Server) -> None:
    write()
    master = lead(processes=1)
    master.signal(signal.SIGTTIN)
    master.until_started(2)
    assert consumers(nsqd) == 2
    for _ in range(3):  # one stays
        master.signal(signal.SIGTTOU)
        master.wait_for("1 processes from now on")
    master.wait_until(lambda: len(master.alive) == 1)
    put(nsqd, "1")
    master.wait_until(lambda: master.got() == [1])
    assert master.stop() == 0


def test_a_dump_shows_where_every_greenlet_of_every_process_is(lead: Lead, write: Write, nsqd: Server) -> None:
    write("""
        from time import sleep
        @handler("orders", "say", max_in_flight=1)
        def say(text: str) -> None:
            say_at_once(f"got {text}")
            waits_for_a_reason()

        def waits_for_a_reason():
            sleep(3)
    """)
    master = lead()
    put(nsqd, "1", "2")
    master.wait_until(lambda: len(master.got()) == 2)
    master.signal(signal.SIGUSR2)
    master.wait_until(lambda: len({line.split()[1] for line in master.err if "waits_for_a_reason" in line}) == 2)
    assert {line.split()[1] for line in master.err if "waits_for_a_reason" in line} == set(map(str, master.started))
    assert len([line for line in master.err if "SIGUSR2; where all of it is" in line]) == 2
    for pid in master.started * 10:  # as where all of a service are sent it: by the system's handler that ended one that ran
        os.kill(pid, signal.SIGUSR2)
    put(nsqd, "3")
    master.wait_until(lambda: len(master.got()) == 3)
    assert not any("most recent call first" in line for line in master.err)
    assert len(master.started) == 2
    assert master.stop() == 0


def test_the_file_of_a_log_is_opened_again_by_all_processes(lead: Lead, write: Write, nsqd: Server, tmp_path: Path) -> None:
    """As logrotate has it: the file is moved away, and then they are told."""
    log, old = tmp_path / "worker.log", tmp_path / "worker.log.1"
    write()
    master = lead("--log-file", str(log), ready=None)
    master.wait_until(lambda: log.exists() and ALL_READY in log.read_text(), deadline=40)
    log.rename(old)
    master.signal(signal.SIGUSR1)
    master.wait_until(lambda: log.exists() and log.read_text().count("is opened again") == 3)
    before = old.read_text()
    put(nsqd, *map(str, range(50)))
    master.wait_until(lambda: len(master.got()) == 50)
    assert master.stop() == 0
    assert old.read_text() == before
    assert "finished=50" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o640
    assert master.err == []


def test_a_reload_whose_log_cannot_be_written_keeps_the_processes(lead: Lead, write: Write, nsqd: Server, tmp_path: Path) -> None:
    (folder := tmp_path / "logs").mkdir()
    write()
    master = lead("--log-file", str(folder / "worker.log"), ready=None)
    master.wait_until(lambda: (folder / "worker.log").exists() and ALL_READY in (folder / "worker.log").read_text(), deadline=40)
    folder.rename(moved := tmp_path / "moved")
    master.signal(signal.SIGHUP)
    master.wait_until(lambda: "not reloaded: --log-file" in (moved / "worker.log").read_text())
    put(nsqd, "1", "2")
    master.wait_until(lambda: len(master.got()) == 2)
    moved.rename(folder)
    master.signal(signal.SIGHUP)
    master.wait_until(lambda: "reloaded: all 2 processes" in (folder / "worker.log").read_text())
    assert master.stop() == 0


def test_a_log_in_a_file_is_not_taken_back_to_stderr(lead: Lead, write: Write, tmp_path: Path) -> None:
    log, config = tmp_path / "worker.log", tmp_path / "workers.yaml"
    config.write_text(f"log_file: {log}\n")
    write()
    master = lead("--config", str(config), ready=None)
    master.wait_until(lambda: log.exists() and ALL_READY in log.read_text(), deadline=40)
    config.write_text("log_level: info\n")
    master.signal(signal.SIGHUP)
    master.wait_until(lambda: "not reloaded: the log is in a file" in log.read_text())
    assert master.stop() == 0


def test_a_reload_to_another_file_that_fails_says_where_its_words_are(lead: Lead, write: Write, tmp_path: Path) -> None:
    first, second, config = tmp_path / "first.log", tmp_path / "second.log", tmp_path / "workers.yaml"
    config.write_text(f"log_file: {first}\n")
    write()
    master = lead("--config", str(config), ready=None)
    master.wait_until(lambda: first.exists() and ALL_READY in first.read_text(), deadline=40)
    config.write_text(f"log_file: {second}\n")
    (tmp_path / "shop.py").write_text("import nothing_of_the_kind\n")
    master.signal(signal.SIGHUP)
    master.wait_until(lambda: f"its words are in {second}" in first.read_text(), deadline=40)
    assert "nothing_of_the_kind" in second.read_text()
    assert "not reloaded" not in second.read_text()
    write()
    master.signal(signal.SIGHUP)
    master.wait_until(lambda: second.exists() and "reloaded: all 2 processes" in second.read_text(), deadline=40)
    assert master.stop() == 0
    assert "is at work" not in second.read_text()
    assert master.err == []


def test_logs_that_are_no_files_are_not_opened_again(lead: Lead, write: Write) -> None:
    write()
    master = lead(processes=1)
    master.signal(signal.SIGUSR1)
    master.wait_for("the log goes to stderr, so there is no file to open again")
    assert master.stop() == 0


def test_a_hang_up_of_a_terminal_stops_no_single_process(lead: Lead, write: Write) -> None:
    write()
    master = lead()
    os.kill(master.started[0], signal.SIGHUP)
    master.signal(signal.SIGHUP)
    master.wait_for("reloaded: all 2 processes")
    assert len(master.started) == 4
    assert master.stop() == 0

"""The parts of a master that need no process: how ledgers add up, and when a seat is taken again."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import gevent
import pytest
from gevent import monkey
from gevent.threadpool import ThreadPool

from framework import resident
from framework.master import books, dump
from framework.master.seat import LONGEST_PAUSE, STEADY, Seat, pause


def child(age: float = 0.0, **more: Any) -> Any:
    return SimpleNamespace(age=age, due="", generation=1, **more)


def test_ledgers_add_up_by_handler_and_a_count_that_one_lacks_is_none() -> None:
    one = {"a/b": {"received": 3, "finished": 3, "lease_lost": 0}}
    other = {"a/b": {"received": 2, "finished": 1, "lease_lost": 0, "lost": 1}, "c/d": {"received": 1}}
    expected = {"a/b": {"received": 5, "finished": 4, "lease_lost": 0, "lost": 1}, "c/d": {"received": 1}}
    assert books.total([one, {}, other]) == expected


def test_what_a_killed_process_had_in_flight_are_lost_leases() -> None:
    last = {"a/b": {"received": 10, "finished": 4, "requeued": 2, "dead": 1, "lease_lost": 1, "lost": 1}}
    closed = books.closed(last)["a/b"]
    assert closed["lease_lost"] == 2
    assert closed["received"] == sum(count for name, count in closed.items() if name != "received")


def test_at_the_end_the_sum_is_in_the_ledger_s_file_and_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ledgers, published = {"a/b": {"received": 5, "finished": 4}}, {"a/b": {"z": 2, "c": 1}, "c/d": {}}
    books.write(ledgers, published, None)
    books.write(ledgers, published, tmp_path / "ledger.json")
    assert (tmp_path / "ledger.json").read_text() == json.dumps(ledgers, indent=2) + "\n"
    lines = ["ledger a/b received=5 finished=4", "published by a/b c=1 z=2"]
    assert [record.getMessage() for record in caplog.records] == lines * 2


def test_what_a_snapshot_shows_are_the_books_of_its_handlers() -> None:
    """In the words of a ledger, which names what a broker lost only where it did."""
    counts = {"received": 3, "finished": 0, "lost": 0}
    rows = [
        {"handler": "a/b", "counts": counts, "published": {"c": 1}},
        {"handler": "c/d", "counts": {**counts, "lost": 2}, "published": {}},
    ]
    assert books.of_rows(iter(rows)) == (
        {"a/b": {"received": 3, "finished": 0}, "c/d": {"received": 3, "finished": 0, "lost": 2}}, {"a/b": {"c": 1}}
    )  # fmt: skip


def test_what_a_report_did_not_say_of_one_that_was_killed_is_none() -> None:
    assert books.closed({"a/b": {"received": 3, "lease_lost": 0}})["a/b"]["lease_lost"] == 3


def test_pauses_grow_to_a_limit() -> None:
    assert [pause(deaths) for deaths in range(1, 6)] == [0, 1, 2, 4, 8]
    assert pause(7) == pause(10_000) == LONGEST_PAUSE


def test_a_death_after_a_long_life_is_a_first_one() -> None:
    seat = Seat(1)
    assert [seat.lost(child()) for _ in range(3)] == [0, 1, 2]
    assert not seat.wants(1)
    assert seat.not_before > time.monotonic() + 1
    assert seat.lost(child(age=STEADY + 1)) == 0
    assert seat.wants(1)
    assert [seat.lost(child(age=age)) for age in (STEADY, STEADY - 1)] == [1, 2]


@pytest.mark.parametrize(("due", "generation", "wants"), [("", 1, False), ("memory", 1, True), ("", 2, True)])
def test_a_seat_wants_another_for_one_that_is_worn_or_old(due: str, generation: int, wants: bool) -> None:
    seat = Seat(1, child())
    seat.child.due = due  # type: ignore[union-attr]
    assert seat.wants(generation) == wants
    seat.successor = child()
    assert not seat.wants(generation)


class Unready:
    """As an object of a library that finds out what it is when it is looked at, and cannot yet."""

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("nothing is configured")


def test_a_dump_looks_into_no_proxy() -> None:
    proxy = Unready()
    assert "test_a_dump_looks_into_no_proxy" in dump.text()
    del proxy


def test_a_dump_counts_greenlets_that_stand_at_one_place() -> None:
    def waits_here() -> None:
        gevent.sleep(60)

    waiting = [gevent.spawn(waits_here) for _ in range(30)]
    gevent.sleep(0)
    try:
        text = dump.text()
    finally:
        gevent.killall(waiting)
    assert "30 times greenlet Greenlet-" in text
    assert text.count("in waits_here") == 1
    assert "thread MainThread" in text


def test_a_dump_holds_no_frame_and_no_object_while_others_run() -> None:
    """What a call has done with ends where it returns, a file that is closed so too, and not in the thread that looks."""

    def waits_here(before: Any) -> None:
        there.append(sys._getframe())
        before()

    there: list[Any] = []
    pool, over = ThreadPool(1), monkey.get_original("_thread", "allocate_lock")()
    over.acquire()
    waiting = [pool.spawn(waits_here, over.acquire), gevent.spawn(waits_here, lambda: gevent.sleep(60))]
    while len(there) < len(waiting):
        gevent.sleep(0.01)
    seen: list[list[int]] = []

    def looks(frame: FrameType, event: str, argument: Any) -> Any:
        """Before each instruction of Python: another thread may run then."""
        frame.f_trace_opcodes = True
        seen.append([sys.getrefcount(one) for one in (*there, there)])
        return looks

    former = sys.gettrace()
    sys.settrace(looks)
    try:
        text = dump.text()
    finally:
        sys.settrace(former)
        over.release()
        gevent.killall(waiting[1:])
        pool.kill()
    assert (text.count("in waits_here"), len({*map(tuple, seen)})) == (2, 1)


def test_memory_is_of_the_process_that_is_asked_for_and_none_where_there_is_none() -> None:
    assert resident.rss() == resident.rss(os.getpid()) > 1 << 20
    assert resident.rss(2**30) == 0

"""How many bytes a finished message takes in the file: the figures of docs/history.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from framework.history.rows import NONE, Entry, Item, run_of
from framework.history.store import Store
from framework.hooks import Finished
from framework.testing.servers import ROOT

PAGE = " ".join((ROOT / "docs" / "history.md").read_text().split())
NOW = 1_700_000_000.0


def id_of(number: int) -> bytes:
    return b"%016x" % (0x0C4A7E5D1B2F3A60 + 0x1000 * number)


def entry(number: int) -> Entry:
    began = NOW + 0.006 * number + (number * 7919 % 1000) / 1e6
    return id_of(number), "orders/billing", "10.0.0.5:4150", 1, "finished", NONE, began, began + 0.005 + number % 97 / 1e4


def run(number: int, many: int) -> Item:
    ids = [id_of(number * many + one) for one in range(many)]
    found = run_of("orders/billing", Finished("10.0.0.5:4150", 1, ids, NOW + number * 0.005, NOW + number * 0.005 + 0.0049))
    assert found is not None
    return found


def bytes_each(file: Path, writes: list[list[Item]], messages: int) -> float:
    store = Store(file, age=1e10, size=1 << 30)
    for items in writes:
        store.write(items)
    store.close()
    return file.stat().st_size / messages


def figure(pattern: str) -> float:
    found = re.search(pattern, PAGE)
    assert found is not None, pattern
    return float(found[1])


def test_what_many_take_that_end_within_five_milliseconds(tmp_path: Path) -> None:
    found = bytes_each(tmp_path / "db", [[run(50 * write + one, 200) for one in range(50)] for write in range(20)], 200_000)
    assert found == pytest.approx(figure(r"A finished message takes (\d+) bytes where calls are so short"), abs=1)


def test_what_each_of_many_takes_that_has_times_of_its_own(tmp_path: Path) -> None:
    for pattern, together in ((r"else (\d+) to \d+, by how many", 5000), (r"else \d+ to (\d+), by how many", 10)):
        writes: list[list[Item]] = [
            [entry(together * write + one) for one in range(together)] for write in range(10_000 // together)
        ]
        assert bytes_each(tmp_path / f"db{together}", writes, 10_000) == pytest.approx(figure(pattern), rel=0.1)


def test_what_one_takes_that_is_written_alone(tmp_path: Path) -> None:
    found = bytes_each(tmp_path / "db", [[entry(number)] for number in range(1000)], 1000)
    assert found == pytest.approx(figure(r"alone within a quarter of a second takes about (\d+)"), rel=0.25)

"""The state of growth between batches: the same figures however the lines were split into batches and whatever their order."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from workers.api_requests.detect import kept as kept_files
from workers.api_requests.detect.growth import counts, state
from workers.api_requests.detect.growth import history as history_files
from workers.api_requests.detect.growth.counts import Growth
from workers.api_requests.detect.growth.state import HOUR, Dated, Row
from workers.api_requests.stream.output import LocalOutput

DAY = 24 * HOUR
T0 = 19_855 * DAY  # 2024-05-12


def dated(hours: list[int]) -> list[Dated]:
    return [(hour, hour // DAY, (hour // DAY + 1) * DAY) for hour in hours]


class Counts:
    def __init__(self) -> None:
        self.database = sqlite3.connect(":memory:")
        state.begin(self.database)

    def add(self, *rows: Row) -> None:
        state.add(self.database, rows, dated)

    def figures(self) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]], int]:
        return state.by_hour(self.database), state.by_day(self.database), state.marked(self.database, "latest")


def counted(rows: list[Row]) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]], int]:
    """The same, plainly."""
    requests, came, new = Counter[int](), defaultdict[int, set[str]](set), Counter[int]()
    hours_of = defaultdict[str, set[int]](set)
    days: list[tuple[int, ...]] = []
    for address, hour, count, _ in rows:
        requests[hour] += count
        came[hour].add(address)
        came[-1 - hour // DAY].add(address)
        hours_of[address].add(hour)
    for its_hours in hours_of.values():
        before = None
        for hour in sorted(its_hours):
            new[hour] += before is None or hour - before > 365 * DAY
            before = hour
    hours: list[tuple[int, ...]] = [(hour, requests[hour], len(came[hour]), new[hour]) for hour in sorted(requests)]
    for date in sorted({hour // DAY for hour in requests}):
        of_day = [hour for hour in requests if hour // DAY == date]
        sums = sum(requests[hour] for hour in of_day), len(came[-1 - date]), sum(new[hour] for hour in of_day)
        days.append((date, *sums, (date + 1) * DAY))
    return hours, days, max(row[3] for row in rows)


def history(chance: random.Random, count: int) -> list[Row]:
    """Mostly a week; some of it 364 to 366 days before or after another line of the same address, to the hour."""
    rows = []
    for _ in range(count):
        hour = T0 + chance.randrange(7 * 24) * HOUR
        if chance.random() < 0.3:
            hour += chance.choice((-1, 1)) * (365 * DAY + chance.choice((-DAY, -HOUR, 0, HOUR, DAY)))
        rows.append((f"10.0.0.{chance.randrange(30)}", hour, chance.randrange(1, 9), hour + chance.randrange(HOUR)))
    return rows


@pytest.mark.parametrize("seed", range(8))
def test_many_batches_say_after_each_what_a_plain_count_says_of_all_so_far(seed: int) -> None:
    chance = random.Random(seed)
    rows, counts, begin = history(chance, 400), Counts(), 0
    while begin < len(rows):
        size = chance.choice((1, 2, 5, 40, 100))
        counts.add(*rows[begin : begin + size])
        begin += size
        assert counts.figures() == counted(rows[:begin])


def test_an_earlier_line_makes_a_later_hour_of_its_address_none_of_a_new_one() -> None:
    counts = Counts()
    counts.add(("a", T0 + 5 * HOUR, 1, T0), ("a", T0 + 9 * HOUR, 1, T0))
    assert [row[3] for row in state.by_hour(counts.database)] == [1, 0]
    counts.add(("a", T0 + HOUR, 1, T0))
    assert [row[3] for row in state.by_hour(counts.database)] == [1, 0, 0]
    assert [row[2:4] for row in state.by_day(counts.database)] == [(1, 1)]


def test_a_line_whose_hour_was_complete_is_counted_and_counted_as_late() -> None:
    counts = Counts()
    counts.add(("a", T0, 5, T0), ("a", T0 + 2 * HOUR, 1, T0 + 2 * HOUR))
    assert state.marked(counts.database, "late") == 0, "they came together"
    counts.add(("b", T0, 2, T0 + 1), ("b", T0 + HOUR, 4, T0 + HOUR), ("b", T0 + 9 * HOUR, 1, T0 + 9 * HOUR))
    counts.add(("c", T0 + HOUR, 3, T0 + HOUR))
    assert state.marked(counts.database, "late") == 2 + 3
    assert sum(hour[1] for hour in counts.figures()[0]) == 16


def test_a_batch_of_nothing_changes_nothing() -> None:
    counts = Counts()
    counts.add(("a", T0, 1, T0))
    before = counts.figures()
    counts.add()
    assert counts.figures() == before


class Written(LocalOutput):
    """Without a JVM."""

    def write(self, name: str, content: bytes) -> None:
        (self.folder / name).parent.mkdir(exist_ok=True)
        (self.folder / name).write_bytes(content)


class Kept:
    """Growth without Spark: what batches counted is put where Spark writes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "hours").mkdir()
        self.state = folder / "growth.sqlite"
        self.zone = "UTC"
        self.conf = SimpleNamespace(get=lambda name: self.zone)

    def put(self, batch: int, rows: list[Row]) -> None:
        columns = zip(*((hour, address, count, latest) for address, hour, count, latest in rows), strict=True)
        arrays = [pa.array(column, kind.type) for column, kind in zip(columns, history_files.SCHEMA, strict=True)]
        pq.write_table(pa.Table.from_arrays(arrays, schema=history_files.SCHEMA), self.path(batch))

    def path(self, batch: int) -> Path:
        return self.folder / "hours" / f"batch-{batch:09d}.parquet"

    def names(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "hours").iterdir())

    def renew(self) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        Growth(kept_files.Kept(self.folder / "hours"), self.state, Written(self.folder)).renew(self)  # type: ignore[arg-type]
        hours, days = (pq.read_table(self.folder / "growth" / f"by_{name}.parquet") for name in ("hour", "day"))
        figures = ["requests", "addresses", "new_addresses"]
        return tuple(  # type: ignore[return-value]
            list(zip(*(table[name].cast(kind).to_pylist(), *(table[one].to_pylist() for one in figures)), strict=True))
            for table, name, kind in ((hours, "hour", pa.int64()), (days, "date", pa.int32()))
        )


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kept:
    monkeypatch.setattr(counts, "_dated", lambda spark, hours: dated(hours))
    return Kept(tmp_path)


def figures(rows: list[Row]) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    hours, days, _ = counted(rows)
    return hours, [day[:4] for day in days]


def batches(seed: int, count: int) -> list[list[Row]]:
    rows = history(random.Random(seed), 4 * count)
    return [rows[4 * n : 4 * n + 4] for n in range(count)]


def total(some: list[list[Row]]) -> list[Row]:
    return [row for rows in some for row in rows]


def test_what_is_killed_between_any_two_steps_and_runs_again_is_counted_once(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    some = batches(1, 4)
    for batch, rows in enumerate(some):
        for owner, name, calls in ((state, "add", 1), (state, "mark", 2), (state, "mark", 3), (counts, "write_table", 1),
                                   (counts, "write_table", 2), (history_files, "join", 1)):  # fmt: skip
            kept.put(batch, rows)
            with monkeypatch.context() as killed, suppress(KeyboardInterrupt):
                killed.setattr(owner, name, killing(getattr(owner, name), calls))
                kept.renew()
        kept.put(batch, rows)
        assert kept.renew() == figures(total(some[: batch + 1]))


def killing(real: Callable[..., Any], call: int) -> Callable[..., Any]:
    left = [call]

    def act(*arguments: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return real(*arguments)

    return act


def test_the_files_of_many_batches_are_joined_and_hold_what_they_held(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_files, "_MANY", 3)
    some, most = batches(2, 40), 0
    for batch, rows in enumerate(some):
        kept.put(batch * 2, rows)  # numbers are left out where a batch held nothing
        kept.renew()
        most = max(most, len(kept.names()))
    assert most <= 12
    kept.put(2 * 39, some[-1])  # runs again after it was joined
    kept.state.unlink()
    assert kept.renew() == figures(total(some))


def test_a_crash_between_a_run_and_the_removal_of_its_parts_counts_them_once(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_files, "_MANY", 3)
    some = batches(3, 3)
    for batch, rows in enumerate(some):
        kept.put(batch, rows)
    with monkeypatch.context() as killed, suppress(KeyboardInterrupt):
        killed.setattr(Path, "unlink", killing(Path.unlink, 2))
        kept.renew()
    assert len(kept.names()) == 3
    assert kept.names()[-1] == "run-000000000-000000002.parquet"
    kept.state.unlink()
    assert kept.renew() == figures(total(some))
    assert kept.names() == ["run-000000000-000000002.parquet"]


def test_what_an_earlier_version_kept_is_taken_over(kept: Kept) -> None:
    some = batches(4, 3)
    kept.put(4, total(some[:2]))
    kept.path(4).rename(kept.folder / "hours" / "upto-000000004.parquet")
    kept.put(3, some[0])  # it was killed before it removed this one
    kept.put(5, some[2])
    assert kept.renew() == figures(total(some))


@pytest.mark.parametrize("damage", ["missing", "cut short", "no database", "a page of it", "an older copy", "another zone"])
def test_a_state_that_is_damaged_is_made_anew_of_what_is_kept(
    kept: Kept, damage: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    some = batches(5, 8)
    monkeypatch.setattr(history_files, "_MANY", 4)
    for batch, rows in enumerate(some[:7]):
        kept.put(batch, rows)
        if batch == 1:
            kept.renew()
            older = kept.state.read_bytes()
    kept.renew()
    data = kept.state.read_bytes()
    match damage:
        case "missing":
            kept.state.unlink()
        case "cut short":
            kept.state.write_bytes(data[:5000])
        case "no database":
            kept.state.write_bytes(b"\xff" * len(data))
        case "a page of it":
            kept.state.write_bytes(data[:100] + bytes(len(data) - 100))
        case "an older copy":
            kept.state.write_bytes(older)
        case "another zone":
            kept.zone = "Europe/Berlin"
    kept.put(7, some[7])
    assert kept.renew() == figures(total(some))
    assert caplog.text.count("is made anew of") == (damage != "missing")

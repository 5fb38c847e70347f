"""What a listing of a storage asks for and shows, and what is left alone there: it costs what it must, and nothing is guessed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from framework.spool import Spool, arrow, files, numbered, root, runs, segment
from framework.spool.storage import Remote, StorageError
from tests.spool.rows import MakeBatch
from tests.spool.test_numbered import forget, memory_of, names
from tests.storages import fails_at

DAY = numbered._TAKEN_FOR


@pytest.fixture(autouse=True)
def _as_in_another_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(runs, "BLOCK", 4)
    monkeypatch.setattr(segment, "compact", lambda *_: True)
    forget()
    yield
    forget()


def land(memory: Remote, batch: MakeBatch, *numbers: int) -> Remote:
    """A segment of one message for each number; the folder."""
    with Spool(memory, window=1, remember=0) as spool:
        for n in numbers:
            spool.land(batch(n, n + 1))
    return memory / "main"


def joined(main: Remote, first: int) -> str:
    """The block that begins with ``first`` has become a run, beside what it holds."""
    block = [one for one in segment.listing(main) if first <= one.number < first + runs.BLOCK]
    rows = runs.of(block, [segment.read(one.path) for one in block])
    since, until = block[0].taken, block[-1].taken
    assert since is not None
    assert until is not None
    name = runs.name_of(block[-1]._replace(rows=4, landed=1.0, taken=(since[0], until[1]), first=first))
    numbered.write_run(main, name, rows)
    return name


def lists(main: Remote) -> list[str]:
    """What one listing asks for."""
    memory_of(main).verbs.clear()
    segment.listing(main)
    return [f"{verb} {name.rpartition('/')[2]}" for verb, name in memory_of(main).verbs]


def found(main: Remote) -> list[tuple[int, int]]:
    return [(one.begins, one.number) for one in segment.listing(main)]


def test_what_others_have_put_there_is_neither_a_segment_nor_deleted(memory: Remote, batch: MakeBatch) -> None:
    main = land(memory, batch, *range(8))
    odd = ["1234567890123456789-notes.txt", "notes", f"{3:020d}.arrow.copy", f"{3:020d}-1.rows"]
    for name in odd:
        (main / name).put(b"mine")
    joined(main, 1)
    memory_of(main).now += DAY + 1
    (main / f"{9:020d}.arrow").put(bytes((main / f"{8:020d}.arrow").read()))
    forget()
    assert numbered.remove_held(main, float("inf"))
    segment.trim(main, before=7, keep_rows=1)
    assert {"1234567890123456789-notes.txt", "notes"} <= set(names(main))
    assert [number for _, number in found(main)] == [7, 8, 9]


def test_marks_before_the_first_segment_make_it_look_for_runs_once(memory: Remote, batch: MakeBatch) -> None:
    main = land(memory, batch, *range(6))
    segment.trim(main, before=4, keep_rows=1)
    (main / "floor").delete()
    forget()
    assert lists(main) == ["read floor", "list runs", "list main", "list runs", "list main"], "what is gone may be in a run"
    assert lists(main) == ["list main"], "it was known by then"
    segment.trim(main, before=5, keep_rows=1)
    numbered._floors[main] = 1
    assert lists(main) == ["list main", "list runs", "list main"], "one more has gone since"


def test_a_gap_makes_it_look_for_runs(memory: Remote, batch: MakeBatch) -> None:
    main = land(memory, batch, *range(6))
    lists(main)
    assert lists(main) == ["list main"]
    (main / f"{3:020d}.arrow").delete()
    assert lists(main) == ["list main", "list runs", "list main"]


def test_where_much_was_deleted_it_looks_where_it_may_begin_by_now(
    memory: Remote, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbered, "_MANY_LEFT", 2)
    main = land(memory, batch, *range(6))
    lists(main)
    segment.trim(main, before=3, keep_rows=1)
    numbered._floors[main] = 1  # as another process knows it, which has not deleted them
    assert "read floor" not in [*lists(main), *lists(main)], "two are not many"
    segment.trim(main, before=4, keep_rows=1)
    numbered._floors[main] = 1
    assert "read floor" not in lists(main)
    assert lists(main)[0] == "read floor"
    assert numbered._floors[main] == 4
    assert lists(main) == ["list main"]


def test_runs_are_looked_for_from_the_block_on_in_which_a_listing_begins(memory: Remote, batch: MakeBatch) -> None:
    main = land(memory, batch, *range(14))
    for first in (1, 5, 9):
        joined(main, first)
        forget()
    assert found(main) == [(1, 4), (5, 8), (9, 12), (13, 13), (14, 14)]
    for floor, expected in (
        (1, [(1, 4), (5, 8), (9, 12)]), (4, [(1, 4), (5, 8), (9, 12)]), (5, [(5, 8), (9, 12)]), (6, [(5, 8), (9, 12)]),
        (8, [(5, 8), (9, 12)]), (9, [(9, 12)]), (13, []),
    ):  # fmt: skip
        forget()
        numbered._floors[main] = floor
        assert found(main) == [*expected, (13, 13), (14, 14)], floor


def test_a_run_is_listed_with_its_size_and_times_and_opens_nothing(memory: Remote, batch: MakeBatch) -> None:
    main = land(memory, batch, *range(6))
    name = joined(main, 1)
    forget()
    memory_of(main).verbs.clear()
    run = segment.listing(main)[0]
    assert [verb for verb, name in memory_of(main).verbs if verb == "read"] == ["read"], "where it begins"
    assert (run.rows, run.size, run.landed) == (4, len((main / "runs" / name).read()), 1.0)
    assert run.taken == (1_700_000_000_123_456_789, 1_700_000_000_123_456_792)


def test_a_run_stays_until_all_that_it_holds_is_under_the_floor(
    memory: Remote, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = land(memory, batch, *range(10))
    for first in (1, 5):
        joined(main, first)
        forget()
    for floor, begins in ((4, [1, 5]), (5, [5]), (8, [5]), (9, [])):
        numbered._tidied.clear()
        numbered.tidy(main, floor)
        assert [int(entry.name[:20]) for entry in (main / "runs").list()] == begins, floor


def test_it_tidies_once_an_hour_and_tells_each_time_where_listings_may_begin(
    memory: Remote, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(numbered.time, "monotonic", lambda: now)
    main = land(memory, batch, *range(6))
    memory_of(main).now += DAY + 1
    land(memory, batch, 6)
    asked = []
    for passed, floor in ((0.0, 2), (3599.0, 3), (1.0, 4), (10.0, 5)):
        now += passed
        memory_of(main).verbs.clear()
        numbered.tidy(main, floor)
        asked.append(any(verb == "list" for verb, _ in memory_of(main).verbs))
        assert bytes((main / "floor").read()) == b"%d\n" % floor
    assert asked == [True, False, True, False]
    left = [int(name[:20]) for name in names(main) if name.endswith(".arrow")]
    assert left == [4, 5, 6, 7], "what is under it, and a day old"


@pytest.mark.parametrize("age", [0.0, DAY, DAY + 1])
def test_the_number_of_a_deleted_segment_stays_taken_for_a_day(age: float, memory: Remote, batch: MakeBatch) -> None:
    main = land(memory, batch, *range(4))
    segment.trim(main, before=3, keep_rows=1)
    memory_of(main).now += age
    land(memory, batch, 4)
    numbered._tidied.clear()
    numbered.tidy(main, 3)
    assert numbered.write(main, 1, segment.table_of(list(batch(9, 10)))) is None or age > DAY


@pytest.mark.parametrize("grace", [59.0, 60.0])
def test_what_a_run_holds_goes_after_a_while_and_its_numbers_stay_taken_for_a_day(
    grace: float, memory: Remote, batch: MakeBatch
) -> None:
    main = land(memory, batch, *range(6))
    joined(main, 1)
    sizes = {entry.name: entry.size for entry in main.list()}
    memory_of(main).now += grace
    land(memory, batch, 6)
    forget()
    assert numbered.remove_held(main, float("inf"))
    marks = [entry.name for entry in main.list() if entry.size == numbered._MARK_BYTES and entry.name.endswith(".arrow")]
    assert [int(name[:20]) for name in marks] == ([1, 2, 3, 4] if grace >= runs.GRACE else [])
    assert sum(name.endswith(".rows") for name in names(main)) == (3 if grace >= runs.GRACE else 7)
    assert all(sizes[name] > numbered._MARK_BYTES for name in marks)
    memory_of(main).now += DAY
    numbered.remove_held(main, float("inf"))
    assert len([name for name in names(main) if name.endswith(".arrow")]) == 7
    memory_of(main).now += 1
    land(memory, batch, 7)
    numbered.remove_held(main, float("inf"))
    assert len([name for name in names(main) if name.endswith(".arrow")]) == (4 if grace >= runs.GRACE else 8)


def test_what_a_run_holds_goes_bit_by_bit_where_there_is_no_time(memory: Remote, batch: MakeBatch) -> None:
    main = land(memory, batch, *range(6))
    joined(main, 1)
    memory_of(main).now += runs.GRACE
    land(memory, batch, 6)
    calls = 0
    while not numbered.remove_held(main, 0.0):
        calls += 1
        forget()
        assert found(main) == [(1, 4), (5, 5), (6, 6), (7, 7)]
    assert calls == 8, "four segments, and what says their rows"


def test_the_highest_number_is_that_of_anything_there(memory: Remote, batch: MakeBatch) -> None:
    main = land(memory, batch, *range(3))
    assert numbered.highest(main, 0) == numbered.highest(main, 3) == 3
    assert numbered.highest(main, 7) == 7
    (main / f"{5:020d}-1-{'0' * 32}.rows").put(b"")
    assert numbered.highest(main, 3) == 5
    assert numbered.shown(main)[1] == 5
    (main / f"{6:020d}.arrow").put(b"0" * numbered._MARK_BYTES)
    assert numbered.highest(main, 3) == numbered.shown(main)[1] == 6
    (main / f"{9:020d}.copy").put(b"")
    assert numbered.highest(main, 3) == 6
    assert [one.number for one in numbered.listing(main)] == [1, 2, 3]


@pytest.mark.parametrize("there", ["ours", "another", "ours, deleted", "another, deleted", "nothing"])
def test_who_has_no_answer_looks_whether_what_is_there_is_its_own(
    there: str, memory: Remote, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    main, rows = memory / "main", segment.table_of(list(batch(0, 3)))
    content_of, mark = arrow.content_of, "a" * 32
    ours, another = (content_of(rows, one) for one in (mark, "b" * 32))
    monkeypatch.setattr(numbered, "uuid4", lambda: type("Mark", (), {"hex": mark}))
    content: dict[str, Any] = {
        "ours": ours, "another": another, "ours, deleted": mark.encode(), "another, deleted": b"b" * 32
    }  # fmt: skip
    if there != "nothing":
        (main / f"{1:020d}.arrow").put(content[there])
    if there.startswith("ours"):
        written = numbered.write(main, 1, rows)
        assert written is not None
        assert (written.number, written.rows, written.mark) == (1, 3, mark)
    elif there != "nothing":
        assert numbered.write(main, 1, rows) is None
    memory_of(main).fault = fails_at(1, "before", StorageError)
    if there.startswith("ours"):
        assert numbered.write(main, 1, rows) is not None
    else:
        with pytest.raises(StorageError):
            numbered.write(main, 1, rows)


def test_rows_that_nobody_has_told_are_looked_for_once(memory: Remote, batch: MakeBatch) -> None:
    main = land(memory, batch, 0, 1)
    objects, [first, _] = memory_of(main).objects, [name for name in memory_of(main).objects if name.endswith(".rows")]
    del objects[first]
    memory_of(main).fault = fails_at(1, "before", StorageError)
    forget()
    assert [one.rows for one in segment.listing(main)] == [1, 1], "that they cannot be told is no error"
    memory_of(main).verbs.clear()
    assert [one.rows for one in segment.listing(main)] == [1, 1]
    assert [name for verb, name in memory_of(main).verbs if verb == "read"] == []


def test_a_listing_begins_behind_what_runs_hold(memory: Remote, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    main, begins = land(memory, batch, *range(14)), []
    listed = memory_of(main).list

    def list_(folder: str, after: str = "") -> Any:
        if folder.endswith("/main"):
            begins.append(int(after))
        return listed(folder, after)

    monkeypatch.setattr(memory_of(main), "list", list_)
    for first in (1, 5):
        joined(main, first)
        forget()
    begins.clear()
    for floor in (None, 1, 5, 6, 9, 11):
        forget()
        if floor is not None:
            numbered._floors[main] = floor
        numbered.listing(main)
    assert begins == [9, 9, 9, 9, 9, 11]


@pytest.mark.parametrize(("took", "listings"), [(29.0, 1), (30.0, 1), (30.5, 2)])
def test_a_folder_whose_listing_took_as_long_as_half_of_what_runs_wait_for_is_listed_again(
    took: float, listings: int, tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a run holds may have gone since it began, and a network's folder may take seconds."""
    with Spool(tmp_path) as spool:
        spool.land(batch(0, 3))
    now, listdir, listed = 0.0, files.os.listdir, []

    def slow(folder: Path) -> list[str]:
        nonlocal now
        listed.append(folder)
        now += took if len(listed) == 1 else 0.0
        return listdir(folder)

    monkeypatch.setattr(files.time, "monotonic", lambda: now)
    monkeypatch.setattr(files.os, "listdir", slow)
    assert [one.number for one in files.listing(tmp_path / "main")] == [1]
    assert len(listed) == listings


@pytest.mark.parametrize("where", ["folder", "storage"])
def test_an_epoch_that_goes_while_it_is_made_is_said(
    where: str, memory: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "spool" if where == "folder" else memory
    minted = root.ensure_epoch(place)
    assert root.ensure_epoch(place) == minted
    monkeypatch.setattr(root, "epoch", lambda _: None)
    with pytest.raises(FileNotFoundError, match="was deleted just now"):
        root.ensure_epoch(place)

"""What is left of segments in a storage that a run holds, when it is looked for runs, and what an empty folder costs."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

from framework.spool import Spool, arrow, numbered, runs, segment
from framework.spool.storage import Remote
from tests.spool.rows import MakeBatch
from tests.spool.test_listed import DAY, _as_in_another_process, found, joined, land, lists
from tests.spool.test_numbered import forget, memory_of

__all__ = ["_as_in_another_process"]


def marks(main: Remote) -> dict[int, bytes]:
    """Number -> what is left of it."""
    left = (entry.name for entry in main.list() if entry.name.endswith(".arrow") and entry.size == numbered._MARK_BYTES)
    return {int(name[:20]): bytes((main / name).read()) for name in left}


@pytest.mark.parametrize("told", [True, False])
def test_of_what_a_run_holds_the_mark_is_left_that_it_had(told: bool, memory: Remote, batch: MakeBatch) -> None:
    """By it a collector that had no answer tells that the segment was its own."""
    main = land(memory, batch, *range(6))
    had = {one.number: one.mark.encode() for one in segment.listing(main) if one.number <= 4}
    joined(main, 1)
    if not told:
        (main / f"{2:020d}.copy").put(b"somebody's")
        for name in [name for name in memory_of(main).objects if name.endswith(".rows")]:
            del memory_of(main).objects[name]
    memory_of(main).now += runs.GRACE
    land(memory, batch, 6)
    assert numbered.remove_held(main, math.inf)
    assert marks(main) == had
    assert len(set(had.values())) == 4


@pytest.mark.parametrize(("age", "left"), [(DAY, 4), (DAY + 1, 0)])
def test_that_mark_is_left_for_a_day_by_what_is_newest_there(age: float, left: int, memory: Remote, batch: MakeBatch) -> None:
    main = land(memory, batch, *range(6))
    joined(main, 1)
    memory_of(main).now += runs.GRACE
    land(memory, batch, 6)
    assert numbered.remove_held(main, math.inf)
    memory_of(main).now += age
    land(memory, batch, 7)
    assert numbered.remove_held(main, math.inf)
    assert len(marks(main)) == left
    forget()
    assert found(main) == [(1, 4), (5, 5), (6, 6), (7, 7), (8, 8)]


def test_runs_are_looked_for_when_half_of_what_segments_wait_for_has_passed(
    memory: Remote, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    main, now, looked = land(memory, batch, *range(3)), 1000.0, []
    monkeypatch.setattr(numbered.time, "monotonic", lambda: now)
    forget()
    for passed in (0.0, 29.5, 0.5, 29.5, 0.5):
        now += passed
        looked.append("list runs" in lists(main))
    assert looked == [True, False, True, False, True]


def test_an_empty_folder_is_listed_once(memory: Remote) -> None:
    with Spool(memory) as spool:
        assert lists(spool.folder)[-1:] == ["list main"]
        assert lists(spool.folder) == ["list main"]
        assert numbered.shown(spool.folder) == ([], 0)


@pytest.mark.parametrize("floor", [2, 3])
def test_where_what_was_there_has_gone_it_begins_again_with_the_first(memory: Remote, batch: MakeBatch, floor: int) -> None:
    main = land(memory, batch, *range(3))
    segment.trim(main, before=floor, keep_rows=1)
    assert numbered._floors[main] == floor
    memory_of(main).objects.clear()
    assert numbered.shown(main) == ([], 0)
    assert lists(main) == ["list main"], "from then on it is a folder that is empty"


def test_where_nothing_but_marks_is_left_nothing_is_listed(memory: Remote, batch: MakeBatch) -> None:
    main = land(memory, batch, *range(3))
    for one in segment.listing(main):
        numbered.remove(one)
    forget()
    assert numbered.shown(main) == ([], 3)


def test_a_segment_that_bears_no_mark_is_read_and_is_nobodys_own(memory: Remote, batch: MakeBatch) -> None:
    """Somebody has copied it here from a folder."""
    main, sink = memory / "main", pa.BufferOutputStream()
    arrow.write_to(sink, segment.table_of(list(batch(0, 3))).replace_schema_metadata())
    content = sink.getvalue()
    (main / f"{1:020d}.arrow").put(content)
    assert [(one.rows, one.mark) for one in segment.listing(main)] == [(3, "0" * 32)]
    assert not numbered._is_there(main / f"{1:020d}.arrow", "a" * 32, content.size)

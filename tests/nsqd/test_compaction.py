"""What is worth moving of a segment so that it can go, and how its records are moved: by itself, without a log."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest

from framework.nsqd.store import Batch, compaction
from framework.nsqd.store.catalog import Catalog
from framework.nsqd.store.compaction import Compactor, Moving, dense
from framework.nsqd.store.index import Index
from framework.nsqd.store.record import HEADER_BYTES
from tests.nsqd.storing import payload
from tests.nsqd.test_catalog import index, rows, waited_for

__all__ = ["index", "waited_for"]  # fixtures


class Log:
    def __init__(self, length: int) -> None:
        self._length = length

    def length(self, _segment: int) -> int:
        return self._length


def compactor(index: Index, some: Catalog, length: int = 10_000, **more: Any) -> Compactor:
    moves: dict[str, Any] = {"read": lambda row: None, "move": lambda batches: None, **more}
    return Compactor(Log(length), index, some, moves["read"], moves["move"])  # type: ignore[arg-type]


def test_of_a_segment_that_is_kept_for_few_messages_these_are_moved(index: Index, waited_for: Catalog) -> None:
    index.add_batches(rows((0, 5, 0, 1), (5, 6, 0, 1), (11, 3, 0, 1), (14, 3, 0, 1), (17, 13, 0, 1)))
    waited_for.ranges[1] = {1: (0, 30), 9: (0, 5)}
    found = compactor(index, waited_for).plan(1)
    assert found is not None
    assert {one.row.first: one.kept for one in found} == {0: {3}, 11: {11, 12, 13}, 14: {15, 16}, 17: None}
    index.mark_emptied(1, 11, 14)
    found = compactor(index, waited_for).plan(1)
    assert found is not None
    assert sorted(one.row.first for one in found) == [0, 14, 17]
    index.add_batches(rows((0, 5, 0, 2)))  # it was moved before
    found = compactor(index, waited_for).plan(1)
    assert found is not None
    assert sorted(one.row.first for one in found) == [14, 17]
    index.mark_emptied(1, 14, 17)
    found = compactor(index, waited_for).plan(1)
    assert found is not None
    assert sorted(one.row.first for one in found) == [17]


def test_a_segment_stays_when_too_much_of_it_is_waited_for(
    index: Index, waited_for: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add_batches(rows((11, 4, 0, 1), (15, 15, 0, 1)))  # 150 bytes that nobody has had
    waited_for.ranges[1] = {1: (11, 30)}
    part = HEADER_BYTES + 4 * 4 + 40 * 3 // 4
    assert compactor(index, waited_for, 4 * (150 + part)).plan(1) is not None
    assert compactor(index, waited_for, 4 * (150 + part) - 1).plan(1) is None
    assert compactor(index, waited_for, 4 * 149).plan(1) is None
    monkeypatch.setattr(compaction, "_MOST_UNFINISHED", 3)
    assert compactor(index, waited_for).plan(1) is not None
    monkeypatch.setattr(compaction, "_MOST_UNFINISHED", 2)
    assert compactor(index, waited_for).plan(1) is None


def test_it_looks_at_one_segment_after_another_and_seldom(
    index: Index, waited_for: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, looked = [100.0], list[int]()
    monkeypatch.setattr(compaction, "time", SimpleNamespace(monotonic=lambda: now[0]))
    one = compactor(index, waited_for)

    def plan(segment: int) -> list[Moving]:
        looked.append(segment)
        now[0] += 0.25
        return []

    monkeypatch.setattr(one, "plan", plan)
    assert one.step([]) is None
    steps = []
    for _ in range(5):
        steps.append(one.step([2, 3, 7]))
        assert one.step([2, 3, 7]) is None
        assert one.look(2) is None
        now[0] += 50 * 0.25
    assert steps == looked == [2, 3, 7, 2, 3]
    monkeypatch.setattr(one, "move", lambda _: False)
    assert one.step([2, 3, 7]) is None


def test_records_are_moved_in_groups_with_the_bodies_that_are_waited_for(
    index: Index, waited_for: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "_GROUP_BYTES", 13)
    groups: list[list[Batch]] = []
    batches = {10: Batch(1, 10, 3, 7, 8, payload(b"a", b"bb", b"c")), 20: Batch(1, 20, 1, 7, 0, payload(b"x"))}
    one = compactor(index, waited_for, read=lambda row: batches.get(row.first), move=lambda some: groups.append(list(some)))
    hollow, whole = Moving(rows((10, 3, 0, 1))[0], frozenset({11})), Moving(rows((20, 1, 0, 1))[0], None)
    assert one.move([hollow, whole, whole])
    left = Batch(1, 10, 3, 7, 8, struct.pack(">i", 0) + payload(b"bb") + struct.pack(">i", 0), moved=True)
    kept = Batch(1, 20, 1, 7, 0, payload(b"x"), moved=True)
    assert groups == [[left], [kept, kept]]
    assert not one.move([whole, Moving(rows((15, 1, 0, 1))[0], None)])  # damaged
    assert len(groups) == 2
    assert dense(left) == [Batch(1, 11, 1, 7, 8, payload(b"bb"))]
    assert dense(batches[10]) == [batches[10]]
    holes = Batch(1, 10, 5, 7, 8, payload(b"a", b"b", b"", b"c", b""), moved=True)
    assert dense(holes) == [Batch(1, 10, 2, 7, 8, payload(b"a", b"b")), Batch(1, 13, 1, 7, 8, payload(b"c"))]

"""Offsets and plans: every row in exactly one partition of exactly one batch, whatever the sizes."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from framework.spark.offsets import Cursor, Offset, Span, advance, end_of, missing, partitions_for, share, spans, split, start_of
from framework.spool.segment import Segment

sizes = st.lists(st.integers(1, 50), min_size=1, max_size=20)


def segments_of(rows: list[int], first: int = 1) -> list[Segment]:
    return [Segment(first + n, count, Path(f"{first + n}")) for n, count in enumerate(rows)]


def rows_in(some: list[Span]) -> list[tuple[str, int, int]]:
    return [(span.collector, span.segment.number, row) for span in some for row in range(span.first, span.stop)]


@given(sizes, st.integers(1, 5), st.lists(st.integers(1, 60), min_size=1, max_size=30))
def test_batches_of_any_sizes_follow_each_other_without_gap_or_overlap(rows: list[int], first: int, limits: list[int]) -> None:
    segments = segments_of(rows, first)
    cursor, end = start_of(segments), end_of(segments)
    read = []
    for limit in limits:
        left = spans("a", segments, cursor, end)
        if not left:
            break
        count = min(limit, sum(span.rows for span in left))
        after = advance(left, count)
        batch = rows_in(spans("a", segments, cursor, after))
        assert len(batch) == count
        assert missing(segments, cursor, after) == []
        read += batch
        cursor = after
    assert read == rows_in(spans("a", segments, start_of(segments), end))[: len(read)]


@given(sizes, st.integers(1, 40))
def test_a_split_keeps_every_row_in_order_in_parts_that_differ_by_one(rows: list[int], parts: int) -> None:
    some = spans("a", segments_of(rows), Cursor(1, 0), end_of(segments_of(rows)))
    lists = split(some, parts)
    assert rows_in([span for part in lists for span in part]) == rows_in(some)
    counts = [sum(span.rows for span in part) for part in lists]
    assert len(lists) == min(parts, sum(rows))
    assert max(counts) - min(counts) <= 1


@given(st.dictionaries(st.text("abc", min_size=1), st.integers(1, 1000), min_size=1), st.integers(1, 3000))
def test_a_limit_is_used_up_and_starves_nobody(available: dict[str, int], limit: int) -> None:
    shares = share(limit, available)
    assert sum(shares.values()) == min(limit, sum(available.values()))
    for name, count in shares.items():
        assert min(available[name], limit // len(available)) <= count <= available[name]


def test_a_busy_collector_leaves_a_quiet_one_its_rows() -> None:
    assert share(100, {"busy": 1_000_000, "quiet": 10}) == {"busy": 90, "quiet": 10}
    assert share(None, {"busy": 5, "quiet": 6}) == {"busy": 5, "quiet": 6}


def test_a_plan_names_the_segments_that_are_gone() -> None:
    segments = [one for one in segments_of([10] * 6) if one.number not in (2, 3)]
    assert missing(segments, Cursor(1, 5), Cursor(7, 0)) == [2, 3]
    assert missing(segments, Cursor(4, 0), Cursor(6, 1)) == []
    assert missing(segments, Cursor(6, 0), Cursor(7, 0)) == []
    assert missing([], Cursor(3, 2), Cursor(3, 4)) == [3]


def test_an_offset_survives_the_checkpoint() -> None:
    offset = Offset("e", {"b": Cursor(2, 7), "a": Cursor(1, 0)}, 3, 50)
    text = json.dumps(offset.as_dict())
    assert Offset.of(json.loads(text)) == offset
    assert text == json.dumps(Offset.of(json.loads(text)).as_dict()), "Spark compares the texts"


def test_partitions_are_enough_for_both_options() -> None:
    assert partitions_for(100, Offset("", {}, 4, 1000)) == 4
    assert partitions_for(4001, Offset("", {}, 4, 1000)) == 5

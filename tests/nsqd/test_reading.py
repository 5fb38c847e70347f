"""Reading the log by its index: how much comes at once, and what is held against the log where a row is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from framework.nsqd.store import Batch, Store, TopicSave
from framework.nsqd.store.index import EMPTIED
from framework.nsqd.store.record import bodies
from tests.nsqd.storing import TOPIC, changed_index, declared, everything, payload, publish, segment

BODY = b"x" * 96
"""With its size before it, 100 bytes."""


def numbers(batches: list[Batch]) -> list[int]:
    return [batch.first - batches[0].first for batch in batches]


@pytest.mark.parametrize(("most", "records"), [(0, 1), (1, 1), (100, 1), (101, 2), (200, 2), (201, 3), (399, 4), (1 << 20, 5)])
def test_so_many_bytes_come_at_once_and_at_least_one_record(opened: Store, most: int, records: int) -> None:
    for _ in range(5):
        publish(opened, BODY)
    start = opened.topics[TOPIC].next - 5
    assert numbers(opened.read(TOPIC, start, most)) == list(range(records))
    assert len(opened.read(TOPIC, start + 3, most)) == min(records, 2)
    assert opened.read(TOPIC, start + 5, most) == []


@pytest.mark.parametrize(("most", "count"), [(1, 1), (10, 1), (11, 2), (20, 2), (21, 3), (40, 4), (1 << 20, 5)])
def test_bodies_come_by_number_up_to_the_one_that_makes_it_so_many_bytes(opened: Store, most: int, count: int) -> None:
    """In the order in which they are asked for, each once; and of a number that the log does not have it is said so."""
    batches = [publish(opened, b"number %03d" % at)[0] for at in range(4)]
    asked = [batches[2].first, batches[0].first, batches[2].first, batches[3].first, batches[1].first, batches[3].first + 9]
    found = opened.bodies(TOPIC, asked, most)
    expected = {batches[at].first: (batches[at].ts, (b"number %03d" % at)) for at in (2, 0, 3, 1)}
    assert list(found.items()) == [*expected.items(), (asked[-1], None)][:count]


def test_the_record_that_holds_a_number_comes_whole_and_those_behind_it(opened: Store) -> None:
    for name in (b"a", b"b", b"c"):
        publish(opened, name, name, name)
    start = opened.topics[TOPIC].next - 9
    for seq, firsts in ((0, [0, 3, 6]), (2, [0, 3, 6]), (3, [3, 6]), (5, [3, 6]), (8, [6])):
        assert [one.first - start for one in opened.read(TOPIC, start + seq, 1 << 20)] == firsts


def test_what_was_emptied_is_passed_over_however_many_records_it_takes(opened: Store) -> None:
    for at in range(150):
        publish(opened, b"%d" % at)
    start = opened.topics[TOPIC].next - 150
    opened.save([TopicSave(TOPIC, start + 140, ((start, start + 140),))], [])
    (first, *_) = opened.read(TOPIC, start, 1)
    assert (first.first - start, list(bodies(first.payload, 1))) == (140, [b"140"])


@pytest.mark.parametrize("lost", [0, 1, 2])
@pytest.mark.parametrize("change", ["off = off + 1", "n = n + 1", "seg = 3 - seg"])
def test_a_wrong_row_is_corrected_in_whichever_segment_it_is(folder: Path, lost: int, change: str) -> None:
    """The segment that is written to is short, and its end is not that of the others."""
    one = Store(folder)
    one.append([declared(TOPIC, "c")])
    publish(one, *[BODY] * 50)
    publish(one, b"the last of the first")
    one._roll()
    publish(one, b"in the second")
    one.close()
    changed_index(
        folder, f"update batch set {change} where first = (select first from batch order by first limit 1 offset {lost})"
    )
    again = Store(folder)
    try:
        everything(again)  # what is wrong is found as it is read
        assert everything(again) == [*[BODY] * 50, b"the last of the first", b"in the second"]
        assert ["corrected from the log" in report for report in again.reports] == [True], again.reports
        counted = sum(one.within(0, 1 << 63) for one in again.corrections)
        assert counted == (-1 if change == "n = n + 1" else 0), "what a wrong row counted is counted no more"
    finally:
        again.close()


def test_numbers_of_which_nobody_has_anything_are_looked_into_once(opened: Store) -> None:
    (before,) = publish(opened, b"a")
    opened.topics[TOPIC].next += 3
    publish(opened, b"b")
    opened.flush()
    assert everything(opened) == [b"a", b"b"]
    row = opened.index.row(TOPIC, before.end)
    assert row is not None
    assert (row.first, row.n, row.dead) == (before.end, 3, EMPTIED)


def test_damage_in_front_of_what_is_read_is_left_out_and_the_rest_comes_at_once(opened: Store, folder: Path) -> None:
    for name in (b"first", b"second", b"third", b"fourth"):
        publish(opened, name)
    start = opened.topics[TOPIC].next - 4
    data = bytearray(segment(folder).read_bytes())
    data[data.find(b"second")] ^= 1
    segment(folder).write_bytes(data)
    assert [each for one in opened.read(TOPIC, start, 1 << 20) for each in bodies(one.payload, 1)] == [b"first"]
    assert [each for one in opened.read(TOPIC, start + 1, 1 << 20) for each in bodies(one.payload, 1)] == [b"third", b"fourth"]
    assert [(one.low - start, one.high - start, one.lost) for one in opened.corrections] == [(1, 2, True)]
    assert ["damaged: 1 messages lost" in report for report in opened.reports] == [True]
    assert everything(opened) == [b"first", b"third", b"fourth"]
    assert len(opened.reports) == 1


def test_of_a_record_that_was_moved_nothing_comes_that_is_before_what_is_asked_for(opened: Store) -> None:
    """What was finished of it has no body any more."""
    (whole,) = publish(opened, b"a", b"b", b"c", b"d")
    start = whole.first
    opened.move([Batch(TOPIC, start, 4, whole.ts, 0, payload(b"a", b"", b"c", b"d"), moved=True)])
    for asked, runs in ((0, [(0, [b"a"]), (2, [b"c", b"d"])]), (1, [(2, [b"c", b"d"])]), (3, [(2, [b"c", b"d"])])):
        found = opened.read(TOPIC, start + asked, 1 << 20)
        assert [(one.first - start, list(bodies(one.payload, one.count))) for one in found] == runs


def test_a_record_that_was_moved_or_is_emptied_is_no_wrong_row(opened: Store) -> None:
    """The segment that it was in still has it."""
    (moved,) = publish(opened, b"moved", b"moved")
    (gone,) = publish(opened, b"emptied")
    opened.save([TopicSave(TOPIC, gone.end, ((gone.first, gone.end),))], [])
    opened._roll()
    opened.move([Batch(TOPIC, moved.first, 2, moved.ts, 0, payload(b"moved", b"moved"), moved=True)])
    opened.flush()
    rows = [opened.index.row(TOPIC, one.first) for one in (moved, gone)]
    assert all(opened._reader.examine(number) for number in (1, 2))
    assert [opened.index.row(TOPIC, one.first) for one in (moved, gone)] == rows
    assert (opened.corrections, opened.reports) == ([], [])


@pytest.mark.parametrize("rolled", [False, True])
def test_what_the_index_is_yet_to_learn_is_not_taken_for_what_it_lacks(opened: Store, rolled: bool) -> None:
    """It would be counted twice."""
    publish(opened, b"indexed")
    opened.flush()
    if rolled:
        opened._roll()
    publish(opened, b"not yet")
    assert all(opened._reader.examine(segment) for segment in (0, 1, 2, 99))
    assert (opened.corrections, opened.reports) == ([], [])
    assert everything(opened) == [b"indexed", b"not yet"]


@pytest.mark.parametrize(("low", "high"), [(1, 2), (-1, 1)], ids=["within it", "from before it"])
def test_a_row_that_the_log_has_nothing_for_goes_and_what_it_counted_twice_is_counted_once(
    opened: Store, low: int, high: int
) -> None:
    """Its numbers are those of another row, which is right."""
    opened.topics[TOPIC].next += 1
    (batch,) = publish(opened, b"a", b"b", b"c")
    opened.flush()
    right = opened.index.row(TOPIC, batch.first)
    assert right is not None
    with opened.index.transaction():
        opened.index.add_batches([right._replace(first=batch.first + low, n=high - low)])
    opened.read(TOPIC, batch.first + low, 1)  # what is wrong is found as it is read
    assert everything(opened) == [b"a", b"b", b"c"]
    assert [(one.low - batch.first, one.high - batch.first, one.there, one.lost) for one in opened.corrections] == [
        (low, high, False, False)
    ]
    assert opened.reports == [f"the index named a wrong place for messages of topic {TOPIC}: corrected from the log"]

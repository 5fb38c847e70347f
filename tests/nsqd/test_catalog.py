"""What the store keeps in memory and in its index, by parts: numbers, declarations, what is unfinished."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from framework.nsqd.store import Batch, ChannelSave, Declaration, Declare, Declared, Entry, record, unfinished
from framework.nsqd.store import catalog as catalogs
from framework.nsqd.store.catalog import Catalog
from framework.nsqd.store.damage import LEAP
from framework.nsqd.store.index import DAMAGED, EMPTIED, FINISHED, ChannelRow, Index, RetryRow, Row, TopicRow, pack
from framework.nsqd.store.loading import load, load_backlog
from framework.nsqd.store.merge import merge
from framework.nsqd.store.record import HEADER_BYTES
from framework.nsqd.store.saving import put_channel, put_declared, put_grown, put_topic
from framework.nsqd.store.state import ChannelState, Retry, TopicSave, TopicState
from tests.nsqd.storing import payload


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    index = Index(tmp_path / "index.db")
    yield index
    index.close()


def topic(number: int = 1, *, first: int = 10, pumped: int = 10, **channels: int) -> TopicState:
    """A topic, and its channels by name, with their cursors."""
    each = {name: ChannelState(100 * number + at, name, cursor) for at, (name, cursor) in enumerate(channels.items())}
    return TopicState(number, f"t{number}", first, pumped, channels=each)


def catalog(*topics: TopicState) -> Catalog:
    made = Catalog((1, 0))
    made.topics = {one.id: one for one in topics}
    return made


def declared(first: int, number: int = 1, **what: Any) -> Batch:
    return record.declare(number, first, 0, Declaration(**{"name": f"t{number}", **what}))


# --- numbers


def test_each_message_has_the_next_number_of_its_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogs, "time", SimpleNamespace(time_ns=lambda: 5_000))
    some = catalog(topic(1, first=10), topic(2, first=70))
    what = Declaration("t1")
    entries = [Entry(1, payload(b"a", b"b"), 2), Entry(2, payload(b"c"), 1, 9), Declare(1, what), Entry(1, payload(b"d"), 1)]
    batches = some.number([*entries, Entry(3, payload(b"new"), 1)])
    assert [(one.topic, one.first, one.count, one.due, one.ts) for one in batches] == [
        (1, 10, 2, 0, 5_000), (2, 70, 1, 9, 5_000), (1, 12, 0, 0, 5_000), (1, 12, 0, 0, 5_000), (1, 12, 1, 0, 5_000),
        (3, 5_000, 1, 0, 5_000),
    ]  # fmt: skip
    assert some.topics[1].next == 10
    assert record.declaration(batches[2]) == what


def test_what_was_written_is_known_by_its_place() -> None:
    some = catalog(topic(1, first=10))
    batches = [Batch(1, 10, 2, 0, 0, b"12345"), declared(12, channels={"c": Declared(7, 12)}), Batch(9, 1, 1, 0, 0, b"nobody's")]
    batches += [Batch(1, 12, 3, 0, 0, b"1")]
    some.accept(batches, 4, 100)
    assert some.topics[1].next == 15
    lengths = [HEADER_BYTES + len(one.payload) for one in batches]
    places = [100, 100 + lengths[0] + lengths[1] + lengths[2]]
    rows, said, position = some.take_unindexed()
    assert rows == [Row(1, 10, 2, 0, 4, places[0], lengths[0]), Row(1, 12, 3, 0, 4, places[1], lengths[3])]
    assert (said, position) == ({1}, (4, 100 + sum(lengths)))
    assert some.ranges_in(4) == {1: (10, 15)}
    assert some.take_unindexed() == ([], set(), position)
    some.accept([Batch(1, 15, 1, 0, 0, b"")], 5, 0)
    some.give_back(catalogs.Unindexed(rows, said, position))
    again = some.take_unindexed()
    assert [one.first for one in again.rows] == [10, 12, 15]
    assert again.declared == {1}
    some.found(5, 1, 3, 5)
    assert some.ranges_in(5) == {1: (3, 16)}
    assert some.is_indexed_at(some.position) == (True, True)
    assert some.is_indexed_at((4, 0)) == (True, False)
    some.accept([Batch(1, 16, 1, 0, 0, b"")], 5, 50)
    assert some.is_indexed_at((4, 0)) == (False, False)


def test_what_was_written_twice_takes_no_number_back() -> None:
    some = catalog(topic(1, first=10))
    some.accept([Batch(1, 3, 2, 0, 0, b"")], 4, 0)
    assert some.topics[1].next == 10
    some.apply(declared(8))
    assert some.topics[1].next == 10
    some.apply(declared(20))
    assert some.topics[1].next == 20


def test_numbers_that_may_come_back_are_given_to_nobody_else() -> None:
    some = catalog(topic(1, first=10))
    some.use_up([Batch(1, 10, 5, 0, 0, b""), Batch(9, 1, 1, 0, 0, b"")])
    assert some.topics[1].next == 15 + LEAP
    some.use_up([Batch(1, 11, 1, 0, 0, b"")])
    assert some.topics[1].next == 15 + LEAP
    assert some.take_unindexed().declared == {1}


def test_a_topic_that_is_gone_keeps_its_number_as_long_as_the_log_or_the_index_may_have_it() -> None:
    some = catalog(topic(1), topic(2))
    some.apply(declared(10, 1, dropped=True))
    assert some.has_number(1)
    assert some.has_number(2)
    assert not some.has_number(3)
    heads = some.heads()
    assert [(one.topic, record.declaration(one).dropped) for one in heads] == [(2, False), (1, True)] * 2
    assert heads[0].first == 10
    some.ranges[4] = {1: (1, 2)}
    some.removed(4, [])
    assert some.retired == {1}  # the index has not learned of it
    assert some.ranges_in(4) == {}
    some.take_unindexed()
    some.removed(4, [8])
    assert some.retired == {8}


def test_a_declaration_has_the_topic_as_it_says_and_channels_that_are_known_keep_their_cursors() -> None:
    some = catalog()
    some.apply(declared(10, pumped=6, paused=True, channels={"a": Declared(1, 3), "b": Declared(2, 4, True)}))
    one = some.topics[1]
    assert (one.next, one.pumped, one.paused) == (10, 6, True)
    one.channels["a"].cursor = 8
    some.apply(declared(11, name="t", channels={"a": Declared(1, 3, True), "c": Declared(3, 11)}))
    assert (one.name, one.pumped, one.paused) == ("t", 6, False)
    assert {name: (each.cursor, each.paused) for name, each in one.channels.items()} == {"a": (8, True), "c": (11, False)}
    some.apply(declared(12, changes=True, channels={"a": Declared(1, 3), "d": Declared(4, 12, True)}, gone=("c", "unknown")))
    assert {name: (each.cursor, each.paused) for name, each in one.channels.items()} == {"a": (8, False), "d": (12, True)}
    some.apply(declared(13, changes=True, channels={"a": Declared(9, 13)}))  # deleted and made anew
    assert (one.channels["a"].id, one.channels["a"].cursor) == (9, 13)
    some.apply(declared(13, 2))
    assert some.topics[2].pumped == 13


def test_a_save_is_of_a_channel_that_is_still_the_same() -> None:
    some = catalog(topic(1, c=10))

    def save(number: int, topic: int, name: str) -> ChannelSave:
        return ChannelSave(number, topic, name, 12, [], {}, [])

    state = some.topics[1].channels["c"]
    assert some.channel(save(100, 1, "c")) is state
    for other in (save(101, 1, "c"), save(100, 2, "c"), save(100, 1, "d")):
        assert some.channel(other) is None
    some.keep([(some.topics[1], TopicSave(1, 44))], [(state, save(100, 1, "c"), [5])])
    assert (some.topics[1].pumped, state.cursor, state.inflight) == (44, 12, [5])


# --- what goes into one record


def test_publishes_of_one_topic_become_one_record_but_for_deferred_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "MAX_RECORD_MESSAGES", 3)
    monkeypatch.setattr(record, "MAX_RECORD_BYTES", 20)
    one, change = payload(b"x"), Declare(1, Declaration("t1"))
    entries = [Entry(1, one, 1), Entry(2, one, 1), change, Entry(1, one, 1), Entry(1, one, 1), Entry(1, one, 1)]
    assert merge(entries) == [Entry(1, one * 3, 3), Entry(2, one, 1), change, Entry(1, one, 1)]
    assert merge([Entry(1, one, 1), Entry(1, one, 1, 9), Entry(1, one, 1), Entry(1, one, 1)]) == [
        Entry(1, one, 1), Entry(1, one, 1, 9), Entry(1, one * 2, 2),
    ]  # fmt: skip
    big = payload(b"1234567890")  # 14 bytes
    assert merge([Entry(1, big, 1), Entry(1, payload(b"12"), 1), Entry(1, one, 1)]) == [
        Entry(1, big + payload(b"12"), 2), Entry(1, one, 1),
    ]  # fmt: skip
    assert merge([Entry(1, one * 4, 4), Entry(1, one, 1)]) == [Entry(1, one * 3, 3), Entry(1, one * 2, 2)]


# --- what is unfinished


@pytest.fixture
def waited_for(index: Index) -> Catalog:
    """A topic with messages to 30, of which [20, 30) wait in it; channel "c" is at 15, and others before are unfinished."""
    some = catalog(topic(1, first=30, pumped=20, c=15, d=20))
    some.topics[1].channels["c"].inflight = [11, 3]
    index.put_retries([RetryRow(100, 12, 0, 1), RetryRow(100, 17, FINISHED, 0), RetryRow(101, 13, 5, 1)])
    return some


@pytest.mark.parametrize(
    ("low", "high", "left"),
    [
        (0, 10, 1),
        (4, 11, 0),
        (11, 12, 1),
        (10, 15, 3),
        (14, 15, 0),
        (15, 17, 2),
        (17, 18, 0),
        (15, 20, 4),
        (20, 30, 10),
        (28, 40, 12),
    ],
)
def test_what_the_topic_or_a_channel_has_not_finished_is_counted_once(
    index: Index, waited_for: Catalog, low: int, high: int, left: int
) -> None:
    assert unfinished.count(waited_for, index, 1, low, high) == left
    assert unfinished.count(waited_for, index, 9, low, high) == high - low  # of a topic that nobody knows: all


@pytest.mark.parametrize(
    ("low", "high", "waits"),
    [(0, 3, False), (0, 4, True), (3, 4, True), (4, 11, False), (11, 12, True), (12, 13, True), (13, 14, True), (14, 15, False),
     (14, 16, True), (20, 21, True)],
)  # fmt: skip
def test_somebody_waits_for_what_is_not_finished(index: Index, waited_for: Catalog, low: int, high: int, waits: bool) -> None:
    assert unfinished.any_of(waited_for, index, 1, low, high) is waits
    assert not unfinished.any_of(waited_for, index, 9, low, high)
    waited_for.ranges[4] = {9: (low, high), 1: (low, high)}
    assert unfinished.any_in(waited_for, index, 4) is waits
    assert not unfinished.any_in(waited_for, index, 5)


# --- the index


def rows(*places: tuple[int, int, int, int]) -> list[Row]:
    """(first, n, dead, seg)"""
    return [Row(1, first, n, dead, seg, 10 * first, 10 * n) for first, n, dead, seg in places]


@pytest.fixture
def filled(index: Index) -> Index:
    """[10, 13) and [13, 15) in segment 1; [15, 20) emptied; [20, 22) damaged; [25, 30) in segment 2."""
    index.add_batches(rows((10, 3, 0, 1), (13, 2, 0, 1), (15, 5, EMPTIED, 1), (20, 2, DAMAGED, 0), (25, 5, 0, 2)))
    return index


def test_batches_are_found_from_the_one_that_has_a_number_on(filled: Index) -> None:
    def found(seq: int, limit: int = 9) -> list[int]:
        return [one.first for one in filled.batches(1, seq, limit)]

    assert [found(9), found(10), found(12), found(13), found(29), found(30)] == [
        [10, 13, 15, 20, 25], [10, 13, 15, 20, 25], [10, 13, 15, 20, 25], [13, 15, 20, 25], [25], [],
    ]  # fmt: skip
    assert found(23) == [25]
    assert found(12, 1) == [10]
    assert filled.row(1, 13) == rows((13, 2, 0, 1))[0]
    assert filled.row(1, 14) is None


def test_what_is_there_is_counted_without_what_was_emptied_or_is_damaged(filled: Index) -> None:
    assert [filled.count(1, low, high) for low, high in ((0, 99), (10, 15), (11, 15), (12, 13), (15, 25), (27, 30))] == [
        10, 5, 4, 1, 0, 3,
    ]  # fmt: skip
    assert filled.size(1, 1, 10, 14) == 50
    assert filled.size(1, 2, 10, 30) == 50
    assert [one.first for one in filled.rows_in(1, 1, 11, 30)] == [13]
    assert [one.first for one in filled.placed(1)] == [10, 13]
    assert filled.damaged(1) == [(20, 22)]
    assert sorted(filled.ranges()) == [(1, 1, 10, 20), (2, 1, 25, 30)]
    assert filled.end_within(1, 155) == 150
    assert [one.first for one in filled.beyond(1, 130, 1)] == [13, 15, 25]
    assert [one.first for one in filled.all_of(1, 130, 150)] == [13]


def test_nobody_waits_for_what_is_damaged(filled: Index) -> None:
    filled.put_channels([ChannelRow(7, 1, "c", 10, 0, b""), ChannelRow(8, 2, "c", 10, 0, b"")])
    filled.put_retries([RetryRow(channel, seq, 0, 1) for channel in (7, 8) for seq in (9, 10, 12, 13)])
    filled.mark_damaged(1, 10, 13)
    assert [one.seq for one in filled.retries(7)] == [9, 13]
    assert len(filled.retries(8)) == 4
    assert filled.damaged(1) == [(10, 13), (20, 22)]
    assert filled.count(1, 10, 15) == 2


def test_what_is_to_be_tried_again_goes_with_its_channel(index: Index) -> None:
    index.put_topics([TopicRow(1, "t", 30, 20, 0), TopicRow(2, "u", 30, 20, 0)])
    index.put_channels([ChannelRow(number, at, "c", 10, 0, b"") for number, at in ((7, 1), (8, 1), (9, 2))])
    index.put_retries([RetryRow(channel, 11, due, 1) for channel, due in ((7, 0), (8, FINISHED), (9, 5))])
    assert [index.has_retry(7, 11, 12), index.has_retry(7, 12, 20), index.has_retry(7, 0, 11)] == [True, False, False]
    assert not index.has_retry(8, 0, 99)
    assert index.unfinished_retries(9, 0, 99, 5) == [11]
    index.put_retries([RetryRow(9, seq, 5, 1) for seq in (0, 1 << 60)])
    assert [one.seq for one in index.retries(9)] == [0, 11, 1 << 60]
    index.remove_retries(9, [0, 1 << 60])
    index.remove_channel(7)
    assert [one.id for one in index.channels()] == [8, 9]
    assert index.retries(7) == []
    index.remove_topic(1)
    assert [one.id for one in index.topics()] == [2]
    assert [one.id for one in index.channels()] == [9]
    assert (index.retries(8), len(index.retries(9))) == ([], 1)


def test_a_long_save_does_not_leave_its_write_ahead_log_on_the_disk(index: Index, tmp_path: Path) -> None:
    index.put_channels([ChannelRow(7, 1, "c", 10, 0, bytes(6 << 20))])
    (log,) = tmp_path.glob("*-wal")
    assert log.stat().st_size > 6 << 20
    for _ in range(2):  # the first copies it, and the next begins it anew
        index.put_topics([TopicRow(1, "t", 30, 20, 0)])
    assert log.stat().st_size <= 1 << 20


# --- states at the start


def test_what_was_found_is_what_was_saved(index: Index) -> None:
    index.put_topics([TopicRow(1, "t", 30, 20, 0)])
    index.put_channels([ChannelRow(7, 1, "c", 15, 1, pack([12, 17, 20, 21])), ChannelRow(8, 9, "of no topic", 1, 0, b"")])
    index.put_retries([RetryRow(7, seq, due, attempts) for seq, due, attempts in (
        (12, 0, 2), (13, FINISHED, 0), (15, 60, 1), (16, 50, 1), (17, FINISHED, 0), (18, FINISHED, 0), (20, 0, 3),
    )])  # fmt: skip
    index.add_batches(rows((10, 10, 0, 1), (22, 8, 0, 2)))
    index.mark_damaged(1, 20, 22)
    index.put_retries([RetryRow(7, seq, 0, 1) for seq in (20, 21)])  # given back after it was seen
    index.retire(5, 1)
    some = Catalog((1, 0))
    load(index, some)
    assert some.retired == {5}
    assert some.ranges == {1: {1: (10, 20)}, 2: {1: (22, 30)}}
    one = some.topics[1]
    (channel,) = one.channels.values()
    assert (channel.cursor, channel.paused, channel.inflight) == (15, True, [12, 17, 20, 21])
    load_backlog(index, one)
    assert (one.pumped, one.depth) == (30, 0)  # a topic that has a channel hands over what waits
    assert channel.retries == {12: Retry(0, 3), 15: Retry(60, 1), 16: Retry(50, 1), 17: Retry(0, 1)}
    assert channel.beyond_cursor == {15, 16, 17, 18}
    assert channel.finished_early == [13, 18]
    assert channel.waiting == 5 + 8 - 4  # but for what is to be tried again, and was finished early


@pytest.mark.parametrize(("paused", "channels"), [(1, 1), (0, 0)])
def test_a_topic_that_is_paused_or_has_no_channel_keeps_what_waits(index: Index, paused: int, channels: int) -> None:
    index.put_topics([TopicRow(1, "t", 30, 20, paused)])
    index.put_channels([ChannelRow(7, 1, "c", 20, 0, b"")] * channels)
    index.add_batches(rows((10, 20, 0, 1)))
    some = Catalog((1, 0))
    load(index, some)
    load_backlog(index, some.topics[1])
    assert (some.topics[1].pumped, some.topics[1].depth) == (20, 10)


def test_a_save_leaves_in_the_index_what_declarations_and_positions_say(index: Index) -> None:
    one = topic(1, first=30, pumped=20, kept=15, new=20)
    index.put_channels([ChannelRow(100, 1, "kept", 12, 0, b"xxxxxxxx"), ChannelRow(109, 1, "gone", 1, 0, b"")])
    one.channels["kept"].paused = True
    put_declared(index, {1: one}, [1, 2], 6)
    assert sorted(index.channels()) == [ChannelRow(100, 1, "kept", 12, 1, b"xxxxxxxx"), ChannelRow(101, 1, "new", 20, 0, b"")]
    assert index.topics() == [TopicRow(1, "t1", 30, 20, 0)]
    assert index.retired() == [2]
    index.forget_retired(6)
    assert index.retired() == [2]
    index.forget_retired(7)
    assert index.retired() == []
    one.next = 35
    put_grown(index, {1: one}, [1, 3])
    assert index.topics() == [TopicRow(1, "t1", 35, 20, 0)]
    index.add_batches(rows((10, 3, 0, 1), (13, 2, 0, 1)))
    put_topic(index, one, TopicSave(1, 25, ((13, 15),)))
    assert index.topics() == [TopicRow(1, "t1", 35, 25, 0)]
    assert index.count(1, 10, 15) == 3
    index.put_retries([RetryRow(100, 1, 0, 1)])
    put_channel(index, one.channels["kept"], ChannelSave(100, 1, "kept", 16, [], {12: Retry(0, 1), 13: Retry(5, 2)}, [9]), [14])
    assert index.channels()[0] == ChannelRow(100, 1, "kept", 16, 1, pack([14]))
    assert [one.seq for one in index.retries(100)] == [1, 12, 13]
    put_channel(index, one.channels["kept"], ChannelSave(100, 1, "kept", 16, [], {15: Retry(0, 1)}, [13], True), [])
    assert index.retries(100) == [RetryRow(100, 15, 0, 1)]

"""The storage: an index that is lost, damaged or wrong is made anew from the log, and costs no message."""

from __future__ import annotations

import shutil
import tracemalloc
from pathlib import Path

import msgspec
import pytest

from framework.nsqd.store import (
    Batch,
    Declaration,
    Declare,
    Declared,
    Store,
    TopicSave,
    recovery,
    segments,
)
from tests.nsqd.storing import (
    CHANNEL,
    TOPIC,
    changed_index,
    declared,
    everything,
    flip,
    killed,
    lose_index,
    payload,
    publish,
    saved,
    segment,
)
from tests.nsqd.taking import run


def test_a_lost_index_is_rebuilt_from_the_log(opened: Store, folder: Path, tmp_path: Path) -> None:
    publish(opened, b"a", b"b")
    opened.append([declared(8, "d")])
    publish(opened, b"c", topic=8)
    copy = killed(opened, folder, tmp_path / "killed")
    for name in ("index.db", "index.db-wal", "index.db-shm"):
        (copy / name).unlink(missing_ok=True)
    again = Store(copy)
    assert (everything(again), everything(again, 8)) == ([b"a", b"b"], [b"c"])
    assert {topic.name: list(topic.channels) for topic in again.topics.values()} == {"t7": ["c"], "t8": ["d"]}
    again.close()


def test_which_numbers_a_segment_has_is_known_as_before(folder: Path) -> None:
    """By them it is known when it may go."""
    opened = Store(folder)
    opened.append([declared(TOPIC, "c"), declared(8, "d")])
    (first,) = publish(opened, b"a", b"b")
    publish(opened, b"c", b"d", topic=8)
    publish(opened, b"e")
    opened._roll()
    publish(opened, b"f")
    opened.move([first])
    publish(opened, b"g", b"h")
    wanted = {number: opened.catalog.ranges_in(number) for number in opened.log.numbers}
    assert wanted[2] == {TOPIC: (first.first, first.first + 6)}
    opened.close()
    lose_index(folder)
    again = Store(folder)
    assert {number: again.catalog.ranges_in(number) for number in again.log.numbers} == wanted
    again.close()


def test_a_damaged_index_is_set_aside_and_rebuilt(folder: Path) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    publish(opened, b"a")
    opened.close()
    (folder / "index.db").write_bytes(b"this is no database" * 500)
    again = Store(folder)
    assert everything(again) == [b"a"]
    assert "rebuilt from the log" in again.reports[0]
    again.close()


@pytest.mark.parametrize(
    "statement",
    [
        "update batch set off = off + 1 where first = (select min(first) from batch)",
        "update batch set n = n + 1 where first = (select min(first) from batch)",
        "delete from batch where first = (select min(first) from batch)",
        "update batch set first = first + 1 where first = (select max(first) from batch)",
    ],
    ids=["a wrong place", "a wrong count", "a lost row", "a wrong number"],
)
def test_a_wrong_row_of_the_index_is_corrected_from_the_log(folder: Path, statement: str) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    for at in range(3):
        publish(opened, *[b"%d-%d" % (at, one) for one in range(3)])
    opened.close()
    changed_index(folder, statement)
    again = Store(folder)
    first = everything(again)
    wanted = [b"%d-%d" % (at, one) for at in range(3) for one in range(3)]
    assert sorted(set(first)) == wanted or "corrected" in " ".join(again.reports)
    assert everything(again) == wanted
    again.close()


@pytest.mark.parametrize("copies", [1, 2], ids=["one of its two copies", "both"])
def test_a_damaged_declaration_costs_no_message_when_the_index_is_lost(folder: Path, copies: int) -> None:
    opened = Store(folder)
    opened.append([declared()])
    for at in range(5):
        publish(opened, *[b"%d-%d" % (at, of) for of in range(100)])
    opened.close()
    (folder / "index.db").unlink()
    data = bytearray(segment(folder).read_bytes())
    place = 0
    for _ in range(copies):
        place = data.find(b'"t7"', place) + 1
        data[place] ^= 1
    segment(folder).write_bytes(data)
    again = Store(folder)
    (topic,) = again.topics.values()
    assert topic.name == ("t7" if copies == 1 else "recovered-00000007")
    assert topic.depth == len(everything(again)) == 500
    assert sum("are damaged: 0 messages lost" in report for report in again.reports) == copies
    assert any("500 messages wait in topic 'recovered-00000007'" in report for report in again.reports) == (copies == 2)
    again.close()
    for lost in (False, True):
        if lost:
            (folder / "index.db").unlink()
        again = Store(folder)
        assert again.reports == []
        assert again.topics[TOPIC].depth == len(everything(again)) == 500
        again.close()


def without_first_declaration(folder: Path) -> None:
    """The index is lost, and both copies of the declaration that came before the messages are damaged."""
    lose_index(folder)
    data = segment(folder).read_bytes()
    segment(folder).write_bytes(data.replace(b'"t7"', b'"t6"', 2))


def test_a_channel_that_a_later_declaration_names_gets_what_came_before_it(folder: Path) -> None:
    opened = Store(folder)
    opened.append([declared()])
    (first,) = publish(opened, b"a", b"b")
    opened.append([Declare(TOPIC, Declaration("t7", channels={"c": Declared(CHANNEL, first.first)}))])
    opened.close()
    without_first_declaration(folder)
    again = Store(folder)
    assert list(again.topics[TOPIC].channels) == ["c"]
    assert again.topics[TOPIC].channels["c"].waiting == 2
    again.close()


def test_a_channel_that_a_later_declaration_names_gets_what_it_may_have_had_in_flight(folder: Path) -> None:
    """A cursor says which messages were delivered, not which were finished."""
    opened = Store(folder)
    opened.append([declared()])
    (first,) = publish(opened, b"a", b"b")
    opened.append([Declare(TOPIC, Declaration("t7", channels={"c": Declared(CHANNEL, first.end)}))])
    opened.close()
    without_first_declaration(folder)
    again = Store(folder)
    assert again.topics[TOPIC].channels["c"].waiting == 2
    assert publish(again, b"c")[0].first >= first.end, "a number is given once"
    again.close()


@pytest.mark.parametrize("paused", [False, True], ids=["serves", "is paused"])
def test_what_no_channel_had_waits_in_its_topic_though_a_later_declaration_alone_names_it(folder: Path, paused: bool) -> None:
    opened = Store(folder)
    opened.append([declared()])
    publish(opened, b"a", b"b")
    opened.append([Declare(TOPIC, Declaration("t7", paused=paused))])
    opened.close()
    without_first_declaration(folder)
    again = Store(folder)
    assert (again.topics[TOPIC].name, again.topics[TOPIC].depth) == ("t7", 2)
    again.close()


@pytest.mark.parametrize("gone", [1, 2], ids=["of one topic", "of both"])
def test_messages_that_no_declaration_comes_with_wait_in_a_topic_of_their_own(folder: Path, gone: int) -> None:
    """Nothing is damaged: somebody cut the log's beginning off, and the index is lost."""
    opened = Store(folder)
    opened.append([declared(8)])
    start = opened.log.size
    opened.append([declared(TOPIC, "c")])
    end = opened.log.size
    publish(opened, b"a", b"b")
    publish(opened, b"c", topic=8)
    opened.close()
    (folder / "index.db").unlink()
    data = segment(folder).read_bytes()
    segment(folder).write_bytes(data[: start if gone == 1 else 0] + data[end:])
    again = Store(folder)
    assert {topic.name: everything(again, topic.id) for topic in again.topics.values()} == {
        "recovered-00000007": [b"a", b"b"], "t8" if gone == 1 else "recovered-00000008": [b"c"],
    }  # fmt: skip
    assert [topic.depth for topic in again.topics.values()] == [len(everything(again, number)) for number in again.topics]
    assert sum("the name of a topic is damaged" in report for report in again.reports) == len(again.reports) == gone
    again.close()


def test_the_number_of_a_topic_that_is_gone_is_not_given_again_while_the_log_may_have_it(folder: Path, tmp_path: Path) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    publish(opened, b"old")
    opened.append([Declare(TOPIC, Declaration("t7", dropped=True))])
    opened.append([declared(8)])
    assert (opened.has_number(TOPIC), opened.has_number(8), opened.has_number(9)) == (True, True, False)
    opened.close()
    for lost in (False, True):
        if lost:
            (folder / "index.db").unlink()
        again = Store(folder)
        assert (again.has_number(TOPIC), again.has_number(8), again.has_number(9)) == (True, True, False)
        again.close()
    again = Store(folder)
    again._roll()
    again.sweep()
    assert again.index.retired() == []
    again.close()


def test_after_a_kill_the_number_of_a_topic_whose_end_the_index_has_not_heard_of_is_not_given_again(
    folder: Path, tmp_path: Path
) -> None:
    """It knew the topic: what the scan finds is the record of its end alone."""
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    publish(opened, b"old")
    opened.flush()
    opened.append([Declare(TOPIC, Declaration("t7", dropped=True))])
    copy = killed(opened, folder, tmp_path / "copy")
    opened.close()
    for _ in range(2):
        again = Store(copy)
        assert (again.topics, again.has_number(TOPIC), again.index.retired()) == ({}, True, [TOPIC])
        again.close()


def test_of_two_topics_with_one_name_none_is_hidden(folder: Path) -> None:
    """One was deleted: the record of that is damaged, and the index that knew it is lost."""
    names = {9: "orders", TOPIC: "orders"}
    opened = Store(folder)
    for number, name in names.items():
        opened.append([Declare(number, Declaration(name, channels={"c": Declared(number * 10, 0)}))])
        publish(opened, b"of %d" % number, topic=number)
    opened.close()
    reports: list[str] = []
    for lost in (True, False, True):  # each time once more from the log alone
        if lost:
            (folder / "index.db").unlink()
        again = Store(folder)
        assert {topic.name: everything(again, topic.id) for topic in again.topics.values()} == {
            "orders": [b"of 7"], "recovered-00000009": [b"of 9"],
        }  # fmt: skip
        assert [list(topic.channels) for topic in again.topics.values()] == [["c"], ["c"]]
        reports += again.reports
        again.close()
    assert len(reports) == 1
    assert "two topics 'orders'" in reports[0]


def test_rebuilding_takes_no_more_memory_for_a_longer_log(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured in full: 44 MB for 5,000,000 records."""
    monkeypatch.setattr(segments, "_WINDOW_BYTES", 1 << 16)
    monkeypatch.setattr(recovery, "_ROWS", 500)
    peaks = []
    for count in (2_000, 20_000):
        opened = Store(folder)
        opened.append([declared(TOPIC, "c")])
        first = opened.topics[TOPIC].next
        opened.log.write([Batch(TOPIC, first + at, 1, 0, 0, payload(b"x" * 20)) for at in range(count)])
        opened.close()
        for path in folder.glob("index.db*"):
            path.unlink()
        tracemalloc.start()
        again = Store(folder)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert again.topics[TOPIC].channels["c"].waiting == count
        again.close()
        shutil.rmtree(folder)
    assert peaks[1] - peaks[0] < 200_000


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize(
    "statement",
    [
        "update topic set next = next - 10",
        "update topic set next = null",
        "update topic set id = id + 1",
        "delete from topic",
        "update topic set name = null",
        "update channel set topic = 1",
        "update channel set name = null",
        "update channel set inflight = x'ffffffff'",
        "update channel set inflight = null",
        "update pos set off = 'abc'",
        *(f"update batch set {column} = 'abc'" for column in ("n", "dead", "seg", "off", "len")),
        *(f"update batch set {column} = null where first % 3 = 0" for column in ("n", "dead", "seg", "off", "len")),
        "update batch set len = 1.5",
        *(f"insert into later values (7, 3, {values})" for values in ("null, 1", "1, null", "'abc', 1", "1, 'abc'")),
        "insert into retired values (7, null)",
    ],
)
def test_an_index_that_contradicts_itself_is_made_anew(folder: Path, statement: str) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    bodies = [b"%02d" % at + b"x" * 90 for at in range(40)]
    batches = [publish(opened, body)[0] for body in bodies]
    end = opened.topics[TOPIC].next
    opened.save([TopicSave(TOPIC, end)], [saved(batches[15].first, inflight=[batches[3].first])])
    opened.close()
    changed_index(folder, statement)
    got = run(folder)
    assert set(got.served["t7/c"]) >= {bodies[3], *bodies[15:]}
    assert any("the index is damaged" in report and "rebuilt from the log" in report for report in got.reports)
    assert run(folder).reports == []


@pytest.mark.parametrize("moved", [False, True])
def test_damage_of_a_topic_that_was_deleted_costs_nobody_anything(folder: Path, moved: bool) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c"), declared(8)])
    at = opened.log.size
    batches = publish(opened, *[b"of a topic that was deleted"] * 5, topic=8)
    if moved:
        opened._roll()
        at = opened.log.size
        opened.move([msgspec.structs.replace(one, moved=True) for one in batches])
        segment(folder).unlink()
    opened.append([Declare(8, Declaration("t8", dropped=True))])
    publish(opened, b"kept")
    opened.close()
    lose_index(folder)
    flip(segment(folder, opened.log.active), at + 60)
    again = Store(folder)
    assert everything(again) == [b"kept"]
    assert "are damaged: 0 messages lost" in " ".join(again.reports)
    again.close()

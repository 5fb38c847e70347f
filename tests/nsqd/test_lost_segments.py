"""The storage: segments that are lost, or whose beginning is not whole, are accounted for and cost nothing else."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from framework.nsqd.store import (
    Store,
    TopicSave,
    log,
    reading,
    recovery,
)
from framework.nsqd.store.index import Index
from tests.nsqd.faults import failed_transactions
from tests.nsqd.storing import (
    TOPIC,
    declared,
    everything,
    flip,
    publish,
    saved,
    segment,
)


@pytest.mark.parametrize("cut", [0, 20, 200], ids=["empty", "within a record", "after some of its head"])
def test_a_segment_whose_head_is_not_whole_is_followed_by_one_that_is(folder: Path, cut: int) -> None:
    """A process that was killed while it began a segment left one without declarations; what was written there had no topic."""
    opened = Store(folder)
    opened.append([declared(TOPIC, "c"), declared(8)])
    first = publish(opened, b"first")[0]
    opened._roll()
    opened.close()
    os.truncate(segment(folder, 2), cut)
    (folder / "index.db").unlink()
    again = Store(folder)
    publish(again, b"second")
    publish(again, b"third", topic=8)
    again.save([TopicSave(TOPIC, first.end)], [saved(first.end)])
    again.sweep()
    again.close()
    assert not segment(folder).exists()
    (folder / "index.db").unlink()
    last = Store(folder)
    assert (everything(last), everything(last, 8)) == ([b"second"], [b"third"])
    assert {topic.name: list(topic.channels) for topic in last.topics.values()} == {"t7": ["c"], "t8": []}
    last.close()


def test_a_kill_while_a_segment_begins_leaves_no_segment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(log.os, "fdatasync", killed)
    with pytest.raises(KeyboardInterrupt):
        opened._roll()
    monkeypatch.undo()
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    opened.close()
    assert len(list((copy / "log").iterdir())) == 2
    again = Store(copy)
    publish(again, b"a")
    assert [path.name for path in (copy / "log").iterdir()] == [segment(copy).name]
    assert again.reports == []
    again.close()


def test_damage_before_a_segment_that_is_gone_is_counted_without_the_index(folder: Path) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    at = opened.log.size
    publish(opened, *[b"damaged"] * 5)
    opened._roll()
    publish(opened, b"finished")
    opened._roll()
    publish(opened, b"behind it")
    opened.close()
    segment(folder, 2).unlink()
    (folder / "index.db").unlink()
    flip(segment(folder), at + 60)
    again = Store(folder)
    assert everything(again) == [b"behind it"]
    (said,) = [one for one in again.reports if "damaged" in one]
    assert "damaged: 5 messages lost" in said
    again.close()


@pytest.mark.parametrize(("gone", "words"), [([2], "segment 2"), ([2, 4, 5], "segments 2, 4 to 5")])
def test_segments_that_are_not_there_are_named_when_nobody_knows_whether_they_were_finished(
    folder: Path, gone: list[int], words: str
) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    for number in range(6):
        publish(opened, b"%d" % number)
        opened._roll()
    opened.close()
    for number in gone:
        segment(folder, number).unlink()
    (folder / "index.db").unlink()
    again = Store(folder)
    assert again.reports == [
        f"the log has no {words}: such go when all that they had is finished, and with the index it is lost whether it was"
    ]
    again.close()
    last = Store(folder)
    assert last.reports == [], "once"
    last.close()


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (Path.unlink, "segment 2 of the log is not there, or is empty: 30 messages lost; all others are served"),
        (lambda path: os.truncate(path, 0), "segment 2 of the log is not there, or is empty: 30 messages lost"),
        (lambda path: os.truncate(path, 1000), "segment 2 of the log ends at 1000: "),
    ],
    ids=["removed", "emptied", "cut off"],
)
def test_a_whole_file_that_is_lost_is_accounted_for_in_one_step(
    folder: Path, monkeypatch: pytest.MonkeyPatch, harm: Callable[[Path], None], words: str
) -> None:
    """Each record took a transaction, an empty file and two syncs: the others waited for minutes."""
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    publish(opened, b"first")
    opened._roll()
    for at in range(30):
        publish(opened, b"%02d" % at * 20)
    opened._roll()
    publish(opened, b"last")
    opened.close()
    harm(segment(folder, 2))
    again = Store(folder)
    changes = []
    transaction = Index.transaction
    monkeypatch.setattr(Index, "transaction", lambda self, **how: changes.append(how) or transaction(self, **how))
    left = everything(again)
    assert [left[0], left[-1]] == [b"first", b"last"]
    assert words in again.reports[-1]
    assert sum(int(re.findall(r"(\d+) messages lost", report)[0]) for report in again.reports) == 32 - len(left)
    assert len(again.reports) <= 2
    assert len(changes) <= 3
    assert all(file.stat().st_size for file in folder.glob("bad/*")), "what is not there is not kept"
    again.close()
    last = Store(folder)
    assert (everything(last), last.reports) == (left, [])
    last.close()


@pytest.mark.parametrize(
    ("there", "words"),
    [
        ([], ""),
        ([1, 2, 3], ""),
        ([3, 5], "segment 4"),
        ([3, 6], "segments 4 to 5"),
        ([1, 3, 4, 8, 10], "segments 2, 5 to 7, 9"),
        ([1, 3, 5], "segments 2, 4"),
    ],
)
def test_segments_that_are_missing_between_others_are_named(there: list[int], words: str) -> None:
    assert recovery._absent(there) == words


def test_a_gap_that_cannot_be_noted_is_read_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the disk has no byte left, consumers go on."""
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    publish(opened, b"a")
    (gone,) = publish(opened, b"gone")
    publish(opened, b"b")
    opened.close()
    again = Store(folder)
    again.index.remove_batch(TOPIC, gone.first)
    monkeypatch.setattr(reading.Reader, "_examine_all", lambda self: None)
    with failed_transactions():
        assert again.bodies(TOPIC, [gone.first, gone.end], 100).keys() == {gone.first, gone.end}
        assert everything(again) == [b"a", b"b"]
    assert again.index.row(TOPIC, gone.first) is None
    again.close()


@pytest.mark.parametrize("torn", [0, 30], ids=["between two records", "within a record"])
def test_a_segment_that_was_cut_off_is_counted_without_the_index(folder: Path, torn: int) -> None:
    """Numbers that the head of the next segment says were given, and that nothing has."""
    opened = Store(folder)
    opened.append([declared(TOPIC, "c"), declared(8)])
    publish(opened, b"kept")
    at = opened.log.size
    for _ in range(3):
        publish(opened, *[b"cut off"] * 5)
        publish(opened, b"cut off", topic=8)
    opened._roll()
    publish(opened, b"behind it")
    opened.close()
    os.truncate(segment(folder), at + torn)
    (folder / "index.db").unlink()
    again = Store(folder)
    assert (everything(again), everything(again, 8)) == ([b"kept", b"behind it"], [])
    assert f"segment 1 ends at {at + torn}: " in " ".join(again.reports)
    assert sum(int(one) for one in re.findall(r"(\d+) messages lost", " ".join(again.reports))) == 18
    again.close()
    last = Store(folder)
    assert last.reports == [], "once"
    last.close()


def test_numbers_that_jumped_between_two_segments_are_no_messages_that_were_cut_off(folder: Path) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    publish(opened, b"a")
    opened.topics[TOPIC].next += 14_000_000
    opened._roll()
    publish(opened, b"b")
    opened.close()
    (folder / "index.db").unlink()
    again = Store(folder)
    assert (everything(again), again.reports) == ([b"a", b"b"], [])
    again.close()

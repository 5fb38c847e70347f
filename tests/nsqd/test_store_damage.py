"""The storage: what a torn tail, a flipped byte, a lost or wrong index cost, and that they cost nothing else."""

from __future__ import annotations

import os
import re
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from framework.nsqd.store import (
    Batch,
    Declaration,
    Declare,
    Declared,
    Retry,
    Store,
    TopicSave,
    log,
    reading,
    record,
    recovery,
    segments,
)
from framework.nsqd.store.index import Index
from tests.nsqd.faults import failed_transactions
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


def test_a_torn_tail_is_cut_and_reported_and_nothing_else_is_lost(opened: Store, folder: Path, tmp_path: Path) -> None:
    publish(opened, b"a")
    end = segment(folder).stat().st_size
    publish(opened, b"never confirmed")
    copy = killed(opened, folder, tmp_path / "killed")
    os.truncate(segment(copy), segment(copy).stat().st_size - 3)
    shutil.rmtree(copy / "index.db-wal", ignore_errors=True)
    for name in ("index.db", "index.db-wal", "index.db-shm"):
        (copy / name).unlink(missing_ok=True)
    again = Store(copy)
    assert everything(again) == [b"a"]
    assert segment(copy).stat().st_size == end
    assert "never confirmed: cut off" in again.reports[0]
    publish(again, b"b")
    assert everything(again) == [b"a", b"b"]
    again.close()


@pytest.mark.parametrize("indexed", [True, False], ids=["met when it is read", "met when the log is scanned"])
def test_a_flipped_byte_costs_its_record_and_no_other(folder: Path, tmp_path: Path, indexed: bool) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    for at in range(5):
        publish(opened, b"%d" % at * 20)
    opened.close()
    if not indexed:
        (folder / "index.db").unlink()
    data = bytearray(segment(folder).read_bytes())
    data[data.find(b"2" * 20) + 5] ^= 1
    segment(folder).write_bytes(data)
    again = Store(folder)
    assert everything(again) == [b"%d" % at * 20 for at in (0, 1, 3, 4)]
    assert len(again.reports) == 1
    assert "damaged" in again.reports[0]
    (kept,) = (folder / "bad").iterdir()
    assert b"2" * 14 in kept.read_bytes()
    again.close()


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


def test_a_published_copy_of_the_log_is_no_record(folder: Path) -> None:
    """The salt: whoever publishes bytes that look like a record cannot have them taken for one after damage."""
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    forged = b"".join(record.encode(Batch(TOPIC, 1, 1, 0, 0, payload(b"forged")), 0))
    publish(opened, forged)
    opened.close()
    (folder / "index.db").unlink()
    data = bytearray(segment(folder).read_bytes())
    data[data.find(forged) - 30] ^= 1
    segment(folder).write_bytes(data)
    again = Store(folder)
    assert everything(again) == []
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


@pytest.mark.parametrize("indexed", [True, False], ids=["with the index", "without"])
@pytest.mark.parametrize("field", [0, 9, 20, 27, 44, 52], ids=["magic", "length", "first", "count", "a size", "a body"])
def test_bit_rot_in_the_last_record_is_not_taken_for_a_torn_one(folder: Path, field: int, indexed: bool) -> None:
    """It was confirmed: it is counted as lost, and stays in the log."""
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    publish(opened, b"whole")
    end = opened.log.size
    publish(opened, *[b"confirmed-%d" % at for at in range(7)])
    opened.close()
    if not indexed:
        (folder / "index.db").unlink()
    data = bytearray(segment(folder).read_bytes())
    data[end + field] ^= 4
    segment(folder).write_bytes(data)
    again = Store(folder)
    assert everything(again) == [b"whole"]
    assert [report for report in again.reports if "7 messages lost" in report] == again.reports != []
    assert segment(folder).stat().st_size == len(data)
    publish(again, b"next")
    again.close()
    (folder / "index.db").unlink()
    last = Store(folder)
    assert everything(last) == [b"whole", b"next"]
    assert last.reports == []
    last.close()


def test_many_damaged_records_of_a_segment_take_one_scan(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    for at in range(40):
        publish(opened, b"%d" % at * 20)
    opened.close()
    data = bytearray(segment(folder).read_bytes())
    for at in range(10, 30):
        data[data.find(b"%d" % at * 20) + 5] ^= 1
    segment(folder).write_bytes(data)
    scans: list[int] = []
    scan = log.Log.scan
    monkeypatch.setattr(log.Log, "scan", lambda self, number, *where: scans.append(number) or scan(self, number, *where))
    again = Store(folder)
    scans.clear()
    seqs = range(again.index.batches(TOPIC, 0, 1)[0].first, again.topics[TOPIC].next)
    found = again.bodies(TOPIC, seqs, 1 << 20)
    assert sum(one is None for one in found.values()) == 20
    assert ["damaged: 20 messages lost" in report for report in again.reports] == [True], "they lie side by side"
    again.bodies(TOPIC, seqs, 1 << 20)
    assert scans == [1]
    again.close()


def test_messages_that_the_log_lost_with_its_end_are_counted(folder: Path) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    publish(opened, b"stays")
    end = opened.log.size
    publish(opened, *[b"gone"] * 30)
    opened.close()
    os.truncate(segment(folder), end)
    again = Store(folder)
    assert everything(again) == [b"stays"]
    assert again.topics[TOPIC].channels["c"].waiting == 1
    assert len(again.reports) == 1
    assert "30 messages lost" in again.reports[0]
    again.close()


def test_a_long_record_of_the_log_is_scanned_with_what_it_needs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows smaller than records, and records that end where windows end."""
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    bodies = [bytes([at]) * size for at, size in enumerate([1, 5000, 40, 900, 10_000, 2])]
    for body in bodies:
        publish(opened, body)
    opened.close()
    (folder / "index.db").unlink()
    for window in (1, 44, 1000, 1001, 4096):
        monkeypatch.setattr(segments, "_WINDOW_BYTES", window)
        again = Store(folder)
        assert everything(again) == bodies
        assert again.reports == []
        again.close()
        (folder / "index.db").unlink()


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


def test_what_is_kept_of_damage_is_on_the_disk_before_the_log_is_cut(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut it would be in neither."""
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    publish(opened, b"whole")
    opened.close()
    with segment(folder).open("ab") as file:
        file.write(b"the start of a record")
    done: list[str] = []
    for name in ("fsync", "ftruncate"):
        monkeypatch.setattr(os, name, noted(done, getattr(os, name)))
    Store(folder).close()
    (kept,) = (folder / "bad").iterdir()
    assert done.index(f"fsync {kept.name}") < done.index(f"ftruncate {segment(folder).name}")


def noted(done: list[str], call: Callable[..., None]) -> Callable[..., None]:
    """``call``, which adds its name and that of the file to ``done``."""

    def noting(fd: int, *rest: int) -> None:
        done.append(f"{call.__name__} {Path(f'/proc/self/fd/{fd}').resolve().name}")
        call(fd, *rest)

    return noting


def test_damage_right_behind_what_the_index_knows_is_counted(opened: Store, folder: Path, tmp_path: Path) -> None:
    publish(opened, b"indexed")
    opened.flush()
    at = opened.log.size
    publish(opened, *[b"damaged"] * 5)
    opened._roll()
    publish(opened, b"behind it")
    copy = killed(opened, folder, tmp_path / "killed")
    flip(segment(copy), at + 60)
    again = Store(copy)
    assert everything(again) == [b"indexed", b"behind it"]
    assert again.topics[TOPIC].channels["c"].waiting == 2
    assert len(again.reports) == 1
    assert "damaged: 5 messages lost" in again.reports[0]
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


def test_what_waits_for_its_next_try_is_there_at_each_start_after_damage_beside_it(folder: Path) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    (before,) = publish(opened, b"before", b"before")
    at = opened.log.size
    (gone,) = publish(opened, b"damaged", b"damaged")
    (behind,) = publish(opened, b"behind", b"behind", b"behind")
    tried = {seq: Retry(0, 2) for seq in (before.first, gone.first, behind.first)}
    inflight = [before.first + 1, gone.first + 1, behind.first + 1]
    opened.save([TopicSave(TOPIC, behind.end)], [saved(behind.end, put=tried, inflight=inflight)])
    opened.close()
    flip(segment(folder), at + 60)
    again = Store(folder)
    assert list(again.bodies(TOPIC, [gone.first], 100).values()) == [None]
    again.close()
    for _ in range(2):
        last = Store(folder)
        attempts = {seq: one.attempts for seq, one in last.topics[TOPIC].channels["c"].retries.items()}
        assert attempts == {before.first: 2, before.first + 1: 1, behind.first: 2, behind.first + 1: 1}
        last.close()


def test_numbers_that_were_given_to_nobody_are_not_lost_with_the_record_before_them(folder: Path) -> None:
    """A group whose sync failed uses its numbers up. There is no room for them in the damaged bytes."""
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    at = opened.log.size
    publish(opened, *[b"x"] * 8)
    opened.topics[TOPIC].next += 5
    publish(opened, b"behind")
    opened.close()
    lose_index(folder)
    flip(segment(folder), at + 49)
    again = Store(folder)
    assert [report for report in again.reports if "damaged: 8 messages lost" in report] == again.reports != []
    assert everything(again) == [b"behind"]
    again.close()


def test_messages_that_fill_the_damaged_bytes_are_lost_whatever_its_header_says(folder: Path) -> None:
    """Their topic is another's in it, which loses nothing, and whose next messages come."""
    other = TOPIC ^ 1
    opened = Store(folder)
    opened.append([declared(TOPIC, "c"), declared(other)])
    publish(opened, b"other", topic=other)
    at = opened.log.size
    publish(opened, *[b"x"] * 8)
    publish(opened, b"behind")
    opened.close()
    lose_index(folder)
    flip(segment(folder), at + 15)
    again = Store(folder)
    assert [report for report in again.reports if "damaged: 8 messages lost" in report] == again.reports != []
    assert (len(again.index.damaged(TOPIC)), again.index.damaged(other)) == (1, [])
    publish(again, b"next", topic=other)
    assert (everything(again), everything(again, other)) == ([b"behind"], [b"other", b"next"])
    again.close()


def test_several_damaged_records_at_the_end_are_each_counted(folder: Path) -> None:
    """Nothing follows that would say which numbers they had."""
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    publish(opened, b"whole", b"whole")
    places = []
    for at in range(3):
        places.append(opened.log.size)
        publish(opened, *[b"damaged-%d" % at] * (at + 2))
    opened.close()
    (folder / "index.db").unlink()
    for place in places:
        flip(segment(folder), place + 50)
    again = Store(folder)
    assert again.topics[TOPIC].channels["c"].waiting == len(everything(again)) == 2
    lost = re.findall(r"damaged: (\d+) messages lost", " ".join(again.reports))
    assert list(map(int, lost)) == [2, 3, 4]
    again.close()


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

"""Segments that are not what the index or their names say: one that has lost its end, some that were exchanged or copied."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import count, cycle
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from framework.nsqd.store import (
    Declaration,
    Declare,
    Declared,
    FolderUnusable,
    Retry,
    Store,
    TopicSave,
    index,
    log,
    misnamed,
    record,
    recovery,
)
from framework.nsqd.store.log import Found, Log
from tests.nsqd.storing import CHANNEL, TOPIC, declared, everything, killed, lose_index, publish, saved, segment
from tests.nsqd.taking import Run, run

LONELY, GONE = 8, 9
OTHER, LATE = CHANNEL + 1, CHANNEL + 2
LATER = 1 << 42
"""A due time in the year 2109."""


def build(folder: Path) -> None:
    """One segment: messages of which one channel has finished most and another all, of a topic without one; declarations."""
    opened = Store(folder)
    both = {"c": Declared(CHANNEL, 0), "d": Declared(OTHER, 0)}
    opened.append([Declare(TOPIC, Declaration("two", channels=both))])
    opened.append([Declare(LONELY, Declaration("lonely")), Declare(GONE, Declaration("gone"))])
    first = opened.topics[TOPIC].next
    for at in range(4):
        publish(opened, *(b"two-%d-%d" % (at, of) + b"y" * 40 for of in range(6)))
        publish(opened, b"lonely-%d" % at, b"lone-%d" % at, topic=LONELY)
    end = opened.topics[TOPIC].next
    opened.append([Declare(GONE, Declaration("gone", dropped=True))])
    put = {first + at: Retry(LATER if at % 2 else 0, 1) for at in (2, 9, 16)}
    opened.save([TopicSave(TOPIC, end)], [saved(end - 2, inflight=[first + 4, first + 18], put=put)])
    opened.save(channels=[saved(end)._replace(id=OTHER, name="d")])
    late = {**both, "late": Declared(LATE, end)}
    opened.append([Declare(TOPIC, Declaration("two", channels=late))])
    publish(opened, b"last-1", b"last-2")
    opened.save([TopicSave(TOPIC, opened.topics[TOPIC].next)])
    opened.close()


class Cut(NamedTuple):
    """Where the log is made to end, and the bodies that it still has then."""

    size: int
    bodies: set[bytes]


def cuts(folder: Path) -> Iterator[Cut]:
    """Between two records, within a header, within a payload, and so on."""
    log = Log(folder / "log", json.loads((folder / "meta.json").read_text())["salt"])
    bodies: set[bytes] = set()
    for item, size in zip(log.scan(1), cycle([0, 20, 50]), strict=False):
        assert isinstance(item, Found)
        yield Cut(item.offset + size, set(bodies))
        bodies |= set(record.bodies(item.batch.payload, item.batch.count))
    log.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("segments") / "whole"
    build(folder)
    return folder


@pytest.fixture(scope="module")
def baseline(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """What the whole folder gives."""
    found = run(shutil.copytree(whole, tmp_path_factory.mktemp("segments") / "copy"))
    assert {name: len(bodies) for name, bodies in found.served.items()} == {
        "two/c": 9, "two/d": 2, "two/late": 2, "lonely/late": 8,
    }  # fmt: skip
    assert found.reports == []
    return found


def check_shortened(folder: Path, baseline: Run, cut: Cut) -> None:
    """Served is what the log has and was not finished; the rest of what was not finished is counted, once."""
    first = run(folder, leave=True)
    assert len([one for one in first.reports if "the log ends at" in one]) == len(first.reports) == 1, first.reports
    found = run(folder)
    wanted = {name: sorted(set(bodies) & cut.bodies) for name, bodies in baseline.served.items()}
    assert {name: sorted(bodies) for name, bodies in found.served.items()} == wanted
    assert first.depths == found.depths == sum(map(len, wanted.values()))
    assert first.lost == len(baseline.bodies - cut.bodies)
    assert found.reports == []
    again = run(folder)
    assert (again.depths, again.bodies, again.reports) == (0, set(), [])
    lose_index(folder)
    rebuilt = run(folder, leave=True)
    assert rebuilt.reports == []
    assert sorted(rebuilt_channels(folder)) == sorted(baseline.served)


def rebuilt_channels(folder: Path) -> list[str]:
    opened = Store(folder)
    found = [f"{topic.name}/{name}" for topic in opened.topics.values() for name in topic.channels]
    opened.close()
    return found


def test_a_log_that_lost_its_end_costs_what_it_had_and_nobody_had_finished(whole: Path, tmp_path: Path, baseline: Run) -> None:
    size = segment(whole).stat().st_size
    for cut in cuts(whole):
        if cut.size < size:
            folder = shutil.copytree(whole, tmp_path / str(cut.size))
            os.truncate(segment(folder), cut.size)
            try:
                check_shortened(folder, baseline, cut)
            except BaseException as error:
                error.add_note(f"cut at {cut.size} of {size}")
                raise
            shutil.rmtree(folder)


def test_a_log_that_lost_its_last_segment_costs_what_that_had(folder: Path) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    publish(opened, b"a", b"b")
    opened._roll()
    publish(opened, *[b"gone"] * 5)
    opened.append([declared(LONELY)])
    gone = opened.topics[TOPIC].next
    opened.save([TopicSave(TOPIC, gone)], [saved(gone - 2, put={gone - 3: Retry(LATER, 2)})])
    opened.close()
    segment(folder, 2).unlink()
    again = Store(folder)
    assert len(again.reports) == 1
    assert "3 messages lost" in again.reports[0]
    assert again.topics[TOPIC].channels["c"].waiting == len(again.topics[TOPIC].channels["c"].retries) == 0
    assert again.index.retries(CHANNEL) == [], "what nobody can finish any more stays no row for ever"
    assert again.topics.keys() == {TOPIC, LONELY}
    (batch,) = publish(again, b"c")
    assert batch.first > gone
    assert everything(again) == [b"a", b"b", b"c"]
    again.close()
    last = Store(folder)
    assert last.reports == []
    assert (last.topics[TOPIC].channels["c"].waiting, everything(last)) == (1, [b"a", b"b", b"c"])
    last.close()


def test_a_segment_that_somebody_deleted_costs_what_it_had(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    bodies = several(folder, copy)
    Store(copy).close()
    segment(copy, 2).unlink()
    again = Store(copy)
    assert everything(again) == bodies[:5] + bodies[10:]
    lost = re.findall(r"(\d+) messages lost", " ".join(again.reports))
    assert sum(map(int, lost)) == sum(-one.within(0, 1 << 63) for one in again.corrections) == 5
    again.close()


def test_a_lost_end_is_accounted_for_whenever_the_start_was_cut_short(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between any two steps: the next start does the rest, and says it. It takes no jump of the numbers for messages, however
    young the topic is."""
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    publish(opened, b"a")
    end = opened.log.size
    publish(opened, b"b", b"c")
    clock = count(opened.topics[TOPIC].next + 1000, 1000)
    monkeypatch.setattr(recovery, "time", SimpleNamespace(time_ns=lambda: next(clock)))
    opened.close()
    os.truncate(segment(folder), end + 5)
    for place, name in ((log.Log, "roll"), (recovery, "roll"), (index.Index, "put_batches")):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, refused(getattr(place, name), after=place is recovery))
            with pytest.raises(FolderUnusable):
                Store(folder)
    again = Store(folder)
    assert [one for one in again.reports if "2 messages lost" in one] == again.reports != []
    assert len(list((folder / "bad").iterdir())) == 1
    assert (again.topics[TOPIC].channels["c"].waiting, everything(again)) == (1, [b"a"])
    again.close()


def refused(call: Callable[..., object], *, after: bool) -> Callable[..., object]:
    def refuse(*arguments: object) -> None:
        if after:
            call(*arguments)
        raise OSError("no more")

    return refuse


# --- names that are another's ------------------------------------------------------------------------------------------


def several(folder: Path, copy: Path) -> list[bytes]:
    """``copy``: a folder of four segments as a kill left it, the index not knowing all of them; returns what is in them."""
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    bodies = [b"%d-%d" % (at, of) + b"x" * at * 10 for at in range(4) for of in range(5)]
    for at in range(4):
        publish(opened, *bodies[at * 5 : at * 5 + 3])
        if at < 2:
            opened.flush()
        publish(opened, *bodies[at * 5 + 3 : at * 5 + 5])
        if at < 3:
            opened._roll()
    killed(opened, folder, copy)
    opened.close()
    return bodies


def exchange(folder: Path, names: dict[int, int]) -> None:
    """Give each segment another's name."""
    data = {new: segment(folder, old).read_bytes() for old, new in names.items()}
    for old in names:
        segment(folder, old).unlink()
    for new, each in data.items():
        segment(folder, new).write_bytes(each)


@pytest.mark.parametrize("indexed", [True, False], ids=["with the index", "without"])
@pytest.mark.parametrize(
    "names", [{1: 2, 2: 1}, {3: 4, 4: 3}, {1: 4, 4: 1}, {1: 2, 2: 3, 3: 4, 4: 1}, {2: 9}, {4: 9}, {1: 7, 3: 1}],
    ids=["the first two", "the last two", "first and last", "all in a ring", "one", "the last", "two, one in another's place"],
)  # fmt: skip
def test_segments_under_other_names_are_read_as_what_they_are(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: dict[int, int], indexed: bool
) -> None:
    copy = tmp_path / "copy"
    bodies = several(folder, copy)
    exchange(copy, names)
    if not indexed:
        lose_index(copy)
    synced: list[set[str]] = []
    with monkeypatch.context() as patch:
        patch.setattr(misnamed, "sync_folder", lambda log: synced.append({path.name for path in log.iterdir()}))
        again = Store(copy)
    assert synced[-1] == {path.name for path in (copy / "log").iterdir()}, "the names are durable before anything is written"
    assert len(again.reports) == len(names)
    assert all("has its own name again" in one for one in again.reports)
    assert everything(again) == bodies
    assert again.topics[TOPIC].channels["c"].waiting == len(bodies)
    publish(again, b"next")
    again.close()
    last = Store(copy)
    assert (last.reports, everything(last)) == ([], [*bodies, b"next"])
    last.close()


@pytest.mark.parametrize("number", [1, 2, 4])
@pytest.mark.parametrize("name", [3, 5], ids=["over another", "behind the last"])
def test_a_copy_of_a_segment_is_set_aside(folder: Path, tmp_path: Path, number: int, name: int) -> None:
    copy = tmp_path / "copy"
    bodies = several(folder, copy)
    Store(copy).close()
    gone = bodies[10:15] if name == 3 else []
    shutil.copy(segment(copy, number), segment(copy, name))
    again = Store(copy)
    assert f"is a copy of segment {number} of the log, which is there: set aside in " in again.reports[0]
    assert everything(again) == [body for body in bodies if body not in gone]
    lost = re.findall(r"(\d+) messages lost", " ".join(again.reports))
    assert sum(map(int, lost)) == len(gone)
    assert sum(-one.within(0, 1 << 63) for one in again.corrections) == len(gone)
    again.close()
    (kept,) = (path for path in (copy / "bad").iterdir() if path.stat().st_size)
    assert kept.read_bytes().startswith(segment(copy, number).read_bytes()[:100])


def test_of_two_copies_the_longer_one_is_the_segment(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    bodies = several(folder, copy)
    exchange(copy, {4: 8})
    segment(copy, 9).write_bytes(segment(copy, 8).read_bytes()[:-10])
    again = Store(copy)
    assert everything(again) == bodies
    assert sorted(path.stem for path in (copy / "log").iterdir()) == [f"{number:010}" for number in (1, 2, 3, 4)]
    again.close()


def test_a_segment_of_another_folder_is_counted_and_set_aside(folder: Path, tmp_path: Path) -> None:
    """Its records are not this folder's: their CRCs say so."""
    copy, other = tmp_path / "copy", tmp_path / "other"
    bodies = several(folder, copy)
    Store(copy).close()
    opened = Store(other)
    opened.append([declared(TOPIC, "c")])
    publish(opened, *[b"foreign"] * 7)
    opened.close()
    shutil.copy(segment(other), segment(copy, 2))
    again = Store(copy)
    assert everything(again) == bodies[:5] + bodies[10:]
    lost = re.findall(r"(\d+) messages lost", " ".join(again.reports))
    assert sum(map(int, lost)) == 5
    again.close()


@pytest.mark.parametrize("name", ["copy", "9" * 22, "-5"])
def test_a_file_that_is_no_segment_is_set_aside(folder: Path, tmp_path: Path, name: str) -> None:
    copy = tmp_path / "copy"
    bodies = several(folder, copy)
    (copy / "log" / f"{name}.log").write_bytes(b"notes")
    again = Store(copy)
    assert [one.partition(":")[0] for one in again.reports] == [f"{name}.log is no segment of the log"]
    assert everything(again) == bodies
    again.close()
    assert [path.read_bytes() for path in (copy / "bad").iterdir()] == [b"notes"]
    last = Store(copy)
    assert (last.reports, everything(last)) == ([], bodies)
    last.close()


@pytest.mark.parametrize("name", ["copy", "9" * 22])
def test_a_segment_is_known_by_what_it_says_under_a_name_that_is_no_number(folder: Path, tmp_path: Path, name: str) -> None:
    copy = tmp_path / "copy"
    bodies = several(folder, copy)
    segment(copy, 2).rename(copy / "log" / f"{name}.log")
    again = Store(copy)
    assert again.reports == [f"segment 2 of the log was named {name}.log: it has its own name again"]
    assert everything(again) == bodies
    again.close()


def test_a_kill_while_names_are_given_back_costs_nothing(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = several(folder, tmp_path / "copy")
    silent(tmp_path / "copy", [3])
    exchange(tmp_path / "copy", {1: 2, 2: 3, 3: 1})
    rename = Path.rename
    for steps in range(7):
        copy = shutil.copytree(tmp_path / "copy", tmp_path / str(steps))
        done: list[Path] = []

        def limited(path: Path, target: Path, done: list[Path] = done, steps: int = steps) -> Path:
            if len(done) == steps:
                raise KeyboardInterrupt
            done.append(path)
            return rename(path, target)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt) if steps < 6 else nullcontext():
            patch.setattr(Path, "rename", limited)
            Store(copy).close()
        again = Store(copy)
        assert everything(again) == bodies
        again.close()


# --- segments that do not say their number -------------------------------------------------------------------------------


def silent(folder: Path, numbers: list[int]) -> None:
    """As they were written before segments said it."""
    salt = json.loads((folder / "meta.json").read_text())["salt"]
    for number in numbers:
        data = segment(folder, number).read_bytes()
        assert record.opened(data, salt) == number
        head = record.header(data, 0)
        assert head is not None
        segment(folder, number).write_bytes(data[record.HEADER_BYTES + head.length :])
    lose_index(folder)


@pytest.mark.parametrize("names", [{}, {2: 3, 3: 2}], ids=["in its place", "exchanged with one that says it"])
def test_a_segment_that_does_not_say_its_number_is_read(folder: Path, tmp_path: Path, names: dict[int, int]) -> None:
    copy = tmp_path / "copy"
    bodies = several(folder, copy)
    silent(copy, [1, 2])
    exchange(copy, names)
    again = Store(copy)
    assert everything(again) == bodies
    assert len(again.reports) == len(names)
    again.close()
    last = Store(copy)
    assert (last.reports, everything(last)) == ([], bodies)
    last.close()

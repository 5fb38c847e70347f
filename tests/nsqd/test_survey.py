"""``--verify`` and ``--inspect``: what is said of a data folder, and that it is as it was."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from framework.nsqd import inspect, slices
from framework.nsqd.goflags import BadFlag
from framework.nsqd.inspect import Inspect
from framework.nsqd.options import parse
from framework.nsqd.store import Declaration, Declare, Entry, FolderInUse, FolderUnusable, Retry, Store, TopicSave
from framework.nsqd.store.survey import Survey
from framework.nsqd.verify import Check, NotSound, Verify
from framework.testing.servers import ServerMissing
from tests.conftest import missing
from tests.disks import tmpfs
from tests.nsqd.storing import TOPIC, declared, flip, killed, lose_index, payload, publish, saved, segment

LATER = 1 << 42
"""A due time in the year 2109."""


@pytest.fixture
def used(folder: Path, tmp_path: Path) -> Path:
    """What a kill -9 leaves of a folder with two segments: messages that wait, are deferred, finished, moved and emptied."""
    opened = Store(folder)
    opened.append([declared(TOPIC, "c"), Declare(8, Declaration("idle", paused=True))])
    (first,) = publish(opened, *[b"%03d" % at * 50 for at in range(100)])
    (second,) = publish(opened, b"deferred")
    cursor = first.first + 90
    put = {first.first + 3: Retry(0, 1), first.first + 4: Retry(LATER, 2)}
    opened.save([TopicSave(TOPIC, second.end)], [saved(cursor, put=put, inflight=[first.first + 5])])
    opened._roll()
    opened.append([Entry(8, payload(b"emptied"), 1)])
    (last,) = opened.append([Entry(8, payload(b"waits in the topic"), 1)])
    opened.save([TopicSave(8, last.first, ((0, last.first),))])
    publish(opened, b"not in the index")
    copy = killed(opened, folder, tmp_path / "used")
    opened.close()
    return copy


def test_others_have_their_turn_between_any_two_things_that_are_checked(used: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal among them: a folder of many gigabytes takes minutes."""
    rounds: list[int] = []
    monkeypatch.setattr(slices, "_SLICE_SECONDS", -1.0)
    monkeypatch.setattr(slices, "next_round", lambda: rounds.append(1))
    with Survey(used) as survey:
        rounds.clear()  # those of the recovery
        check = Check(survey)
        assert not any(check.faults())
        retries = [seq for topic in survey.catalog.topics.values() for one in topic.channels.values() for seq in one.retries]
    assert len(retries) == 3
    assert len(rounds) >= check.read.records + len(retries)


def state(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def verified(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[bool, str]:
    """Whether it is said to be sound, and what is said besides. The folder is as it was."""
    before = state(folder)
    words = ""
    try:
        Verify(parse([f"--data-path={folder}", "--verify"])).run()
    except NotSound as error:
        words = str(error)
    assert state(folder) == before
    assert not words or " is not sound, faults: " in words
    return not words, capsys.readouterr().out


def test_a_folder_that_was_killed_is_sound(used: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sound, said = verified(used, capsys)
    assert (sound, said.count("\n")) == (True, 1)
    assert "is sound: 2 segments, " in said
    assert " 104 messages, " in said


def test_the_start_of_a_record_that_was_never_confirmed_is_no_fault(used: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with segment(used, 2).open("ab") as file:
        file.write(segment(used, 2).read_bytes()[:70])
    sound, said = verified(used, capsys)
    assert sound
    assert "note: a start says: " in said
    assert "never confirmed" in said


def cut(folder: Path) -> None:
    """The end of what a file system lost."""
    os.truncate(segment(folder, 1), segment(folder, 1).stat().st_size - 10)


def sql(folder: Path, statement: str) -> None:
    with sqlite3.connect(folder / "index.db") as db:
        db.execute(statement)
    db.close()


def damage_index(folder: Path) -> None:
    lose_index(folder)
    (folder / "index.db").write_bytes(b"x" * 9000)


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a flipped bit": (lambda folder: flip(segment(folder, 1), segment(folder, 1).stat().st_size // 2), "are damaged"),
    "a segment without its end": (cut, "are damaged"),
    "no segment": (lambda folder: segment(folder, 1).unlink(), "is not there"),
    "a segment under another name": (lambda folder: segment(folder, 1).rename(segment(folder, 5)), "is named 0000000005.log"),
    "a copy of a segment": (
        lambda folder: segment(folder, 5).write_bytes(segment(folder, 1).read_bytes()),
        "is a copy of segment 1",
    ),
    "a file that is no segment": (lambda folder: (folder / "log" / "copy.log").write_bytes(b"notes"), "is no segment of the log"),
    "no index": (lose_index, "the index is missing"),
    "a damaged index": (damage_index, "the index is damaged"),
    "a row that is lost": (
        lambda folder: sql(folder, f"delete from batch where topic = {TOPIC}"),
        "lacks 100 messages",
    ),
    "a wrong place": (lambda folder: sql(folder, "update batch set off = off + 1"), "there is no such record"),
    "no place": (lambda folder: sql(folder, "update batch set seg = 0"), "names no segment for"),
    "a contradiction": (lambda folder: sql(folder, "update topic set next = next - 1"), "the index is damaged"),
    "an emptied one": (lambda folder: sql(folder, "update batch set dead = 1"), "waits for message"),
    "a wrong number": (lambda folder: sql(folder, "update batch set n = n + 1"), "for another"),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_what_is_wrong_is_told_and_left(used: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    damage, words = FAULTS[kind]
    damage(used)
    sound, said = verified(used, capsys)
    assert not sound
    assert any(line.startswith("fault: ") and words in line for line in said.splitlines()), said


def test_damage_that_a_start_has_accounted_for_is_no_fault_any_more(used: Path, capsys: pytest.CaptureFixture[str]) -> None:
    FAULTS["a flipped bit"][0](used)
    opened = Store(used)
    for topic in (TOPIC, 8):
        assert len(opened.read(topic, 0, 1 << 20)) < 3
    opened.close()
    sound, said = verified(used, capsys)
    assert sound, said
    assert "accounted for by an earlier start" in said


@pytest.mark.parametrize("daemon", [Verify, Inspect])
def test_a_folder_that_is_served_or_that_is_none_is_refused_in_a_sentence(
    daemon: type[Verify] | type[Inspect], tmp_path: Path
) -> None:
    served = Store(tmp_path / "served")
    with pytest.raises(FolderInUse, match="is in use by an nsqd: stop that one, or take a copy with --backup"):
        daemon(parse([f"--data-path={tmp_path / 'served'}"])).run()
    served.close()
    with pytest.raises(FolderUnusable, match=r"is no data folder of an nsqd: there is no meta\.json in it"):
        daemon(parse([f"--data-path={tmp_path / 'none'}"])).run()
    assert not (tmp_path / "none").exists()


def test_one_that_is_told_to_stop_says_that_it_has_not_read_all(used: Path) -> None:
    daemon = Verify(parse([f"--data-path={used}"]))
    daemon.stop()
    with pytest.raises(NotSound, match="stopped before all of it was read"):
        daemon.run()


def test_without_room_for_a_copy_of_the_index_the_other_folder_is_named(
    used: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        with tmpfs(tmp_path / "small", 32 << 10):
            monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "small"))
            with pytest.raises(
                FolderUnusable, match=r"^.*/small has no room for a copy of the index of .*/used: make room, or set"
            ):
                Verify(parse([f"--data-path={used}"])).run()
            assert list((tmp_path / "small").iterdir()) == []
    except ServerMissing as error:
        missing(error)


def test_inspect_says_what_lies_in_the_folder(used: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (used / "bad").mkdir()
    (used / "bad" / "0000000001-77").write_bytes(b"12345")
    before = state(used)
    Inspect(parse([f"--data-path={used}", "--inspect", "--json"])).run()
    assert state(used) == before
    facts = json.loads(capsys.readouterr().out)
    assert facts["damage"] == []
    assert facts["bad"] == [{"name": "0000000001-77", "size": 5}]
    assert [(one["number"], one["size"], one["topics"], one["needed"]) for one in facts["segments"]] == [
        (1, segment(used, 1).stat().st_size, ["t7"], True), (2, segment(used, 2).stat().st_size, ["idle", "t7"], True),
    ]  # fmt: skip
    idle, orders = facts["topics"]
    assert (idle["name"], idle["paused"], idle["depth"], idle["channels"]) == ("idle", True, 1, [])
    assert idle["oldest"] > orders["channels"][0]["oldest"] > 1_700_000_000
    # 9 and the deferred one and the one that is not indexed were never delivered; 3 in flight or requeued, one of them later
    assert [(one["name"], one["depth"], one["deferred"]) for one in orders["channels"]] == [("c", 14, 1)]


def test_inspect_in_lines_for_people(used: Path, capsys: pytest.CaptureFixture[str]) -> None:
    FAULTS["a flipped bit"][0](used)
    lose_index(used)
    Inspect(parse([f"--data-path={used}", "--inspect"])).run()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{used}: 2 segments, 2 topics"
    assert any(line.startswith("  topic idle: ") and ", paused" in line and ", oldest of 20" in line for line in lines)
    assert any(line.startswith("  damage: ") and "messages lost" in line for line in lines)


@pytest.mark.parametrize(
    "statement",
    [
        *(
            f"update later set {column} = {value}"
            for column in ("due", "attempts")
            for value in ("null", "'abc'", "x'00'", "1.5")
        ),
        *(f"update batch set {column} = {value}" for column in ("n", "seg", "off", "len") for value in ("null", "'abc'")),
    ],
)
def test_inspect_says_that_rows_of_the_index_were_changed(used: Path, capsys: pytest.CaptureFixture[str], statement: str) -> None:
    sql(used, statement)
    Inspect(parse([f"--data-path={used}", "--inspect"])).run()
    out = capsys.readouterr().out
    assert out.count("  damage: the index is damaged: a start makes it anew from the log") == 1
    assert "topic t7" in out


@pytest.mark.parametrize("flags", [["--json"], ["--verify", "--inspect"], ["--verify", "--backup=x"]])
def test_flags_that_do_not_go_together_are_refused(flags: list[str]) -> None:
    with pytest.raises(BadFlag, match=r"(add --inspect|give one of them)$"):
        parse(flags)


def test_the_exit_code_says_whether_the_folder_is_sound(used: Path) -> None:
    command = [sys.executable, "-m", "framework.nsqd", f"--data-path={used}", "--verify"]
    sound = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (sound.returncode, sound.stderr, sound.stdout.count("\n")) == (0, "", 1)
    segment(used, 1).unlink()
    damaged = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (damaged.returncode, damaged.stdout.count("\n")) == (1, 1)
    assert damaged.stderr == f"nsqd: {used} is not sound, faults: 1; a start mends what it can; nothing was changed\n"


def test_how_old_a_message_is_is_said_to_the_nanosecond() -> None:
    def published(*times: int) -> float | None:
        reader = SimpleNamespace(read=lambda *_: [SimpleNamespace(ts=at) for at in times])
        return inspect._published(SimpleNamespace(reader=reader), 1, 2)  # type: ignore[arg-type]

    assert (published(), published(1_700_000_000_500_000_000, 5)) == (None, 1_700_000_000.5)


def test_people_are_told_all_of_it_in_lines() -> None:
    channels = [
        inspect.ChannelFacts("archive", False, 1234, 2, 0.0), inspect.ChannelFacts("other", True, 0, 0, None),
    ]  # fmt: skip
    facts = inspect.Facts(
        "/data",
        [inspect.SegmentFacts(1, 5000, ["a", "b"], True), inspect.SegmentFacts(2, 70, [], False)],
        [inspect.TopicFacts("a", False, 0, 0, None, channels), inspect.TopicFacts("b", True, 1, 1500, 86400.0, [])],
        ["the index is missing"],
        [inspect.SetAside("0000000001-20", 1300)],
    )
    assert list(inspect.as_text(facts)) == [
        "/data: 2 segments, 2 topics",
        "  segment 1: 5,000 bytes, needed, topics: a, b",
        "  segment 2: 70 bytes, finished, topics: none",
        "  topic a: 0 wait for a channel",
        "    channel archive: depth 1,234, deferred 2, oldest of 1970-01-01 00:00:00 UTC",
        "    channel other: depth 0, deferred 0, paused",
        "  topic b: 1 wait for a channel, paused, 1,500 lost by damage, oldest of 1970-01-02 00:00:00 UTC",
        "  damage: the index is missing",
        "  in bad/: 0000000001-20, 1,300 bytes",
    ]

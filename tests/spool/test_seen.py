"""Which ids are remembered, and what is noted beside segments: by themselves, without a spool."""

from __future__ import annotations

from pathlib import Path

import pytest

from framework.spool import arrow, times
from framework.spool.arrow import Segment
from framework.spool.seen import Seen, key_of, node_id_of
from framework.spool.times import Notes, Times
from framework.spool.told import tell, told
from tests.spool.rows import NOTED


def keys(*numbers: int) -> list[tuple[str, str, bytes]]:
    return [("a:1", "orders", b"%d" % number) for number in numbers]


def known(seen: Seen, numbers: range) -> list[int]:
    return [number for number in numbers if keys(number)[0] in seen]


def test_an_id_is_known_with_its_node_and_topic_alone() -> None:
    seen = Seen()
    seen.update(keys(1), 0.0)
    assert ("a:1", "orders", b"1") in seen
    assert ("b:1", "orders", b"1") not in seen
    assert ("a:1", "clicks", b"1") not in seen
    assert ("a:1", "orders", b"2") not in seen


def test_as_many_ids_as_the_window_has_are_known_and_at_most_a_third_more() -> None:
    seen = Seen(window=9, seconds=0.0)
    for number in range(100):
        seen.update(keys(number), float(number))
        last = known(seen, range(number + 1))
        assert last[-9:] == list(range(max(0, number - 8), number + 1))
        assert len(last) <= 12


def test_what_came_within_the_time_is_known_however_much_it_is() -> None:
    seen = Seen(window=3, seconds=30.0)
    for number in range(200):
        seen.update(keys(number), float(number))
        last = known(seen, range(number + 1))
        assert last[0] <= max(0, number - 30)
        assert len(last) <= 45


def test_a_generation_ends_when_it_has_its_part_of_the_window_and_of_the_time() -> None:
    seen = Seen(window=6, seconds=30.0)
    for at, count in ((100.0, 1), (109.9, 1), (110.0, 2)):
        seen.update(keys(int(at)), at)
        assert len(seen._generations) == count
    seen.update(keys(0), 120.0)  # time begins with the first of a generation
    seen.update(keys(1), 129.0)
    assert len(seen._generations) == 2
    seen.update(keys(2), 125.0)  # by another clock, which is behind
    seen.update(keys(3), 119.0)
    assert len(seen._generations) == 2
    seen.update(keys(4), 129.0)  # it began anew, at 119
    assert len(seen._generations) == 3
    few = Seen(window=6, seconds=0.0)
    few.update(keys(1), 0.0)
    assert len(few._generations) == 1
    few.update(keys(2), 0.0)
    assert len(few._generations) == 2


def test_of_what_is_forgotten_nothing_stays() -> None:
    seen = Seen(window=3, seconds=0.0)
    for number in range(10):
        seen.update(keys(number), 0.0)
    assert sum(len(ids) for one in seen._generations for ids in one.values()) == 3


def test_where_ids_are_given_out_again_the_time_tells_two_apart() -> None:
    assert key_of("a", "t", b"1", 5, lasting=True) == key_of("a", "t", b"1", 6, lasting=True) == ("a", "t", b"1")
    assert key_of("a", "t", b"1", 5, lasting=False) != key_of("a", "t", b"1", 6, lasting=False)


@pytest.mark.parametrize(
    ("message_id", "number"),
    [
        (b"%016x" % (0x3FF << 12), 1023),
        (b"%016x" % (5 << 12 | 0xFFF), 5),
        (b"%016x" % (1 << 22), 0),
        (b"%015x" % (5 << 12), None),
        (b"%017x" % (5 << 12), None),
        (b"no number at all", None),
    ],
)
def test_the_node_id_of_an_nsqd_is_found_in_its_messages_ids(message_id: bytes, number: int | None) -> None:
    assert node_id_of(message_id) == number


# --- the notes of when brokers took the rows of segments


def noted(folder: Path, *lines: str) -> None:
    """As an earlier version had it."""
    with (folder / "times").open("a") as file:
        file.write("".join(f"\n{line}\n" for line in lines))


def segments(*numbers: int, rows: int = 2) -> list[Segment]:
    return [Segment(number, rows, Path("/nowhere")) for number in numbers]


def test_what_is_noted_of_a_segment_is_its_last_line_that_says_as_many_rows(tmp_path: Path) -> None:
    assert times.known(tmp_path, segments(1)) == {}
    assert times.highest(tmp_path) == 0
    noted(
        tmp_path,
        '[1, 2, 10, 20, ["a"]]',
        '[1, 2, 11, 21, ["a", "b"]]',
        '[1, 3, 12, 22, ["c"]]',
        "[2, 2, 13, 23, null]",
        '[3, 2, 14, 24, ["a"',
        '[4, 2, 14, "24", ["a"]]',
        "[5, 2, 14, 24, [1]]",
        '[6, 2, 14, 24, "a"]',
        "[0, 2, 14, 24, null]",
        f"[{arrow.HIGHEST + 1}, 2, 14, 24, null]",
        "[true, 2, 14, 24, null]",
        "[7, 2, 14]",
        '[9, 2, 15, 25, ["a"]]',
    )
    found = times.known(tmp_path, segments(*range(9)))
    assert found == {1: Times(11, 21, frozenset("ab")), 2: Times(13, 23)}
    assert times.highest(tmp_path) == 9
    noted(tmp_path, f"[{arrow.HIGHEST}, 2, 14, 24, null]")
    assert times.highest(tmp_path) == arrow.HIGHEST


def test_a_collector_reads_what_was_noted_since_it_asked_last(tmp_path: Path) -> None:
    notes, file = Notes(tmp_path), tmp_path / NOTED
    assert notes.highest() == 0
    file.write_text("\n[5, 2, 1, 1, null]\n\n[3, 2, 1, 1, null]\n")
    assert notes.highest() == 5
    with file.open("a") as more:
        more.write("[8, 2, 1,")
    assert notes.highest() == 5
    with file.open("a") as more:
        more.write(" 1, null]\n")
    assert notes.highest() == 8
    file.unlink()
    assert notes.highest() == 8


def test_where_no_line_is_one_no_number_is_noted(tmp_path: Path) -> None:
    noted(tmp_path, "not of ours", "[0, 1, 2, 3, null]")
    times.tidy(tmp_path, segments(1))
    assert list(tmp_path.iterdir()) == []
    assert times.highest(tmp_path) == 0


def test_where_the_disk_refuses_it_notes_stay_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    noted(tmp_path, *["[1, 2, 10, 20, null]"] * 5)
    before = (tmp_path / "times").read_bytes()

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(times.os, "write", full)
    times.tidy(tmp_path, segments(1))
    assert (tmp_path / "times").read_bytes() == before
    assert "no space left" in caplog.text
    assert times.known(tmp_path, segments(1)) == {1: Times(10, 20)}


# --- numbers that a collector tells


def test_a_number_is_told_in_place_of_what_was_told_before(tmp_path: Path) -> None:
    assert told(tmp_path, "limit") is None
    tell(tmp_path, "limit", None)
    tell(tmp_path, "limit", 5)
    assert (told(tmp_path, "limit"), told(tmp_path, "other")) == (5, None)
    written = (tmp_path / "limit").stat().st_ino
    tell(tmp_path, "limit", 5)
    assert (tmp_path / "limit").stat().st_ino == written
    tell(tmp_path, "limit", 6)
    assert told(tmp_path, "limit") == 6
    assert [one.name for one in tmp_path.iterdir()] == ["limit"]
    tell(tmp_path, "limit", None)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "limit").write_text("no number")
    assert told(tmp_path, "limit") is None

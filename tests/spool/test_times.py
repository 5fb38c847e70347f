"""What is noted of a segment stays when it is removed by hand: its number is given to no other one."""

from __future__ import annotations

from pathlib import Path

import pytest

from framework.spool import Spool, numbered, segment, times
from framework.spool.storage import Location, Remote
from tests.spool.rows import NOTED, MakeBatch
from tests.storages import Memory, memory

__all__ = ["memory"]


def test_the_number_of_the_only_segment_is_remembered_when_it_is_gone(tmp_path: Path, batch: MakeBatch) -> None:
    with Spool(tmp_path) as spool:
        spool.land(batch(0, 3))
    (one,) = segment.listing(tmp_path / "main")
    Path(str(one.path)).unlink()
    assert times.highest(tmp_path / "main") == one.number == 1
    with Spool(tmp_path) as spool:
        spool.land(batch(3, 6))
    assert [each.number for each in segment.listing(tmp_path / "main")] == [2]


@pytest.mark.parametrize("kind", ["folder", "storage"])
def test_nor_is_it_where_a_collector_that_shares_had_not_seen_that_one(
    tmp_path: Path, memory: Remote, batch: MakeBatch, kind: str
) -> None:
    root: Location = tmp_path if kind == "folder" else memory
    with Spool(root, shared=True) as one, Spool(root, shared=True) as two:
        one.land(batch(0, 3))
        two.land(batch(3, 6))
        one.land(batch(6, 9))
        (_, _, newest) = segment.listing(one.folder)
        newest.path.unlink() if isinstance(newest.path, Path) else newest.path.delete()
        assert two.land(batch(9, 12)) == 3
        assert one.land(batch(12, 15)) == 3
        assert [each.number for each in segment.listing(one.folder)] == [1, 2, 4, 5]


def test_what_others_note_is_read_as_it_comes_and_a_line_that_is_under_way_later(tmp_path: Path) -> None:
    notes = times.Notes(tmp_path)
    assert notes.highest() == 0
    (tmp_path / NOTED).write_bytes(b"\n[7, 1, 1, 1, null]\n\n[12, 1, 1")
    assert notes.highest() == 7
    with (tmp_path / NOTED).open("ab") as file:
        file.write(b", 1, null]\n\n[9, 1, 1, 1, null]\n")
    assert notes.highest() == 12
    (tmp_path / NOTED).unlink()
    assert notes.highest() == 12


def test_an_opening_relies_on_nothing_that_was_known_of_a_storage(memory: Remote, batch: MakeBatch) -> None:
    """As where another spool was put in its place."""
    with Spool(memory, window=1, remember=0) as before:
        for n in range(4):
            before.land(batch(n, n + 1))
    segment.trim(before.folder, 4, 1)
    assert [one.number for one in segment.listing(before.folder)] == [4]
    other = Memory()
    with Spool(Remote(other, memory.key)) as elsewhere:
        for n in range(10, 15):
            elsewhere.land(batch(n, n + 1))
    memory.storage.objects = other.objects  # type: ignore[attr-defined]
    with Spool(memory) as again:
        assert again.land(batch(10, 15)) == 0


def test_a_name_in_a_storage_says_when_the_rows_were_taken_and_how_many_there_are(memory: Remote, batch: MakeBatch) -> None:
    with Spool(memory) as spool:
        spool.land(batch(5, 15))
    numbered.forget(spool.folder)
    (one,) = segment.listing(spool.folder)
    assert (one.number, one.rows) == (1, 10)
    assert one.taken == (1_700_000_000_123_456_794, 1_700_000_000_123_456_803)

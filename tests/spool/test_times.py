"""What is noted of a segment stays when it is removed by hand: its number is given to no other one."""

from __future__ import annotations

from pathlib import Path

from framework.spool import Spool, segment, times
from tests.spool.rows import MakeBatch


def test_the_number_of_the_only_segment_is_remembered_when_it_is_gone(tmp_path: Path, batch: MakeBatch) -> None:
    with Spool(tmp_path) as spool:
        spool.land(batch(0, 3))
    (one,) = segment.listing(tmp_path / "main")
    Path(str(one.path)).unlink()
    assert times.highest(tmp_path / "main") == one.number == 1
    with Spool(tmp_path) as spool:
        spool.land(batch(3, 6))
    assert [each.number for each in segment.listing(tmp_path / "main")] == [2]

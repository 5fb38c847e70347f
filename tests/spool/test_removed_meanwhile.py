"""What another process has removed just now is no error to who was about to: a collector, a query, or who tells a number."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest

pytest.importorskip("pyarrow")

from framework.spool import Spool, files, runs, segment, told
from tests.spool.rows import MakeBatch
from tests.spool.test_runs import expected, rows, small
from tests.spool.test_runs_and_others import then, without_runs

__all__ = ["small"]


def test_a_segment_that_a_run_holds(tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    without_runs(tmp_path, batch, 12)
    main = tmp_path / "main"
    first = Path(str(segment.listing(main)[0].path))
    then(monkeypatch, runs, "check_held", first.unlink)
    assert segment.compact(main, 60.0)
    assert not first.exists()
    assert rows(main) == expected(12)


def test_a_segment_that_was_read(tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    without_runs(tmp_path, batch, 2)
    main = tmp_path / "main"
    first = Path(str(segment.listing(main)[0].path))
    then(monkeypatch, segment, "newest", first.unlink)
    segment.trim(main, before=3, keep_rows=1)
    assert [one.number for one in segment.listing(main)] == [3, 4]


def test_a_claim_that_was_settled(tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    with Spool(tmp_path) as spool:
        spool.land(batch(0, 1))
        claim = spool.folder / f"{2:020d}.claim"
        os.link(segment.listing(spool.folder)[0].path, claim)
        then(monkeypatch, files, "_name_claimed", claim.unlink)
        files.settle(claim)
        assert [one.number for one in segment.listing(spool.folder)] == [1, 2]


def test_a_number_that_was_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told.tell(tmp_path, "limit", 5)
    then(monkeypatch, told, "told", (tmp_path / "limit").unlink)
    told.tell(tmp_path, "limit", None)
    assert list(tmp_path.iterdir()) == []


def test_where_no_file_can_be_made_to_tell_the_time_by_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(Path, "touch", full)
    with pytest.raises(OSError, match="no space left"):
        files._clock(tmp_path)

"""Files whose numbers are none that a segment can have: they are left alone, and segments get numbers that a listing finds."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from framework.spool import Spool, SpoolError, arrow, numbered, segment, times
from framework.spool.storage import Remote
from tests.spool.rows import MakeBatch, ids

TOO_HIGH = [
    "99999999999999999999", "09223372036854775807", "09223372036854775806", "18446744073709551615", "0" + "9" * 19,
    "01" + "0" * 18,
]  # fmt: skip
"""Segments behind these had names that no listing finds, so that whoever landed named one more and one more, for ever, and the
rows of what was finished were seen by nobody; or a query ended with an OverflowError."""
OTHER_DIGITS = "\N{ARABIC-INDIC DIGIT ZERO}" * 19 + "\N{ARABIC-INDIC DIGIT NINE}"
LAST = arrow.HIGHEST


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("number", [*TOO_HIGH, OTHER_DIGITS])
def test_a_file_whose_number_is_too_high_is_no_segment(tmp_path: Path, batch: MakeBatch, number: str, shared: bool) -> None:
    with Spool(tmp_path, shared=shared) as spool:
        spool.land(batch(0, 5))
    main = tmp_path / "main"
    odd = [f"{number}-5.arrow", f"{number}.claim", f"{number}-{number}-5-1-1-1.run", "notes.claim"]
    for name in odd:
        shutil.copy(main / f"{1:020d}-5.arrow", main / name)
    for first in (5, 10):
        with Spool(tmp_path, shared=shared) as spool:
            assert (spool.land(batch(first, first + 5)), spool.land(batch(0, first + 5))) == (5, 0)
    assert [(one.number, one.rows) for one in segment.listing(main)] == [(1, 5), (2, 5), (3, 5)]
    assert len(ids(spool)) == 15
    assert {*odd} <= {*os.listdir(main)}


def test_a_row_count_that_cannot_be_is_no_segments(tmp_path: Path, batch: MakeBatch) -> None:
    with Spool(tmp_path) as spool:
        spool.land(batch(0, 5))
    main = tmp_path / "main"
    shutil.copy(main / f"{1:020d}-5.arrow", main / f"{2:020d}-{'9' * 19}.arrow")
    with Spool(tmp_path) as spool:
        assert spool.land(batch(5, 6)) == 1
    assert [(one.number, one.rows) for one in segment.listing(main)] == [(1, 5), (2, 1)]


@pytest.mark.parametrize("number", [*TOO_HIGH, OTHER_DIGITS, "\N{SUPERSCRIPT TWO}" * 20])
def test_an_object_whose_number_is_too_high_is_no_segment(memory: Remote, batch: MakeBatch, number: str) -> None:
    with Spool(memory) as spool:
        spool.land(batch(0, 5))
    main = memory / "main"
    content = bytes((main / f"{1:020d}.arrow").read())
    odd = [f"{number}.arrow", f"{number}-5-{'0' * 32}.rows"]
    for name in odd:
        (main / name).put(content)
    for first in (5, 10):
        numbered.forget(main)
        with Spool(memory) as spool:
            assert (spool.land(batch(first, first + 5)), spool.land(batch(0, first + 5))) == (5, 0)
    assert [(one.number, one.rows) for one in segment.listing(main)] == [(1, 5), (2, 5), (3, 5)]
    numbered._tidied.pop(main, None)
    assert segment.trim(main, before=3, keep_rows=1) == 2
    assert numbered.remove_held(main, float("inf"))
    assert {*odd} <= {entry.name for entry in main.list()}


@pytest.mark.parametrize("shared", [False, True])
def test_behind_the_last_number_nothing_is_landed_and_that_is_said(tmp_path: Path, batch: MakeBatch, shared: bool) -> None:
    with Spool(tmp_path, shared=shared) as spool:
        spool.land(batch(0, 5))
    copied = tmp_path / "main" / f"{LAST - 1:020d}-5.arrow"
    shutil.copy(tmp_path / "main" / f"{1:020d}-5.arrow", copied)
    with Spool(tmp_path, shared=shared) as spool:
        assert spool.land(batch(5, 6)) == 1
        for _ in range(2):
            with pytest.raises(
                SpoolError, match=f"main: something there has the number {LAST}, which is the last: remove it where"
            ):
                spool.land(batch(6, 7))
    assert [one.number for one in segment.listing(spool.folder)] == [1, LAST - 1, LAST]
    assert times.highest(tmp_path / "main") == LAST


def test_behind_the_last_object_nothing_is_landed_and_that_is_said(memory: Remote, batch: MakeBatch) -> None:
    main = memory / "main"
    with Spool(memory) as spool:
        spool.land(batch(0, 5))
    (main / f"{LAST:020d}.arrow").put(bytes((main / f"{1:020d}.arrow").read()))
    numbered.forget(main)
    with Spool(memory) as spool, pytest.raises(SpoolError, match=f"the number {LAST}, which is the last"):
        spool.land(batch(6, 7))
    assert [one.number for one in segment.listing(main)] == [1, LAST]

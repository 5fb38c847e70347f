"""Runs while others trim, list and land: nothing that has yet to be read goes, and nothing is taken for new."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from framework.spool import Spool, SpoolError, numbered, runs, segment
from framework.spool.storage import Location, Remote
from tests.spool.rows import MakeBatch, ids
from tests.spool.test_numbered import forget
from tests.spool.test_runs import expected, folder, land, names, rows, small

__all__ = ["folder", "small"]


def without_runs(folder: Location, batch: MakeBatch, last: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(segment, "compact", lambda *_: True)
        land(folder, batch, 0, last)


def then(patched: pytest.MonkeyPatch, module: Any, name: str, after: Callable[[], object]) -> None:
    """Once, ``after`` is called when ``module.name`` has its result."""
    real = getattr(module, name)

    def call(*arguments: Any, **more: Any) -> Any:
        patched.setattr(module, name, real)
        result = real(*arguments, **more)
        after()
        return result

    patched.setattr(module, name, call)


def test_a_query_that_trims_within_a_block_while_it_is_joined_loses_nothing_of_the_rest(
    folder: Location, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_runs(folder, batch, 12)
    main = folder / "main"
    real = runs.of

    def of(block: Any, tables: Any) -> Any:
        if block[0].number == 5:
            assert segment.trim(main, 7, 1) == 1 + 2
        return real(block, tables)

    monkeypatch.setattr(runs, "of", of)
    segment.compact(main, 60.0)
    forget()
    assert [one for one in rows(main) if one[0] >= 7] == [one for one in expected(12) if one[0] >= 7]


def test_who_opens_while_segments_are_joined_knows_their_ids(
    folder: Location, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_runs(folder, batch, 12)
    then(monkeypatch, segment, "steady", lambda: segment.compact(folder / "main", 60.0))
    with Spool(folder) as again:
        assert again.land(batch(0, 36)) == 0


def test_a_process_that_stood_still_for_longer_than_segments_stay_beside_their_run_sees_all_rows(
    memory: Remote, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_runs(memory, batch, 12)
    assert len(segment.listing(memory / "main")) == 24  # it knows by now that there are no runs
    mine = dict(numbered._run_lists)
    assert mine
    segment.compact(memory / "main", 60.0)
    numbered._run_lists.clear()
    numbered._run_lists.update({key: (at + 1000, found) for key, (at, found) in mine.items()})
    assert rows(memory / "main") == expected(12)


def test_a_block_that_is_joined_after_a_later_one_is_missed_by_nobody_who_stood_still(
    memory: Remote, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_runs(memory, batch, 12)
    main, due = memory / "main", runs.due

    def join(*begins: int) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(runs, "due", lambda *some: [block for block in due(*some) if block[0].number in begins])
            segment.compact(main, 60.0)
        forget()

    join(9)
    assert rows(main) == expected(12)
    lists, marked = dict(numbered._run_lists), dict(numbered._marked)
    join(1, 5)
    numbered._run_lists.update({key: (at + 1000, found) for key, (at, found) in lists.items()})
    numbered._marked.update(marked)
    assert rows(main) == expected(12)


def test_a_listing_that_lacks_one_in_the_middle_is_looked_at_again(
    folder: Location, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_runs(folder, batch, 3)
    whole = segment.listing(folder / "main")
    seen = iter([(whole[:2] + whole[3:], 0), (whole, 0)])
    monkeypatch.setattr(segment, "_look", lambda _: next(seen))
    assert segment.steady(folder / "main") == whole
    assert list(seen) == []


def test_segments_are_joined_bit_by_bit_where_that_takes_long_and_each_is_read_once(folder: Location, batch: MakeBatch) -> None:
    without_runs(folder, batch, 12)
    main, read, opened, begun, calls = folder / "main", segment.read, Counter[str](), {}, 0

    def slow(path: Location, *more: Any) -> Any:
        opened[path.name] += 1
        return read(path, *more)

    def all_joined() -> bool:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(segment, "read", slow)
            patched.setattr(segment, "time", SimpleNamespace(monotonic=count().__next__))  # a second for each look at the clock
            return segment.compact(main, 6.0, begun)

    while not all_joined():
        calls += 1
        forget()
        assert rows(main) == expected(12)
    assert calls > 2
    assert set(opened.values()) == {1}
    assert begun == {}
    forget()
    assert rows(main) == expected(12)
    assert [(one.begins, one.number) for one in segment.listing(main) if one.first] == [(1, 4), (5, 8), (9, 12), (13, 16)]


def test_a_run_that_does_not_hold_what_is_beside_it_lets_nothing_go(
    folder: Location, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has copied it here from another spool."""
    without_runs(folder, batch, 12)
    real = runs.of
    monkeypatch.setattr(runs, "of", lambda block, tables: real(block, tables).slice(0, 5))
    with pytest.raises(SpoolError, match=r"does not hold the rows of segment \d+, .* until then the segments stay"):
        segment.compact(folder / "main", 60.0)
    assert len([name for name in names(folder / "main") if name.endswith(".arrow")]) == 24


def test_of_a_spool_that_was_removed_nothing_is_joined_that_was_read_before(
    tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its segments have the names of those that come now."""
    read_all = segment._read_all
    with Spool(tmp_path) as spool:
        with monkeypatch.context() as patched:
            patched.setattr(segment, "_read_all", lambda block, *more: read_all(block[:2], *more) and False)
            for n in range(12):
                spool.land(batch(n, n + 1))
        for path in tmp_path.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for n in range(20, 32):
            assert spool.land(batch(n, n + 1)) == 1
        assert ids(spool) == [f"{n:016x}" for n in range(20, 32)]
        assert [(one.begins, one.number) for one in segment.listing(spool.folder) if one.first] == [(1, 4)]

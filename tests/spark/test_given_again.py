"""A collector's folder is put back as it was before, renamed, copied, or emptied at an awkward moment: no row is passed over, and
none is read twice."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from framework.spark import options
from framework.spark.offsets import Offset
from framework.spark.reader import NsqBatchReader
from framework.spool import Spool, SpoolError, segment
from framework.spool.storage import Location, Remote
from pyspark_nsq import lag
from tests.spark.conftest import messages
from tests.spark.test_reader import EVERYTHING
from tests.spark.test_removed_segment import empty, ids, reader, root
from tests.spool.test_numbered import forget
from tests.storages import memory

__all__ = ["memory", "root"]


def land(root: Location, collector: str, *firsts: int) -> None:
    """Five messages from each of ``firsts`` on, each five a segment."""
    with Spool(root, collector, remember=0) as spool:
        for first in firsts:
            spool.land(messages(first, first + 5))
    forget()


def names(*firsts: int) -> list[str]:
    return [f"{n:016x}" for first in firsts for n in range(first, first + 5)]


def everything(root: Location, start: dict[str, Any] | None = None, **more: str) -> tuple[list[str], dict[str, Any]]:
    """What a query that has read to ``start`` reads, in batches, and to where it has read then."""
    source, found = reader(root, **more), list[str]()
    end = source.initialOffset() if start is None else start
    while (after := source.latestOffset(end, source.getDefaultReadLimit())) != end:
        found += ids(source, end, after)
        end = after
    return found, end


def copied(root: Location) -> Callable[[], None]:
    """A backup of the spool; calling it puts it back."""
    if isinstance(root, Path):
        shutil.copytree(root, root.with_name("backup"))
        return lambda: [shutil.rmtree(root), shutil.copytree(root.with_name("backup"), root)][-1] and None
    folder = root / "main"
    kept = {entry.name: bytes((folder / entry.name).read()) for entry in folder.list() if not entry.name.endswith("/")}

    def put_back() -> None:
        empty(root)
        for name, content in kept.items():
            (folder / name).put(content)
        forget()

    return put_back


@pytest.mark.parametrize("rows", ["1000", "7"])
def test_a_folder_that_was_put_back_as_it_was_is_told_although_its_numbers_have_come_as_far_again(
    root: Location, rows: str
) -> None:
    land(root, "main", 0, 5)
    put_back = copied(root)
    land(root, "main", 10, 15)
    found, end = everything(root, maxMessagesPerTrigger=rows)
    assert found == names(0, 5, 10, 15)
    put_back()
    land(root, "main", 20, 25, 30)
    with pytest.raises(SpoolError, match="segment 4 of collector main is not the one that was read: its folder was put back"):
        everything(root, end)
    assert everything(root, end, failOnDataLoss="false", maxMessagesPerTrigger=rows)[0] == names(0, 5, 20, 25, 30)


def test_a_batch_of_a_folder_that_was_put_back_is_not_planned_again(root: Location) -> None:
    land(root, "main", 0)
    put_back = copied(root)
    land(root, "main", 10)
    start = reader(root).initialOffset()
    end = reader(root).latestOffset(start, EVERYTHING)
    put_back()
    land(root, "main", 20, 25)
    with pytest.raises(SpoolError, match="segment 2 of collector main is not the one that was read"):
        reader(root).partitions(start, end)


@pytest.mark.parametrize("before", [(), (0, 5)], ids=["the first batch", "a later one"])
def test_a_batch_of_a_folder_that_was_emptied_since_is_not_planned_again(root: Location, before: tuple[int, ...]) -> None:
    """As where the driver is killed, and the folder emptied before it starts again."""
    land(root, "main", *before)
    _, start = everything(root)
    land(root, "main", 10, 15)
    end = reader(root).latestOffset(start, EVERYTHING)
    empty(root)
    land(root, "main", 20, 25, 30, 35)
    with pytest.raises(SpoolError, match="the folder of collector main was emptied"):
        reader(root).partitions(start, end)
    source = reader(root, failOnDataLoss="false")
    assert ids(source, start, end) + everything(root, end, failOnDataLoss="false")[0] == names(20, 25, 30, 35)


def test_a_task_reads_nothing_of_a_folder_that_was_emptied_since_its_plan(root: Location) -> None:
    land(root, "main", 0, 5)
    source, skipping = reader(root), reader(root, failOnDataLoss="false")
    start = source.initialOffset()
    (*tasks,) = source.partitions(start, source.latestOffset(start, EVERYTHING))
    batch = NsqBatchReader(options.batch_read({"spoolDir": "in place of"}))
    batch._options = source._options
    (*batches,) = batch.partitions()
    empty(root)
    land(root, "main", 20, 25)
    for task in [*tasks, *batches]:
        with pytest.raises(SpoolError, match="was planned and is gone"):
            list(source.read(task))
        assert not list(skipping.read(task))


def test_a_folder_that_is_emptied_in_the_middle_of_a_look_is_told_by_the_next_one(
    root: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(root, "main", 0, 5)
    _, end = everything(root)
    source = reader(root)
    checked = source._continue_from

    def then_emptied(start: Offset) -> Offset:
        begin = checked(start)
        empty(root)
        land(root, "main", 20, 25, 30)
        source._list_at = 0.0
        return begin

    monkeypatch.setattr(source, "_continue_from", then_emptied)
    assert source.latestOffset(end, EVERYTHING) == end
    monkeypatch.setattr(source, "_continue_from", checked)
    with pytest.raises(SpoolError, match="the folder of collector main was emptied"):
        source.latestOffset(end, EVERYTHING)


def test_what_is_deleted_of_a_collector_that_came_later_is_told(root: Location) -> None:
    """Another query, or a retention, deletes what this one, which was stopped, has not seen yet."""
    land(root, "main", 0)
    _, end = everything(root)
    land(root, "host-2", 5, 10, 15)
    segment.trim(root / "host-2", 3, 1)
    with pytest.raises(SpoolError, match="segments 1 to 2 of collector host-2 are gone"):
        everything(root, end)
    assert everything(root, end, failOnDataLoss="false")[0] == names(15)


def test_of_an_emptied_folder_what_was_deleted_up_to_where_a_query_was_is_told(root: Location) -> None:
    land(root, "main", 0, 5)
    _, end = everything(root)
    empty(root)
    land(root, "main", 20, 25, 30)
    segment.trim(root / "main", 3, 1)
    forget()
    with pytest.raises(SpoolError, match="the folder of collector main was emptied"):
        everything(root, end)


def test_a_folder_that_was_renamed_is_read_on_where_it_was(tmp_path: Path) -> None:
    land(tmp_path, "host-1", 0, 5)
    land(tmp_path, "host-2", 10)
    _, end = everything(tmp_path)
    (tmp_path / "host-1").rename(tmp_path / "aside")
    (tmp_path / "host-2").rename(tmp_path / "host-1")
    (tmp_path / "aside").rename(tmp_path / "host-2")
    land(tmp_path, "host-1", 15, 20)
    land(tmp_path, "host-2", 25)
    for words in ("true", "false"):
        assert sorted(everything(tmp_path, end, failOnDataLoss=words)[0]) == names(15, 20, 25)
    (tmp_path / "host-2").rename(tmp_path / "host-3")
    land(tmp_path, "host-2", 30)  # begun anew
    assert sorted(everything(tmp_path, end)[0]) == names(15, 20, 25, 30)


@pytest.mark.parametrize("seen", ["all", "some", "nothing", "the empty folder"])
@pytest.mark.parametrize("shared", [False, True])
def test_a_folder_that_is_renamed_while_its_collector_runs_is_read_on_and_so_is_what_that_lands_then(
    tmp_path: Path, shared: bool, seen: str
) -> None:
    """It goes on with the next number in a folder that it makes, before which nothing is."""
    start = reader(tmp_path).initialOffset()
    with Spool(tmp_path, "host-1", remember=0, shared=shared) as spool:
        if seen == "the empty folder":
            _, start = everything(tmp_path, start)
        for first in (0, 5):
            spool.land(messages(first, first + 5))
            if seen == "all" or (seen == "some" and first == 0):
                rows, start = everything(tmp_path, start)
                assert rows == names(first)
        (tmp_path / "host-1").rename(tmp_path / "aside")
        for first in (10, 15):
            spool.land(messages(first, first + 5))
        assert [one.number for one in segment.listing(spool.folder)] == [3, 4]
        wanted = names(*{"all": (10, 15), "some": (5, 10, 15)}.get(seen, (0, 5, 10, 15)))
        assert sorted(everything(tmp_path, start)[0]) == wanted
        (tmp_path / "host-1").rename(tmp_path / "aside-too")
        spool.land(messages(20, 25))
        for words in ("true", "false"):
            assert sorted(everything(tmp_path, start, failOnDataLoss=words)[0]) == [*wanted, *names(20)]


def test_what_is_gone_of_a_folder_that_a_running_collector_made_is_told(tmp_path: Path) -> None:
    with Spool(tmp_path, "host-1", remember=0) as spool:
        spool.land(messages(0, 5))
        _, end = everything(tmp_path)
        (tmp_path / "host-1").rename(tmp_path / "aside")
        for first in (10, 15):
            spool.land(messages(first, first + 5))
        Path(str(segment.listing(spool.folder)[0].path)).unlink()
        with pytest.raises(SpoolError, match="segments 2 to 2 of collector host-1 are gone"):
            everything(tmp_path, end)


@pytest.mark.parametrize("when", ["before the query has seen it", "before the batch", "behind its plan"])
def test_what_no_query_had_read_of_a_folder_that_was_removed_while_its_collector_ran_is_told(tmp_path: Path, when: str) -> None:
    """It went on behind that, as where the folder was renamed."""
    source = reader(tmp_path)
    start = source.initialOffset()
    with Spool(tmp_path, "host-1", remember=0) as spool:
        if when == "before the batch":
            start = source.initialOffset()
        spool.land(messages(0, 5))
        end = source.latestOffset(start, EVERYTHING)
        shutil.rmtree(tmp_path / "host-1")
        spool.land(messages(5, 10))
        with pytest.raises(SpoolError, match="segments 1 to 1 of collector host-1 are gone"):
            source.partitions(start, end) if when == "behind its plan" else everything(tmp_path, start)


def test_one_that_took_the_place_of_another_is_told(tmp_path: Path) -> None:
    land(tmp_path, "host-1", 0, 5)
    land(tmp_path, "host-2", 10, 15, 20)
    _, end = everything(tmp_path)
    shutil.rmtree(tmp_path / "host-1")
    (tmp_path / "host-2").rename(tmp_path / "host-1")
    with pytest.raises(SpoolError, match="the folder of collector host-1 was emptied"):
        everything(tmp_path, end)


def test_a_copy_of_a_folder_beside_it_is_refused(tmp_path: Path) -> None:
    land(tmp_path, "host-1", 0, 5)
    _, end = everything(tmp_path)
    shutil.copytree(tmp_path / "host-1", tmp_path / "host-1.bak")
    batch = NsqBatchReader(options.batch_read({"spoolDir": str(tmp_path)}))
    for look in (lambda: everything(tmp_path, end), lambda: lag(tmp_path, None), batch.partitions, lambda: everything(tmp_path)):
        with pytest.raises(SpoolError, match=r"host-1 and host-1\.bak have one epoch, so one is a copy of the other"):
            look()
    shutil.move(tmp_path / "host-1.bak", tmp_path.with_name("copy"))
    assert everything(tmp_path, end)[0] == []


def test_offsets_of_earlier_versions_go_on(root: Location) -> None:
    land(root, "main", 0, 5)
    _, end = everything(root)
    land(root, "main", 10)
    known = {name: value for name, value in end.items() if name not in ("lives", "read")}
    assert everything(root, known)[0] == names(10)
    assert isinstance(root, Remote) or "read" in end

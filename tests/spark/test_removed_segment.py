"""The newest segment is removed by hand, as the words for a damaged one say: its number is given to no other one."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from framework.spark import options
from framework.spark.reader import NsqStreamReader
from framework.spool import Spool, SpoolError, segment
from framework.spool.storage import Location, Remote
from pyspark_nsq import lag
from tests.spark.conftest import messages
from tests.spark.test_reader import EVERYTHING
from tests.spool.test_numbered import forget
from tests.storages import memory

__all__ = ["memory"]


def reader(root: Location, **more: str) -> NsqStreamReader:
    given = options.stream_read({"spoolDir": "in place of", "collector": "external", **more})
    return NsqStreamReader(replace(given, spool_dir=root))


@pytest.fixture(params=["folder", "storage"])
def root(request: pytest.FixtureRequest, tmp_path: Path, memory: Remote) -> Location:
    return tmp_path / "spool" if request.param == "folder" else memory


def land(root: Location, *sizes: int, first: int = 0) -> None:
    with Spool(root) as spool:
        for size in sizes:
            spool.land(messages(first, first + size))
            first += size


def ids(source: NsqStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    tasks = source.partitions(start, end)
    return [name for task in tasks for rows in source.read(task) for name in rows["message_id"].to_pylist()]


def remove(root: Location, number: int) -> None:
    forget()
    (path,) = [one.path for one in segment.listing(root / "main") if one.number == number]
    if isinstance(path, Remote):
        path.delete()
    else:
        path.unlink()
    forget()


@pytest.mark.parametrize("sizes", [(9, 9), (9,)], ids=["behind another", "the only one"])
def test_what_is_landed_next_is_read_by_a_query_that_has_read_the_removed_one(root: Location, sizes: tuple[int, ...]) -> None:
    land(root, *sizes)
    start = reader(root).initialOffset()
    end = reader(root).latestOffset(start, EVERYTHING)
    remove(root, len(sizes))
    for words in ("true", "false"):  # nothing is lost to this query
        assert reader(root, failOnDataLoss=words).latestOffset(end, EVERYTHING) == end
    land(root, 10, first=sum(sizes))
    source = reader(root)
    after = source.latestOffset(end, EVERYTHING)
    assert ids(source, end, after) == [f"{n:016x}" for n in range(sum(sizes), sum(sizes) + 10)]


def test_who_has_not_read_it_is_told_and_may_go_on(root: Location) -> None:
    land(root, 9, 9)
    start = reader(root).initialOffset()
    remove(root, 2)
    land(root, 10, first=18)
    source = reader(root)
    with pytest.raises(SpoolError, match="segments 2 to 2 of collector main are gone"):
        ids(source, start, source.latestOffset(start, EVERYTHING))
    source = reader(root, failOnDataLoss="false")
    assert len(ids(source, start, source.latestOffset(start, EVERYTHING))) == 19, "each row that is there"


def test_who_is_in_the_middle_of_it_is_told_and_may_go_on(root: Location) -> None:
    land(root, 9, 9)
    source = reader(root, maxMessagesPerTrigger="13")
    middle = source.latestOffset(source.initialOffset(), source.getDefaultReadLimit())
    assert middle["collectors"]["main"] == [2, 4]
    remove(root, 2)
    with pytest.raises(SpoolError, match="segment 2 of collector main is gone"):
        reader(root).latestOffset(middle, EVERYTHING)
    land(root, 10, first=18)
    source = reader(root, failOnDataLoss="false")
    assert ids(source, middle, source.latestOffset(middle, EVERYTHING)) == [f"{n:016x}" for n in range(18, 28)]


def test_the_rows_of_the_removed_one_count_for_no_other(root: Location) -> None:
    """In a storage a name beside it says 9; whoever took that for the next one's would read 9 of 10 rows."""
    land(root, 5, 9)
    remove(root, 2)
    land(root, 10, first=14)
    forget()
    assert [one.rows for one in segment.listing(root / "main")] == [5, 10]


def test_who_shares_goes_on_behind_it(root: Location) -> None:
    one, two, three = (Spool(root, shared=True) for _ in range(3))
    with one, two:
        assert one.land(messages(0, 9)) == 9
        assert two.land(messages(9, 12)) == 3
        remove(root, 2)
        with three:
            assert three.land(messages(12, 15)) == 3
        with pytest.raises(SpoolError, match="segments 2 to 2 were landed by others, and deleted"):
            one.land(messages(15, 18))
        assert one.land(messages(12, 18)) == 3, "it comes again"
        assert two.land(messages(9, 18)) == 0
    forget()
    assert [found.number for found in segment.listing(root / "main")] == [1, 3, 4]


def test_numbers_go_on_behind_all_that_were_ever_given(root: Location) -> None:
    land(root, 1, 1, 1)
    for number in (3, 2, 1):
        remove(root, number)
    land(root, 1, first=3)
    land(root, 1, first=4)
    forget()
    assert [one.number for one in segment.listing(root / "main")] == [4, 5]


@pytest.mark.parametrize("rows", [4, 13])
def test_who_goes_on_although_all_numbers_began_anew_reads_what_is_there(root: Location, rows: int) -> None:
    """As where somebody emptied the folder of a collector, and not the whole spool. ``rows``: a batch's."""
    land(root, 5, 5, 5, 5)
    end = reader(root).latestOffset(reader(root).initialOffset(), EVERYTHING)
    main = root / "main"
    if isinstance(main, Remote):
        for entry in main.list():
            (main / entry.name).delete()
    else:
        shutil.rmtree(main)
    forget()
    land(root, 5, 5, first=20)
    with pytest.raises(SpoolError, match="its numbers began anew"):
        reader(root).latestOffset(end, EVERYTHING)
    source = reader(root, failOnDataLoss="false", maxMessagesPerTrigger=str(rows))
    found = []
    while (after := source.latestOffset(end, source.getDefaultReadLimit())) != end:
        plan = ids(source, end, after)
        assert ids(reader(root, failOnDataLoss="false"), end, after) == plan, "as Spark plans it again after a crash"
        found += plan
        end = after
    assert found == [f"{n:016x}" for n in range(20, 30)]


def test_each_collector_whose_numbers_began_anew_is_read_although_another_stays_away(tmp_path: Path) -> None:
    for name in "ab":
        with Spool(tmp_path, name) as spool:
            for first in range(0, 40, 10):
                spool.land(messages(first, first + 10))
    end = reader(tmp_path).latestOffset(reader(tmp_path).initialOffset(), EVERYTHING)
    for name in "ab":
        shutil.rmtree(tmp_path / name)
    with Spool(tmp_path, "b") as spool:
        spool.land(messages(40, 50))
    source = reader(tmp_path, failOnDataLoss="false")
    assert ids(source, end, source.latestOffset(end, EVERYTHING)) == [f"{n:016x}" for n in range(40, 50)]


def empty(root: Location) -> None:
    if isinstance(folder := root / "main", Remote):
        for entry in folder.list():
            (folder / entry.name).delete()
    else:
        shutil.rmtree(folder)
    forget()


@pytest.mark.parametrize("sizes", [(4, 4), (4, 4, 4)], ids=["as many numbers", "more"])
def test_a_folder_that_was_emptied_is_told_although_its_numbers_have_come_as_far_again(
    root: Location, sizes: tuple[int, ...]
) -> None:
    land(root, 5, 5)
    end = reader(root).latestOffset(reader(root).initialOffset(), EVERYTHING)
    empty(root)
    land(root, *sizes, first=100)
    with pytest.raises(SpoolError, match="the folder of collector main was emptied, and its numbers began anew"):
        reader(root).latestOffset(end, EVERYTHING)
    assert lag(root, json.dumps(end)).rows == sum(sizes)
    source = reader(root, failOnDataLoss="false")
    after = source.latestOffset(end, EVERYTHING)
    for again in (source, reader(root)):  # a batch that runs again, with other options
        assert ids(again, end, after) == [f"{n:016x}" for n in range(100, 100 + sum(sizes))]
        assert again.latestOffset(after, EVERYTHING) == after


def test_the_end_of_a_batch_deletes_nothing_of_a_folder_that_was_emptied_meanwhile(root: Location) -> None:
    source = reader(root, retention="commit", dedupeWindow="1")
    land_forgetting(root, 0, 10, 20)
    end = source.latestOffset(source.initialOffset(), EVERYTHING)
    empty(root)
    land_forgetting(root, 100, 110)
    source.commit(end)
    forget()
    assert [one.number for one in segment.listing(root / "main")] == [1, 2]


def land_forgetting(root: Location, *firsts: int) -> None:
    """What is read is kept for nobody."""
    with Spool(root, remember=0) as spool:
        for first in firsts:
            spool.land(messages(first, first + 4))
    forget()


def test_of_a_folder_that_was_emptied_nothing_is_lost_to_who_had_read_it_where_its_collector_lives_on(root: Location) -> None:
    with Spool(root) as spool:
        spool.land(messages(0, 5))
        source = reader(root)
        end = source.latestOffset(source.initialOffset(), EVERYTHING)
        empty(root)
        spool.land(messages(5, 9))
        after = reader(root).latestOffset(end, EVERYTHING)
        assert ids(reader(root), end, after) == [f"{n:016x}" for n in range(5, 9)]
    known = {name: value for name, value in end.items() if name != "lives"}  # an earlier version's
    assert reader(root).latestOffset(known, EVERYTHING) == after

"""A flipped bit of the index itself: SQLite has no checksums, so what the log does not say is held twice."""

from __future__ import annotations

import shutil
import sqlite3
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from framework.nsqd.store import Retry, Store, TopicSave, twins
from tests.nsqd.storing import TOPIC, changed_index, declared, everything, publish, saved

PAGE = 4096


@pytest.fixture
def kept(folder: Path) -> Path:
    """A channel that has finished one message of five, and has one in flight and one to be tried again. It was stopped."""
    opened = Store(folder)
    opened.append([declared(TOPIC, "c", "other")])
    first = publish(opened, b"a", b"b", b"c", b"d", b"e")[0].first
    opened.save([TopicSave(TOPIC, first + 5)], [saved(first + 3, inflight=[first + 1], put={first + 2: Retry(0, 1)})])
    opened.close()
    return folder


def found(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """The topics as a start has them, and its reports."""
    opened = Store(folder)
    state = {one.name: one for one in opened.topics.values()}
    opened.close()
    return state, opened.reports


def page_of(folder: Path, table: str) -> int:
    """Where the table's rows begin in the file: at the end of its only page."""
    with sqlite3.connect(folder / "index.db") as db:
        (page,) = db.execute("select rootpage from sqlite_master where name = ?", (table,)).fetchone()
    return int(page - 1) * PAGE


@pytest.mark.parametrize("table", ["pos", "topic", "channel", "later", "batch"])
def test_a_flipped_bit_in_a_row_of_the_index_costs_no_message(kept: Path, tmp_path: Path, table: str) -> None:
    page = page_of(kept, table)
    used = [at for at in range(page + PAGE // 2, page + PAGE) if (kept / "index.db").read_bytes()[at]]
    clean = tmp_path / "clean"
    shutil.copytree(kept, clean)
    wanted, _ = found(kept)
    for at, bit in zip(used, cycle(range(8)), strict=False):
        copy = tmp_path / f"copy{at}"
        shutil.copytree(clean, copy)
        data = bytearray((copy / "index.db").read_bytes())
        data[at] ^= 1 << bit
        (copy / "index.db").write_bytes(data)
        opened = Store(copy)
        is_as_it_was = {one.name: one for one in opened.topics.values()} == wanted
        # How many wait is right once the record was read.
        assert is_as_it_was or table == "batch" or "the index is damaged" in opened.reports[0]
        assert opened.topics[TOPIC].channels.keys() == {"c", "other"}
        assert everything(opened) == [b"a", b"b", b"c", b"d", b"e"]
        opened.close()


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (b"CREATE", b"CRE\xc1TE"),
        (b"tablelater", b"table\xefater"),
        (b"attempts integer", b"attempth integer"),
        (b"seg integer, off integer, len integer", b"off integer, seg integer, len integer"),
        (b"tablelater", b"tablelates"),
        (b"channel_put", b"channel_pup"),
    ],
)
def test_tables_that_are_not_as_they_are_made_are_damage(kept: Path, right: bytes, wrong: bytes) -> None:
    file = kept / "index.db"
    assert right in file.read_bytes()
    file.write_bytes(file.read_bytes().replace(right, wrong))
    state, reports = found(kept)
    assert "the index is damaged" in reports[0]
    assert state["t7"].channels["c"].waiting == 5


def test_what_an_earlier_version_wrote_since_is_no_damage(kept: Path) -> None:
    """It knows no second rows, and the triggers that write them are in the file."""
    changed_index(kept, "insert or replace into channel select id, topic, name, cursor + 1, 1, inflight from channel")
    changed_index(kept, "update channel set paused = 0 where name = 'other'")
    changed_index(kept, "delete from channel where name = 'other'")
    state, reports = found(kept)
    assert (state["t7"].channels["c"].paused, reports) == (True, [])


def test_an_index_of_an_earlier_version_gets_the_second_rows(kept: Path, tmp_path: Path) -> None:
    with sqlite3.connect(kept / "index.db") as db:
        for kind, name in db.execute("select type, name from sqlite_master where sql like '%_twin%'").fetchall():
            db.execute(f"drop {kind} {name}")
    before, reports = found(kept)
    assert (found(kept), reports) == ((before, []), [])
    with sqlite3.connect(kept / "index.db") as db:
        assert db.execute("select count(*) from channel_twin").fetchone() == (2,)


def test_a_start_looks_at_each_row_once(kept: Path) -> None:
    """Two columns of unlike types are compared without their index: 300,000 retries took more than a quarter of an hour."""
    with sqlite3.connect(kept / "index.db") as db:
        plans = [str(db.execute(f"explain query plan {query}").fetchall()) for query in twins.QUERIES.values()]
    assert all("SEARCH twin" in plan and "SCAN twin" not in plan for plan in plans), plans


def test_where_a_twin_cannot_be_made_none_is_there_and_nothing_is_left_open(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "index.db", isolation_level=None)
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        twins.make(db)
    assert (db.in_transaction, db.execute("select name from sqlite_master").fetchall()) == (False, [])
    db.close()

"""The storage: what a torn tail, a flipped byte, a lost or wrong index cost, and that they cost nothing else."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from framework.nsqd.store import (
    Batch,
    Store,
    record,
)
from tests.nsqd.storing import TOPIC, declared, everything, killed, payload, publish, segment


def test_a_torn_tail_is_cut_and_reported_and_nothing_else_is_lost(opened: Store, folder: Path, tmp_path: Path) -> None:
    publish(opened, b"a")
    end = segment(folder).stat().st_size
    publish(opened, b"never confirmed")
    copy = killed(opened, folder, tmp_path / "killed")
    os.truncate(segment(copy), segment(copy).stat().st_size - 3)
    shutil.rmtree(copy / "index.db-wal", ignore_errors=True)
    for name in ("index.db", "index.db-wal", "index.db-shm"):
        (copy / name).unlink(missing_ok=True)
    again = Store(copy)
    assert everything(again) == [b"a"]
    assert segment(copy).stat().st_size == end
    assert "never confirmed: cut off" in again.reports[0]
    publish(again, b"b")
    assert everything(again) == [b"a", b"b"]
    again.close()


@pytest.mark.parametrize("indexed", [True, False], ids=["met when it is read", "met when the log is scanned"])
def test_a_flipped_byte_costs_its_record_and_no_other(folder: Path, tmp_path: Path, indexed: bool) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    for at in range(5):
        publish(opened, b"%d" % at * 20)
    opened.close()
    if not indexed:
        (folder / "index.db").unlink()
    data = bytearray(segment(folder).read_bytes())
    data[data.find(b"2" * 20) + 5] ^= 1
    segment(folder).write_bytes(data)
    again = Store(folder)
    assert everything(again) == [b"%d" % at * 20 for at in (0, 1, 3, 4)]
    assert len(again.reports) == 1
    assert "damaged" in again.reports[0]
    (kept,) = (folder / "bad").iterdir()
    assert b"2" * 14 in kept.read_bytes()
    again.close()


def test_a_lost_index_is_rebuilt_from_the_log(opened: Store, folder: Path, tmp_path: Path) -> None:
    publish(opened, b"a", b"b")
    opened.append([declared(8, "d")])
    publish(opened, b"c", topic=8)
    copy = killed(opened, folder, tmp_path / "killed")
    for name in ("index.db", "index.db-wal", "index.db-shm"):
        (copy / name).unlink(missing_ok=True)
    again = Store(copy)
    assert (everything(again), everything(again, 8)) == ([b"a", b"b"], [b"c"])
    assert {topic.name: list(topic.channels) for topic in again.topics.values()} == {"t7": ["c"], "t8": ["d"]}
    again.close()


def test_a_damaged_index_is_set_aside_and_rebuilt(folder: Path) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    publish(opened, b"a")
    opened.close()
    (folder / "index.db").write_bytes(b"this is no database" * 500)
    again = Store(folder)
    assert everything(again) == [b"a"]
    assert "rebuilt from the log" in again.reports[0]
    again.close()


def changed_index(folder: Path, statement: str) -> None:
    with sqlite3.connect(folder / "index.db") as db:
        db.execute(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "update batch set off = off + 1 where first = (select min(first) from batch)",
        "update batch set n = n + 1 where first = (select min(first) from batch)",
        "delete from batch where first = (select min(first) from batch)",
        "update batch set first = first + 1 where first = (select max(first) from batch)",
    ],
    ids=["a wrong place", "a wrong count", "a lost row", "a wrong number"],
)
def test_a_wrong_row_of_the_index_is_corrected_from_the_log(folder: Path, statement: str) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    for at in range(3):
        publish(opened, *[b"%d-%d" % (at, one) for one in range(3)])
    opened.close()
    changed_index(folder, statement)
    again = Store(folder)
    first = everything(again)
    wanted = [b"%d-%d" % (at, one) for at in range(3) for one in range(3)]
    assert sorted(set(first)) == wanted or "corrected" in " ".join(again.reports)
    assert everything(again) == wanted
    again.close()


def test_a_published_copy_of_the_log_is_no_record(folder: Path) -> None:
    """The salt: whoever publishes bytes that look like a record cannot have them taken for one after damage."""
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    forged = b"".join(record.encode(Batch(TOPIC, 1, 1, 0, 0, payload(b"forged")), 0))
    publish(opened, forged)
    opened.close()
    (folder / "index.db").unlink()
    data = bytearray(segment(folder).read_bytes())
    data[data.find(forged) - 30] ^= 1
    segment(folder).write_bytes(data)
    again = Store(folder)
    assert everything(again) == []
    again.close()

"""A batch of acts grouped by Arrow: what SQL says of the same rows, nulls and several chunks among them."""

from __future__ import annotations

import random
import sqlite3
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from workers.api_requests.detect.spam import groups
from workers.api_requests.detect.spam.acts import SCHEMA

DAY, SLOT = groups.DAY, groups.SLOT
T0 = 1_714_521_600_000_000
CERTAIN = (2, 5)
BOOLEANS = tuple(one.name for one in SCHEMA if one.type == pa.bool_())
SLOTS = f"""
select address, time / {SLOT}, taken / {DAY}, min(hour), count(*), sum(harmless), sum(error), sum(missing), sum(post), min(time),
    max(time), min(case when path = '/robots.txt' then time end), min(case when missing and not harmless then time end)
from acts group by 1, 2, 3 order by 1, 2, 3"""
PAGES = f"""
select address, path, max(taken / {DAY}) from acts
where served and not harmless and not coalesce(family in {CERTAIN}, 0) group by 1, 2 order by 1, 2"""
THERE = f"select path, max(taken / {DAY}) from acts where there group by 1 order by 1"
WHOLE = "select * from acts where family is not null or missing or in_window is not null order by rowid"


def some(chance: random.Random, count: int) -> pa.Table:
    """Rows of few addresses, paths and moments; each boolean, the family and the rest may be null. In chunks of seven."""
    rows = []
    for _ in range(count):
        time = T0 + chance.randrange(4 * SLOT)
        row: dict[str, Any] = {name: chance.choice((True, False, None)) for name in BOOLEANS}
        row |= {
            "address": chance.choice(("a", "b", "é", "\x00c", "a ")), "time": time, "hour": T0,
            "taken": time + chance.randrange(3) * DAY, "path": chance.choice(("/robots.txt", "/Robots.txt", "/", "/ſ", "")),
            "family": chance.choice((None, 1, *CERTAIN)), "in_window": chance.choice((None, None, 0, 3)),
            "shown": chance.choice((None, "/x")),
        }  # fmt: skip
        rows.append({name: row.get(name) for name in SCHEMA.names})
    whole = pa.Table.from_pylist(rows, SCHEMA)
    return pa.concat_tables([whole.slice(start, 7) for start in range(0, max(1, count), 7)])


def asked(acts: pa.Table, query: str) -> list[tuple[Any, ...]]:
    database = sqlite3.connect(":memory:")
    database.execute(f"create table acts ({', '.join(SCHEMA.names)})")
    rows = [tuple(row.values()) for row in acts.to_pylist()]
    database.executemany(f"insert into acts values ({', '.join('?' * len(SCHEMA))})", rows)
    return database.execute(query).fetchall()


@pytest.mark.parametrize("seed", range(20))
def test_groups_are_those_of_sql(seed: int) -> None:
    chance = random.Random(seed)
    acts = some(chance, chance.choice((1, 3, 30, 300)))
    assert list(groups.slots(acts)) == asked(acts, SLOTS)
    assert list(groups.pages(acts, CERTAIN)) == asked(acts, PAGES)
    assert list(groups.there(acts)) == asked(acts, THERE)
    assert list(groups.whole(acts)) == asked(acts, WHOLE)
    assert list(groups.addresses(acts)) == asked(acts, "select distinct address from acts order by 1")
    assert [groups.taken(acts)] == asked(acts, "select min(taken), max(taken) from acts")


def test_of_rows_of_which_nothing_is_known_none_is_a_page() -> None:
    known = {"address": "a", "path": "/", "time": T0, "taken": T0, "hour": T0}
    acts = pa.Table.from_pylist([{name: known.get(name) for name in SCHEMA.names}], SCHEMA)
    assert list(groups.slots(acts)) == [("a", T0 // SLOT, T0 // DAY, T0, 1, None, None, None, None, T0, T0, None, None)]
    assert [*groups.pages(acts, CERTAIN), *groups.there(acts), *groups.whole(acts)] == []

"""What all requests come to by hour and by day, kept between batches in SQLite, with who came in which hour.

A batch touches the hours of its own lines and the next hour in which each of its addresses came. Counts of distinct addresses
are counts and no estimates, and the same whatever order the lines came in and however they were split into batches.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

HOUR = 3_600_000_000  # microseconds
LATENESS = HOUR
"""So long after the latest line of all, an hour is complete."""
FORGOTTEN = 365 * 24 * HOUR
"""After so long an address is new again."""

SCHEMA = (
    # `applied`: the last batch that is in here; `latest`: the latest of all lines; `late`: how many lines came when their hour
    # was complete; `zone`: whose hours and days these are.
    "create table if not exists marks (name text primary key, value not null) without rowid",
    "create table if not exists seen (address text, hour integer, primary key (address, hour)) without rowid",
    # `date`: days since 1970. It, and the hour's beginning, are those of the time zone.
    "create table if not exists hours (hour integer primary key, date integer not null, requests integer not null,"
    " addresses integer not null, new_addresses integer not null)",
    "create index if not exists hours_by_date on hours (date)",
    "create table if not exists days (date integer primary key, ends integer not null, addresses integer not null)",
)
_TEMPORARY = (
    "create temp table if not exists batch (address text, hour integer, requests integer not null, latest integer,"
    " primary key (address, hour)) without rowid",
    "create temp table if not exists fresh (address text, hour integer, primary key (address, hour)) without rowid",
    "create temp table if not exists touched (address text, hour integer, primary key (address, hour)) without rowid",
)
_PUT = (
    "insert into temp.batch values (?, ?, ?, ?) on conflict do update set requests = requests + excluded.requests,"
    " latest = max(latest, excluded.latest)"
)
_UNKNOWN = "select distinct hour from temp.batch where hour not in (select hour from hours) order by hour"

_IS_FIRST = f"""not exists (
    select 1 from seen s where s.address = t.address and s.hour < t.hour and s.hour >= t.hour - {FORGOTTEN})"""
_COUNT_FIRSTS = f"""
update hours set new_addresses = new_addresses {{sign}} firsts.number
from (select t.hour as hour, count(*) as number from temp.touched t
    where exists (select 1 from seen s where s.address = t.address and s.hour = t.hour) and {_IS_FIRST} group by t.hour) firsts
where firsts.hour = hours.hour
"""
_ADD = (
    "delete from temp.fresh",
    "delete from temp.touched",
    "insert into temp.fresh select address, hour from temp.batch b"
    " where not exists (select 1 from seen s where s.address = b.address and s.hour = b.hour)",
    # Who had not come on that day yet.
    """
    with came as (select distinct f.address as address, h.date as date from temp.fresh f join hours h using (hour)),
    day (date, first, last) as
        (select date, min(hour), max(hour) from hours where date in (select date from came) group by date),
    added as (select came.date as date, count(*) as number from came join day using (date) where not exists
        (select 1 from seen s where s.address = came.address and s.hour between day.first and day.last) group by came.date)
    update days set addresses = addresses + added.number from added where added.date = days.date
    """,
    # An address is new in an hour by the hour before in which it came: a new hour changes itself and the next one.
    "insert into temp.touched select * from temp.fresh",
    """
    insert or ignore into temp.touched select address, next from (select f.address as address,
        (select min(s.hour) from seen s where s.address = f.address and s.hour > f.hour) as next from temp.fresh f)
    where next is not null
    """,
    _COUNT_FIRSTS.format(sign="-"),
    "insert into seen select * from temp.fresh",
    _COUNT_FIRSTS.format(sign="+"),
    """
    update hours set addresses = addresses + added.number
    from (select hour, count(*) as number from temp.fresh group by hour) added where added.hour = hours.hour
    """,
    """
    update hours set requests = requests + added.number
    from (select hour, sum(requests) as number from temp.batch group by hour) added where added.hour = hours.hour
    """,
    "delete from temp.batch",
)

Row = tuple[str, int, int, int]
"""address, hour, how many requests, and when the latest of these came. All times are microseconds since 1970."""
Dated = tuple[int, int, int]
"""An hour, its date, and when that ends."""


def begin(database: sqlite3.Connection) -> None:
    """Make the tables where they are missing, and what lasts for this connection alone."""
    for statement in chain(SCHEMA, _TEMPORARY):
        database.execute(statement)


def add(database: sqlite3.Connection, rows: Iterable[Row], dated: Callable[[list[int]], Iterable[Dated]]) -> None:
    """Add rows, of which an address may have several in an hour. ``dated`` is asked for the dates of hours that are new."""
    database.executemany(_PUT, rows)
    latest = database.execute("select max(latest) from temp.batch").fetchone()[0]
    if latest is None:
        return
    before = marked(database, "latest", 0)
    late = database.execute("select sum(requests) from temp.batch where hour + ? <= ?", (HOUR, before - LATENESS)).fetchone()[0]
    mark(database, "late", marked(database, "late", 0) + (late or 0))
    mark(database, "latest", max(latest, before))
    if unknown := [hour for (hour,) in database.execute(_UNKNOWN)]:
        for hour, date, ends in dated(unknown):
            database.execute("insert into hours values (?, ?, 0, 0, 0)", (hour, date))
            database.execute("insert or ignore into days values (?, ?, 0)", (date, ends))
    for statement in _ADD:
        database.execute(statement)


def by_hour(database: sqlite3.Connection) -> list[tuple[int, ...]]:
    """hour, requests, addresses, new addresses."""
    return database.execute("select hour, requests, addresses, new_addresses from hours order by hour").fetchall()


def by_day(database: sqlite3.Connection) -> list[tuple[int, ...]]:
    """date, requests, addresses, new addresses, when it ends."""
    return database.execute(
        "select date, sum(hours.requests), days.addresses, sum(hours.new_addresses), ends from days join hours using (date)"
        " group by date order by date"
    ).fetchall()


def marked(database: sqlite3.Connection, name: str, default: Any = None) -> Any:
    row = database.execute("select value from marks where name = ?", (name,)).fetchone()
    return default if row is None else row[0]


def mark(database: sqlite3.Connection, name: str, value: int | str) -> None:
    database.execute("insert or replace into marks values (?, ?)", (name, value))

"""The list of suspects in the state: who is on it, and what of it is news. A batch touches those alone whom it concerns.

A suspect stays one when what convicted it is not known any more, until no line of it has come for as long as was said.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from workers.api_requests.detect.spam import looks, state
from workers.api_requests.detect.spam.allowed import Allowed
from workers.api_requests.detect.spam.verdict import Suspect

_SINCE = "listed"
"""The day on which all of the list was gone through last."""
_decode = msgspec.json.Decoder(Suspect).decode
_LOOKED_AT = "select address from looked"
_ALL = "select address from found union select address from listed"
_LAST_DAY = "select max(day) from slots where address = ?"
_LISTED = "select address, listed.suspect, look from listed left join found using (address)"
_HOURS = """
select hour, slots.address, sum(requests), sum(errors) from listed cross join slots using (address)
group by slots.address, hour order by slots.address, hour
"""
_TIME = pa.timestamp("us", tz="UTC")
_ACTIVITY = pa.schema([("hour", _TIME), ("address", pa.string()), ("requests", pa.int64()), ("errors", pa.int64())])


@dataclass(frozen=True)
class Rules:
    """``forget``: days without a line after which a suspect is none any more; None for never. ``allowed`` are none at all."""

    forget: int | None
    allowed: Allowed


def begin(database: sqlite3.Connection, known: Callable[[], Iterable[Suspect]], today: int) -> None:
    """Take over the list of an earlier version, which kept it in the output alone: ``known`` reads it there."""
    if state.marked(database, _SINCE, -1) >= 0:
        return
    table = database.execute("select 1 from sqlite_schema where name = 'suspected'").fetchone()
    days = dict(database.execute("select address, day from suspected")) if table else {}
    rows = [(one.address, days.get(one.address, today), msgspec.json.encode(one)) for one in known()]
    database.executemany("insert or replace into listed values (?, ?, ?)", rows)
    database.execute("drop table if exists suspected")


def renew(database: sqlite3.Connection, today: int, rules: Rules, *, whole: bool) -> Mapping[str, Suspect]:
    """Bring the list to what ``looks`` has found by now; returns who is new on it or did more, by address.

    It goes through those who were looked at, and through all on another day, and where ``whole``, as where the rules are others.
    """
    whole = whole or state.marked(database, _SINCE, -1) != today
    state.mark(database, _SINCE, today)
    news: dict[str, Suspect] = {}
    for (address,) in database.execute(_ALL if whole else _LOOKED_AT).fetchall():
        row = database.execute("select day, suspect from listed where address = ?", (address,)).fetchone()
        before, known = (None, None) if row is None else (row[0], _decode(row[1]))
        look, found = looks.found(database, address)
        if (suspect := found or known) is None:
            continue
        last = database.execute(_LAST_DAY, (address,)).fetchone()[0]
        day = next(one for one in (last, before, today) if one is not None)
        if (rules.forget is not None and day < today - rules.forget) or address in rules.allowed:
            database.execute("delete from listed where address = ?", (address,))
            continue
        if found is not None and _is_news(found, known, look):
            news[address] = found
        database.execute("insert or replace into listed values (?, ?, ?)", (address, day, msgspec.json.encode(suspect)))
    return news


def _is_news(found: Suspect, known: Suspect | None, look: int) -> bool:
    """How many others did the same as one of a crowd is none: each of them would be told of whenever another comes."""
    if known is None or found.requests != known.requests:
        return True
    return look not in looks.OF_CROWDS and found.reasons != known.reasons


def suspects(database: sqlite3.Connection) -> list[Suspect]:
    """The list, the busiest first."""
    rows = database.execute(_LISTED).fetchall()
    listed = [looks.now(database, *row) if row[2] in looks.OF_CROWDS else _decode(row[1]) for row in rows]
    return sorted(listed, key=lambda one: (-one.requests, one.address))


def activity(database: sqlite3.Connection) -> pa.Table:
    """hour, address, requests, errors of the suspects: when they came."""
    columns = list(zip(*database.execute(_HOURS), strict=True)) or [()] * 4
    hours = pa.array(columns[0], pa.int64()).cast(_TIME)
    rest = [pa.array(one, kind.type) for one, kind in zip(columns[1:], list(_ACTIVITY)[1:], strict=True)]
    return pa.Table.from_arrays([hours, *rest], schema=_ACTIVITY)

"""What all requests come to, kept between batches in SQLite: partial counts by address, page and day.

A batch touches the rows of its own addresses, and those few of others whose pages it made known. Each table says the same
whatever order the requests came in and however they were split into batches: sums, the earliest, the latest, and who asked
for what. Nothing is judged here.
"""

from __future__ import annotations

import sqlite3
from itertools import chain

import pyarrow as pa

from workers.api_requests.detect.spam import groups
from workers.api_requests.detect.spam.acts import SCHEMA as ACTS
from workers.api_requests.detect.spam.groups import DAY, SLOT
from workers.api_requests.detect.spam.probes import CERTAIN

SLOTS_OF_FORMS = 10
"""Slots in five minutes."""

SCHEMA = (
    "create table if not exists marks (name text primary key, value integer not null) without rowid",
    # What an address did in half a minute. `day`, here and below, is the one on which the queue took the lines.
    "create table if not exists slots (address text, slot integer, day integer, hour integer, requests integer, harmless integer,"
    " errors integer, missing integer, posts integer, first integer, last integer, robots integer, lost integer,"
    " primary key (address, slot, day)) without rowid",
    # The ordinary pages that an address was served.
    "create table if not exists pages (address text, path text, day integer, primary key (address, path)) without rowid",
    # The pages that exist: anybody was served them, redirected by them, or asked to log in to them.
    "create table if not exists there (path text primary key, day integer) without rowid",
    "create table if not exists probes (address text, target text, path text, shown text, served integer, missing integer,"
    " harmless integer, day integer, family integer, telling integer, item text, requests integer, first integer, last integer,"
    " primary key (address, target, path, shown, served, missing, harmless, day)) without rowid",
    "create index if not exists probes_by_path on probes (path)",
    "create index if not exists probes_by_target on probes (target)",
    # What an address missed. `plain`: it is no probe. `searched`: it is a place that somebody looked for.
    "create table if not exists missed (address text, slot integer, path text, plain integer, searched integer, day integer,"
    " place text, requests integer, primary key (address, slot, path, plain, searched, day)) without rowid",
    "create index if not exists missed_by_path on missed (path, plain, address)",
    # Posts to forms, in slots of five minutes.
    "create table if not exists posts (address text, path text, slot integer, day integer, in_window integer, in_all integer,"
    " comments integer, let_in integer, shown text, requests integer, first integer, last integer,"
    " primary key (address, path, slot, day)) without rowid",
    # What was made of these, for every address that is worth a look: see `visits`.
    "create table if not exists visits (address text primary key, visit blob, suspect blob, answered integer, alone integer,"
    " listed blob, step blob) without rowid",
    "create table if not exists readers (path text, address text, primary key (path, address)) without rowid",
    "create index if not exists readers_by_address on readers (address)",
    "create table if not exists listers (target text, address text, primary key (target, address)) without rowid",
    "create index if not exists listers_by_address on listers (address)",
    # What `looks` has found, and by which look. `kind` of one who came for a telling page: 0 is a suspect anyhow, 1 came for
    # such pages alone, 2 did not. Of the crowd of a page are counted the kinds 1 and 2, of a march those in step.
    "create table if not exists found (address text primary key, look integer, suspect blob) without rowid",
    "create table if not exists askers (target text, address text, kind integer, primary key (target, address)) without rowid",
    "create index if not exists askers_by_address on askers (address)",
    "create table if not exists crowds (target text primary key, alone integer, others integer, passes integer) without rowid",
    "create table if not exists strides (step blob, address text, primary key (step, address)) without rowid",
    "create index if not exists strides_by_address on strides (address)",
    "create table if not exists marches (step blob primary key, members integer, passes integer) without rowid",
    # The list of suspects, with the day on which the queue last took a line of each.
    "create table if not exists listed (address text primary key, day integer, suspect blob) without rowid",
)
_LOOKS = "looks"
_DATED = ("slots", "pages", "there", "probes", "missed", "posts")
_MORE, _LESS = {"row": "new", "sign": "+"}, {"row": "old", "sign": "-"}
_COUNT_ASKER = (
    " insert or ignore into crowds values ({row}.target, 0, 0, 0);"
    " update crowds set alone = alone {sign} ({row}.kind = 1), others = others {sign} ({row}.kind = 2)"
    " where target = {row}.target;"
)
_TEMPORARY = (
    # Those of the batch of which more is kept than `slots`, `pages` and `there`.
    f"create temp table if not exists acts ({', '.join(ACTS.names)})",
    # The pages that are there by what the batch says.
    "create temp table if not exists there_now (path text primary key, day integer) without rowid",
    "create temp table if not exists changed (address text primary key) without rowid",
    "create temp table if not exists lone (path text primary key) without rowid",
    # Whom `looks` looks at, and which look had found them before.
    "create temp table if not exists looked (address text primary key, before integer) without rowid",
    # What concerns others than those who did it.
    "create temp table if not exists read_paths (path text primary key) without rowid",
    "create temp table if not exists stirred (target text primary key) without rowid",
    "create temp table if not exists marched (step blob primary key) without rowid",
    *(
        f"create temp trigger if not exists readers_{what} after {what} on main.readers begin"
        f" insert or ignore into read_paths values ({row}.path); end"
        for what, row in (("insert", "new"), ("delete", "old"))
    ),
    *(
        f"create temp trigger if not exists askers_{what} after {what} on main.askers begin"
        f" insert or ignore into stirred values ({row}.target);{' '.join(_COUNT_ASKER.format(**sign) for sign in signs)} end"
        for what, row, signs in (
            ("insert", "new", [_MORE]),
            ("delete", "old", [_LESS]),
            ("update", "new", [_LESS, _MORE]),
        )
    ),
    *(
        f"create temp trigger if not exists strides_{what} after {what} on main.strides begin"
        f" insert or ignore into marched values ({row}.step); insert or ignore into marches values ({row}.step, 0, 0);"
        f" update marches set members = members {sign} 1 where step = {row}.step; end"
        for what, row, sign in (("insert", "new", "+"), ("delete", "old", "-"))
    ),
)
_SLOT, _TAKEN_ON = f"time / {SLOT}", f"taken / {DAY}"

SHARED = """coalesce(
    (select address from missed m where m.path = b.path and m.plain = 1 order by m.address limit 1) <>
    (select address from missed m where m.path = b.path and m.plain = 1 order by m.address desc limit 1), 0)"""
"""Whether several addresses missed the path of ``b``: the site's own dead links, and what crawlers remember of it."""

_TOUCH = (  # before anything of the batch is added: which addresses will not be what they were
    # Who probed for a page that nobody knew to exist.
    "insert or ignore into changed select address from probes where path in"
    " (select path from there_now where path not in (select path from there))",
    "delete from lone",
    f"insert into lone select path from (select distinct path from acts where missing and family is null) b where not {SHARED}",
)
_SLOTS = (
    f"insert into slots values ({', '.join('?' * 13)})"
    " on conflict do update set requests = requests + excluded.requests, harmless = harmless + excluded.harmless,"
    " errors = errors + excluded.errors, missing = missing + excluded.missing, posts = posts + excluded.posts,"
    " first = min(first, excluded.first), last = max(last, excluded.last),"
    " robots = coalesce(min(robots, excluded.robots), robots, excluded.robots),"
    " lost = coalesce(min(lost, excluded.lost), lost, excluded.lost)"
)
_PAGES = "insert into pages values (?, ?, ?) on conflict do update set day = max(day, excluded.day)"
_ADD = (
    "insert into there select path, day from there_now where true on conflict do update set day = max(day, excluded.day)",
    f"insert into probes select address, target, path, shown, served, missing, harmless, {_TAKEN_ON}, family, telling, item,"
    " count(*), min(time), max(time) from acts where family is not null group by 1, 2, 3, 4, 5, 6, 7, 8"
    " on conflict do update set requests = requests + excluded.requests,"
    " first = min(first, excluded.first), last = max(last, excluded.last)",
    f"insert into missed select address, {_SLOT}, path, family is null, place is not null, {_TAKEN_ON}, place, count(*)"
    " from acts where missing group by 1, 2, 3, 4, 5, 6 on conflict do update set requests = requests + excluded.requests",
    f"insert into posts select address, path, {_SLOT} / {SLOTS_OF_FORMS}, {_TAKEN_ON}, in_window, in_all, comments, max(let_in),"
    " min(shown), count(*), min(time), max(time) from acts where in_window is not null group by 1, 2, 3, 4"
    " on conflict do update set requests = requests + excluded.requests, let_in = max(let_in, excluded.let_in),"
    " shown = min(shown, excluded.shown), first = min(first, excluded.first), last = max(last, excluded.last)",
)
_TOUCH_LAST = (  # who had missed a page alone that others miss now
    f"insert or ignore into changed select address from missed where path in (select path from lone b where {SHARED})"
)

_TOUCH_OLD = (  # before anything goes
    "insert or ignore into changed select distinct address from slots where day < ?",
    "insert or ignore into changed select address from probes where path in (select path from there where day < ?)",
    f"insert into lone select path from (select distinct path from missed where plain = 1 and day < ?) b where {SHARED}",
)
_TOUCH_LEFT = (  # who has missed a page alone that others had missed too
    f"insert or ignore into changed select address from missed where path in (select path from lone b where not {SHARED})"
)


def begin(database: sqlite3.Connection) -> None:
    """Make the tables where they are missing, and what lasts for this connection alone."""
    for statement in chain(SCHEMA, _TEMPORARY):
        database.execute(statement)
    if not marked(database, _LOOKS, 0):  # begun by an earlier version, which looked at everybody each time
        database.execute("drop table if exists tells")
        for index in ("suspected", "answered", "alone", "listed", "step"):
            database.execute(f"drop index if exists visits_{index}")
        database.execute("insert or ignore into changed select address from visits")
        mark(database, _LOOKS, 1)


def add(database: sqlite3.Connection, acts: pa.Table) -> None:
    """Add rows with the columns of `acts`; the addresses that are concerned are in the temporary table ``changed`` then."""
    for name in ("acts", "there_now"):
        database.execute(f"delete from temp.{name}")
    if not acts.num_rows:
        return
    database.executemany("insert or ignore into changed values (?)", groups.addresses(acts))
    database.executemany("insert into temp.there_now values (?, ?)", groups.there(acts))
    database.executemany(f"insert into temp.acts values ({', '.join('?' * len(ACTS))})", groups.whole(acts.select(ACTS.names)))
    for statement in _TOUCH:
        database.execute(statement)
    database.executemany(_SLOTS, groups.slots(acts))
    database.executemany(_PAGES, groups.pages(acts, sorted(CERTAIN)))
    for statement in (*_ADD, _TOUCH_LAST):
        database.execute(statement)
    oldest, newest = groups.taken(acts)
    mark(database, "newest", max(newest, marked(database, "newest", newest)))
    mark(database, "oldest", min(oldest // DAY, marked(database, "oldest", oldest // DAY)))


def evict(database: sqlite3.Connection, before: int) -> bool:
    """Let go of what the queue took before the day ``before`` (days since 1970); whether there was anything.

    It looks through everything where there was, which is once a day. ``changed`` has the addresses that lose something then, and
    those whose figures are others because a page, or what another missed, goes.
    """
    if marked(database, "oldest", before) >= before:
        return False
    database.execute("delete from lone")
    for statement in _TOUCH_OLD:
        database.execute(statement, (before,))
    for table in _DATED:
        database.execute(f"delete from {table} where day < ?", (before,))
    database.execute(_TOUCH_LEFT)
    mark(database, "oldest", before)
    return True


def marked(database: sqlite3.Connection, name: str, default: int) -> int:
    row = database.execute("select value from marks where name = ?", (name,)).fetchone()
    return default if row is None else int(row[0])


def mark(database: sqlite3.Connection, name: str, value: int) -> None:
    database.execute("insert or replace into marks values (?, ?)", (name, value))

"""What the log does not say is in the index twice: SQLite has no checksums, and one flipped bit of a cursor passes over messages.

The second rows are written by triggers, so by earlier versions as well. Where the two differ, the index is damaged. Where a
batch lies is in it once: the record that is there says whether it is right. That nobody shall get it is in it twice.
"""

from __future__ import annotations

import sqlite3

_TABLES = {
    "pos": (("one",), ("seg", "off")),
    "topic": (("id",), ("name", "next", "pumped", "paused")),
    "channel": (("id",), ("topic", "name", "cursor", "paused", "inflight")),
    "later": (("channel", "seq"), ("due", "attempts")),
}
"""Its key, and the rest of its columns."""
_TYPES = {"name": "text", "inflight": "blob"}
_EMPTIED = "emptied_twin"
_EMPTIED_STEPS = {
    "emptied_again": "before insert on batch when new.dead != 1"
    " begin delete from emptied_twin where topic = new.topic and first = new.first; end",
    "emptied_put": "after insert on batch when new.dead = 1"
    " begin insert or replace into emptied_twin values (new.topic, new.first); end",
    "emptied_changed": "after update on batch when new.dead = 1"
    " begin insert or replace into emptied_twin values (new.topic, new.first); end",
    "emptied_gone": "after delete on batch when old.dead = 1"
    " begin delete from emptied_twin where topic = old.topic and first = old.first; end",
}
TOGETHER = {
    **{f"{table}_twin": {f"{table}_{step}" for step in ("put", "changed", "gone")} for table in _TABLES},
    _EMPTIED: set(_EMPTIED_STEPS),
}
"""A table -> what there is beside it."""


def make(db: sqlite3.Connection) -> None:
    """Have the twins, with the rows that there are, unless they are there. All or nothing."""
    known = {row[0] for row in db.execute("select name from sqlite_master where type = 'table'").fetchall()}
    steps = [step for table in _TABLES if f"{table}_twin" not in known for step in _steps(table)]
    if _EMPTIED not in known:
        steps += [
            f"create table {_EMPTIED}(topic integer, first integer, primary key (topic, first)) without rowid",
            f"insert into {_EMPTIED} select topic, first from batch where dead = 1",  # noqa: S608 (names of this module)
            *(f"create trigger {name} {what}" for name, what in _EMPTIED_STEPS.items()),
        ]
    if steps:
        db.execute("begin immediate")
        try:
            for step in steps:
                db.execute(step)
            db.execute("commit")
        except BaseException:
            if db.in_transaction:
                db.execute("rollback")
            raise


def _steps(table: str) -> list[str]:
    key, rest = _TABLES[table]
    columns = (*key, *rest)
    values, own = ", ".join(f"new.{column}" for column in columns), " and ".join(f"{column} = old.{column}" for column in key)
    put = f"begin insert or replace into {table}_twin values ({values}); end"  # noqa: S608 (names of this module)
    remove = f"begin delete from {table}_twin where {own}; end"  # noqa: S608
    return [
        f"create table {table}_twin({', '.join(map(_column, columns))}, primary key ({', '.join(key)})) without rowid",
        f"insert into {table}_twin select {', '.join(columns)} from {table}",  # noqa: S608
        f"create trigger {table}_put after insert on {table} {put}",
        f"create trigger {table}_changed after update on {table} {put}",
        f"create trigger {table}_gone after delete on {table} {remove}",
    ]


def _column(name: str) -> str:
    """With its type, without which SQLite would look for each twin in all of them."""
    return f"{name} {_TYPES.get(name, 'integer')}"


def _differing(table: str) -> str:
    key, rest = _TABLES[table]
    same = " and ".join(f"twin.{column} = {table}.{column}" for column in key)
    different = " or ".join(f"twin.{column} is not {table}.{column}" for column in rest)
    return (
        f"select 1 from {table} left join {table}_twin twin on {same} where twin.{key[0]} is null or {different}"  # noqa: S608
        f" union all select 1 where (select count(*) from {table}) != (select count(*) from {table}_twin)"
    )


QUERIES = {
    **{f"a row of {table} that is not what was written": _differing(table) for table in _TABLES},
    "a batch that is emptied, or not, as nobody wrote": (
        f"select 1 from batch where dead = 1 and not exists"  # noqa: S608
        f" (select 1 from {_EMPTIED} twin where twin.topic = batch.topic and twin.first = batch.first)"
        f" union all select 1 where (select count(*) from batch where dead = 1) != (select count(*) from {_EMPTIED})"
    ),
}
"""What is wrong, in words -> a query that finds it."""

"""What SQLite's own check of an index does not see: rows that this store never writes, or that contradict each other.

Whoever changed them by hand, what file system mixed pages of two indexes, or what bit of them has flipped: such an index is
damaged, and is made anew from the log. Believed, it would have segments removed that somebody still waits for.
"""

from __future__ import annotations

import sqlite3

from framework.nsqd.store import twins


def _other_than_numbers(table: str, *columns: str) -> str:
    """SQLite takes any value in any column; where it can, it makes a number of a text."""
    wrong = " or ".join(f"typeof({column}) != 'integer'" for column in columns)
    return f"select 1 from {table} where {wrong}"  # noqa: S608 (names of the queries below)


_QUERIES = {
    "a position without a number": _other_than_numbers("pos", "seg", "off"),
    "a topic without a name or number": "select 1 from topic where typeof(name) != 'text'"
    " or typeof(next) != 'integer' or typeof(pumped) != 'integer' or typeof(paused) != 'integer'",
    "a channel without a name or number": "select 1 from channel where typeof(name) != 'text'"
    " or typeof(topic) != 'integer' or typeof(cursor) != 'integer' or typeof(paused) != 'integer'",
    "numbers in flight that are none": "select 1 from channel where typeof(inflight) != 'blob' or length(inflight) % 8 != 0",
    "a channel of a topic that is not there": "select 1 from channel where topic not in (select id from topic)",
    # A row for each message, at the worst: a million of them take 0.2 and 0.35 s.
    "a retry without a number": _other_than_numbers("later", "channel", "seq", "due", "attempts"),
    "a batch without a number": _other_than_numbers("batch", "topic", "first", "n", "dead", "seg", "off", "len"),
    "a removed segment without a number": _other_than_numbers("retired", "topic", "seg"),
    "a batch at a place that none can have": "select 1 from batch where n < 1 or seg < 0 or off < 0 or len < 0"
    " or dead not in (0, 1, 2)",
    "a batch of a topic that is not there": "select 1 from batch"
    " where seg > 0 and topic not in (select id from topic) and topic not in (select topic from retired)",
    "messages behind the end of their topic": "select 1 from topic where exists"
    " (select 1 from batch where batch.topic = topic.id and batch.first >= topic.next)",
    **twins.QUERIES,
}


_TOGETHER = {"pos": {"topic", "channel", "later", "batch"}, **twins.TOGETHER}
"""A table -> what there is beside it in every version. Without its name a table would be made once more, empty."""


def in_schema(db: sqlite3.Connection, right: sqlite3.Connection) -> str:
    """What is wrong with the tables that there are, in words; ``right`` has all as they are made. Earlier versions had fewer,
    later ones may have more. Raises sqlite3.Error."""
    there, made = _schema(db), _schema(right)
    for table, others in _TOGETHER.items():
        if table in there and not others <= there.keys():
            return f"{table} without {min(others - there.keys())}"
    return next((f"{name} as nobody made it" for name in made if there.get(name, made[name]) != made[name]), "")


def _schema(db: sqlite3.Connection) -> dict[str, str]:
    return dict(
        db.execute("select name, type || ' of ' || tbl_name || ': ' || sql from sqlite_master where sql != ''").fetchall()
    )


def found(db: sqlite3.Connection) -> str:
    """What is wrong, in words; "" for nothing. Raises sqlite3.Error."""
    return next((words for words, query in _QUERIES.items() if db.execute(f"{query} limit 1").fetchone()), "")

"""What SQLite's own check of an index does not see: rows that this store never writes, or that contradict each other.

Whoever changed them by hand, or what file system mixed pages of two indexes: such an index is damaged, and is made anew from
the log. Believed, it would have segments removed that somebody still waits for.
"""

from __future__ import annotations

import sqlite3

# Not of the tables that have a row for each message: looking at a million of them takes seconds.
_QUERIES = {
    "a position without a number": "select 1 from pos where typeof(seg) != 'integer' or typeof(off) != 'integer'",
    "a topic without a name or number": "select 1 from topic where typeof(name) != 'text'"
    " or typeof(next) != 'integer' or typeof(pumped) != 'integer' or typeof(paused) != 'integer'",
    "a channel without a name or number": "select 1 from channel where typeof(name) != 'text'"
    " or typeof(topic) != 'integer' or typeof(cursor) != 'integer' or typeof(paused) != 'integer'",
    "numbers in flight that are none": "select 1 from channel where typeof(inflight) != 'blob' or length(inflight) % 8 != 0",
    "a channel of a topic that is not there": "select 1 from channel where topic not in (select id from topic)",
    "messages behind the end of their topic": "select 1 from topic where exists"
    " (select 1 from batch where batch.topic = topic.id and batch.first >= topic.next)",
}


def found(db: sqlite3.Connection) -> str:
    """What is wrong, in words; "" for nothing. Raises sqlite3.Error."""
    return next((words for words, query in _QUERIES.items() if db.execute(f"{query} limit 1").fetchone()), "")

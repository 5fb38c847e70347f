"""SQLite beside the log: where each batch lies and how far each channel is. Derived: it can be lost and rebuilt.

It is not synced with each commit, so after a power cut it may be older than the log, which costs redeliveries and
never a message. It decides nothing; the store does.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from framework.nsqd.store import contradictions, twins

FINISHED = -1
"""The due time of a row of ``later`` whose message was finished before the cursor reached it."""
EMPTIED = 1
"""Of a batch row: nobody shall get it, or the numbers were never used."""
DAMAGED = 2
"""Of a batch row: it is accounted for, and nobody waits for it."""
_PAGES = 500
"""Given back at once, of 4 KiB each: a few milliseconds."""
_WAL_BYTES = 1 << 20
"""What stays of the write-ahead log once it has been copied."""

# Names of the on-disk format: a row of ``later`` is a ``RetryRow``.
_SCHEMA = """
create table if not exists pos(one integer primary key check (one = 1), seg integer, off integer);
create table if not exists topic(id integer primary key, name text, next integer, pumped integer, paused integer);
create table if not exists channel(
    id integer primary key, topic integer, name text, cursor integer, paused integer, inflight blob);
create index if not exists channels on channel(topic);
create table if not exists later(
    channel integer, seq integer, due integer, attempts integer, primary key (channel, seq)) without rowid;
create table if not exists batch(
    topic integer, first integer, n integer, dead integer, seg integer, off integer, len integer,
    primary key (topic, first)) without rowid;
create index if not exists damaged on batch(topic, first) where dead = 2;
create table if not exists retired(topic integer primary key, seg integer);
"""


class Row(NamedTuple):
    """Where one batch lies. ``dead``: 0, EMPTIED or DAMAGED; these need not have a place."""

    topic: int
    first: int
    n: int
    dead: int
    seg: int
    off: int
    len: int


class TopicRow(NamedTuple):
    id: int
    name: str
    next: int
    pumped: int
    paused: int


class ChannelRow(NamedTuple):
    id: int
    topic: int
    name: str
    cursor: int
    paused: int
    inflight: bytes


class RetryRow(NamedTuple):
    channel: int
    seq: int
    due: int
    attempts: int


class Damaged(sqlite3.DatabaseError):
    """The index's own check found a fault."""


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file is damaged; a full disk, a locked or an unreadable file is not."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return isinstance(error, Damaged) or code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class Index:
    """The tables of one ``index.db``. For one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Open or create it. Raises sqlite3.Error: ``is_damage`` says whether it is damaged."""
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            self._open()
        except sqlite3.Error as error:
            self._db.close()
            # A table or a column has another name, or a text is none: the last has no code.
            if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) == sqlite3.SQLITE_ERROR:
                raise Damaged(str(error)) from error
            raise
        except UnicodeDecodeError as error:  # sqlite3's words for what is damaged, in which it is
            self._db.close()
            raise Damaged(str(error)) from error

    def _open(self) -> None:
        self._db.execute("pragma auto_vacuum=incremental").fetchall()  # first, while there are no tables
        self._db.execute("pragma journal_mode=wal").fetchall()
        self._db.execute(f"pragma journal_size_limit={_WAL_BYTES}").fetchall()
        self._db.execute("pragma synchronous=normal").fetchall()
        self._check()
        _make(self._db)
        if wrong := contradictions.found(self._db):
            raise Damaged(wrong)

    def _check(self) -> None:
        verdict = self._db.execute("pragma quick_check(1)").fetchall()
        if verdict != [("ok",)]:
            raise Damaged(str(verdict))
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as right:
            _make(right)
            if wrong := contradictions.in_schema(self._db, right):
                raise Damaged(wrong)

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def transaction(self, *, synced: bool = False) -> Iterator[None]:
        """All or nothing; ``synced`` survives a power cut too (for what a file's removal depends on)."""
        if synced:
            self._db.execute("pragma synchronous=full").fetchall()
        self._db.execute("begin immediate")
        try:
            yield
            self._db.execute("commit")
        except BaseException:
            if self._db.in_transaction:  # a full disk has ended it already
                self._db.execute("rollback")
            raise
        finally:
            if synced:
                self._db.execute("pragma synchronous=normal").fetchall()

    # --- position and batches ----------------------------------------------------------------------------

    def position(self) -> tuple[int, int] | None:
        """The (segment, offset) up to which the log is indexed."""
        row = self._db.execute("select seg, off from pos").fetchone()
        return None if row is None else (row[0], row[1])

    def put_batches(self, rows: Iterable[Row], position: tuple[int, int]) -> None:
        """Index new batches, and the log up to ``position``."""
        self.add_batches(rows)
        self._db.execute("insert or replace into pos values (1, ?, ?)", position)

    def add_batches(self, rows: Iterable[Sequence[int]]) -> None:
        """Each a ``Row``."""
        self._db.executemany("insert or replace into batch values (?, ?, ?, ?, ?, ?, ?)", rows)

    def row(self, topic: int, first: int) -> Row | None:
        """The batch that begins with ``first``."""
        found = self._db.execute("select * from batch where topic = ? and first = ?", (topic, first)).fetchone()
        return None if found is None else Row(*found)

    def batches(self, topic: int, seq: int, limit: int) -> list[Row]:
        """The batch that holds ``seq``, if any, and those behind it, in order."""
        holds = self._db.execute(
            "select * from batch where topic = ? and first <= ? order by first desc limit 1", (topic, seq)
        ).fetchall()
        start = holds[0][1] if holds and holds[0][1] + holds[0][2] > seq else seq
        rows = self._db.execute(
            "select * from batch where topic = ? and first >= ? order by first limit ?", (topic, start, limit)
        ).fetchall()
        return [Row(*row) for row in rows]

    def next_batch(self, topic: int, seq: int) -> Row | None:
        """The batch that holds ``seq``, or else the next one behind it."""
        return next(iter(self.batches(topic, seq, 1)), None)

    def remove_batch(self, topic: int, first: int) -> None:
        self._db.execute("delete from batch where topic = ? and first = ?", (topic, first))

    def remove_batches(self, topic: int, segment: int, low: int, high: int) -> None:
        """Those of [low, high) that are in that segment still."""
        query = "delete from batch where topic = ? and first >= ? and first < ? and seg = ?"
        self._db.execute(query, (topic, low, high, segment))

    def rows_in(self, topic: int, segment: int, low: int, high: int) -> list[Row]:
        """The batches that begin in [low, high) and are in that segment, but for emptied ones."""
        query = "select * from batch where topic = ? and first >= ? and first < ? and seg = ? and dead = 0"
        return [Row(*row) for row in self._db.execute(query, (topic, low, high, segment)).fetchall()]

    def placed(self, segment: int) -> Iterator[Row]:
        """Every batch that is in that segment, but for emptied ones."""
        return map(Row._make, self._db.execute("select * from batch where seg = ? and dead = 0", (segment,)))

    def placeless(self) -> int:
        """Messages of batches that are said to be there, and in no segment that can be."""
        return int(self._db.execute("select coalesce(sum(n), 0) from batch where seg < 1 and dead = 0").fetchone()[0])

    def all_of(self, segment: int, offset: int, end: int) -> Iterator[Row]:
        """Every batch that has bytes of [offset, end) of that segment, emptied ones too, in order."""
        query = "select * from batch where seg = ? and off + len > ? and off < ? order by topic, first"
        return map(Row._make, self._db.execute(query, (segment, offset, end)))

    def size(self, topic: int, segment: int, low: int, high: int) -> int:
        """The bytes of ``held``."""
        query = "select coalesce(sum(len), 0) from batch where topic = ? and first >= ? and first < ? and seg = ? and dead = 0"
        return int(self._db.execute(query, (topic, low, high, segment)).fetchone()[0])

    def mark_emptied(self, topic: int, low: int, high: int) -> None:
        """Mark the batches of [low, high) as emptied."""
        query = "update batch set dead = 1 where topic = ? and first >= ? and first < ? and dead = 0"
        self._db.execute(query, (topic, low, high))

    def mark_damaged(self, topic: int, low: int, high: int) -> None:
        """Note that the messages of [low, high) are damaged: they have no place, and nobody waits for them."""
        self._db.execute("delete from batch where topic = ? and first >= ? and first < ?", (topic, low, high))
        self.add_batches([Row(topic, low, high - low, DAMAGED, 0, 0, 0)])
        self.forget_retries(topic, low, high)

    def damaged(self, topic: int) -> list[tuple[int, int]]:
        """[low, high) of the topic's messages that are damaged."""
        query = "select first, first + n from batch where topic = ? and dead = 2"
        return self._db.execute(query, (topic,)).fetchall()

    def end_within(self, segment: int, size: int) -> int:
        """Behind the last batch of the segment that ends within ``size``."""
        query = "select coalesce(max(off + len), 0) from batch where seg = ? and off + len <= ?"
        return int(self._db.execute(query, (segment, size)).fetchone()[0])

    def beyond(self, segment: int, size: int, newest: int) -> Iterator[Row]:
        """The batches behind ``size`` of ``segment``, and those of segments behind ``newest``, in order."""
        query = "select * from batch where seg > ? or (seg = ? and off + len > ?) order by topic, first"
        return map(Row._make, self._db.execute(query, (newest, segment, size)))

    def count(self, topic: int, low: int, high: int) -> int:
        """How many messages of [low, high) are there and not emptied."""
        (total,) = self._db.execute(
            "select coalesce(sum(n), 0) from batch where topic = ? and first >= ? and first < ? and dead = 0", (topic, low, high)
        ).fetchone()
        part = self._db.execute(
            "select first, n from batch where topic = ? and first < ? and dead = 0 order by first desc limit 1", (topic, low)
        ).fetchone()
        return int(total) + (max(0, part[0] + part[1] - low) if part else 0)

    def ranges(self) -> list[tuple[int, int, int, int]]:
        """(segment, topic, lowest seq, end) for each topic of each segment."""
        query = "select seg, topic, min(first), max(first + n) from batch where seg > 0 group by seg, topic"
        return self._db.execute(query).fetchall()

    # --- topics and channels -------------------------------------------------------------------------------

    def topics(self) -> list[TopicRow]:
        return [TopicRow(*row) for row in self._db.execute("select * from topic").fetchall()]

    def channels(self, topic: int | None = None) -> list[ChannelRow]:
        """Those of the topic, or all."""
        if topic is None:
            rows = self._db.execute("select * from channel")
        else:  # by the index: there may be thousands of topics, and each is asked for
            rows = self._db.execute("select * from channel where topic = ?", (topic,))
        return [ChannelRow(*row) for row in rows.fetchall()]

    def pauses(self, topic: int) -> dict[int, int]:
        """Whether each channel of the topic is paused, by its number."""
        return dict(self._db.execute("select id, paused from channel where topic = ?", (topic,)).fetchall())

    def retries(self, channel: int, low: int = 0, high: int = 1 << 62) -> list[RetryRow]:
        query = "select * from later where channel = ? and seq >= ? and seq < ?"
        return [RetryRow(*row) for row in self._db.execute(query, (channel, low, high)).fetchall()]

    def forget_retries(self, topic: int, low: int, high: int) -> None:
        """No channel of the topic waits for the messages of [low, high) any more."""
        query = "delete from later where channel in (select id from channel where topic = ?) and seq >= ? and seq < ?"
        self._db.execute(query, (topic, low, high))

    def put_topics(self, rows: Iterable[TopicRow]) -> None:
        self._db.executemany("insert or replace into topic values (?, ?, ?, ?, ?)", rows)

    def put_channels(self, rows: Iterable[ChannelRow]) -> None:
        self._db.executemany("insert or replace into channel values (?, ?, ?, ?, ?, ?)", rows)

    def pause_channel(self, channel: int, paused: bool) -> None:
        self._db.execute("update channel set paused = ? where id = ?", (paused, channel))

    def put_retries(self, rows: Iterable[RetryRow]) -> None:
        self._db.executemany("insert or replace into later values (?, ?, ?, ?)", rows)

    def remove_retries(self, channel: int, seqs: Iterable[int]) -> None:
        self._db.executemany("delete from later where channel = ? and seq = ?", ((channel, seq) for seq in seqs))

    def clear_retries(self, channel: int) -> None:
        self._db.execute("delete from later where channel = ?", (channel,))

    def has_retry(self, channel: int, low: int, high: int) -> bool:
        """Whether a message of [low, high) waits, unfinished, for its time or its next try."""
        query = "select 1 from later where channel = ? and seq >= ? and seq < ? and due != ? limit 1"
        return self._db.execute(query, (channel, low, high, FINISHED)).fetchone() is not None

    def unfinished_retries(self, channel: int, low: int, high: int, most: int) -> list[int]:
        """Messages of [low, high) that wait, unfinished, for their time or their next try: ``most`` and one more at the most."""
        query = "select seq from later where channel = ? and seq >= ? and seq < ? and due != ? limit ?"
        return [row[0] for row in self._db.execute(query, (channel, low, high, FINISHED, most + 1)).fetchall()]

    def shrink(self) -> None:
        """Give some of the pages that are free back to the disk."""
        # executescript, as execute would free one page only.
        self._db.executescript(f"pragma incremental_vacuum({_PAGES})")

    def retire(self, topic: int, segment: int) -> None:
        """Its number is not to be given again while there are segments up to ``segment``."""
        self._db.execute("insert or replace into retired values (?, ?)", (topic, segment))

    def retired(self) -> list[int]:
        return [topic for (topic,) in self._db.execute("select topic from retired").fetchall()]

    def forget_retired(self, oldest: int) -> None:
        """Segments before ``oldest`` are gone."""
        self._db.execute("delete from retired where seg < ?", (oldest,))

    def remove_topic(self, topic: int) -> None:
        for (channel,) in self._db.execute("select id from channel where topic = ?", (topic,)).fetchall():
            self.remove_channel(channel)
        self._db.execute("delete from batch where topic = ?", (topic,))
        self._db.execute("delete from topic where id = ?", (topic,))

    def remove_channel(self, channel: int) -> None:
        self.clear_retries(channel)
        self._db.execute("delete from channel where id = ?", (channel,))


def _make(db: sqlite3.Connection) -> None:
    """The tables, as far as they are not there."""
    db.executescript(_SCHEMA)
    twins.make(db)


def pack(seqs: Iterable[int]) -> bytes:
    """Sequence numbers as a blob of u64, little endian on every machine that this runs on."""
    return array("Q", seqs).tobytes()


def unpack(blob: bytes) -> array[int]:
    seqs: array[int] = array("Q")
    seqs.frombytes(blob)
    return seqs

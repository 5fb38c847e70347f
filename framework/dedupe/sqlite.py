"""Keys in a file of SQLite, which all processes of a machine share. All disk work is done beside the hub, many calls at once."""

from __future__ import annotations

import os
import random
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic, time
from typing import Any

import gevent
from gevent import monkey
from gevent.event import Event

from framework.dedupe.store import Claim
from framework.errors import WrongUse
from framework.observe import hublog

PATIENCE = 10.0
"""Seconds for which another process may hold the file's lock."""
NOTE_PATIENCE = 60.0
"""Seconds for which it may when a call is over: nobody can put that off, and without its note a repeat is handled again."""
_AT_OPENING = 0.05
"""Seconds of one try to open it. Processes that make a file together can each wait for the others' locks, until one gives up."""
FORGET_EVERY = 10.0
"""Seconds between two looks for keys that are too old."""
FORGET_AT_ONCE = 2_000
"""Keys, so that whoever waits meanwhile does not wait for long."""
log = hublog.get(__name__)
_sleep: Any = monkey.get_original("time", "sleep")  # it is a native thread that waits, and not the hub
_SCHEMA = """
create table if not exists keys (key text primary key, until real not null, token text not null) without rowid;
create index if not exists keys_until on keys (until);
"""
_COLUMNS = ["key", "until", "token"]
_CLAIM = """
insert into keys values (?1, ?2, ?3) on conflict (key) do update set until = ?2, token = ?3 where until <= ?4 or token = ?3
"""
_DONE = "insert into keys values (?1, ?2, '') on conflict (key) do update set until = ?2, token = ''"


class _Work:
    """One call of the store, until it is committed."""

    __slots__ = ("do", "error", "over", "result", "until")

    def __init__(self, do: Callable[[sqlite3.Connection], Any], until: float = 0.0) -> None:
        """``do`` may be done twice. ``until`` (monotonic) it is tried again where the file is locked."""
        self.do = do
        self.until = until
        self.result: Any = None
        self.error: Exception | None = None
        self.over = False


class SqliteStore:
    """In the file ``path``. What was committed survives a kill of the process. A power cut may undo the last of it."""

    def __init__(self, path: str | os.PathLike[str], age: float) -> None:
        """``age``: seconds that a key is kept."""
        self.path = Path(path).absolute()
        self._age = age
        self._database: sqlite3.Connection | None = None
        self._process = 0
        self._file: tuple[int, int] | None = None
        """Device and inode of what is open."""
        self._moved = False
        """It was removed or replaced, and nobody has said so yet."""
        self._forgot_at = 0.0
        self._waiting: deque[_Work] = deque()
        self._here: Any = monkey.get_original("threading", "local")()
        self._mutex: Any = monkey.get_original("threading", "Lock")()

    def open(self) -> None:
        """Make the file where there is none. Raises WrongUse."""
        with self._mutex:
            try:
                self._connected()
            except sqlite3.Error as error:
                raise WrongUse(
                    f"Dedupe({str(self.path)!r}): {error}: give a file of its own that may be written, in a folder that exists"
                ) from None

    def close(self) -> None:
        """Whoever calls next opens it again."""
        with self._mutex:
            self._shut()

    def claim(self, keys: Sequence[str], token: str, seconds: float) -> list[Claim]:
        def do(database: sqlite3.Connection) -> list[Claim]:
            now = time()
            return [_claim(database, key, token, now, now + seconds) for key in keys]

        found: list[Claim] = self._do(do)
        return found

    def done(self, keys: Sequence[str], token: str) -> None:
        self._do_many(_DONE, [(key, time() + self._age) for key in keys], monotonic() + NOTE_PATIENCE)

    def release(self, keys: Sequence[str], token: str) -> None:
        self._do_many("delete from keys where key = ? and token = ?", [(key, token) for key in keys])

    def _do_many(self, statement: str, rows: Sequence[tuple[Any, ...]], until: float = 0.0) -> None:
        def do(database: sqlite3.Connection) -> None:
            # No cursor leaves the thread: its end resets the statement, which another commit may be running by then.
            database.executemany(statement, rows)

        self._do(do, until)

    # -- off the hub

    def _do(self, do: Callable[[sqlite3.Connection], Any], until: float = 0.0) -> Any:
        work = _Work(do, until)
        self._waiting.append(work)
        here = gevent.getcurrent()
        if isinstance(here.parent, gevent.hub.Hub):
            self._wait_for(work, here.parent)
        else:
            while not work.over:
                self._commit()
        self._tell_moved()
        if work.error is not None:
            raise work.error.with_traceback(None)  # several may raise this one object
        return work.result

    def _wait_for(self, work: _Work, hub: Any) -> None:
        """One greenlet of each hub has the others' work committed with its own."""
        mine = self._here.__dict__
        while not work.over:
            if (committing := mine.get("committing")) is not None:
                committing.wait()
                continue
            mine["committing"] = over = Event()
            try:
                hub.threadpool.apply(self._commit)
            finally:
                del mine["committing"]
                over.set()

    def _commit(self) -> None:
        """All that waits, in one transaction."""
        with self._mutex:
            some: list[_Work] = []
            with suppress(IndexError):
                while True:
                    some.append(self._waiting.popleft())
            if not some:
                return
            try:
                self._commit_all(some)
            except sqlite3.DatabaseError as error:
                locked = _is_locked(error)
                if not locked:
                    self._database = None  # so that a file that somebody mends is seen
                again = [work for work in some if locked and monotonic() < work.until]
                self._waiting.extendleft(reversed(again))  # whose caller's time is over, the next call's commit has it
                some = [work for work in some if work not in again]
                for work in some:
                    work.error = error
            except Exception:  # one has what SQLite does not take, and the others have not
                for work in some:
                    self._commit_alone(work)
            for work in some:
                work.over = True

    def _commit_all(self, some: Sequence[_Work]) -> None:
        self._commit_here(some)
        if self._is_moved():  # nobody looks any more where that was written
            self._commit_here(some)

    def _commit_here(self, some: Sequence[_Work]) -> None:
        database = self._connected()
        database.execute("begin immediate")
        try:
            for work in some:
                work.result = work.do(database)
            self._forget(database)
            database.execute("commit")
        except BaseException:
            if database.in_transaction:  # a full disk may have ended it
                database.execute("rollback")
            raise

    def _commit_alone(self, work: _Work) -> None:
        try:
            self._commit_all([work])
        except Exception as error:
            work.error = error

    def _connected(self) -> sqlite3.Connection:
        if self._process != os.getpid():  # a forked child's is its parent's
            self._process = os.getpid()
            self._database = self._file = None
        if self._file is not None and self._is_moved():  # the others open what has the name now, and see nothing of this one
            self._shut()
            self._moved = True
        if self._database is None:
            self._database = self._opened()
        return self._database

    def _shut(self) -> None:
        if self._database is not None:
            self._database.close()
        self._database = self._file = None

    def _is_moved(self) -> bool:
        """Whether the path is of another file than what is open, or of none."""
        return self._file != _file_at(self.path)

    def _tell_moved(self) -> None:
        """Not by the native thread: what a log does is for greenlets."""
        if self._moved:
            self._moved = False
            log.warning(
                "Dedupe(%r): the file was removed or replaced under this worker, which goes on with what has its name now: what "
                "was handled before may be handled again; stop all workers before you remove it",
                str(self.path),
            )

    def _opened(self) -> sqlite3.Connection:
        until = monotonic() + PATIENCE
        while True:
            before = _file_at(self.path)
            database = sqlite3.connect(self.path, timeout=_AT_OPENING, isolation_level=None, check_same_thread=False)
            self._file = _file_at(self.path)
            if before is not None and before != self._file:  # moved at this moment: which of them is open, nobody can say
                database.close()
                continue
            try:
                _check_ours(database)
                database.execute("pragma journal_mode = wal")
                database.execute("pragma synchronous = normal")
                database.executescript(_SCHEMA)
                database.execute(f"pragma busy_timeout = {PATIENCE * 1000:.0f}")
            except BaseException as error:
                database.close()
                if not _is_locked(error) or monotonic() > until:
                    raise
            else:
                return database
            _sleep(random.uniform(0, _AT_OPENING))

    def _forget(self, database: sqlite3.Connection) -> None:
        now = time()
        if abs(now - self._forgot_at) < FORGET_EVERY:
            return
        old = database.execute("select key from keys where until <= ? limit ?", (now, FORGET_AT_ONCE)).fetchall()
        database.executemany("delete from keys where key = ?", old)
        if len(old) < FORGET_AT_ONCE:  # else the next goes on
            self._forgot_at = now


def _claim(database: sqlite3.Connection, key: str, token: str, now: float, until: float) -> Claim:
    if database.execute(_CLAIM, (key, until, token, now)).rowcount:
        return "new"
    [(holder,)] = database.execute("select token from keys where key = ?", (key,)).fetchall()
    return "claimed" if holder else "done"


def _is_locked(error: BaseException) -> bool:
    """By another process: that passes."""
    code = getattr(error, "sqlite_errorcode", None)  # none where it is no error of SQLite's own
    return code is not None and code & 0xFF == sqlite3.SQLITE_BUSY


def _file_at(path: Path) -> tuple[int, int] | None:
    """Device and inode; None where there is nothing, or nothing that can be seen."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _check_ours(database: sqlite3.Connection) -> None:
    """Before anything is changed. Raises sqlite3.DatabaseError for a file of another program, which has its own table of keys."""
    columns = [name for _, name, *_ in database.execute("pragma table_info(keys)")]
    if columns and columns != _COLUMNS:
        raise sqlite3.DatabaseError(f"it is another program's, whose table keys has the columns {', '.join(columns):.100}")

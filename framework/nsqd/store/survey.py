"""A data folder as the next start would find it, without a change to it: the recovery runs on a copy of the index, and reads."""

from __future__ import annotations

import errno
import shutil
import sqlite3
import tempfile
from contextlib import ExitStack
from pathlib import Path

from framework.nsqd.store import formats, misnamed, recovery
from framework.nsqd.store.catalog import Catalog
from framework.nsqd.store.clock import Clock
from framework.nsqd.store.files import explain
from framework.nsqd.store.folder import FolderUnusable, ReadOnlyFolder
from framework.nsqd.store.index import Index, is_damage
from framework.nsqd.store.reading import Reader
from framework.nsqd.store.segments import Segments


class Survey:
    """To be closed. No nsqd can begin to serve the folder meanwhile. Raises FolderInUse, FolderUnusable."""

    def __init__(self, path: Path) -> None:
        self._closing = ExitStack()
        with ExitStack() as undo:
            self.folder = ReadOnlyFolder(path)
            undo.callback(self.folder.close)
            try:
                self._open(path, undo)
            except (OSError, sqlite3.Error) as error:
                raise FolderUnusable(_explained(path, error)) from error
            self._closing = undo.pop_all()

    def _open(self, path: Path, undo: ExitStack) -> None:
        formats.check_salt(path, self.folder.salt)
        names, wrong = misnamed.look(path / "log", self.folder.salt)
        self.log = Segments(path / "log", self.folder.salt, names)
        undo.callback(self.log.close)
        scratch = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="nsqd-index-")))
        self.index, without = _copied(path, scratch)
        undo.callback(self.index.close)
        self.catalog = Catalog((self.log.active, 0))
        recovery.recover(self.folder, self.log, self.index, self.catalog)
        self.reader = Reader(self.folder, self.log, self.index, self.catalog)
        self.clock = Clock(path / "clock")
        self.reports = wrong + without + self.folder.reports
        """What a start would find wrong, a sentence each."""

    def close(self) -> None:
        self._closing.close()

    def __enter__(self) -> Survey:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _explained(path: Path, error: OSError | sqlite3.Error) -> str:
    """Nothing is written but the copy of the index."""
    full = getattr(error, "errno", 0) == errno.ENOSPC or getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL
    if full:
        return (
            f"{tempfile.gettempdir()} has no room for a copy of the index of {path}: make room, or set TMPDIR to another folder"
        )
    return explain(path, error)


def _copied(path: Path, scratch: Path) -> tuple[Index, list[str]]:
    """The index, and what is wrong with it. A damaged one, or none, is made anew from the log, as a start does."""
    file = scratch / "index.db"
    if not (path / "index.db").exists():
        return Index(file), ["the index is missing: a start makes it anew from the log, and finished messages may come again"]
    for name in ("index.db", "index.db-wal"):
        if (path / name).exists():
            shutil.copyfile(path / name, scratch / name)
    try:
        return Index(file), []
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
    for stale in scratch.iterdir():
        stale.unlink()
    return Index(file), ["the index is damaged: a start makes it anew from the log, and finished messages may come again"]

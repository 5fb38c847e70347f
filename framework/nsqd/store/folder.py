"""The data folder: its lock, its salt, its index file, and the place where damaged bytes are set aside."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from pathlib import Path

from framework.errors import FrameworkError
from framework.nsqd.store import formats
from framework.nsqd.store.files import FILE_MODE, FOLDER_MODE, explain, keep_private, make_folder, sync_folder, write_synced
from framework.nsqd.store.formats import FolderUnusable
from framework.nsqd.store.index import Index, is_damage

__all__ = ["Folder", "FolderInUse", "FolderUnusable", "ReadOnlyFolder"]


class FolderInUse(FrameworkError):
    """Another process has the folder."""


class ReadOnlyFolder:
    """A data folder that nobody serves, to be looked at. Raises FolderInUse, FolderUnusable.

    ``set_aside`` says where damaged bytes would be kept, and writes nothing: for a recovery that only looks.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reports: list[str] = []
        """Sentences about what was found damaged."""
        try:
            formats.read(path)
            self._lock = self._take_lock()
        except OSError as error:
            raise FolderUnusable(explain(path, error)) from error
        try:
            self.salt = formats.read(path).salt
        except BaseException:
            self.close()
            raise

    def _take_lock(self) -> int | None:
        """No nsqd can begin to serve it meanwhile. None: nobody has ever, and there is nothing to lock."""
        try:
            fd = os.open(self.path / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise FolderInUse(
                f"the data folder {self.path} is in use by an nsqd: stop that one, or take a copy with --backup and name that"
            ) from None
        return fd

    def has_set_aside(self, name: str, data: bytes) -> bool:
        """Whether these bytes are there already."""
        path = self.path / "bad" / name
        return path.exists() and path.read_bytes() == data

    def set_aside(self, name: str, data: bytes) -> Path:
        """Keep damaged bytes for a person to look at. Raises OSError; then nothing of them is there."""
        return self.path / "bad" / name

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)


class Folder(ReadOnlyFolder):
    """A locked data folder, made if there is none. Raises FolderInUse, FolderUnusable."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reports = []
        try:
            formats.judge(path)
            # Its own mode is left alone: it may be a folder that has other things in it too.
            path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            self._lock = self._take_lock()
        except OSError as error:
            raise FolderUnusable(explain(path, error)) from error
        try:
            meta = formats.open_or_make(path)
            self.salt = meta.salt
            self.has_changes = meta.format >= formats.CHANGES
            """There may be declarations that name changes alone."""
            for name in ("lock", "meta.json", "index.db", "index.db-wal", "index.db-shm"):
                keep_private(path / name)
        except OSError as error:
            self.close()
            raise FolderUnusable(explain(path, error)) from error
        except BaseException:
            self.close()
            raise

    def _take_lock(self) -> int:
        fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise FolderInUse(
                f"the data folder {self.path} is in use by another nsqd: stop that one, or name another with --data-path"
            ) from None
        return fd

    def open_index(self) -> Index:
        """The index; a damaged one is set aside and an empty one made, which the recovery fills from the log.

        Raises OSError, sqlite3.Error for all that is no damage: a full disk above all, where the index is as good as before.
        """
        path = self.path / "index.db"
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))  # SQLite would let others read it
        try:
            return Index(path)
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            self.reports.append(f"the index is damaged ({error}): set aside in {self._bad()} and rebuilt from the log")
            self.set_index_aside()
            return self.open_index()

    def allow_changes(self) -> None:
        """Before the first of them is written. Raises OSError."""
        formats.allow_changes(self.path)
        self.has_changes = True

    def set_index_aside(self) -> None:
        for name in ("index.db", "index.db-wal", "index.db-shm"):
            path = self.path / name
            if path.exists():
                path.replace(self._bad() / f"{time.time_ns()}-{name}")

    def set_aside(self, name: str, data: bytes) -> Path:
        """Keep damaged bytes for a person to look at. Raises OSError; then nothing of them is there."""
        path = self._bad() / name
        write_synced(path, data)
        sync_folder(path.parent)
        return path

    def _bad(self) -> Path:
        bad = self.path / "bad"
        make_folder(bad)
        return bad

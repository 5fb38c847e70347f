"""The data folder: its lock, its salt, its index file, and the place where damaged bytes are set aside."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import sqlite3
import time
from pathlib import Path

from framework.errors import FrameworkError, WrongUse
from framework.nsqd.store.files import FILE_MODE, FOLDER_MODE, explain, keep_private, make_folder, naming, sync_folder
from framework.nsqd.store.index import Index, is_damage

FORMAT = 1


class FolderInUse(FrameworkError):
    """Another process has the folder."""


class FolderUnusable(WrongUse):
    """The folder cannot be made, read or written, or was written by another version."""


class Folder:
    """A locked data folder. Raises FolderInUse, FolderUnusable."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reports: list[str] = []
        try:
            # Its own mode is left alone: it may be a folder that has other things in it too.
            path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            self._lock = self._take_lock()
        except OSError as error:
            raise FolderUnusable(explain(path, error)) from error
        try:
            self.salt = self._salt()
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

    def _salt(self) -> int:
        meta = self.path / "meta.json"
        try:
            said = json.loads(meta.read_text())
            if said["format"] != FORMAT:
                raise FolderUnusable(
                    f"{meta} says format {said['format']}, this version reads {FORMAT}: name another --data-path"
                )
            return int(said["salt"])
        except FileNotFoundError:
            return self._new_salt(meta)
        except (ValueError, KeyError, TypeError) as error:
            raise FolderUnusable(
                f"{meta} is damaged ({error!r}): put it back from a copy, or name another --data-path"
            ) from error

    def _new_salt(self, meta: Path) -> int:
        if any(self.path.glob("log/*.log")):
            raise FolderUnusable(f"{meta} is missing beside a log, which cannot be read without it: name another --data-path")
        salt = secrets.randbits(32)
        fresh = meta.with_suffix(".new")
        _write_synced(fresh, json.dumps({"format": FORMAT, "salt": salt}).encode())
        fresh.replace(meta)
        sync_folder(self.path)
        return salt

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

    def set_index_aside(self) -> None:
        for name in ("index.db", "index.db-wal", "index.db-shm"):
            path = self.path / name
            if path.exists():
                path.replace(self._bad() / f"{time.time_ns()}-{name}")

    def has_set_aside(self, name: str, data: bytes) -> bool:
        """Whether these bytes are there already."""
        path = self.path / "bad" / name
        return path.exists() and path.read_bytes() == data

    def set_aside(self, name: str, data: bytes) -> Path:
        """Keep damaged bytes for a person to look at. Raises OSError; then nothing of them is there."""
        path = self._bad() / name
        _write_synced(path, data)
        sync_folder(path.parent)
        return path

    def _bad(self) -> Path:
        bad = self.path / "bad"
        make_folder(bad)
        return bad

    def close(self) -> None:
        os.close(self._lock)


def _write_synced(path: Path, data: bytes) -> None:
    """A file that is there as a whole and synced, or not at all. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    try:
        with naming(path), open(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
    except OSError:
        path.unlink()
        raise

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
from framework.nsqd.store.index import Index
from framework.nsqd.store.log import sync_folder

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
            path.mkdir(parents=True, exist_ok=True)
            self._lock = self._take_lock()
            self.salt = self._salt()
        except OSError as error:
            raise FolderUnusable(
                f"the data folder {path} cannot be used: {error.strerror}; name another with --data-path"
            ) from error

    def _take_lock(self) -> int:
        fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
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
        with fresh.open("w") as file:
            json.dump({"format": FORMAT, "salt": salt}, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(meta)
        sync_folder(self.path)
        return salt

    def open_index(self) -> Index:
        """The index; a damaged one is set aside and an empty one made, which the recovery fills from the log."""
        path = self.path / "index.db"
        try:
            return Index(path)
        except sqlite3.DatabaseError as error:
            self.reports.append(f"the index is damaged ({error}): set aside in {self._bad()} and rebuilt from the log")
            self.set_index_aside()
            return Index(path)

    def set_index_aside(self) -> None:
        for name in ("index.db", "index.db-wal", "index.db-shm"):
            path = self.path / name
            if path.exists():
                path.replace(self._bad() / f"{time.time_ns()}-{name}")

    def set_aside(self, name: str, data: bytes) -> Path:
        """Keep damaged bytes for a person to look at."""
        path = self._bad() / name
        path.write_bytes(data)
        return path

    def _bad(self) -> Path:
        bad = self.path / "bad"
        bad.mkdir(exist_ok=True)
        return bad

    def close(self) -> None:
        os.close(self._lock)

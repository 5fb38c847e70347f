"""Files of the data folder: nobody else may read them, their names are durable, and errors say which file and what to do."""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

FILE_MODE = 0o600
FOLDER_MODE = 0o700

_NAMES = ("meta.json", "lock", "clock", "reserve", "index.db", "index.db-wal", "index.db-shm", ".sync")
_FULL = "no room is left on its disk: make room, then start it again"
_NOT_OURS = "let this user read and write it, or name another with --data-path"
IN_THE_WAY = "move it away, or name another with --data-path"
_BROKEN = "look at the disk and the system's log, then start it again"
_OTHERWISE = "mend that, or name another with --data-path"
_FIXES: Mapping[int | None, str] = {
    errno.ENOSPC: _FULL, errno.EDQUOT: _FULL, errno.EACCES: _NOT_OURS, errno.EPERM: _NOT_OURS, errno.EROFS: _NOT_OURS,
    errno.EEXIST: IN_THE_WAY, errno.ENOTDIR: IN_THE_WAY, errno.EISDIR: IN_THE_WAY, errno.EIO: _BROKEN,
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}  # fmt: skip
_INDEX_FIXES = {
    sqlite3.SQLITE_FULL: _FULL, sqlite3.SQLITE_READONLY: _NOT_OURS, sqlite3.SQLITE_CANTOPEN: _NOT_OURS,
    sqlite3.SQLITE_PERM: _NOT_OURS, sqlite3.SQLITE_IOERR: _BROKEN, sqlite3.SQLITE_BUSY: "end what else has it open",
}  # fmt: skip
_SPARE_BYTES = 1 << 20
"""With less than this free, an I/O error of the index is taken for a full disk: SQLite does not always say so."""


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable: a file that was synced can still lose its name without this."""
    with naming(folder):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def write_synced(path: Path, data: bytes) -> None:
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


def check_room(path: Path, size: int) -> None:
    """Raises OSError where a file of so many bytes cannot be had at ``path``, where no file is. Leaves none, killed or not."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        with naming(path):
            path.unlink()
            os.posix_fallocate(fd, 0, size)
    finally:
        os.close(fd)


def odd_file(folder: Path) -> Path | None:
    """One of the data folder's files that is a FIFO, a device or a socket: who opens it may wait for ever."""
    for path in (*(folder / name for name in _NAMES), *folder.glob("log/*.log")):
        with suppress(OSError):  # it is not there; or it cannot be had, and what needs it will say so
            mode = path.stat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                return path
    return None


def make_folder(folder: Path) -> None:
    """Make it for this user alone; one that is there becomes so, if it is ours to change."""
    folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
    keep_private(folder)


def keep_private(path: Path) -> None:
    """Take from others the right to read the file or folder, as far as it is ours to change."""
    try:
        mode = path.stat().st_mode
        if stat.S_IMODE(mode) & 0o077:
            path.chmod(FOLDER_MODE if stat.S_ISDIR(mode) else FILE_MODE)
    except OSError:
        pass  # it is not there, or not ours: what needs it will say so


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an OSError say which file it is about: those of calls on descriptors do not."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def explain(folder: Path, error: OSError | sqlite3.Error) -> str:
    """One sentence: what cannot be used, why, and what to do."""
    if isinstance(error, OSError):
        place, words = error.filename or folder, error.strerror or str(error)
        fix = _FIXES.get(error.errno, _OTHERWISE)
    else:
        place, words, fix = folder / "index.db", str(error), _index_fix(folder, error)
    about = "" if str(place) == str(folder) else f"{place}: "
    return f"the data folder {folder} cannot be used: {about}{words}; {fix}"


def _index_fix(folder: Path, error: sqlite3.Error) -> str:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF
    try:
        disk = os.statvfs(folder)
    except OSError:
        return _OTHERWISE
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN) and disk.f_bavail * disk.f_frsize < _SPARE_BYTES:
        return _FULL
    return _INDEX_FIXES.get(code, _OTHERWISE)

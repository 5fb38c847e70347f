"""What a file system refuses, in a sentence that says which file and what to do. Those of a storage say so themselves."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from framework.spool.arrow import SpoolError
from framework.spool.storage import Location, StorageError

_FULL = "make room there"
_NOT_OURS = "let the user of this process read and write it, or name another folder"
_IN_THE_WAY = "move away what has its name, or name another folder"
_FEW_FILES = "raise the limit of open files (ulimit -n)"
_FIXES = {
    errno.ENOSPC: _FULL, errno.EDQUOT: _FULL, errno.EACCES: _NOT_OURS, errno.EPERM: _NOT_OURS, errno.EROFS: _NOT_OURS,
    errno.EEXIST: _IN_THE_WAY, errno.ENOTDIR: _IN_THE_WAY, errno.EISDIR: _IN_THE_WAY, errno.ELOOP: _IN_THE_WAY,
    errno.ENAMETOOLONG: "name another folder", errno.ENOENT: "name a folder that can be made, or make the one above it",
    errno.EIO: "look at the disk and the system's log", errno.EMFILE: _FEW_FILES, errno.ENFILE: _FEW_FILES,
    errno.ESTALE: "mount the file system anew",
}  # fmt: skip


def words_of(error: OSError) -> str:
    """What went wrong with which file, and the fix where there is a known one."""
    if isinstance(error, StorageError) or error.errno is None:
        return str(error)
    what = os.strerror(error.errno) + (f": {error.filename}" if error.filename else "")
    return f"{what}; {_FIXES[error.errno]}" if error.errno in _FIXES else what


def check_is_file(path: Path) -> None:
    """Before it is opened: a FIFO would be waited for, and a device might never end. What cannot be opened says so itself. Raises
    OSError."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise OSError(f"{path} is no file; {_IN_THE_WAY}")


def content_of(path: Path) -> bytes:
    """All of a small file. Raises OSError, also for what is none."""
    check_is_file(path)
    return path.read_bytes()


@contextmanager
def in_words(root: Location) -> Iterator[None]:
    """Have what the system refuses in the spool ``root`` raised as a SpoolError. Errors of a storage stay what they are: who
    reads waits for it."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise SpoolError(f"spool {root}: {words_of(error)}") from None

"""A few blocks of the disk kept for declarations: a topic, a channel or a pause can be made where nothing else can be written."""

from __future__ import annotations

import os
from pathlib import Path

from framework.nsqd.store.files import FILE_MODE, keep_private

RESERVE_BYTES = 256 << 10
"""Room for thousands of declarations, and for the index to note them."""


class Reserve:
    """A file that holds nothing. It is given up when the disk is full to the last byte, and made again when there is room."""

    def __init__(self, path: Path) -> None:
        self._path = path
        keep_private(path)

    @property
    def whole(self) -> bool:
        """Whether there is something to spend."""
        try:
            return self._path.stat().st_size >= RESERVE_BYTES
        except OSError:
            return False

    def fill(self) -> None:
        """Take the blocks, if they can be had."""
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        except OSError:
            return
        try:
            os.posix_fallocate(fd, 0, RESERVE_BYTES)
        except OSError:
            os.ftruncate(fd, 0)
        finally:
            os.close(fd)

    def spend(self) -> bool:
        """Give the blocks back to the disk; whether there were any."""
        if not self.whole:
            return False
        try:
            os.truncate(self._path, 0)
        except OSError:
            return False
        return True

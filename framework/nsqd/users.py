"""Counts the users of the nsqd of a data folder: each holds a shared lock on a file there, which ends with its process, however
that ends. It starts and stops nothing."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

FILE = "users"
"""In the data folder: what the users lock. It stays empty."""
_POLL_SECONDS = 0.01


class Users:
    """One process's view of the users of a folder, which must exist. Raises OSError."""

    def __init__(self, data_path: Path) -> None:
        self._fd = os.open(data_path / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def join(self, seconds: float) -> bool:
        """Be one of them; False if an nsqd that is ending has kept the folder for all of ``seconds``."""
        until = time.monotonic() + seconds
        while not self._lock(fcntl.LOCK_SH):
            if time.monotonic() > until:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def alone(self) -> bool:
        """Whether there is no other user. If so, none can join until ``leave``; if not, this one has left."""
        return self._lock(fcntl.LOCK_EX)

    def leave(self) -> None:
        os.close(self._fd)

    def _lock(self, kind: int) -> bool:
        try:
            fcntl.flock(self._fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

"""How large a collector's folder may become. The collector says it in a file there, so that readers that delete know it as well.

A full folder takes nothing more: its messages stay at the broker. What has been read makes room, so of that no more than half of
the limit is kept for the ids in it.
"""

from __future__ import annotations

import logging

from framework.errors import Backoff, WrongUse
from framework.spool import segment as segments
from framework.spool.arrow import Segment, SpoolError
from framework.spool.storage import Location
from framework.spool.told import tell, told

_log = logging.getLogger(__name__)
_FILE = "limit"


class SpoolFull(SpoolError, Backoff):
    """The spool is as large as it may be. A handler that raises it gets no messages for a while, and they stay at the broker."""


class Limit:
    """Of one collector's ``folder``: ``most`` bytes, or None for no limit. Raises WrongUse for other than a number above 0."""

    def __init__(self, folder: Location, most: int | None) -> None:
        if most is not None and (not isinstance(most, int) or most < 1):
            raise WrongUse(f"Spool(max_bytes={most!r}): a number of bytes above 0 is needed, or None for no limit")
        self._folder = folder
        self._most = most
        self._bytes = 0
        self._alone = 0
        """Bytes of a segment that was there alone when they were counted."""
        self._is_full = False

    def begin(self) -> None:
        """Say in the folder what the limit is. Under the collector's lock; raises OSError."""
        tell(self._folder, _FILE, self._most)
        self._bytes = self._most or 0  # measured before something is written: others may write until all are known

    def check(self) -> None:
        """Before anything is written. Raises SpoolFull; a folder that has less than its limit takes one batch more."""
        if self._most is None or self._bytes < self._most:
            return
        self._bytes, self._alone = _size(self._folder)  # what readers deleted since
        full = self._bytes >= self._most
        if full and not self._is_full:
            _log.warning("%s; its messages stay at the broker until a query has read and deleted some", self._words())
        if self._is_full and not full:
            _log.warning("spool %s: has room again", self._folder)
        self._is_full = full
        if full:
            raise SpoolFull(self._words())

    def add(self, one: Segment) -> None:
        """A segment was written, by whomever. One that has gone already counts nothing."""
        if self._most is not None:
            self._bytes += self._alone + segments.size(one)
            self._alone = 0

    def _words(self) -> str:
        return f"spool {self._folder}: is full, with {self._bytes:,} bytes of {self._most:,} that it may have (max_bytes)"


def to_keep(folder: Location) -> int | None:
    """How many bytes of what was read may be kept in a collector's folder; None where it has no limit."""
    most = told(folder, _FILE)
    return None if most is None else most // 2


def _size(folder: Location) -> tuple[int, int]:
    """Of the segments, and of one alone: it keeps the numbering, so that nobody deletes it, however large it is."""
    found = segments.listing(folder)
    size = sum(segments.size(one) for one in found)
    return (size, 0) if len(found) > 1 else (0, size)

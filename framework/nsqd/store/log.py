"""The append-only log: numbered segment files, written in groups with one fdatasync each, scanned and cut at start.

It knows records and their CRCs, not what they mean; who may still need a segment is the store's business.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from framework.nsqd.store import record
from framework.nsqd.store.record import Batch

SEGMENT_BYTES = 64 << 20
_IOV_MAX = 1024
"""The most buffers that Linux takes in one pwritev."""


class Syncing(NamedTuple):
    """When what was written is synced: after so many messages, or so many seconds after the first of them."""

    every: int = 1
    seconds: float = 0.0


class Found(NamedTuple):
    """A whole record, met by a scan."""

    offset: int
    length: int
    batch: Batch


class Broken(NamedTuple):
    """Bytes that are no record; ``torn`` when nothing good follows them in their segment."""

    offset: int
    length: int
    torn: bool


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable: a file that was synced can still lose its name without this."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class Log:
    """The segments of one folder. ``write`` and ``roll`` are for one thread; ``read`` is for any."""

    def __init__(self, folder: Path, salt: int, syncing: Syncing = Syncing()) -> None:  # noqa: B008 - a tuple never changes
        folder.mkdir(exist_ok=True)
        self._syncing = syncing
        self._unsynced = 0
        self._since = 0.0
        self.folder = folder
        self.salt = salt
        self.numbers = sorted(int(path.stem) for path in folder.glob("*.log"))
        """The segments that exist, oldest first; the last is written to."""
        self._files: dict[int, int] = {}
        self.size = 0
        """Bytes in the segment that is written to."""
        self.suspect = False
        """A sync failed: the kernel may have dropped pages and forgotten it, so write to a new segment."""
        if self.numbers:
            self.size = os.fstat(self._fd(self.numbers[-1])).st_size
        else:
            self.roll([])

    @property
    def active(self) -> int:
        """The number of the segment that is written to."""
        return self.numbers[-1]

    def path(self, number: int) -> Path:
        return self.folder / f"{number:010}.log"

    def write(self, batches: Sequence[Batch]) -> int:
        """Append the records, durable on return unless ``syncing`` says otherwise; returns where the first begins.

        Raises OSError, after which the segment is as it was before: nothing of a failed group stays.
        """
        buffers = [part for batch in batches for part in record.encode(batch, self.salt)]
        start, fd = self.size, self._fd(self.active)
        try:
            end = _write_all(fd, buffers, start)
            self._since = self._since if self._unsynced else time.monotonic()
            self._unsynced += sum(max(1, batch.count) for batch in batches)
            if self._unsynced >= self._syncing.every:
                self.sync()
        except OSError:
            os.ftruncate(fd, start)
            raise
        self.size = end
        return start

    @property
    def due(self) -> bool:
        """Whether something has waited for its sync for as long as it may."""
        return self._unsynced > 0 and time.monotonic() - self._since >= self._syncing.seconds

    def sync(self) -> None:
        """Make what was written durable. Raises OSError."""
        if not self._unsynced:
            return
        self._unsynced = 0
        try:
            os.fdatasync(self._fd(self.active))
        except OSError:
            self.suspect = True
            raise

    def roll(self, head: Sequence[Batch]) -> None:
        """Begin a new segment that opens with ``head``. Raises OSError; the old one is then still active."""
        if not self.suspect:
            self.sync()
        number = self.numbers[-1] + 1 if self.numbers else 1
        fd = os.open(self.path(number), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            size = _write_all(fd, [part for batch in head for part in record.encode(batch, self.salt)], 0)
            os.fdatasync(fd)
            sync_folder(self.folder)
        except OSError:
            os.close(fd)
            self.path(number).unlink()
            raise
        self._files[number] = fd
        self.numbers.append(number)
        self.size = size
        self.suspect = False

    def length(self, number: int) -> int:
        """How big a segment is."""
        return os.fstat(self._fd(number)).st_size

    def read(self, number: int, offset: int, length: int) -> bytes:
        """Bytes of a segment; fewer when it is shorter or gone."""
        try:
            return os.pread(self._fd(number), length, offset)
        except FileNotFoundError:
            return b""

    def scan(self, number: int, offset: int = 0) -> Iterator[Found | Broken]:
        """Every record from ``offset`` on, and what lies between them that is none."""
        fd = self._fd(number)
        # Read whole: 64 MiB for a moment at start is cheaper than two system calls a record.
        data = os.pread(fd, os.fstat(fd).st_size, 0)
        while offset < len(data):
            batch = record.decode(data, offset, self.salt)
            if batch is not None:
                length = record.HEADER_BYTES + len(batch.payload)
                yield Found(offset, length, batch)
            else:
                following = record.find(data, offset + 1, self.salt)
                length = (following if following >= 0 else len(data)) - offset
                yield Broken(offset, length, following < 0)
            offset += length

    def cut(self, offset: int) -> None:
        """End the active segment at ``offset``."""
        fd = self._fd(self.active)
        os.ftruncate(fd, offset)
        os.fdatasync(fd)
        self.size = offset

    def remove(self, number: int) -> None:
        """Unlink a segment that is not the active one."""
        self.numbers.remove(number)
        fd = self._files.pop(number, None)
        if fd is not None:
            os.close(fd)
        self.path(number).unlink(missing_ok=True)
        sync_folder(self.folder)

    def close(self) -> None:
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()

    def _fd(self, number: int) -> int:
        fd = self._files.get(number)
        if fd is None:
            fd = self._files[number] = os.open(self.path(number), os.O_RDWR | os.O_CLOEXEC)
        return fd


def _write_all(fd: int, buffers: list[bytes], offset: int) -> int:
    """Write the buffers from ``offset`` on, however often the kernel takes only a part; returns the end."""
    for at in range(0, len(buffers), _IOV_MAX):
        some = buffers[at : at + _IOV_MAX]
        wanted = sum(map(len, some))
        written = os.pwritev(fd, some, offset)
        if written < wanted:
            # A disk that fills up takes a part first and says ENOSPC at the next call.
            rest = memoryview(b"".join(some))
            while written < wanted:
                written += os.pwrite(fd, rest[written:], offset + written)
        offset += wanted
    return offset

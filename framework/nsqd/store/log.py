"""The append-only log: segments that are written in groups with one fdatasync each, and cut at start."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from framework.nsqd.store import record
from framework.nsqd.store.files import FILE_MODE, keep_private, make_folder, naming, sync_folder
from framework.nsqd.store.record import Batch
from framework.nsqd.store.segments import Found, OpenFile, Segments

SEGMENT_BYTES = 64 << 20
_UNFINISHED = ".new"
_IOV_MAX = 1024
"""The most buffers that Linux takes in one pwritev."""


class Syncing(NamedTuple):
    """When what was written is synced: after so many messages, or so many seconds after the first of them."""

    every: int = 1
    seconds: float = 0.0


class Log(Segments):
    """The segments of one folder, to be written to. ``write`` and ``roll`` are for one thread."""

    _since: float
    """When the first was written of what is not synced (monotonic seconds)."""

    def __init__(self, folder: Path, salt: int, syncing: Syncing = Syncing()) -> None:  # noqa: B008 - a tuple never changes
        make_folder(folder)
        self._syncing = syncing
        self._unsynced = 0
        self._from = 0
        """Where in the active segment begins what is not synced."""
        for path in folder.glob(f"*{_UNFINISHED}"):
            path.unlink()  # the process ended while it was being made
        super().__init__(folder, salt)
        self._head = 0
        self.inherited = self.active
        """The newest segment that an earlier process began; 0 where there is none."""
        if self.numbers:
            os.fsync(self._file(self.active).fd)  # the process before this one may have cut it off and ended
        else:
            self.roll([])

    @property
    def written(self) -> int:
        """Bytes in the active segment behind its head. The head of one that was there at start counts too."""
        return self.size - self._head

    def write(self, batches: Sequence[Batch]) -> int:
        """Append the records, durable on return unless ``syncing`` says otherwise; returns where the first begins.

        Raises OSError, after which the segment is as it was before: nothing of a failed group stays, unless it is ``suspect``.
        """
        buffers = self._encoded(batches)
        start, file = self.size, self._file(self.active)
        try:
            end = _write_all(file.fd, buffers, start)
            if not self._unsynced:
                self._since, self._from = time.monotonic(), start
            self._unsynced += sum(batch.count for batch in batches) or 1
            if self._unsynced >= self._syncing.every:
                self.sync()
        except OSError:
            self._undo(file.fd, start)
            raise
        self.size = end
        return start

    def _undo(self, fd: int, start: int) -> None:
        """End the segment where the failed group began. Synced: after a power cut the group could be there again, under numbers
        that were given to others since."""
        if self._from >= start:
            self._unsynced = 0
        try:
            os.ftruncate(fd, start)
            os.fsync(fd)  # its length too
        except OSError:
            self.suspect = True

    @property
    def waits(self) -> bool:
        """Whether something that was written is not known to be durable."""
        return self._unsynced > 0

    @property
    def due(self) -> bool:
        """Whether something has waited for its sync for as long as it may."""
        return self.waits and time.monotonic() - self._since >= self._syncing.seconds

    def sync(self) -> None:
        """Make what was written durable. Raises OSError: then another ``sync`` is worth nothing, only a ``roll`` is."""
        if not self.waits:
            return
        try:
            os.fdatasync(self._file(self.active).fd)
        except OSError:
            self.suspect = True
            raise
        self._unsynced = 0

    def unsynced(self) -> list[Batch]:
        """What was written and is not known to be durable."""
        found = self.scan(self.active, self._from, self.size) if self.waits else ()
        return [one.batch for one in found if isinstance(one, Found)]

    def roll(self, head: Sequence[Batch], rewritten: Sequence[Batch] = ()) -> int:
        """Begin a new segment: its number, ``head``, and ``rewritten``. Returns where this begins.

        Raises OSError; the old one is then still active.
        """
        if not self.suspect:
            self.sync()
        number = self.numbers[-1] + 1 if self.numbers else 1
        # Under another name until its head is whole: a segment that lacks declarations could not be read without the index.
        fresh = self.path(number).with_suffix(_UNFINISHED)
        with naming(fresh):
            file = OpenFile(os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE))
            try:
                start = _write_all(file.fd, self._encoded([record.opening(number, time.time_ns()), *head]), 0)
                size = _write_all(file.fd, self._encoded(rewritten), start)
                os.fdatasync(file.fd)
                fresh.rename(self.path(number))
                sync_folder(self.folder)
            except OSError:
                for path in (fresh, self.path(number)):
                    path.unlink(missing_ok=True)
                raise
        if self.suspect:
            self._cut_refused()
        self._files[number] = file
        self.numbers.append(number)
        self.size, self._head, self._unsynced = size, start, 0
        self.suspect = False
        return start

    def _cut_refused(self) -> None:
        """What was refused may still be there, where the disk would not even cut it off: after a kill it would come after all."""
        with suppress(OSError):
            os.ftruncate(self._file(self.active).fd, self.size)

    def _encoded(self, batches: Sequence[Batch]) -> list[bytes]:
        return [part for batch in batches for part in record.encode(batch, self.salt)]

    def cut(self, offset: int) -> None:
        """End the active segment at ``offset``."""
        file = self._file(self.active)
        os.ftruncate(file.fd, offset)
        os.fdatasync(file.fd)
        self.size = offset

    def remove(self, number: int) -> None:
        """Unlink a segment that is not the active one."""
        self.path(number).unlink(missing_ok=True)
        self.numbers.remove(number)
        self._files.pop(number, None)
        sync_folder(self.folder)

    def _open(self, path: Path) -> int:
        keep_private(path)
        written = path == self.path(self.active)
        return os.open(path, (os.O_RDWR if written else os.O_RDONLY) | os.O_CLOEXEC)


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

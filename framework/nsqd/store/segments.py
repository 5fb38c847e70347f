"""Reads the log: numbered segment files, each record checked by its CRC. Nothing is written here.

It knows records, not what they mean; who may still need a segment is the store's business.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from framework.nsqd.store import record
from framework.nsqd.store.record import Batch

_WINDOW_BYTES = 4 << 20
_MOST_OPEN = 8
"""Files at a time, besides the one that is written to: connections leave some more to the storage (``framework.nsqd.listening``),
and a backlog may have thousands of segments."""
_DIGITS = 18
"""More make no number that the index can hold."""


def number_of(path: Path) -> int | None:
    """Which segment a file is by its name; None: it has no segment's."""
    name = path.stem
    return int(name) if name.isascii() and name.isdigit() and len(name) <= _DIGITS else None


def numbers_in(folder: Path) -> set[int]:
    """Of the segments that are there by their names."""
    return {number for path in folder.glob("*.log") if (number := number_of(path)) is not None}


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


class OpenFile:
    """A descriptor that is closed when nobody uses it any more: one thread may read where another wants the room."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


class Segments:
    """The segments of one folder. Any thread may read.

    ``roll`` and ``cut`` change what is said here and nothing on the disk: for a recovery that only looks.
    """

    def __init__(self, folder: Path, salt: int, names: Mapping[int, Path] | None = None) -> None:
        """``names``: number -> file, where the files' own names are not to be believed."""
        self.folder = folder
        self.salt = salt
        self._names = names or {}
        self.numbers = sorted(self._names or numbers_in(folder))
        """The segments that exist, oldest first; the last is written to."""
        self._files: dict[int, OpenFile] = {}
        """What was used last comes last."""
        self._opening = threading.Lock()
        self.suspect = False
        """A sync failed: the kernel may have dropped pages and forgotten it, so write to a new segment. What is beyond ``size``
        may be there again after a power cut, though it was cut off."""
        self.size = self.length(self.active) if self.numbers else 0
        """Bytes in the segment that is written to."""

    def path(self, number: int) -> Path:
        return self._names.get(number) or self.folder / f"{number:010}.log"

    @property
    def active(self) -> int:
        """The number of the segment that is written to; 0 where there is none."""
        return self.numbers[-1] if self.numbers else 0

    def unsynced(self) -> list[Batch]:
        """What was written and is not known to be durable."""
        return []

    def roll(self, head: Sequence[Batch], rewritten: Sequence[Batch] = ()) -> int:
        """Begin a new segment with ``head``, and ``rewritten``. Returns where this begins."""
        return self.size

    def cut(self, offset: int) -> None:
        """End the active segment at ``offset``."""
        self.size = offset

    def length(self, number: int) -> int:
        """How big a segment is."""
        file = self._files.get(number)
        return (os.stat(self.path(number)) if file is None else os.fstat(file.fd)).st_size

    def read(self, number: int, offset: int, length: int) -> bytes:
        """Bytes of a segment; fewer when it is shorter or gone."""
        try:
            file = self._file(number)
            return os.pread(file.fd, length, offset)
        except FileNotFoundError:
            return b""

    def scan(self, number: int, offset: int = 0, end: int | None = None) -> Iterator[Found | Broken]:
        """Every record of [offset, end), and what lies between them that is none. Memory: a few MiB, or the longest record."""
        window = _Window(self._file(number), self.length(number) if end is None else end)
        while offset < window.end:
            batch = window.record(offset, self.salt)
            if batch is not None:
                length = record.HEADER_BYTES + len(batch.payload)
                yield Found(offset, length, batch)
            else:
                following = window.find(offset + 1, self.salt)
                length = (window.end if following is None else following) - offset
                yield Broken(offset, length, following is None)
            offset += length

    def close(self) -> None:
        self._files.clear()

    def _file(self, number: int) -> OpenFile:
        """To be held for as long as its descriptor is used."""
        with self._opening:
            file = self._files.pop(number, None) or OpenFile(self._open(self.path(number)))
            self._files[number] = file
            self._keep_few()
        return file

    def _keep_few(self) -> None:
        """The one that is written to stays: of an error that its disk has had, only who had it open then is told."""
        for number in [one for one in list(self._files) if one != self.active][:-_MOST_OPEN]:
            self._files.pop(number, None)

    def _open(self, path: Path) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


class _Window:
    """The part of a file that is in memory while it is scanned."""

    def __init__(self, file: OpenFile, end: int) -> None:
        self._file = file
        self.end = end
        self._start = 0
        self._data = b""

    def _load(self, offset: int, length: int) -> None:
        """Have the bytes of [offset, offset + length) at hand, as far as the file has them, and more behind them."""
        if not self._start <= offset or offset + length > self._start + len(self._data):
            self._start = offset
            self._data = os.pread(self._file.fd, min(max(length, _WINDOW_BYTES), self.end - offset), offset)

    def record(self, offset: int, salt: int) -> Batch | None:
        """The record at ``offset``; None when there is no whole one."""
        batch = record.decode(self._data, offset - self._start, salt) if offset >= self._start else None
        if batch is not None:
            return batch
        self._load(offset, record.HEADER_BYTES)
        said = record.header(self._data, offset - self._start)
        if said is None or offset + record.HEADER_BYTES + said.length > self.end:
            return None
        self._load(offset, record.HEADER_BYTES + said.length)
        return record.decode(self._data, offset - self._start, salt)

    def find(self, offset: int, salt: int) -> int | None:
        """Where the next whole record at or behind ``offset`` begins; None where there is none.

        A record that was published as a message body is not one: its CRC lacks this folder's salt.
        """
        least = record.HEADER_BYTES
        while offset + least <= self.end:
            self._load(offset, least)
            at = self._data.find(record.MAGIC, offset - self._start)
            if at < 0:
                offset = max(offset + 1, self._start + len(self._data) - len(record.MAGIC) + 1)
            elif self.record(found := self._start + at, salt) is not None:
                return found
            else:
                offset = found + 1
        return None

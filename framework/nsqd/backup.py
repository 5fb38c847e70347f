"""``workers nsqd --backup FOLDER``: copies a data folder while an nsqd serves it, or while none does.

What was confirmed before the copy began is in it. The order makes it so:
1. Every segment is opened. One that is removed meanwhile can be read to its end all the same.
2. The index is copied by SQLite, as of one moment. It names no message that was not in the log by then.
3. Segments that were made meanwhile are opened. Where the index names one that is gone already, all begins anew.
4. The log is copied up to its end as of now, which is behind all that the index knows. A record that is being written is cut off.
5. ``meta.json`` comes last, synced: without it nobody takes the folder for a whole one.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from contextlib import ExitStack, closing, suppress
from pathlib import Path

from framework.errors import FrameworkError
from framework.nsqd.options import Options
from framework.nsqd.slices import Slices
from framework.nsqd.store import formats
from framework.nsqd.store.files import FILE_MODE, FOLDER_MODE, make_folder, naming, sync_folder, write_synced
from framework.nsqd.store.folder import FolderInUse, ReadOnlyFolder
from framework.nsqd.store.segments import Broken, Segments, number_of, numbers_in

_PIECE_BYTES = 1 << 20
_ATTEMPTS = 20


class NotBackedUp(FrameworkError):
    """There is no copy; the sentence says why."""


class Backup:
    """A daemon that copies once. ``run`` raises NotBackedUp, FolderUnusable."""

    def __init__(self, options: Options) -> None:
        assert options.backup is not None
        self._source = _resolved(options.data_path)
        self._target = options.backup
        self._slices = Slices()
        self._stopping = False

    def stop(self) -> None:
        """May be called from a signal handler."""
        self._stopping = True

    def run(self) -> None:
        meta = formats.read(self._source)
        formats.check_salt(self._source, meta.salt)
        made = self._make_target()
        try:
            with ExitStack() as held:
                size = self._copy(held.enter_context(closing(Pinned(self._source / "log", meta.salt))), held)
        except (OSError, sqlite3.Error, NotBackedUp) as error:
            self._clear(made)
            raise error if isinstance(error, NotBackedUp) else _refused(error) from error
        sys.stdout.write(f"copied {self._source} to {self._target}: {size:,} bytes of the log\n")

    def _make_target(self) -> bool:
        """Whether the folder was not there before."""
        try:
            there = self._target.exists()
            if there and (not self._target.is_dir() or any(self._target.iterdir())):
                raise NotBackedUp(f"no backup was made: {self._target} is not an empty folder; name one that is not there yet")
            if self._source in (real := _resolved(self._target), *real.parents):
                raise NotBackedUp(f"no backup was made: {self._target} is in the data folder itself; name one outside of it")
            self._target.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        except OSError as error:
            raise _refused(error) from error
        return not there

    def _clear(self, made: bool) -> None:
        for path in self._target.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if made:
            self._target.rmdir()

    def _copy(self, pinned: Pinned, held: ExitStack) -> int:
        """Returns the bytes of the log."""
        alone = False
        with suppress(FolderInUse):  # else it is served, which is what the order of steps is for
            held.callback(ReadOnlyFolder(self._source).close)
            alone = True
        for _ in range(_ATTEMPTS):
            pinned.pin()
            named, end = self._copy_index(alone)
            pinned.pin()
            if named <= set(pinned.numbers):
                break
        else:
            raise NotBackedUp("no backup was made: segments of the log came and went too fast; try again when less is published")
        make_folder(self._target / "log")
        size = sum(self._copy_segment(pinned, number) for number in pinned.numbers)
        self._cut_unfinished(pinned, end)
        self._copy_rest()
        return size

    def _copy_index(self, alone: bool) -> tuple[set[int], tuple[int, int]]:
        """As of one moment, whoever writes to it; nobody if ``alone``. Returns the segments that it names, and up to where it
        knows the log."""
        source, target = self._source / "index.db", self._target / "index.db"
        target.unlink(missing_ok=True)
        if not source.exists():
            return set(), (0, 0)
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
        # SQLite would make files beside it otherwise, which a disk that has become read-only does not take.
        unchanged = alone and not source.with_name("index.db-wal").exists()
        reading = sqlite3.connect(f"{source.as_uri()}?mode=ro{'&immutable=1' if unchanged else ''}", uri=True)
        with closing(reading), closing(sqlite3.connect(target)) as writing:
            reading.backup(writing)
            rows = writing.execute("select distinct seg from batch where seg > 0 and dead = 0").fetchall()
            position = writing.execute("select seg, off from pos").fetchone()
        with open(target, "rb") as file:
            os.fsync(file.fileno())
        return {number for (number,) in rows}, position or (0, 0)

    def _copy_rest(self) -> None:
        for path in [self._source / "clock", *(self._source / "bad").glob("*")]:
            if path.exists():
                copy = self._target / path.relative_to(self._source)
                make_folder(copy.parent)
                write_synced(copy, path.read_bytes())
        for folder in (self._target / "log", self._target):
            sync_folder(folder)
        write_synced(self._target / "meta.json", (self._source / "meta.json").read_bytes())
        sync_folder(self._target)

    def _copy_segment(self, source: Segments, number: int) -> int:
        """As it is by now, with what is damaged. Returns its size."""
        copy, size = self._target / "log" / f"{number:010}.log", source.length(number)
        with naming(copy):
            fd = os.open(copy, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
            try:
                for offset in range(0, size, _PIECE_BYTES):
                    self._slices.breathe()
                    if self._stopping:
                        raise NotBackedUp("no backup was made: it was stopped")
                    os.pwrite(fd, source.read(number, offset, min(_PIECE_BYTES, size - offset)), offset)
                os.fsync(fd)
            finally:
                os.close(fd)
        return size

    def _cut_unfinished(self, source: Segments, indexed: tuple[int, int]) -> None:
        """A record that was being written, and so was not confirmed when the copy began."""
        copied = Segments(self._target / "log", source.salt)
        try:
            start = indexed[1] if indexed[0] == copied.active else 0
            ends = [item.offset for item in copied.scan(copied.active, start) if isinstance(item, Broken) and item.torn]
        finally:
            copied.close()
        for end in ends:
            with open(copied.path(copied.active), "r+b") as file:
                file.truncate(end)
                os.fsync(file.fileno())


class Pinned(Segments):
    """The segments of a log that may be served: those that were there are read to their end though they are removed."""

    def __init__(self, log: Path, salt: int) -> None:
        super().__init__(log, salt)
        self.numbers = []

    def pin(self) -> None:
        """Have those that are there by now too. Raises NotBackedUp where one would be left out."""
        for path in self.folder.glob("*.log"):
            if number_of(path) is None:
                words = f"{path.name} has no segment's name; start an nsqd on the folder, which gives it its own or sets it aside"
                raise NotBackedUp(f"no backup was made: {words}")
        for number in sorted(numbers_in(self.folder).difference(self.numbers)):
            with suppress(FileNotFoundError):
                self._file(number)
                self.numbers.append(number)
        self.numbers.sort()

    def _keep_few(self) -> None:
        """All are kept open."""


def _resolved(path: Path) -> Path:
    """``Path.resolve`` raises RuntimeError where links go round."""
    return Path(os.path.realpath(path))


def _refused(error: OSError | sqlite3.Error) -> NotBackedUp:
    if isinstance(error, OSError):
        words = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
        return NotBackedUp(f"no backup was made: {words}; what was copied is removed")
    return NotBackedUp(f"no backup was made: the index could not be copied: {error}; what was copied is removed")

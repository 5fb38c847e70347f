"""Faults for a store in this process: a full disk, a transaction that fails, a kill between any two writes."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

from framework.nsqd.store.index import Index
from framework.testing.servers import ServerMissing
from tests.disks import tmpfs

_SIZE = 16 << 20


class Disk:
    """A folder whose disk can be full: a file system of its own where that may be mounted, else writes that are refused."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = ExitStack()
        self._refusing: ExitStack | None = None
        try:
            self._stack.enter_context(tmpfs(folder, _SIZE))
            self._mounted = True
        except ServerMissing:
            self._mounted = False

    def fill(self) -> None:
        """Not one more byte."""
        if not self._mounted:
            self._refusing = ExitStack()
            self._refusing.enter_context(refused_writes())
            return
        with (self.folder / "other").open("ab", buffering=0) as file:
            for size in (1 << 20, 4096, 1):
                with suppress(OSError):
                    while file.write(bytes(size)) == size:
                        pass

    def empty(self) -> None:
        """There is room again."""
        if self._refusing is not None:
            self._refusing.close()
            self._refusing = None
        (self.folder / "other").unlink(missing_ok=True)

    def close(self) -> None:
        self.empty()
        self._stack.close()


@contextmanager
def refused_writes() -> Iterator[None]:
    """No file grows, as on a full disk: the log's calls say ENOSPC after a part, the index's transactions fail at their end."""

    def refused(*arguments: Any, **options: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    def part(fd: int, buffers: Sequence[bytes], offset: int) -> int:
        os.pwrite(fd, buffers[0][:10], offset)
        return refused()  # type: ignore[no-any-return]

    with (
        failed_transactions(),
        mock.patch.object(os, "pwritev", part),
        mock.patch.object(os, "posix_fallocate", refused),
    ):
        yield


@contextmanager
def failed_transactions() -> Iterator[None]:
    """Each does all that it has to do, and then cannot commit."""
    real = Index.transaction

    @contextmanager
    def failing(self: Index, **options: Any) -> Iterator[None]:
        with real(self, **options):
            yield
            raise sqlite3.OperationalError("database or disk is full")

    with mock.patch.object(Index, "transaction", failing):
        yield


class Kills:
    """Copies of a folder as a kill -9 would leave it before, and in the middle of, each write to it."""

    def __init__(self, folder: Path, copies: Path) -> None:
        self._folder = folder
        self._root = copies
        self.copies: list[Path] = []
        self._last: list[tuple[str, int, int]] = []

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """While what is to be killed runs."""
        with ExitStack() as patches:
            for name in ("pwrite", "ftruncate", "truncate", "fdatasync", "fsync", "open", "posix_fallocate"):
                patches.enter_context(self._before(os, name))
            for name in ("unlink", "rename", "replace"):
                patches.enter_context(self._before(Path, name))
            patches.enter_context(mock.patch.object(os, "pwritev", self._torn(os.pwritev)))
            patches.enter_context(mock.patch.object(Index, "transaction", self._around(Index.transaction)))
            yield
        self._copy()

    def _copy(self) -> None:
        now = [(str(path), (is_ := path.stat()).st_size, is_.st_mtime_ns) for path in sorted(self._folder.rglob("*"))]
        if now != self._last:  # else a kill leaves what it left before
            self._last = now
            copy = self._root / str(len(self.copies))
            shutil.copytree(self._folder, copy)
            self.copies.append(copy)

    def _before(self, owner: Any, name: str) -> AbstractContextManager[Any]:
        real = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            if name != "open" or arguments[1] & os.O_CREAT:
                self._copy()
            return real(*arguments, **options)

        return mock.patch.object(owner, name, call)

    def _torn(self, real: Callable[..., int]) -> Callable[..., int]:
        def call(fd: int, buffers: Sequence[bytes], offset: int) -> int:
            self._copy()
            data = b"".join(buffers)
            _PWRITE(fd, data[: len(data) // 2], offset)
            self._copy()
            return real(fd, buffers, offset)

        return call

    def _around(self, real: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def transaction(index: Index, **options: Any) -> Iterator[None]:
            self._copy()
            with real(index, **options):
                yield
            self._copy()

        return transaction


_PWRITE = os.pwrite

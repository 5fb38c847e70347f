"""Takes entries from the hub, and has a native thread write them. What cannot be written is lost, and the log says so once."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections import deque
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

from gevent import monkey

from framework.history.rows import Item, Run
from framework.history.store import Foreign, Store
from framework.observe.logging import scrub

log = logging.getLogger(__name__)

PERIOD = 0.25
"""Seconds between two writes."""
SIZE = 64 << 20
"""Bytes of memory that what waits may take, about; when more comes, the oldest of it goes."""
TOGETHER = 20_000
"""Entries and runs of one write, at most."""
_AN_ENTRY = 600
"""Bytes of memory that one takes, and a run beside its ids."""
_CORRUPT = ("SQLITE_CORRUPT", "SQLITE_NOTADB")
_LOOK = 0.01

# Patched, they would be a greenlet's.
_allocate_lock = monkey.get_original("_thread", "allocate_lock")
_start_new_thread = monkey.get_original("_thread", "start_new_thread")
_sleep = monkey.get_original("time", "sleep")


class Writer:
    """That of one process. ``put`` is called on the hub, ``begin`` before it."""

    def __init__(self, path: Path, *, age: float, size: int) -> None:
        self._store = Store(path, age=age, size=size)
        self._path = path
        self._pid = 0
        self._failing = ""
        self._begin()

    def _begin(self) -> None:
        self.items: deque[Item] = deque()
        # The hub writes the first two, the thread the others.
        self._put = self._dropped = 0
        self._taken = self._unwritten = self._said = 0
        self._wake = _allocate_lock()
        self._wake.acquire()
        self.asleep = False
        """Whether the thread has to be woken by who puts something."""

    def begin(self) -> None:
        """Start the thread; again in a forked child, where it has begun nothing changes."""
        if self._pid != os.getpid():
            self._begin()
            self._pid = os.getpid()
            _start_new_thread(self._run, ())

    def put(self, item: Item) -> None:
        self.items.append(item)
        self._put += _size(item)
        while self._put - self._taken > SIZE and (oldest := self._oldest()) is not None:
            self._put -= _size(oldest)
            self._dropped += _messages(oldest)
        if self.asleep:
            self.ring()

    def flush(self, seconds: float) -> bool:
        """Wait until all that was put has been written, or lost; False: it took longer. On a hub others go on."""
        until = monotonic() + seconds
        while self._pid == os.getpid() and (self.items or not self.asleep):
            if monotonic() > until:
                return False
            sleep(_LOOK)
        return True

    def ring(self) -> None:
        """Wake the thread, which has gone to sleep."""
        self.asleep = False
        with suppress(RuntimeError):  # rung already
            self._wake.release()

    # -- in the thread

    def _run(self) -> None:
        while True:
            self.asleep = True
            if not self.items:
                self._wake.acquire()
            self.asleep = False
            _sleep(PERIOD)  # more come meanwhile, which cost no write of their own
            while items := self._take():
                self._write(items)

    def _take(self) -> list[Item]:
        items: list[Item] = []
        while len(items) < TOGETHER and (oldest := self._oldest()) is not None:
            items.append(oldest)
            self._taken += _size(oldest)
        return items

    def _oldest(self) -> Item | None:
        """Taken out, by the thread or by who puts too much."""
        try:
            return self.items.popleft()
        except IndexError:
            return None

    def _write(self, items: list[Item]) -> None:
        dropped = self._dropped
        try:
            try:
                self._store.write(items)
            except sqlite3.DatabaseError as error:
                if getattr(error, "sqlite_errorname", "") not in _CORRUPT:
                    raise
                moved_to = self._store.set_aside()
                if moved_to is not None:
                    log.warning(
                        "the history %s is corrupt (%s): it is set aside as %s, and begun anew", self._path, error, moved_to.name
                    )
                self._store.write(items)
        except Exception as error:
            self._store.close()
            self._unwritten += sum(map(_messages, items))
            self._say(scrub(str(error)) if isinstance(error, Foreign) else f"{type(error).__name__}: {error}")
        else:
            self._say("" if self._dropped == dropped else "it takes less than comes")

    def _say(self, failing: str) -> None:
        """Once when it begins to fail, once when that is over."""
        if failing and not self._failing:
            log.warning(
                "the history %s cannot be written (%s); what ends meanwhile is not kept, and the workers go on",
                self._path, failing,
            )  # fmt: skip
        if self._failing and not failing:
            missing, self._said = self._dropped + self._unwritten - self._said, self._dropped + self._unwritten
            log.info("the history %s is written again; %d messages that ended meanwhile are not in it", self._path, missing)
        self._failing = failing


def _messages(item: Item) -> int:
    return item.many if isinstance(item, Run) else 1


def _size(item: Item) -> int:
    return len(item.ids) + _AN_ENTRY if isinstance(item, Run) else _AN_ENTRY

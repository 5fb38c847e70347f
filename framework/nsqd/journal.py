"""Group commit: all that is published while one write is under way becomes the next, with a single sync.

The writing is done by a native thread, so that no sync ever holds up the hub.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gevent import Greenlet
from gevent.event import Event

from framework.errors import FrameworkError
from framework.nsqd.aside import Aside
from framework.nsqd.store import Batch, Declare, Entry, Store


class NotStored(FrameworkError):
    """The storage refused the group; nothing of it was kept."""


class Group:
    """What one write holds, and how it ended."""

    def __init__(self) -> None:
        self.entries: list[Entry | Declare] = []
        self.done = Event()
        self.error: Exception | None = None

    def wait(self) -> None:
        """Return when the group is on the disk. Raises NotStored."""
        self.done.wait()
        if self.error is not None:
            raise NotStored(str(self.error)) from self.error


class Journal:
    """Writes groups to the store, one after another."""

    def __init__(self, store: Store, committed: Callable[[list[Batch]], None], failed: Callable[[Exception], None]) -> None:
        """``committed`` is called on the hub with each group's records, before its publishers go on."""
        self._store = store
        self._committed = committed
        self._failed = failed
        self._group = Group()
        self._wanted = Event()
        self._thread = Aside()
        self._stopping = False
        self._writer = Greenlet.spawn(self._run)

    def add(self, entries: Sequence[Entry | Declare]) -> Group:
        """Put entries into the group that is written next."""
        group = self._group
        group.entries.extend(entries)
        self._wanted.set()
        return group

    def stop(self) -> None:
        """Write what is there, then end."""
        self._stopping = True
        self._wanted.set()
        self._writer.join()
        self._thread.end()

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            stored = self._write() if self._group.entries else True
            if self._stopping:
                if not stored or not self._group.entries:
                    return
                self._wanted.set()

    def _write(self) -> bool:
        group, self._group = self._group, Group()
        try:
            batches = self._thread.do(self._store.append, group.entries)
        except Exception as error:
            group.error = error
            self._failed(error)
            # Topics and channels exist for their clients already, so the log must still learn of them.
            self._group.entries[:0] = [entry for entry in group.entries if isinstance(entry, Declare)]
        else:
            self._committed(batches)
        group.done.set()
        return group.error is None

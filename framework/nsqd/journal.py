"""Group commit: all that is published while one write is under way becomes the next, with a single sync.

The writing is done by a native thread, so that no sync ever holds up the hub.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from gevent.event import Event

from framework.errors import FrameworkError
from framework.nsqd.diskthread import DiskThread
from framework.nsqd.health import Health
from framework.nsqd.store import Batch, Declaration, Declare, Entry, Store

NOTHING_PUBLISHED = "DISK: nothing was published"
NOT_DECLARED = "DISK: topics and channels are not declared"
WRITER_ENDED = "DISK: the writer failed"
RETRY_SECONDS = 1.0
"""How often a declaration is tried again that could not be written, and whether messages can be after the disk refused some."""


class NotStored(FrameworkError):
    """The storage refused the group; nothing of it was kept."""


class QuotaReached(NotStored):
    """The topic has as many unfinished messages as it may have."""


class Declaring(Protocol):
    """A topic, as the journal sees it."""

    declared: Group | None
    """The commit that makes its name, channels and pauses durable."""

    @property
    def id(self) -> int: ...

    def declaration(self) -> Declaration:
        """What the log shall know of it, as of now."""


class Declares(NamedTuple):
    """An event: the topic was made or dropped, its channels or pauses changed. The log shall know."""

    topic: Declaring


class Group:
    """What becomes durable together, and how that ended."""

    def __init__(self) -> None:
        self.done = Event()
        self.error: Exception | None = None

    def wait(self) -> None:
        """Return when the group is on the disk. Raises NotStored."""
        self.done.wait()
        if self.error is not None:
            raise NotStored(str(self.error)) from self.error

    def end(self, error: Exception | None) -> None:
        self.error = error
        self.done.set()


class _Next:
    """What the next write will hold. A topic is declared once in it, however often that was asked for."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.published = Group()
        self.topics: dict[int, Declaring] = {}
        self.declared: Group | None = None
        """Made where a topic asks for it: most groups hold messages alone."""

    def __bool__(self) -> bool:
        return bool(self.entries or self.topics)

    def declare(self, topic: Declaring) -> Group:
        """Have it hold the topic; returns what ends when that is durable."""
        self.topics[topic.id] = topic
        if self.declared is None:
            self.declared = Group()
        return self.declared

    def abandon(self) -> None:
        """Wake all that still wait for it: the write broke off."""
        for group in (self.published, self.declared):
            if group is not None and not group.done.is_set():
                group.end(NotStored("the write was not finished"))


class Journal:
    """Writes groups to the store, one after another."""

    def __init__(self, store: Store, committed: Callable[[list[Batch]], None], health: Health) -> None:
        """``committed`` is called on the hub with each group's records, before its publishers go on."""
        self._store = store
        self._committed = committed
        self._health = health
        self._next = _Next()
        self._undeclared: dict[int, Declaring] = {}
        """Topics and channels exist for their clients already, so the log must still learn of them."""
        self._refused = 0
        """Bytes of what was published last, if the disk refused it. Who goes by /ping publishes nothing more, so we look."""
        self._wanted = Event()
        self._thread = DiskThread()
        self._stopping = False
        self._writer = health.supervise(WRITER_ENDED, self._run)

    def add(self, entries: Sequence[Entry]) -> Group:
        """Put messages into the group that is written next."""
        self._next.entries.extend(entries)
        self._wanted.set()
        return self._next.published

    def take(self, event: Declares) -> None:
        """Have the log know the topic as it is when the next group is written."""
        event.topic.declared = self._next.declare(event.topic)
        self._wanted.set()

    @property
    def busy(self) -> float:
        """For how many seconds the write that is under way has been so."""
        return self._thread.busy

    def stop(self) -> None:
        """Write what is there, then end."""
        self._stopping = True
        self._wanted.set()
        self._writer.join()
        self._thread.end()

    def _run(self) -> None:
        while True:
            self._wanted.wait(RETRY_SECONDS if self._undeclared or self._refused else None)
            self._wanted.clear()
            if self._next or self._undeclared:
                self._write()
            if self._stopping and not self._next:
                return
            if self._refused and not self._next:
                self._look()

    def _write(self) -> None:
        """Whatever happens here, those who wait for the group are told, and the next one is written."""
        group, self._next = self._next, _Next()
        try:
            self._undeclared |= group.topics
            declares = [Declare(topic.id, topic.declaration()) for topic in self._undeclared.values()]
            if not group.entries or not self._publish(group, declares):
                self._declare(group, declares)
        finally:
            group.abandon()
        self._health.works(WRITER_ENDED)

    def _publish(self, group: _Next, declares: list[Declare]) -> bool:
        """Declarations first: a topic's messages must not come before it in the log, nor be written where it was not."""
        error = self._append([*declares, *group.entries], NOTHING_PUBLISHED)
        self._refused = sum(len(one.payload) for one in group.entries) if isinstance(error, OSError) else 0
        group.published.end(error)
        if error is None:
            self._declared(group)
        return error is None

    def _look(self) -> None:
        """Whether the disk takes messages again."""
        try:
            self._thread.do(self._store.try_to_write, self._refused)
        except OSError as error:
            self._health.fails(NOTHING_PUBLISHED, error)
        else:
            self._refused = 0
            self._health.works(NOTHING_PUBLISHED)

    def _declare(self, group: _Next, declares: list[Declare]) -> None:
        """Alone, where there is no room for messages."""
        error = self._append(declares, NOT_DECLARED) if declares else None
        if error is None:
            self._declared(group)
        elif group.declared is not None:
            group.declared.end(error)

    def _declared(self, group: _Next) -> None:
        self._undeclared = {}
        self._health.works(NOT_DECLARED)
        if group.declared is not None:
            group.declared.end(None)

    def _append(self, entries: Sequence[Entry | Declare], otherwise: str) -> Exception | None:
        """Why it failed, if it did."""
        try:
            self._committed(self._thread.do(self._store.append, entries))
        except Exception as error:
            self._health.fails(otherwise, error)
            return error
        self._health.works(otherwise)
        return None

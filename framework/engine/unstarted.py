"""Deliveries that ended without a start: the messages are given back, and what they cost in attempts is remembered.

The broker counts deliveries, and cannot know which of them a handler has seen. What this worker has given back, or lost, while
it only waited, this worker does not count against its message; nor what a handler put off while nothing could be stored. Other
workers would: a message whose last delivery that was, as the broker counts, is stored with its count in place of being given
back. Nothing here decides what is given back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable
from typing import Protocol

import gevent

from framework.errors import AlreadySettled
from framework.message import Message
from framework.transports.contract import HandsOn

MOST = 10_000
"""Messages that are remembered, the latest ones."""
PUT_OFF = 1.0
"""Seconds until what is given back is delivered again: at once, it could come back before the broker has read that no more is
wanted here, with one attempt more."""

AT_ONCE = 20
"""Messages that are being stored at a time, each by a greenlet."""

_Key = tuple[str, str, bytes]


class Keeps(Protocol):
    """Where messages wait without using up an attempt; ``middleware.later.LaterTopic`` is one."""

    def must_keep(self, message: Message, deliveries: int) -> bool: ...

    def keep(self, message: Message, seconds: float) -> bool:
        """Blocks until it is stored there; False: it cannot be."""


class Unstarted:
    """Of one handler. True when it remembers any.

    ``later``: None where no message waits elsewhere. ``kept(message)`` settles one that is stored there.
    """

    def __init__(self, later: Keeps | None = None, kept: Callable[[Message], None] | None = None) -> None:
        self.given_back = 0
        """Messages; they are requeued, and yet say nothing of the handlers' pace."""
        self._counts: dict[_Key, int] = {}
        self._later = later
        self._kept = kept
        self._storing: set[Message] = set()
        self._to_store: deque[tuple[Message, float]] = deque()
        self._busy = 0

    def __bool__(self) -> bool:
        return bool(self._counts)

    def give_back(self, messages: Iterable[Message], delay: float) -> list[Message]:
        """Have them delivered again after ``delay`` seconds, here or elsewhere. Some are in flight until they are stored.

        Returns those that nobody else takes, of a broker that delivers nothing twice: they are still to be handled here."""
        left = []
        for message in messages:
            if isinstance(message.connection, HandsOn):
                if not self._hand_on(message.connection, message):
                    left.append(message)
            elif self.must_keep(message) and message not in self._storing:
                self._store(message, delay)
            else:
                self._requeue(message, delay)
        return left

    def _hand_on(self, connection: HandsOn, message: Message) -> bool:
        try:
            handed = connection.hand_on(message)
        except AlreadySettled:
            return True
        self.given_back += handed
        return handed

    def must_keep(self, message: Message) -> bool:
        """Whether it would be given up elsewhere, if it were requeued. May be asked from another thread."""
        deliveries = message.attempts + self._counts.get(_key(message), 0)
        return self._later is not None and self._later.must_keep(message, deliveries)

    def forget(self) -> None:
        """In a forked child: the messages are the parent's."""
        self._to_store.clear()

    def lost(self, messages: Iterable[Message]) -> None:
        """Their leases are gone: the broker delivers them again without being asked."""
        for message in messages:
            self.note(message)

    def correct(self, batch: Iterable[Message]) -> None:
        """Take from ``attempts`` the deliveries that are known to have ended without a start."""
        counts = self._counts
        for message in batch:
            if message.attempts > 1:
                message.attempts = max(1, message.attempts - counts.get(_key(message), 0))

    def _requeue(self, message: Message, delay: float) -> None:
        self.note(message)
        try:
            message.connection.requeue(message, delay)
            self.given_back += 1
        except AlreadySettled:
            pass

    def _store(self, message: Message, delay: float) -> None:
        self._storing.add(message)
        self._to_store.append((message, delay))
        if self._busy < AT_ONCE:
            self._busy += 1
            gevent.spawn(self._store_all)

    def _store_all(self) -> None:
        try:
            while self._to_store:
                self._store_one(*self._to_store.popleft())
        finally:
            self._busy -= 1

    def _store_one(self, message: Message, delay: float) -> None:
        """One whose lease ends meanwhile is delivered again and stored: twice, and not never."""
        stored = False
        try:
            stored = not message.settled and self._later is not None and self._later.keep(message, delay)
        finally:
            self._storing.discard(message)
            if not stored:
                self._requeue(message, delay)
        if stored and self._kept is not None:
            self.given_back += not message.settled
            self._kept(message)

    def note(self, message: Message) -> None:
        """This delivery uses up no attempt."""
        key = _key(message)
        self._counts[key] = self._counts.pop(key, 0) + 1  # at the end: the oldest are forgotten first
        if len(self._counts) > MOST:
            del self._counts[next(iter(self._counts))]


class Kept:
    """What is ``running``, and what ``unstarted`` must store, for which the hub has to turn."""

    def __init__(self, running: Container[Message], unstarted: Unstarted) -> None:
        self._running = running
        self._unstarted = unstarted

    def __contains__(self, message: object) -> bool:
        return message in self._running or (isinstance(message, Message) and self._unstarted.must_keep(message))


def _key(message: Message) -> _Key:
    return message.node, message.topic, message.id

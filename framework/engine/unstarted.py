"""Deliveries that ended without a start: the messages are given back, and what they cost in attempts is remembered.

The broker counts deliveries, and cannot know which of them a handler has seen. What this worker has given back, or lost, while
it only waited, this worker does not count against its message. Nothing here decides what is given back.
"""

from __future__ import annotations

from collections.abc import Iterable

from framework.errors import AlreadySettled
from framework.message import Message

MOST = 10_000
"""Messages that are remembered, the latest ones."""
PUT_OFF = 1.0
"""Seconds until what is given back is delivered again: at once, it could come back before the broker has read that no more is
wanted here, with one attempt more."""

_Key = tuple[str, str, bytes]


class Unstarted:
    """Of one handler. True when it remembers any."""

    def __init__(self) -> None:
        self.given_back = 0
        """Messages; they are requeued, and yet say nothing of the handlers' pace."""
        self._counts: dict[_Key, int] = {}

    def __bool__(self) -> bool:
        return bool(self._counts)

    def give_back(self, messages: Iterable[Message], delay: float) -> None:
        """Have them delivered again after ``delay`` seconds, here or elsewhere."""
        for message in messages:
            self._note(message)
            try:
                message.connection.requeue(message, delay)
                self.given_back += 1
            except AlreadySettled:
                pass

    def lost(self, messages: Iterable[Message]) -> None:
        """Their leases are gone: the broker delivers them again without being asked."""
        for message in messages:
            self._note(message)

    def correct(self, batch: Iterable[Message]) -> None:
        """Take from ``attempts`` the deliveries that are known to have ended without a start."""
        counts = self._counts
        for message in batch:
            if message.attempts > 1:
                message.attempts = max(1, message.attempts - counts.get(_key(message), 0))

    def _note(self, message: Message) -> None:
        key = _key(message)
        self._counts[key] = self._counts.pop(key, 0) + 1  # at the end: the oldest are forgotten first
        if len(self._counts) > MOST:
            del self._counts[next(iter(self._counts))]


def _key(message: Message) -> _Key:
    return message.node, message.topic, message.id

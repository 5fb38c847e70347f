"""Whether a stream still has under its numbers what it has delivered by them: a server may come back with an older store.

As from a backup, or after a power cut that came before ``sync_interval``. It then gives the same numbers to other messages, of a
consumer that was created when it always was, and what is said of an old message would settle a new one.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nlargest
from typing import NamedTuple

from framework.errors import BrokerError, TryLater
from framework.transports.nats.streams import Api

NEWEST = 4
"""Messages of a kind that are looked for first, the newest before the others: one that is there answers for all before it."""
MOST = 1000
"""Messages of the stream that are looked at then. Where there are more, nothing is known for certain, and nothing is settled."""
_ALIKE = 1_000_000
"""Nanoseconds: what a server says of a message's time is rounded here."""


class Mark(NamedTuple):
    """A message that was delivered: its number in the stream, and when it was stored (ns)."""

    sequence: int
    timestamp: int


class History:
    """What was delivered before each time that the consumer was out of sight."""

    def __init__(self) -> None:
        self._marks: set[Mark] = set()
        self._newest: set[Mark] = set()

    def note(self, *delivered: Iterable[Mark]) -> None:
        """The consumer goes out of sight. Each of ``delivered`` is a kind that the stream may have dropped together."""
        for some in delivered:
            marks = list(some)
            self._marks.update(marks)
            self._newest.update(nlargest(NEWEST, marks))

    def forget(self) -> None:
        """The stream has none of these numbers for another message."""
        self._marks.clear()
        self._newest.clear()

    def contradicts(self, api: Api, stream: str) -> bool:
        """Whether the store is older than what it has delivered. Raises FrameworkError where nobody knows now."""
        try:
            return _is_older(api, stream, sorted(self._newest, reverse=True), sorted(self._marks))
        except TryLater:
            raise
        except BrokerError:  # our user may not look
            return False


def _is_older(api: Api, stream: str, newest: list[Mark], marks: list[Mark]) -> bool:
    after = 0
    for sequence, timestamp in newest:
        stored = api.stored(stream, sequence)
        if stored is not None:
            if _differs(stored, timestamp):
                return True
            after = sequence
            break
        if sequence == newest[0].sequence and sequence > api.state(stream).last_seq:
            return True
    return _is_another_there(api, stream, [mark for mark in marks if mark.sequence > after])


def _is_another_there(api: Api, stream: str, marks: list[Mark]) -> bool:
    """Whether a number of ``marks`` is another message's, from the first on: what the stream has dropped is passed over."""
    at = looks = 0
    for sequence, timestamp in marks:
        if sequence < at:
            continue
        found = api.stored_from(stream, sequence)
        if found is None:
            return False
        at, stored = found
        if at == sequence and _differs(stored, timestamp):
            return True
        looks += 1
        if looks >= MOST:
            return True
    return False


def _differs(stored: int, timestamp: int) -> bool:
    return abs(stored - timestamp) > _ALIKE

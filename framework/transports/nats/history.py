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

MOST = 4
"""Messages that are looked for, the newest first, where the stream has dropped some: nothing can be settled there."""
_ALIKE = 1_000_000
"""Nanoseconds: what a server says of a message's time is rounded here."""


class Mark(NamedTuple):
    """A message that was delivered: its number in the stream, and when it was stored (ns)."""

    sequence: int
    timestamp: int


class History:
    """What was delivered before each time that the consumer was out of sight. A store that has the newest of these has all."""

    def __init__(self) -> None:
        self._times: list[list[Mark]] = []

    def note(self, *delivered: Iterable[Mark]) -> None:
        """The consumer goes out of sight. Each of ``delivered`` is a kind that the stream may have dropped together."""
        for some in delivered:
            newest = nlargest(MOST, some)
            if newest and newest not in self._times:
                self._times.append(newest)

    def forget(self) -> None:
        """The stream has them all."""
        self._times.clear()

    def contradicts(self, api: Api, stream: str) -> bool:
        """Whether the store is older than what it has delivered. Raises FrameworkError where nobody knows now."""
        try:
            return any(_is_older(api, stream, newest) for newest in list(self._times))
        except TryLater:
            raise
        except BrokerError:  # our user may not look
            return False


def _is_older(api: Api, stream: str, newest: list[Mark]) -> bool:
    for sequence, timestamp in newest:
        stored = api.stored(stream, sequence)
        if stored is not None:
            return abs(stored - timestamp) > _ALIKE
        if sequence == newest[0].sequence and sequence > api.state(stream).last_seq:
            return True
    return False

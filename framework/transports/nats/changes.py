"""What becomes of a consumer while a connection uses it: somebody may delete it, or change what its handler relies on.

JetStream tells nobody. So it is looked at again now and then, and at once where something hints at a change.
"""

from __future__ import annotations

import random
from time import monotonic
from typing import Protocol

import gevent

from framework.errors import BrokerUnreachable, FrameworkError
from framework.transports.nats import headers, judgement, wire
from framework.transports.nats.carrier import Asking
from framework.transports.nats.place import Place
from framework.transports.nats.streams import Api, Consumer

REGULARLY = 30.0
"""Seconds between two looks."""
AGAIN = 1.0
"""Seconds after a look that got no answer."""


class Affected(Protocol):
    """Who uses the consumer."""

    def go_by(self, found: Consumer) -> None:
        """It serves, and has these limits."""

    def let_through(self, said: list[tuple[wire.Msg, float]]) -> None:
        """What came then, which is whole: its publisher has written what looks otherwise."""

    def lost(self, error: Exception) -> None:
        """It is gone, or serves no more."""


class Changes:
    """For one connection, which calls ``turn`` again and again. Times are monotonic, in seconds."""

    def __init__(self, session: Asking, place: Place, affected: Affected) -> None:
        self._api = Api(session)
        self._place = place
        self._affected = affected
        self._due = monotonic() + REGULARLY * random.uniform(0.5, 1.0)  # handlers that start together do not ask together
        self._looking = False
        self._doubtful: list[tuple[wire.Msg, float]] = []
        """What has come, and when: nobody has it before a look that began later has shown that bodies are not left out."""

    @property
    def in_doubt(self) -> int:
        return len(self._doubtful)

    def suspect(self) -> None:
        """Something hints at a change."""
        self._due = 0.0

    def doubt(self, said: wire.Msg, at: float) -> None:
        self._doubtful.append((said, at))
        self.suspect()

    def turn(self, now: float) -> None:
        if now >= self._due and not self._looking:
            self._looking, self._due = True, now + REGULARLY
            gevent.spawn(self._look)

    def _look(self) -> None:
        count = len(self._doubtful)
        try:
            found = self._api.consumer(self._place.stream, self._place.consumer)
        except FrameworkError:  # the session's own pulse tells whether anybody is there
            self._due = min(self._due, monotonic() + AGAIN)
        else:
            doubtful, self._doubtful = self._doubtful[:count], self._doubtful[count:]
            self._judge(found, doubtful)
        finally:
            self._looking = False

    def _judge(self, found: Consumer | None, doubtful: list[tuple[wire.Msg, float]]) -> None:
        """One that is gone answers nothing on 2.9; one that is there has lost its pulls, as with its leader."""
        here = self._place
        if found is None:
            self._affected.lost(BrokerUnreachable(f"consumer {here.consumer} of stream {here.stream} on {here.node} is gone"))
        elif words := judgement.refusal(found, here.topic):
            self._affected.lost(BrokerUnreachable(words))
        else:
            self._affected.go_by(found)
            self._affected.let_through(doubtful)


def lacks_its_body(said: wire.Msg) -> bool:
    """Of one that is empty: as with ``headers_only``, or a publisher has written a header of that name."""
    return bool(said.headers) and headers.find(said.headers, b"Nats-Msg-Size") not in (b"", b"0")

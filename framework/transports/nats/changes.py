"""What becomes of a consumer while a connection uses it: somebody may delete it, or change what its handler relies on.

JetStream tells nobody. So it is looked at again now and then, and at once where something hints at a change.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import timedelta
from time import monotonic
from typing import Protocol

import gevent

from framework.errors import BrokerUnreachable, FrameworkError
from framework.observe import hublog
from framework.transports.nats import headers, judgement, wire
from framework.transports.nats.carrier import Carrier
from framework.transports.nats.history import History, Mark
from framework.transports.nats.place import Place
from framework.transports.nats.streams import Api, Consumer, version_of

log = hublog.get(__name__)

REGULARLY = 30.0
"""Seconds between two looks."""
SUBJECT = 90.0
"""Seconds, at least, between two looks at which stream keeps the subject: one server of a cluster answers those of all."""
AGAIN = 1.0
"""Seconds after a look that got no answer."""
HISTORY_TIMEOUT = 2.0
"""Seconds that a server may take to say when a message was stored."""
EXACT = (2, 12)
"""A version whose servers always say the same of when a consumer was created."""
ROUGHLY = timedelta(milliseconds=50)
"""2.9 says something else after its next start: less than a millisecond later on a disk that is not busy."""


class Affected(Protocol):
    """Who uses the consumer."""

    def unsettled(self) -> tuple[Iterable[Mark], Iterable[Mark]]:
        """What it has delivered and is in flight, and what is handled and not known to be settled."""

    def go_by(self, found: Consumer) -> None:
        """It serves, and has these limits."""

    def sure_again(self) -> None:
        """It is the one that delivered all in flight, and somebody is there who takes what is settled."""

    def let_through(self, said: list[tuple[wire.Msg, float]]) -> None:
        """What came then, which is whole: its publisher has written what looks otherwise."""

    def gone(self, error: Exception) -> None:
        """It is deleted, or serves no more. Another of its name may be there: nothing in flight may be settled."""


class Changes:
    """For one connection, which calls ``look_when_due`` again and again. Times are monotonic, in seconds."""

    def __init__(self, session: Carrier, place: Place, affected: Affected) -> None:
        self._session = session
        self._place = place
        self._affected = affected
        self._exact = version_of(session.info) >= EXACT
        """When the consumer was created was told by a server that always says the same."""
        self._due = monotonic() + REGULARLY * random.uniform(0.5, 1.0)  # handlers that start together do not ask together
        self._looking = False
        self.sure = True
        """Whatever is settled now reaches the consumer that delivered it, and none that was made in its place."""
        self._times_unsure = 0
        self._history = History()
        self._moved = ""
        """Words that were said of the stream that keeps the subject now."""
        self._follow_at = monotonic() + SUBJECT * random.uniform(0.5, 1.0)
        self._doubtful: list[tuple[wire.Msg, float]] = []
        """What has come, and when: nobody has it before a look that began later has shown that bodies are not left out."""

    @property
    def _what(self) -> str:
        return f"consumer {self._place.consumer} of stream {self._place.stream} on {self._place.node}"

    @property
    def unsure(self) -> str:
        """Why nothing is settled now; empty: it is."""
        return "" if self.sure else f"{self._what} has not been found again yet"

    @property
    def in_doubt(self) -> int:
        return len(self._doubtful)

    def suspect(self) -> None:
        """Something hints at a change."""
        self._due = 0.0

    def doubt_body(self, said: wire.Msg, at: float) -> None:
        self._doubtful.append((said, at))
        self.suspect()

    def doubt_consumer(self) -> None:
        """It was out of sight: it may have been deleted and made anew, of which nobody has told. Until a look that begins later
        has found it, nothing may be settled: numbers begin at 1 again, and what is said of an old message settles a new one."""
        self.sure = False
        self._times_unsure += 1
        self._history.note(*self._affected.unsettled())
        self.suspect()

    def out_of_sight(self) -> None:
        """Another server leads, or none does: it is looked for at once."""
        self.doubt_consumer()
        self.look_when_due(monotonic())

    def ask(self, session: Carrier) -> None:
        """From now on, in place of one that has ended."""
        self._session = session
        self.suspect()
        self.look_when_due(monotonic())

    def look_when_due(self, now: float) -> None:
        if now >= self._due and not self._looking:
            self._looking, self._due = True, now + REGULARLY
            gevent.spawn(self._look)

    def _look(self) -> None:
        session, times, count = self._session, self._times_unsure, len(self._doubtful)
        try:
            found = Api(session).consumer(self._place.stream, self._place.consumer)
            words = refusal(Api(session), found, self._place.topic) if found is not None else ""
            older = found is not None and self._history.contradicts(Api(session, HISTORY_TIMEOUT), self._place.stream)
        except FrameworkError:  # the session's own pulse tells whether anybody is there
            self._due = min(self._due, monotonic() + AGAIN)
        else:
            if times == self._times_unsure:  # else it went out of sight meanwhile, and is to be looked for again
                doubtful, self._doubtful = self._doubtful[:count], self._doubtful[count:]
                if older:
                    self._affected.gone(BrokerUnreachable(f"{self._what} has an older store than it had"))
                else:
                    self._judge(found, words, doubtful, session)
        finally:
            self._looking = False
        if times != self._times_unsure:
            self.look_when_due(monotonic())

    def _judge(self, found: Consumer | None, words: str, doubtful: list[tuple[wire.Msg, float]], session: Carrier) -> None:
        """One that is gone answers nothing on 2.9; one that is there has lost its pulls, as with its leader."""
        here = self._place
        exact = self._exact and version_of(session.info) >= EXACT
        if found is None:
            self._affected.gone(BrokerUnreachable(f"{self._what} is gone"))
        elif abs(found.created - here.created) > (timedelta(0) if exact else ROUGHLY):
            self._affected.gone(BrokerUnreachable(f"{self._what} was deleted and made anew"))
        elif words:
            self._affected.gone(BrokerUnreachable(words))
        else:
            self._affected.go_by(found)
            if not (self.sure or session.away):
                self.sure = True
                self._history.forget()
                self._affected.sure_again()
            self._affected.let_through(doubtful)
            if monotonic() >= self._follow_at:
                self._follow_at = monotonic() + SUBJECT
                gevent.spawn(self._follow, found, session)

    def _follow(self, found: Consumer, session: Carrier) -> None:
        """The subject may have gone to another stream: nothing new comes here then."""
        here = self._place
        try:
            streams = Api(session).streams_of(here.topic)
        except FrameworkError:
            return
        if here.stream in streams:
            self._moved = ""
            return
        now = f"stream {streams[0]} does" if streams else "no stream does"
        words = f"stream {here.stream} on {here.node} keeps subject {here.topic} no more: {now}"
        if streams and not (found.num_pending or found.num_ack_pending):
            self._affected.gone(BrokerUnreachable(words))
        elif words != self._moved:
            log.warning("%s; what waits here is handled first", words)
            self._moved = words


def lacks_its_body(said: wire.Msg) -> bool:
    """Of one that is empty: as with ``headers_only``, or a publisher has written a header of that name."""
    return bool(said.headers) and headers.find(said.headers, b"Nats-Msg-Size") not in (b"", b"0")


def refusal(api: Api, found: Consumer, topic: str) -> str:
    """As ``judgement.refusal``; the stream is asked for where it matters."""
    return judgement.refusal(found, topic, api.stream(found.stream_name) if judgement.takes_all(found) else None)

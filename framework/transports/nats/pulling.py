"""What a connection says of its pulls: asks for as much as it has room for, and takes back what is too much. Knows no message."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from time import monotonic

from gevent.hub import get_hub

from framework.alarm import Countdown
from framework.transports.nats.carrier import Carrier
from framework.transports.nats.outbox import Owner
from framework.transports.nats.place import Place
from framework.transports.nats.pulls import HURRY, QUIET, Pulls, request

RETRY = 1.0
"""Seconds before a pull is sent again that the server has refused."""
_PAUSES = frozenset({404, 408})
"""Statuses that are no refusals: nothing there, no more in time."""
_WORDS = {503: "No Responders"}
"""Of what comes without any."""
_MAX_BATCH = re.compile(r"MaxRequestBatch of (\d+)")


class Pulling:
    """The pulls of ``owner``. Times are monotonic, in seconds."""

    def __init__(self, session: Carrier, owner: Owner, place: Place) -> None:
        self._session = session
        self._owner = owner
        self._commands = session.commands
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{place.stream}.{place.consumer}".encode()
        self.longest = place.longest_pull
        """Nanoseconds that a pull may wait; 0: any."""
        self.pulls = Pulls(lambda: session.sid(owner))
        self._cancels: list[int] = []
        self._retry_at = 0.0
        self._hurry = math.inf
        self._recheck = Countdown(get_hub().loop, QUIET / 5)

    def taken_back(self, room: int, *, wanted: bool) -> Iterable[bytes]:
        """``wanted``: there may be room again soon."""
        self._take_back(room, wanted)
        if not self._cancels:
            return []
        sids, self._cancels = self._cancels, []
        self._session.ping(lambda: self.gone(sids))
        return self._unsubscribed(sids)

    def _take_back(self, room: int, wanted: bool) -> None:
        """Pulls that ask for too many: those that still bring messages end by themselves, unless that takes long."""
        if wanted:
            self._hurry = math.inf
        if self.pulls.over(room) > 0:
            now = monotonic()
            self._hurry = min(self._hurry, now + HURRY)
            self._cancels += self.pulls.excess(room, math.inf if now >= self._hurry else now - QUIET)
        if self.pulls.over(room) > 0 and not self._recheck.active:
            self._recheck.start(self._session.wants_to_speak, self._owner)

    def _unsubscribed(self, sids: Iterable[int]) -> list[bytes]:
        return [self._commands.unsub(b"%b.%d" % (self._session.inbox, sid), sid) for sid in sids]

    def gone(self, sids: list[int]) -> None:
        for sid in sids:
            self._session.drop(sid)
        self.pulls.gone(sids)
        self._session.wants_to_speak(self._owner)

    def asked_for(self, room: int) -> Iterable[bytes]:
        now = monotonic()
        if not room or now < self._retry_at:
            return
        for sid, count, fresh in self.pulls.wanted(room, now):
            inbox = b"%b.%d" % (self._session.inbox, sid)
            if fresh:
                yield self._commands.sub(inbox, sid)
            yield self._commands.pub(self._next, request(count, self.longest), inbox)

    def status(self, sid: int, code: int, words: str, at: float) -> str:
        """What the server says of a pull, in words where it is more than a sign of life, or that nothing came in time."""
        if code == 100:
            self.pulls.alive(sid, at)
            return ""
        self.pulls.ended(sid)
        if code in _PAUSES:
            return ""
        if (limit := _MAX_BATCH.search(words)) is not None:
            self.pulls.largest = int(limit[1])
            return ""
        return f"{code} {words or _WORDS.get(code, '')}"

    def refused(self, at: float) -> None:
        """The server does not take one: it is asked again in a while."""
        self._retry_at = at + RETRY

    def is_mine(self, words: str) -> bool:
        """A server says of what it is asked by that it may not be said."""
        return f'"{self._next.decode()}"' in words

    def look(self, now: float) -> int:
        """Takes back those of which nothing is heard; how many there are."""
        late = self.pulls.silent(now)
        self._cancels += late
        if late or (self._retry_at and now >= self._retry_at):
            self._session.wants_to_speak(self._owner)
        return len(late)

    def moved(self) -> tuple[bytes, list[int]]:
        """What was asked of the server that led comes no more, but for what is on its way.

        What to say to it, and the SIDs that are ``gone`` when it has read that."""
        self._retry_at = 0.0
        sids = self.pulls.moved()
        return b"".join(self._unsubscribed(sids)), sids

    def close(self) -> None:
        self._recheck.close()
        self.pulls.clear()

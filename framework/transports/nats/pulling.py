"""What a connection says of its pulls: asks for as much as it has room for, and takes back what is too much. Knows no message."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from time import monotonic

from gevent.hub import get_hub

from framework.alarm import Countdown
from framework.observe import hublog
from framework.transports.nats.carrier import Carrier
from framework.transports.nats.outbox import Owner
from framework.transports.nats.place import Place
from framework.transports.nats.pulls import HURRY, QUIET, Pulls, request

log = hublog.get(__name__)

RETRY = 1.0
"""Seconds before a pull is sent again that the server has refused."""
_PAUSES = frozenset({404, 408})
"""Statuses that are no refusals: nothing there, no more in time."""
_WORDS = {503: "No Responders"}
"""Of what comes without any."""
_ENDS = "409 Server Shutdown"
_MAX_BATCH = re.compile(r"MaxRequestBatch of (\d+)")


class Pulling:
    """The pulls of ``owner``. Times are monotonic, in seconds."""

    def __init__(self, session: Carrier, owner: Owner, place: Place) -> None:
        self._session = session
        self._owner = owner
        self._place = place
        self._odd = False
        self._warned = ""
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

    def status(self, sid: int, code: int, words: str, at: float, *, busy: bool) -> str:
        """What the server says of a pull: why the consumer is gone; empty: it is not. ``busy``: calls run."""
        if code == 100:
            self.pulls.alive(sid, at)
            return ""
        self.pulls.ended(sid)
        if code in _PAUSES:
            return ""
        if (limit := _MAX_BATCH.search(words)) is not None:
            self.pulls.largest = int(limit[1])
            return ""
        words = f"{code} {words or _WORDS.get(code, '')}"
        if code == 503 or words == _ENDS:
            self._session.distrust(ends=words == _ENDS)
        if "deleted" in words.lower() or (code == 503 and not busy):  # with calls running it may yet get a leader
            return words
        self._retry_at = at + RETRY
        self._odd = True
        self.warn("%s/%s: nats-server %s refuses a pull: %s", words)
        return ""

    def warn(self, form: str, words: str) -> None:
        """Once, of what comes again and again."""
        if words != self._warned:
            self._warned = words
            log.warning(form, self._place.topic, self._place.channel, self._session.server, words)

    def is_mine(self, words: str) -> bool:
        """A server says of what it is asked by that it may not be said."""
        return f'"{self._next.decode()}"' in words

    def look(self, now: float) -> bool:
        """Takes back those of which nothing is heard. Whether the consumer may have changed, as in its limits."""
        late = self.pulls.silent(now)
        self._cancels += late
        if late or (self._retry_at and now >= self._retry_at):
            self._session.wants_to_speak(self._owner)
        if late:
            server = self._session.server
            log.debug(
                "%s/%s: %d pulls are forgotten by nats-server %s", self._place.topic, self._place.channel, len(late), server
            )
        odd, self._odd = self._odd or bool(late), False
        return odd

    def moved(self) -> tuple[bytes, list[int]]:
        """What was asked of the server that led comes no more, but for what is on its way.

        What to say to it, and the SIDs that are ``gone`` when it has read that."""
        self._retry_at = 0.0
        sids = self.pulls.moved()
        return b"".join(self._unsubscribed(sids)), sids

    def close(self) -> None:
        self._recheck.close()
        self.pulls.clear()

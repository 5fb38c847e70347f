"""A connection to one other server of the cluster, on the hub: bytes, PING and PONG. What is said, its owner decides."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from time import monotonic
from typing import NamedTuple, Protocol

from gevent.event import Event

from framework.errors import BrokerUnreachable, FrameworkError, ProtocolError
from framework.message import Message
from framework.transports.nats import wire
from framework.transports.nats.route_wire import RouteEvent
from framework.transports.nats_route.line import Line
from framework.transports.rescuable_socket import RescuableSocket
from framework.transports.stream import RECV_SIZE

_numbers = itertools.count(1)


class _Ping(NamedTuple):
    """One that was not answered yet."""

    at: float
    then: Callable[[bool], None] | None
    proves: bool


class Owner(Protocol):
    """Whose routes they are. Called on the hub."""

    def heard(self, route: Route, events: list[RouteEvent]) -> None:
        """PINGs are answered, and PONGs told to those who asked, before."""

    def schedule(self) -> None:
        """Something is to be sent at the end of this turn: call ``flush`` then."""

    def resumed(self) -> None:
        """The hub turns again: what was read in its place comes next."""

    def ended(self, route: Route, error: Exception) -> None: ...


class Route(RescuableSocket[RouteEvent]):
    """Of a line that was introduced."""

    words = "the route to nats-server"

    def __init__(self, line: Line, owner: Owner, ping_interval: float, *, dialled: bool = True) -> None:
        feed, self._first = line.decoder.feed, line.events
        super().__init__(line.server, line.release(), feed)
        self.number = next(_numbers)
        self.info = line.info
        self.dialled = dialled
        """By us; else the other side has."""
        self.over = Event()
        """Set when it has ended."""
        self.proven = 0.0
        """The server has read all that was said before this moment, as far as pings were to prove that."""
        self._owner = owner
        self._interval = ping_interval
        self._queue: list[bytes] = []
        self._tail = memoryview(b"")
        self._pings: deque[_Ping] = deque()

    def start(self) -> None:
        """When its owner knows it."""
        self._start_reading()
        self._every(self._interval, self._check_pulse)
        first, self._first = self._first, []
        self._guarded(lambda: self._take(first, self.heard_at))

    # --- saying --------------------------------------------------------------------------------------------

    def say(self, data: bytes) -> None:
        """With the next flush."""
        if self.error is None:
            with self._lock:  # a rescue may be taking the queue
                self._queue.append(data)
            self._owner.schedule()

    def ping(self, then: Callable[[bool], None] | None = None, *, proves: bool = False) -> None:
        """``then(True)`` is called when the server has read all that was said before; ``then(False)`` when nobody knows.

        ``proves``: and ``proven`` is to tell so."""
        if self.error is not None:
            if then is not None:
                then(False)
            return
        with self._lock:  # both in one order
            self._pings.append(_Ping(monotonic(), then, proves))
            self.say(wire.PING)

    @property
    def owed(self) -> float:
        """Seconds since the oldest ping that was not answered yet."""
        return monotonic() - self._pings[0].at if self._pings else 0.0

    def flush(self) -> None:
        """Hand what waits to the socket."""
        self._guarded(self._flush)

    def push(self) -> None:
        """As far as the socket takes it now, from any greenlet. What fails is found by the flush that ``say`` has asked for."""
        if self.error is None:
            with self._lock, suppress(OSError):
                self._send()

    def _flush(self) -> None:
        try:
            with self._lock:
                self._send()
        except OSError as error:
            raise self._last_words(error) from error
        if not self._tail:
            self._writer.stop()
        elif not self._writer.active:
            self._writer.start(self.flush)

    def _send(self) -> None:
        """Until the socket takes no more. Holds the lock. Raises OSError."""
        while self._tail or self._queue:
            if not self._tail:
                parts, self._queue = self._queue, []
                self._tail = memoryview(b"".join(parts))
            try:
                self._tail = self._tail[self._sock.send(self._tail) :]
            except BlockingIOError:
                return

    # --- hearing -------------------------------------------------------------------------------------------

    def _take(self, events: list[RouteEvent], at: float) -> None:
        """PONGs say something of all that came before them."""
        begin = 0
        for index, event in enumerate(events):
            if type(event) is not wire.Word:
                continue
            if event is wire.Word.PING:
                self.say(wire.PONG)
            elif event is wire.Word.PONG:
                self._owner.heard(self, events[begin:index])
                begin = index
                self._ponged()
        self._owner.heard(self, events[begin:] if begin else events)

    def _ponged(self) -> None:
        if self._pings:
            ping = self._pings.popleft()
            if ping.proves:
                self.proven = max(self.proven, ping.at)
            if ping.then is not None:
                ping.then(True)

    def _check_pulse(self) -> None:
        """A hub that was blocked has answers waiting in the socket: read before judging the peer dead."""
        limit = 2 * self._interval
        if self._silent() > limit:
            self._read()
        if self._silent() > limit and self.error is None:
            self.end(BrokerUnreachable(f"nats-server {self.server} was silent for {limit:g} s: the route is dead"))
        elif not self._pings:
            self.ping()

    def _silent(self) -> float:
        """Seconds for which the server has said nothing although it was asked."""
        return monotonic() - max(self.heard_at, self._pings[0].at) if self._pings else 0.0

    # --- in the hub's place, from another native thread ----------------------------------------------------

    def _sift(self, events: list[RouteEvent], now: float) -> list[RouteEvent]:
        """A server gives up a peer that answers no PING."""
        self._queue += [wire.PONG] * events.count(wire.Word.PING)
        return [event for event in events if event is not wire.Word.PING]

    def _keep(self, now: float, expired: Collection[Message]) -> None:
        pongs = self.stashed.count(wire.Word.PONG)
        self.proven = max([self.proven, *(ping.at for ping in list(self._pings)[:pongs] if ping.proves)])
        self._send()

    def say_in_its_place(self, data: bytes, now: float, then: Callable[[bool], None]) -> None:
        """As ``say`` and ``ping``, from the other thread. ``then`` is called on the hub."""
        with self._in_its_place() as usable:
            if usable:
                self._pings.append(_Ping(now, then, True))
                self._queue += [data, wire.PING]
                self._send()

    @property
    def stashed(self) -> list[RouteEvent]:
        """What was read in the hub's place, and the hub does not know yet."""
        return [event for events, _ in self._stash for event in events]

    def _resumed(self) -> None:
        self._owner.resumed()

    # --- the end -------------------------------------------------------------------------------------------

    def _last_words(self, error: OSError) -> FrameworkError:
        """Messages that have come are no less here, and the -ERR before a server closes says more than EPIPE."""
        heard: list[RouteEvent] = []
        try:
            while data := self._sock.recv(RECV_SIZE):
                heard += self._feed(data)
        except (OSError, ProtocolError):
            pass
        self._take([event for event in heard if not isinstance(event, wire.Err)], monotonic())
        words = [event.words for event in heard if isinstance(event, wire.Err)]
        return self._broken(words[0]) if words else self._unusable(error)

    def _ended(self, error: FrameworkError) -> None:
        self.over.set()
        waiting, self._pings = self._pings, deque()
        self._owner.ended(self, error)
        for ping in waiting:
            if ping.then is not None:
                ping.then(False)

    def close(self) -> None:
        """Say what waits, as far as the socket takes it, and end."""
        self._guarded(self._flush)
        self.end(BrokerUnreachable(f"{self.words} {self.server} was closed"))

"""A connection to one other server of the cluster, on the hub: bytes in and out, PING and PONG. What is said, its owner decides.

While the hub is blocked another native thread may read and send in its place (``rescue``): whoever uses the socket, the decoder
or what waits to be sent holds the lock.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple, Protocol

from gevent import monkey
from gevent.event import Event
from gevent.hub import get_hub

from framework.errors import BrokerUnreachable, ProtocolError
from framework.transports.contract import RESCUE_PATIENCE
from framework.transports.forked import forget_in_child, let_go
from framework.transports.nats import wire
from framework.transports.nats.route_wire import RouteEvent
from framework.transports.nats_route.line import Line
from framework.transports.stream import RECV_SIZE

_new_lock = monkey.get_original("_thread", "RLock")
_READ, _WRITE = 1, 2
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


class Route:
    """Made on the hub that it lives on, of a line that was introduced. Of no more use once ``error`` is set."""

    def __init__(self, line: Line, owner: Owner, ping_interval: float) -> None:
        self.number = next(_numbers)
        self.server = line.server
        """Its address, as far as it is known."""
        self.info = line.info
        self.error: Exception | None = None
        self.over = Event()
        """Set when it has ended."""
        self.heard_at = monotonic()
        self.proven = 0.0
        """The server has read all that was said before this moment, as far as pings were to prove that."""
        self._owner = owner
        self._interval = ping_interval
        self._queue: list[bytes] = []
        self._tail = memoryview(b"")
        self._pings: deque[_Ping] = deque()
        self._lock = _new_lock()
        self._stash: list[RouteEvent] = []
        self._fault: ProtocolError | None = None
        self._feed = line.decoder.feed
        self._first = line.events
        self._sock = line.release()
        self._loop: Any = get_hub().loop
        fd = self._sock.fileno()
        self._reader = self._loop.io(fd, _READ)
        self._writer = self._loop.io(fd, _WRITE)
        self._pulse = self._loop.timer(ping_interval, ping_interval, ref=False)
        forget_in_child(self)

    def start(self) -> None:
        """When its owner knows it."""
        self._reader.start(self._guarded, self._read)
        self._pulse.start(self._guarded, self._check_pulse)
        first, self._first = self._first, []
        self._guarded(lambda: self._take(first))

    def _guarded(self, work: Callable[[], None]) -> None:
        """Every watcher calls through here: the hub would print an exception, and nobody would hear of it."""
        if self.error is not None:
            return
        try:
            work()
        except Exception as error:
            self.end(error)

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
            self._last_words()
            self.end(self._broken(str(error)))
            return
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

    def _read(self) -> None:
        """One recv a turn: the watcher is level-triggered, so the hub turns between two of them."""
        if self._stash or self._fault:
            self._take_stash()
        try:
            with self._lock:
                data = self._sock.recv(RECV_SIZE)
                events = self._feed(data) if data else []
        except BlockingIOError:
            return
        except OSError as error:
            self.end(self._broken(str(error)))
            return
        if not data:
            self.end(self._broken("the server closed it"))
            return
        self.heard_at = monotonic()
        self._take(events)

    def _take(self, events: list[RouteEvent]) -> None:
        """PONGs say something of all that came before them."""
        begin = 0
        for at, event in enumerate(events):
            if type(event) is not wire.Word:
                continue
            if event is wire.Word.PING:
                self.say(wire.PONG)
            elif event is wire.Word.PONG:
                self._owner.heard(self, events[begin:at])
                begin = at
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
        if self._owed() > limit:
            self._read()
        if self._owed() > limit and self.error is None:
            self.end(BrokerUnreachable(f"nats-server {self.server} was silent for {limit:g} s: the route is dead"))
        elif not self._pings:
            self.ping()

    def _owed(self) -> float:
        """Seconds for which the server has said nothing although it was asked."""
        return monotonic() - max(self.heard_at, self._pings[0].at) if self._pings else 0.0

    # --- in the hub's place, from another native thread ----------------------------------------------------

    def rescue(self, now: float) -> None:
        """As in ``contract.Rescuable``: a server gives up a peer that answers no PING, or whose socket stays full."""
        if not self._lock.acquire(timeout=RESCUE_PATIENCE):
            return
        try:
            if self.error is None and self._fault is None:
                self._read_all(now)
                self._send()
        except OSError:  # the hub finds it as well
            pass
        finally:
            self._lock.release()

    def _read_all(self, now: float) -> None:
        try:
            while data := self._sock.recv(RECV_SIZE):
                self.heard_at = now
                events = self._feed(data)
                self._queue += [wire.PONG] * events.count(wire.Word.PING)
                self._stash += [event for event in events if event is not wire.Word.PING]
        except BlockingIOError:
            pass
        except ProtocolError as error:
            self._fault = error
        pongs = self._stash.count(wire.Word.PONG)
        self.proven = max([self.proven, *(ping.at for ping in list(self._pings)[:pongs] if ping.proves)])

    def say_in_its_place(self, data: bytes, now: float, then: Callable[[bool], None]) -> None:
        """As ``say`` and ``ping``, from the other thread. ``then`` is called on the hub."""
        if not self._lock.acquire(timeout=RESCUE_PATIENCE):
            return
        try:
            if self.error is None and self._fault is None:
                self._pings.append(_Ping(now, then, True))
                self._queue += [data, wire.PING]
                self._send()
        except OSError:  # the hub finds it as well
            pass
        finally:
            self._lock.release()

    @property
    def stashed(self) -> list[RouteEvent]:
        """What was read in the hub's place, and the hub does not know yet."""
        return list(self._stash)

    def rescued(self) -> None:
        """The hub turns again, and takes what was read in its place."""
        if self._stash or self._fault is not None:
            self._guarded(self._take_stash)

    def _take_stash(self) -> None:
        self._owner.resumed()
        with self._lock:
            stash, self._stash = self._stash, []
            fault = self._fault
        self._take(stash)
        if fault is not None:
            raise fault

    # --- the end -------------------------------------------------------------------------------------------

    def _last_words(self) -> None:
        """Messages that have come are no less here, and the -ERR before a server closes says more than EPIPE."""
        heard: list[RouteEvent] = []
        try:
            while data := self._sock.recv(RECV_SIZE):
                heard += self._feed(data)
        except (OSError, ProtocolError):
            pass
        self._take([event for event in heard if not isinstance(event, wire.Err)])
        if words := [event.words for event in heard if isinstance(event, wire.Err)]:
            self.end(self._broken(words[0]))

    def _broken(self, why: str) -> BrokerUnreachable:
        return BrokerUnreachable(f"the route to nats-server {self.server} broke: {why}")

    def end(self, error: Exception) -> None:
        """Close the socket, and tell its owner and all who wait."""
        if self.error is not None:
            return
        self.error = error
        self._stop_watchers()
        with self._lock:
            self._sock.close()
        self.over.set()
        waiting, self._pings = self._pings, deque()
        self._owner.ended(self, error)
        for ping in waiting:
            if ping.then is not None:
                ping.then(False)

    def close(self) -> None:
        """Say what waits, as far as the socket takes it, and end."""
        self._guarded(self._flush)
        self.end(BrokerUnreachable(f"the route to nats-server {self.server} was closed"))

    def forget(self) -> None:
        """In a forked child: the socket is the parent's. Nobody is told."""
        if self.error is None:
            self.error = BrokerUnreachable("it is the parent process's")
            self._stop_watchers()
            let_go(self._sock.fileno())

    def _stop_watchers(self) -> None:
        for watcher in (self._reader, self._writer, self._pulse):
            watcher.stop()
            watcher.close()

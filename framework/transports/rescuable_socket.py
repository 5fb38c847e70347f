"""A socket on the hub that several share: how it is read, also while the hub is blocked, and how it ends.

While the hub is blocked another native thread may read and send in its place (``rescue``): whoever uses the socket, the decoder
or what is on its way holds the lock. It knows no protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, Generic, TypeVar

from gevent import monkey
from gevent.hub import get_hub

from framework.errors import BrokerUnreachable, FrameworkError, ProtocolError
from framework.forked import forget_in_child, let_go
from framework.message import Message
from framework.observe import hublog
from framework.transports.contract import RESCUE_PATIENCE
from framework.transports.stream import RECV_SIZE, Socket

log = hublog.get(__name__)
_new_lock = monkey.get_original("_thread", "RLock")
"""Native; the patched one is a greenlet's. Of the kind that one thread may take twice: the garbage collector may run while it is
held, and close a producer that was dropped."""
_READ, _WRITE = 1, 2
POLL = 0.1
"""Seconds after which a ``poll`` ends although there is more to read."""

_E = TypeVar("_E")


class RescuableSocket(Generic[_E]):
    """Made on the hub that it lives on. Of no more use once ``error`` is set."""

    words: str
    """What it is, as it stands before the server's address."""

    def __init__(self, server: str, sock: Socket, feed: Callable[[bytes], list[_E]]) -> None:
        """``feed``: what is read to what it says. Raises ProtocolError."""
        self.server = server
        """Its address, as far as it is known."""
        self.error: FrameworkError | None = None
        self.heard_at = monotonic()
        """When something was read last."""
        self._sock, self._feed = sock, feed
        self._lock = _new_lock()
        self._stash: list[tuple[list[_E], float]] = []
        self._kept = False
        """It was kept alive in the hub's place, and who shares it does not know yet."""
        self._fault: ProtocolError | None = None
        self._loop: Any = get_hub().loop
        self._reader = self._loop.io(sock.fileno(), _READ)
        self._writer = self._loop.io(sock.fileno(), _WRITE)
        self._watchers = [self._reader, self._writer]
        forget_in_child(self)

    def _start_reading(self) -> None:
        self._reader.start(self._guarded, self._read)

    def _every(self, seconds: float, work: Callable[[], None]) -> None:
        """Call ``work`` as often, until the end."""
        timer = self._loop.timer(seconds, seconds, ref=False)
        self._watchers.append(timer)
        timer.start(self._guarded, work)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Every watcher calls through here: the hub would print an exception, and all who share the socket stand still."""
        if self.error is not None:
            return
        try:
            work()
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        if not isinstance(error, FrameworkError):
            log.error("a fault of this library ends %s %s", self.words, self.server, exc_info=error)
            error = self._broken(repr(error))
        self.end(error)

    # --- what a subclass says of itself --------------------------------------------------------------------

    def _take(self, events: list[_E], at: float) -> None:
        """What came in one read, at that monotonic time."""
        raise NotImplementedError

    def _sift(self, events: list[_E], now: float) -> list[_E]:
        """In the other thread: do what cannot wait for the hub, and return the rest."""
        raise NotImplementedError

    def _keep(self, now: float, expired: Collection[Message]) -> None:
        """In the other thread, when all was read: say what cannot wait. Raises OSError."""
        raise NotImplementedError

    def _resumed(self) -> None:
        """The hub turns again after ``_keep``; what was read meanwhile comes next."""
        raise NotImplementedError

    def _ended(self, error: FrameworkError) -> None:
        """The socket is closed: tell all who share it."""
        raise NotImplementedError

    def _unusable(self, error: OSError) -> FrameworkError:
        """Why nothing can be read or sent."""
        return self._broken(str(error))

    def _hung_up(self) -> FrameworkError:
        """The server has closed it."""
        return self._broken("the server closed it")

    @property
    def _untold(self) -> bool:
        """Something was sent in the hub's place, and those who said it do not know yet."""
        return False

    # --- reading -------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """One recv a turn: the watcher is level-triggered, so the hub turns between two of them."""
        if self._stash or self._kept or self._fault is not None:
            self._take_stash()
        try:
            with self._lock:
                data = self._sock.recv(RECV_SIZE)
                events = self._feed(data) if data else []
        except BlockingIOError:
            return
        except OSError as error:
            raise self._unusable(error) from error
        if not data:
            raise self._hung_up()
        self.heard_at = now = monotonic()
        self._take(events, now)

    def poll(self) -> None:
        """Read what has come, where the hub does not run between two uses (a plain thread)."""
        before, until = -1.0, monotonic() + POLL
        while self.error is None and before != self.heard_at and monotonic() < until:
            before = self.heard_at
            self._guarded(self._read)

    # --- in the hub's place, from another native thread ----------------------------------------------------

    def rescue(self, now: float, expired: Collection[Message]) -> None:
        """As in ``contract.Rescuable``; ``expired`` has messages of all who share it."""
        with self._in_its_place() as usable:
            if usable:
                self._read_all(now)
                self._kept = True
                self._keep(now, expired)

    @contextmanager
    def _in_its_place(self) -> Iterator[bool]:
        """Whether the other thread may use the socket here. What fails, the hub finds as well."""
        if not self._lock.acquire(timeout=RESCUE_PATIENCE):
            yield False
            return
        try:
            yield self.error is None and self._fault is None
        except OSError:
            pass
        finally:
            self._lock.release()

    def _read_all(self, now: float) -> None:
        """Until nothing is left: a server gives up a client whose socket stays full."""
        try:
            while data := self._sock.recv(RECV_SIZE):
                self.heard_at = now
                self._stash.append((self._sift(self._feed(data), now), now))
        except BlockingIOError:
            pass
        except ProtocolError as error:
            self._fault = error

    def rescued(self) -> None:
        """The hub turns again, and takes what was read in its place."""
        if self._stash or self._kept or self._fault is not None or self._untold:
            self._guarded(self._take_stash)

    def _take_stash(self) -> None:
        with self._lock:
            stash, self._stash = self._stash, []
            fault, kept, self._kept = self._fault, self._kept, False
        if kept:
            self._resumed()
        for events, at in stash:
            self._take(events, at)
        if fault is not None:
            raise fault

    # --- the end -------------------------------------------------------------------------------------------

    def _broken(self, why: str) -> BrokerUnreachable:
        return BrokerUnreachable(f"{self.words} {self.server} broke: {why}")

    def end(self, error: FrameworkError) -> None:
        """Close the socket, and tell all who share it."""
        if self.error is not None:
            return
        self.error = error
        self._stop_watchers()
        with self._lock:
            self._sock.close()
        self._ended(error)

    def shut(self) -> None:
        """End it from another native thread, whose hub then sees the end of the stream."""
        try:
            self._sock.shutdown(2)
        except OSError:
            pass

    def fileno(self) -> int:
        return self._sock.fileno()

    def forget(self) -> None:
        """In a forked child: the socket is the parent's, and so is what it brings. Nobody is told."""
        if self.error is None:
            self.error = BrokerUnreachable("it is the parent process's")
            self._stop_watchers()
            let_go(self._sock.fileno())

    def _stop_watchers(self) -> None:
        for watcher in self._watchers:
            watcher.close()

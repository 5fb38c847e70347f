"""A socket on the hub by which many speak to one server: what they say in one turn of the hub goes out by one send."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Protocol, TypeVar

from framework.errors import BrokerUnreachable
from framework.transports.rescuable_socket import RescuableSocket
from framework.transports.shared_outbox import SharedOutbox
from framework.transports.stream import Socket

_E = TypeVar("_E")


class Speaker(Protocol):
    """Whoever has something to say."""

    def turn(self) -> None:
        """Before what it wants to say is collected, once in a turn."""

    def resumed(self) -> None:
        """The hub turns again after a rescue."""


class SharedSession(RescuableSocket[_E]):
    """Everything that is called on it from outside is sent at the end of the turn, and so is what a read brings about."""

    def __init__(self, server: str, sock: Socket, feed: Callable[[bytes], list[_E]], outbox: SharedOutbox[Any]) -> None:
        super().__init__(server, sock, feed)
        self.leaving = False
        """The server is about to end: whoever can shall go elsewhere."""
        self._outbox = outbox
        self._flush_due = False

    def _speakers(self) -> Collection[Speaker]:
        """Those who have something to say."""
        raise NotImplementedError

    def _sharers(self) -> Collection[Speaker]:
        """All who share it."""
        raise NotImplementedError

    def _send(self) -> None:
        """Hand the socket what they have to say. The caller holds the lock. Raises OSError."""
        raise NotImplementedError

    def _unsendable(self, error: OSError) -> Exception:
        """Why nothing can be sent."""
        return self._unusable(error)

    def _guarded(self, work: Callable[[], None]) -> None:
        if self.error is not None:
            return
        self._flush_due = True  # at the end of this
        try:
            work()
            self._flush()
        except Exception as error:
            self._failed(error)

    def schedule(self) -> None:
        if not self._flush_due and self.error is None:
            self._flush_due = True
            self._loop.run_callback(self._guarded, self._turn)

    def _turn(self) -> None:
        for speaker in list(self._speakers()):
            speaker.turn()

    def _flush(self) -> None:
        self._flush_due = False
        if self.error is not None:
            return
        try:
            with self._lock:
                self._send()
        except OSError as error:
            raise self._unsendable(error) from error
        self._outbox.tell()
        if not self._outbox.full:
            self._writer.stop()
        elif not self._writer.active:
            self._writer.start(self._guarded, _nothing)

    @property
    def _untold(self) -> bool:
        return self._outbox.untold

    def _resumed(self) -> None:
        for one in list(self._sharers()):
            one.resumed()

    def close(self) -> None:
        """Nobody uses it any more."""
        self._guarded(_nothing)
        self.end(BrokerUnreachable(f"{self.words} {self.server} was closed"))


def _nothing() -> None:
    """For callbacks that only flush."""

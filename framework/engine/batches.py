"""The queue of a batch handler: a slot may take from it when a batch is full, or its first message has waited long enough."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from framework.alarm import Countdown
from framework.message import Message
from framework.transports.contract import Connection


class Together(list[Message]):
    """The messages of one call, which may have come by several connections."""

    __slots__ = ("connection",)
    connection: Connection | None
    """One of ``BatchQueue.apart`` by which one of them came; None: none did."""


class BatchQueue:
    """Looks like a deque to the loop, but holds messages and gives out lists of up to ``size`` of them.

    Batches are made when a slot takes them, not before: while all slots are busy a batch can still fill.
    """

    def __init__(self, hub: Any, size: int, linger: float, ready: Callable[[], None]) -> None:
        self._messages: deque[Message] = deque()
        self._hub = hub
        self._size = size
        self._linger = linger
        self._ready = ready
        self._timer = Countdown(hub.loop, linger)
        self._ripe = False
        self.apart: set[Connection] = set()
        """The connections whose messages have a chain of their own: those from where messages wait. Few handlers have any."""

    def __bool__(self) -> bool:
        return self._ripe or len(self._messages) >= self._size

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    def extend(self, messages: Iterable[Message]) -> None:
        was_empty = not self._messages
        self._messages.extend(messages)
        if was_empty:
            self._wait()

    def popleft(self) -> Together:
        """The next batch, full or not. What is left waits for ``linger`` seconds anew, or until it is a full batch."""
        messages = self._messages
        batch = Together(messages.popleft() for _ in range(min(self._size, len(messages))))
        came_by = (message.connection for message in batch)
        batch.connection = next((one for one in came_by if one in self.apart), None) if self.apart else None
        self._wait()
        return batch

    def clear(self) -> None:
        self._messages.clear()
        self._wait()

    def remove(self, message: Message) -> None:
        """Raises ValueError where it does not wait here."""
        self._messages.remove(message)
        if not self._messages:
            self._wait()

    def wait_at_most(self, seconds: float) -> None:
        """From the next batch on: its first message cannot be kept for longer."""
        if seconds < self._linger:
            self._linger = seconds
            self.close()
            self._timer = Countdown(self._hub.loop, seconds)
            self._wait()

    def close(self) -> None:
        self._timer.close()

    def _wait(self) -> None:
        self._ripe = False
        self._timer.stop()
        if self._messages:
            self._timer.start(self._linger_is_over)

    def _linger_is_over(self) -> None:
        self._ripe = bool(self._messages)
        self._ready()

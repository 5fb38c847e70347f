"""Bounds the memory of bodies that are being received, over all clients. It reads and holds no bytes itself."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from gevent.event import Event

FREE_BYTES = 64 << 10
"""What each client may have received beyond the bound, so that small messages wait for nobody."""
STALL_SECONDS = 2.0
"""A body that holds memory for which others wait may take so long for its next bytes; then its connection ends."""
_LOOK_SECONDS = 0.5


class Memory:
    """At most about ``most`` bytes. A client that finds no room waits. The first of those may go beyond, so that one body comes
    to its end."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0
        self._holders: set[Share] = set()
        self._favoured: Share | None = None
        self._waiting: deque[Event] = deque()

    def share(self, give_up: Callable[[], object]) -> Share:
        """For one client; ``give_up`` ends its connection and does not block."""
        return Share(self, give_up)

    def change(self, share: Share, size: int) -> None:
        """Blocks the greenlet while there is no room for more."""
        while not self._allows(share, size - share.size):
            self._wait()
        self._taken += size - share.size
        share.size = size
        if size:
            self._holders.add(share)
        else:
            self._holders.discard(share)
            if self._favoured is share:
                self._favoured = None
        if self._waiting and (self._favoured is None or self._taken < self._most):
            self._waiting.popleft().set()

    def _allows(self, share: Share, more: int) -> bool:
        if more <= 0 or self._taken + more <= self._most:
            return True
        if self._favoured is None:
            self._favoured = share
        return self._favoured is share

    def _wait(self) -> None:
        freed = Event()
        self._waiting.append(freed)
        if not freed.wait(_LOOK_SECONDS):
            if freed in self._waiting:  # else it was set in this very moment
                self._waiting.remove(freed)
            self._drop_stalled()

    def _drop_stalled(self) -> None:
        late = time.monotonic() - STALL_SECONDS
        for one in [one for one in self._holders if one.since is not None and one.since < late]:
            one.since = None
            one.give_up()


class Share:
    """What one client has of it."""

    def __init__(self, memory: Memory, give_up: Callable[[], object]) -> None:
        self._memory = memory
        self.give_up = give_up
        self.size = 0
        self.since: float | None = None
        """When it began to wait for bytes of a body (monotonic seconds); None: it does not."""

    def expect(self, size: int) -> None:
        """Before more is read, when ``size`` bytes of a body are here; blocks the greenlet while there is no room for them."""
        self._memory.change(self, size if size > FREE_BYTES else 0)
        self.since = time.monotonic() if self.size else None

    def received(self) -> None:
        """Those bytes have come."""
        self.since = None

    def end(self) -> None:
        """Nothing is held any more."""
        self.since = None
        self._memory.change(self, 0)

"""How many more jobs to ask for, and on which connection: the poller while there are any, a waiter while there may be one."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Protocol

from gevent.hub import get_hub

from framework.alarm import Countdown
from framework.transports.beanstalkd.poller import Poller
from framework.transports.beanstalkd.waiters import WaiterPool

_PATIENCE = 0.03  # seconds; less than ``engine.credit`` counts on what it has taken back


class Owner(Protocol):
    """Whose grant it is."""

    granted: int

    @property
    def ours(self) -> int:
        """How many jobs it has, in flight or not delivered yet."""


class Pacing:
    """That of one connection."""

    def __init__(self, owner: Owner, poller: Poller, waiters: WaiterPool, guarded: Callable[..., None]) -> None:
        """``guarded(work)`` runs what a timer asks for, and catches what that raises."""
        self._owner = owner
        self._poller = poller
        self._waiters = waiters
        self._guarded = guarded
        self._patience = Countdown(get_hub().loop, _PATIENCE)

    @property
    def room(self) -> int:
        """How many more jobs may be asked for."""
        return self._owner.granted - self._owner.ours - self._poller.polling - self._waiters.promised

    def follow(self) -> None:
        """Ask for as many as the grant has room for."""
        poller, waiters, room = self._poller, self._waiters, self.room
        if room < 0 and waiters.waiting is not None:
            self._relieve()
        if room <= 0:
            return
        if poller.dry:
            waiters.wait()
        # A few large polls at a time, not many small ones: each has a first job that must be asked for. But no larger than what
        # one slice of a grant of 100 sets free, or the server would have nothing to do for every other one.
        elif room >= poller.reach or room >= self._owner.granted // 4 or not poller.polling:
            poller.poll(min(room, poller.reach))

    def _relieve(self) -> None:
        """One waits for more than is granted. If that is so for a moment only, it may: to leave may cost a job an attempt."""
        if self._owner.granted == 0:
            self._waiters.wait_no_more()
        elif not self._patience.active:
            self._patience.start(self._guarded, self._relieve_now)

    def _relieve_now(self) -> None:
        waiter = self._waiters.waiting
        if waiter is None or self._owner.granted > self._owner.ours:
            return
        if monotonic() - waiter.since < _PATIENCE:  # in a flood it never waits for long, and leaving would meet a job
            self._patience.start(self._guarded, self._relieve_now)
        else:
            self._waiters.wait_no_more()

    def close(self) -> None:
        self._patience.close()

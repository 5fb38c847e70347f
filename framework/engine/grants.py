"""What each connection of a handler may send: computed by ``credit``, limited by the ``valve``, told to the connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from framework.engine.credit import SPAN, TERM, Credit, Share
from framework.engine.lease import LeaseKeeper
from framework.engine.slots import clock
from framework.engine.turns import Turns
from framework.engine.valve import Valve
from framework.middleware.outcome import Chain
from framework.transports.contract import Connection


class Gone(Protocol):
    """Hears why a connection ended, and whether a message of it was settled."""

    def __call__(self, error: Exception | None, *, worked: bool) -> None: ...


class Account:
    """What the consumer keeps for one connection."""

    __slots__ = ("chain", "drained", "gone", "leases", "share", "warned", "worked")

    def __init__(self, share: Share, leases: LeaseKeeper, chain: Chain, gone: Gone) -> None:
        self.share = share
        self.leases = leases
        self.chain = chain
        """What is around the function for its messages."""
        self.gone = gone
        self.drained = False
        self.warned = False
        self.worked = False
        """A message of it was settled."""


class Grants:
    """Those of one handler. All of it is called on the hub, or in its slots. ``rouse()``: there is something to look after."""

    def __init__(self, hub: Any, turns: Turns, credit: Credit, valve: Valve, rouse: Callable[[], None]) -> None:
        self.accounts: dict[Connection, Account] = {}
        self.stopped = False
        """Nothing is granted any more."""
        self._turns = turns
        self._credit = credit
        self._valve = valve
        self._rouse = rouse
        self._decay = hub.loop.timer(SPAN, SPAN)
        self._rotation = hub.loop.timer(TERM, TERM)

    def regrant(self, connection: Connection, account: Account) -> None:
        if self.stopped or connection not in self.accounts:
            return
        share = account.share
        in_flight = len(connection.in_flight)
        granted = self._valve.admits(self._credit.grant(share, in_flight), in_flight)
        if granted != connection.granted:
            connection.grant(granted)
        if share.headroom > 1 and not self._decay.active:
            self._decay.start(self._lower)

    def regrant_all(self) -> None:
        self._rouse()
        for connection, account in list(self.accounts.items()):
            self.regrant(connection, account)

    def count(self) -> None:
        """What is in flight, and what else may come."""
        for connection, account in self.accounts.items():
            account.share.in_flight = len(connection.in_flight)
            account.share.exposed = connection.exposed

    def tick(self, now: float, settled: int, seconds: float) -> None:
        """Divide the credit anew, ``settled`` messages having been settled in so many ``seconds``."""
        ordered = self._credit.tick(now, settled, seconds)
        owners = {account.share: (connection, account) for connection, account in self.accounts.items()}
        for share in ordered:
            self.regrant(*owners[share])
        if self._credit.crowded and not self._rotation.active:
            self._rotation.start(self._rotate)

    def _lower(self) -> None:
        """The traffic slackened on some connections: a broker that waits for its buffer to fill sends when a grant falls."""
        if self.stopped or not self._credit.decay(clock(), self._turns.mean, self._turns.idle):
            self._decay.stop()
        for connection, account in list(self.accounts.items()):
            if account.share.granted > account.share.headroom + len(connection.in_flight):
                self.regrant(connection, account)

    def _rotate(self) -> None:
        """There are more connections than may have a message each: each has its term."""
        if self.stopped or not self._credit.crowded:
            self._rotation.stop()
        self.count()
        self._credit.rotate(clock())
        self.regrant_all()

    def stop(self) -> None:
        """In a forked child: nothing goes on."""
        self.stopped = True
        for timer in (self._decay, self._rotation):
            timer.stop()

    def close(self) -> None:
        self.stop()
        for timer in (self._decay, self._rotation):
            timer.close()

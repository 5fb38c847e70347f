"""How many messages a handler asks for, and when it asks for none: credit, grants, pauses. It starts and settles nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from framework.engine.breaker import Breaker
from framework.engine.credit import Credit, Share
from framework.engine.grants import Grants
from framework.engine.lease import calls_ahead, longest_wait
from framework.engine.ledger import Ledger
from framework.engine.remote_slots import RemoteSlots
from framework.engine.slots import Slots, clock
from framework.engine.turns import Turns
from framework.engine.valve import Valve
from framework.engine.waiting import Waiting
from framework.handler import HandlerSpec
from framework.message import Message
from framework.middleware.outcome import Dead, Deferred, Requeue
from framework.transports.contract import Connection


class Flow:
    """Of one handler, over all its connections. ``rouse()``: there is something to look after, by timer."""

    def __init__(
        self, hub: Any, turns: Turns, spec: HandlerSpec, ledger: Ledger, waiting: Waiting, *, slots: Slots,
        remote: RemoteSlots | None, rouse: Callable[[], None], longest_pause: float | None,
    ) -> None:  # fmt: skip
        self._spec = spec
        self._ledger = ledger
        self._waiting = waiting
        self._remote = remote
        self._rouse = rouse
        self.valve = Valve(slots, remote)
        # The slots of a batch handler hold whole batches, and one more may fill meanwhile.
        self.credit = Credit(spec.max_in_flight, spec.concurrency * max(1, spec.batch), ahead=spec.batch)
        self.grants = Grants(hub, turns, self.credit, self.valve, rouse)
        self.accounts = self.grants.accounts
        self.breaker = Breaker(spec.name, self.credit, lambda: self.ended, batches=bool(spec.batch), longest=longest_pause)
        self.drained = False
        """Paused, and what comes all the same is given back."""
        self.concurrency = spec.concurrency
        """How many calls may run at once."""
        self._ticked_at, self._ticked_settled = clock(), 0

    # -- connections come and go

    def connect(self, connection: Connection) -> Share:
        """Its part of the credit. It counts when it is one of the ``accounts`` and ``connections_changed``."""
        limits = connection.limits
        return self.credit.connect(limits.max_grant, clock(), limits.round_trip, limits.distance)

    def disconnect(self, share: Share) -> None:
        self.credit.disconnect(share)
        self.connections_changed()

    def connections_changed(self) -> None:
        """Reckon anew for how long messages may wait, whichever connection they come on."""
        limits, timeout = [connection.limits for connection in self.accounts], self._spec.timeout
        self.credit.bear(min((calls_ahead(one, timeout) for one in limits), default=math.inf))
        if limits:
            self._waiting.wait_at_most(min(longest_wait(one, timeout) for one in limits) / 2)
        self._rouse()

    # -- when nothing is asked for

    def heed(self, message: Message, outcome: Requeue | Deferred | Dead) -> None:
        """When most fail, or the handler says that it cannot work, what has not started is for other workers."""
        if self.breaker.pauses_after(message, outcome):
            self.grants.regrant_all()
            self._waiting.put_off_all()

    def jammed(self, now: float) -> bool:
        """Nothing that waits can be started."""
        return self.valve.jammed(now)

    def overdue(self, late: set[Message]) -> None:
        """These waited too long: they are for other workers, and no more is asked for until a slot is free."""
        self.valve.overdue()
        self._waiting.put_off_late(late)
        self.grants.regrant_all()

    @property
    def paused(self) -> bool:
        """Nothing is asked for; what has come is handled."""
        return self.valve.paused

    def pause(self, paused: bool, *, drained: bool = False) -> None:
        """Ask for nothing until told otherwise. Its accounts are kept, so that what it had is granted again at once.

        ``drained``: what has not been started is given back, for other workers."""
        self.valve.paused, self.drained = paused, drained
        self.grants.regrant_all()
        if drained:
            self._waiting.put_off_all()

    # -- how many

    @property
    def max_in_flight(self) -> int:
        """How many may be in flight, over all connections."""
        return self.credit.max_in_flight

    def resize(self, max_in_flight: int) -> None:
        """What is in flight over ``max_in_flight`` is handled as the rest."""
        self.grants.count()
        self.credit.resize(max_in_flight, clock())
        self.grants.regrant_all()

    def work_at_once(self, calls: int) -> None:
        """From now on so many calls may run at once."""
        self.concurrency = calls
        self.credit.work_at_once(calls * max(1, self._spec.batch))
        self._lack()
        self.grants.regrant_all()

    def _lack(self) -> None:
        if self._remote is not None:
            self.credit.lack(max(0, self.concurrency - self._remote.usable) * max(1, self._spec.batch))

    def roused(self, last_tick: float) -> None:
        """It is ticked again from now on; ``last_tick`` is when others were."""
        self._ticked_at = last_tick

    def tick(self, now: float) -> None:
        """Divide the credit anew."""
        self.grants.count()
        self.breaker.look(now)
        settled = max(self._ticked_settled, self._ledger.settled - self._ledger.taken_away - self._waiting.unstarted.given_back)
        self._lack()
        self.grants.tick(now, settled - self._ticked_settled, now - self._ticked_at)
        self._ticked_at, self._ticked_settled = now, settled

    @property
    def at_rest(self) -> bool:
        """A tick would change nothing: nothing is held back or let go of."""
        return self.breaker.at_rest and self.credit.at_rest and self.valve.at_rest(self.accounts)

    @property
    def ended(self) -> int:
        """How many messages its calls have settled, also those of which nothing was sent yet. May be asked from any thread."""
        in_flight = sum(len(connection.in_flight) for connection in list(self.accounts))
        return self._ledger.received - in_flight - self._ledger.taken_away - self._waiting.unstarted.given_back

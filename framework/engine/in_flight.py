"""Looks after what is in flight for a handler: keeps its leases, gives back what waits in vain, stops what runs too long.

How a lease is kept is ``lease``'s.
"""

from __future__ import annotations

from framework.engine.flow import Flow
from framework.engine.remote_slots import RemoteSlots, messages_of
from framework.engine.slots import Slots
from framework.engine.waiting import Waiting
from framework.handler import HandlerSpec
from framework.message import Message
from framework.observe import hublog

log = hublog.get(__name__)


class InFlight:
    """Of one handler, over all its connections. All of it is called on the hub."""

    def __init__(self, spec: HandlerSpec, flow: Flow, waiting: Waiting, slots: Slots, remote: RemoteSlots | None) -> None:
        self._spec = spec
        self._flow = flow
        self._waiting = waiting
        self._slots = slots
        self._remote = remote

    def __bool__(self) -> bool:
        """Some message can still be settled. What runs for a connection that ended cannot be."""
        return any(connection.in_flight for connection in self._flow.accounts)

    @property
    def started(self) -> bool:
        """Some call runs."""
        return any(self._slots.busy())

    def look(self, now: float) -> None:
        """Touch, give back what waited too long, and stop what has run too long."""
        self._slots.enforce(self._spec.timeout, now)
        if self._remote is not None:
            self._remote.look(now)
        if self._flow.jammed(now) and self._waiting.queue:
            self._give_back(set(self._waiting.queue))
        for account in list(self._flow.accounts.values()):
            self._give_back(set(account.leases.keep(self._running, now)))

    def _give_back(self, late: set[Message]) -> None:
        if late:
            log.warning("handler %s: %d messages waited too long for a free slot; given back", self._spec.name, len(late))
            self._flow.overdue(late)

    def _running(self) -> dict[Message, float]:
        return {message: slot.started for slot in self._slots.busy() for message in messages_of(slot.job)}

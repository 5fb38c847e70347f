"""The end of one handler, step by step; the supervisor says when each is due, for all handlers together."""

from __future__ import annotations

from collections.abc import Container

from framework.engine.flow import Flow
from framework.engine.in_flight import InFlight
from framework.engine.remote_slots import RemoteSlots
from framework.engine.running import RunningCalls
from framework.engine.settlement import Settlement, give_back
from framework.engine.slots import Slots
from framework.engine.unstarted import Kept
from framework.engine.waiting import Waiting
from framework.message import Message
from framework.transports.contract import away


class Shutdown:
    """The steps, in their order: ``halt``, ``drain``, ``give_back_unstarted``, ``abandon``, ``close``."""

    def __init__(
        self, flow: Flow, in_flight: InFlight, waiting: Waiting, settlement: Settlement, *, running: RunningCalls, slots: Slots,
        remote: RemoteSlots | None,
    ) -> None:  # fmt: skip
        self.begun = False
        """No more is taken."""
        self._flow = flow
        self._in_flight = in_flight
        self._waiting = waiting
        self._settlement = settlement
        self._running = running
        self._slots = slots
        self._remote = remote
        self._left: list[Message] | None = []
        """What waited when it was told to stop; None once that is given back."""

    # -- the steps

    def halt(self) -> None:
        """Start no more; may be called from anywhere. ``drain`` follows when the hub turns, which computing handlers delay."""
        self._slots.halted = True

    def drain(self) -> None:
        """Start and take no more; what runs goes on, and its leases are kept."""
        self.begun = self._flow.grants.stopped = True
        self._left = self._waiting.take()
        for connection in list(self._flow.accounts):
            connection.grant(0)
            connection.drain()

    def decline(self, batch: list[Message]) -> None:
        """These came all the same."""
        if self._left is None:
            self._give_back(batch)
        else:
            self._left += batch

    def give_back_unstarted(self) -> None:
        """After ``drain`` has been answered, or the broker could deliver them here again. What must be stored instead is
        ``handling`` until then."""
        left, self._left = self._left or [], None
        self._give_back(left)

    def _give_back(self, messages: list[Message]) -> None:
        """What nobody else takes, of a broker that delivers nothing twice, is started after all: else it would be lost."""
        left = self._waiting.unstarted.give_back(messages, 0.0)
        if left:
            self._waiting.queue.extend(left)
            self._slots.halted = False
            self._slots.kick()

    def abandon(self) -> None:
        """Give back all that is in flight, and tell the handlers that still run."""
        self._slots.halted = True
        self._waiting.take()
        for connection in list(self._flow.accounts):
            give_back(list(connection.in_flight))
        self._slots.abandon("the worker stops")

    def close(self) -> None:
        """Close the connections and end the slots. ``accounts`` empties as the connections end."""
        self._flow.grants.close()
        self._waiting.close()
        self._slots.close()
        if self._remote is not None:
            self._remote.close()
        for connection in list(self._flow.accounts):
            connection.close()

    def forget(self) -> None:
        """In a forked child: start nothing more. The messages are the parent's, those that wait as well: the pump that called the
        handler that forked goes on here."""
        self.begun = self._slots.halted = True
        self._waiting.forget()
        self._flow.grants.stop()

    # -- how far it is

    def kept(self) -> Container[Message]:
        """What is not to be given back while it stops, as long as there is time for it. May be called from any thread."""
        return Kept(self._running.messages(), self._waiting.unstarted)

    @property
    def handling(self) -> bool:
        """Some message can still be settled, or is still told of."""
        return self._settlement.telling or bool(self._in_flight)

    @property
    def deaf(self) -> bool:
        """No message can come any more."""
        return all(account.drained for account in self._flow.accounts.values())

    @property
    def quiet(self) -> bool:
        """Nothing is in flight or unsent, and nothing can come any more."""
        return self.deaf and not self.handling and not any(connection.unsent() for connection in self._flow.accounts)

    @property
    def unheard(self) -> str:
        """Why what was settled waits: its node cannot be reached now. Empty: nothing waits for that."""
        return "; ".join(words for connection in self._flow.accounts if connection.unsent() and (words := away(connection)))

    @property
    def goodbye(self) -> float:
        """Seconds that its brokers may take to confirm that they send no more."""
        return max((connection.limits.goodbye for connection in self._flow.accounts), default=0.0)

    @property
    def ended(self) -> bool:
        """After ``close``: the connections have ended, and all that ran calls as far as it can."""
        return not self._flow.accounts and (self._remote is None or self._remote.ended)

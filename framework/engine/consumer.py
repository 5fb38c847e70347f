"""The loop of one handler, over all its connections: receive -> dispatch -> settle. There is no policy in it.

What happens to a failed message is ``middleware``'s, how many may be in flight is ``credit``'s, how long a lease is kept is
``lease``'s, and which connections there are is ``supervisor``'s.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Container
from typing import Any
from weakref import WeakSet

from framework.engine.batches import BatchQueue
from framework.engine.calls import RunningCalls
from framework.engine.credit import Credit
from framework.engine.elsewhere import Elsewhere
from framework.engine.grants import Account, Gone, Grants
from framework.engine.lease import LeaseKeeper, calls_ahead, longest_wait
from framework.engine.ledger import Ledger
from framework.engine.places import Places, messages_of
from framework.engine.pulse import Pulse
from framework.engine.restraint import Watch
from framework.engine.settlement import Settlement, give_back
from framework.engine.slots import Slot, Slots, clock
from framework.engine.turns import SLICE, Turns
from framework.engine.unstarted import PUT_OFF, Kept, Room, Unstarted
from framework.engine.valve import Valve
from framework.errors import AlreadySettled, BadHandler
from framework.handler import HandlerSpec
from framework.message import Message, calls_of
from framework.middleware.outcome import DEFERRED, Chain, Dead, Deferred, Requeue
from framework.observe import hublog
from framework.transports.contract import Connection, Tally

log = hublog.get(__name__)


class Consumer:
    """``transports.contract.Receiver`` for one handler. All of it is called on the hub or in its slots.

    ``chain`` is for what comes from the handler's topic, ``later`` also for what comes from where its messages wait.
    ``places``: where calls run, when not in the slots themselves. ``room``: where messages wait that must not be requeued.
    """

    def __init__(
        self,
        hub: Any,
        turns: Turns,
        spec: HandlerSpec,
        chain: Chain,
        ledger: Ledger,
        *,
        later: Chain | None = None,
        places: Places | None = None,
        room: Room | None = None,
        pulse: Pulse | None = None,
        longest_pause: float | None = None,
    ) -> None:
        self.spec = spec
        self.tally: Tally = ledger
        self._ledger = ledger
        self._elsewhere = Elsewhere(ledger)
        self.stopping = False
        self._turns = turns
        self._chain, self._later = chain, later
        self._queue: deque[Message] | BatchQueue = deque()
        self._places = places
        self._slots = Slots(hub, turns, spec.concurrency, self._queue, self._work if places is None else self._work_elsewhere)
        if spec.batch:
            self._queue = self._slots.queue = BatchQueue(hub, spec.batch, spec.linger, self._slots.pump)
        self._valve = Valve(self._slots, places)
        self.calls = RunningCalls(hub, spec.timeout, self._slots, places)
        # The slots of a batch handler hold whole batches, and one more may fill meanwhile.
        self._credit = Credit(spec.max_in_flight, spec.concurrency * max(1, spec.batch), ahead=spec.batch)
        self._grants = Grants(hub, turns, self._credit, self._valve, self.rouse)
        self._regrant, self.accounts = self._grants.regrant, self._grants.accounts
        self._watch = Watch(spec.name, self._credit, self._ended, batches=bool(spec.batch), longest=longest_pause)
        self._settlement = Settlement(self._elsewhere, self._watch, self._heed)
        self._settle = self._settlement.settle
        self._ticked_at, self._ticked_settled = clock(), 0
        self._pulse = pulse or Pulse()
        self.awake = False
        """Its timers call it; else it is ``at_rest``."""
        self.rouse()
        self._closed_early: WeakSet[Connection] = WeakSet()
        self._unstarted = Unstarted(room, lambda message: self._settle(message, DEFERRED, heed=False))
        self._left: list[Message] | None = []
        """What waited when it was told to stop; None once that is given back."""

    # -- THE loop

    def deliver(self, connection: Connection, batch: list[Message]) -> None:
        """Receive. Handlers that do not block are through, and their messages settled, when it returns."""
        if self._unstarted:
            self._unstarted.correct(batch)
        if self.stopping or self._watch.pausing:
            self._decline(batch)
            return
        if not self.awake:
            self.rouse()
        account, before = self.accounts[connection], len(connection.in_flight)
        self._credit.arrived(account.line, len(batch), clock(), self._turns.mean)
        self._queue.extend(batch)
        self._slots.pump()
        if len(connection.in_flight) < before:
            account.worked = True
        self._regrant(connection, account)

    def _work(self, slot: Slot) -> None:
        """Dispatch, in a slot, until nothing waits or the hub's turn is spent."""
        queue: Any = self._queue
        turns, slots, now = self._turns, self._slots, clock()
        fresh = slots.context.copy
        try:
            while queue:
                slot.job = job = queue.popleft()  # a Message; of a BatchQueue, a list of them
                slot.started = now
                outcome = fresh().run(self._chain, job)  # which may be another by now
                if outcome is None:
                    try:
                        job.connection.finish(job)
                    except AlreadySettled:  # its lease was lost while it ran, and has been counted as lost
                        pass
                else:
                    self._settle(job, outcome)
                slot.job = None
                now = clock()  # the end of this one is the start of the next: one clock a message
                if now - turns.stamp > SLICE and now > slots.share_ends:
                    break
        except BaseException:  # not the handler's: the chain takes those
            give_back(messages_of(slot.job))
            raise

    def _work_elsewhere(self, slot: Slot) -> None:
        """Dispatch where the chain waits for a thread or a process: a message is taken when there is a place for it."""
        queue: Any = self._queue
        places: Any = self._places
        try:
            while queue and places.wait() and queue and not self._slots.held:  # others have taken from it meanwhile
                slot.started = clock()
                slot.job = job = queue.popleft()
                self._settle(job, self._chain(job))
                slot.job = None
        except BaseException:
            give_back(messages_of(slot.job))
            raise

    def settled(self, connection: Connection) -> None:
        """Slots settled messages of ``connection`` in this turn; what its grant should be now goes out with them."""
        account = self.accounts.get(connection)
        if account is not None:
            account.worked = True
            self._regrant(connection, account)

    # -- what waits

    def _decline(self, batch: list[Message]) -> None:
        if not self.stopping:
            self._unstarted.give_back(batch, PUT_OFF)
        elif self._left is None:
            self._unstarted.give_back(batch, 0.0)
        else:
            self._left += batch

    def _unqueue(self, doomed: Callable[[Message], bool] = lambda _: True) -> list[Message]:
        """Take out of the queue what is ``doomed``, or all."""
        waiting = list(self._queue)
        taken = [message for message in waiting if doomed(message)]
        if taken:
            self._queue.clear()
            self._queue.extend(message for message in waiting if not doomed(message))
        return taken

    # -- connections come and go

    def attach(self, connection: Connection, gone: Gone) -> None:
        """Use a new connection; ``gone`` is called when it has ended."""
        if connection in self._closed_early:  # it ended between its handshake and now
            self._closed_early.discard(connection)
            gone(None, worked=False)
            return
        line = self._credit.connect(connection.limits.max_grant, clock())
        calls_of[connection] = self.calls
        if self._later is not None and connection.topic != self.spec.topic:  # few ever have such a connection
            self._chain = self._later
        account = self.accounts[connection] = Account(line, LeaseKeeper(connection, self.spec.timeout), gone)
        self._reckon_waits()
        self.rouse()
        if self.stopping:
            connection.drain()
        else:
            self._regrant(connection, account)

    def lost(self, connection: Connection, message: Message | None, words: str, *, settled: bytes = b"") -> None:
        """A lease is gone. What waits is not started any more; what runs ends with nothing to settle."""
        self._elsewhere.refused(connection, settled)
        account = self.accounts.get(connection)
        if account is not None and not account.warned:
            account.warned = True  # once a connection: an overloaded worker loses thousands
            log.warning(
                "handler %s: lost a lease on %s (%s); see lease_lost for the count", self.spec.name, connection.node, words
            )
        if message is not None:
            self._unstarted.lost(self._unqueue(lambda waiting: waiting is message))

    def drained(self, connection: Connection) -> None:
        """No message comes on ``connection`` any more."""
        if connection in self.accounts:
            self.accounts[connection].drained = True

    def closed(self, connection: Connection, error: Exception | None) -> None:
        """The connection ended, its leases with it: what waits is forgotten, the broker delivers it again."""
        account = self.accounts.pop(connection, None)
        if account is None:
            self._closed_early.add(connection)
            return
        self._credit.disconnect(account.line)
        self._elsewhere.closed(connection)
        self._reckon_waits()
        self.rouse()
        self._unstarted.lost(self._unqueue(lambda waiting: waiting.connection is connection))
        account.gone(error, worked=account.worked)

    def _reckon_waits(self) -> None:
        """For how long may messages wait, whichever connection they come on."""
        limits, timeout = [connection.limits for connection in self.accounts], self.spec.timeout
        self._credit.bear(min((calls_ahead(one, timeout) for one in limits), default=math.inf))
        if limits and isinstance(self._queue, BatchQueue):
            self._queue.wait_at_most(min(longest_wait(one, timeout) for one in limits) / 2)

    # -- credit

    def _heed(self, message: Message, outcome: Requeue | Deferred | Dead) -> None:
        """When most fail, or the handler says that it cannot work, what has not started is for other workers."""
        if self._watch.pauses_after(message, outcome):
            self._grants.regrant_all()
            self._unstarted.give_back(self._unqueue(), PUT_OFF)

    def _ended(self) -> int:
        """How many messages its calls have settled, also those of which nothing was sent yet."""
        in_flight = sum(len(connection.in_flight) for connection in self.accounts)
        return self._ledger.received - in_flight - self._ledger.taken_away - self._unstarted.given_back

    def pause(self, paused: bool) -> None:
        """Ask for nothing until told otherwise. Its accounts are kept, so that what it had is granted again at once."""
        self._valve.paused = paused
        self._grants.regrant_all()

    @property
    def paused(self) -> bool:
        """Nothing is asked for; what has come is handled."""
        return self._valve.paused

    @property
    def max_in_flight(self) -> int:
        """How many may be in flight, over all connections."""
        return self._credit.max_in_flight

    def resize(self, max_in_flight: int) -> None:
        """What is in flight over ``max_in_flight`` is handled as the rest."""
        self._grants.count()
        self._credit.resize(max_in_flight, clock())
        self._grants.regrant_all()

    # -- the supervisor's timers, unless it is at rest

    @property
    def at_rest(self) -> bool:
        """There is nothing to do for it until something comes: nothing runs, waits, is held back or let go of."""
        quiet = self._places is None and not self.handling and self._watch.at_rest and self._credit.at_rest
        return quiet and self._valve.at_rest(self.accounts) and not any(self._slots.busy())

    def rouse(self) -> None:
        """Something came: have the timers call it until it is at rest again."""
        if not self.awake:
            self.awake = True
            self._ticked_at = self._pulse.rouse(self)

    def tick(self, now: float) -> None:
        """Share the credit anew."""
        if self.stopping:
            return
        self._grants.count()
        self._watch.look(now)
        settled = max(self._ticked_settled, self._ledger.settled - self._ledger.taken_away - self._unstarted.given_back)
        if self._places is not None:
            self._credit.lack((self.spec.concurrency - self._places.usable) * max(1, self.spec.batch))
        self._grants.share(now, settled - self._ticked_settled, now - self._ticked_at)
        self._ticked_at, self._ticked_settled = now, settled

    def keep_leases(self, now: float) -> None:
        """Touch, give back what waited too long, and stop what has run too long."""
        self._slots.enforce(self.spec.timeout, now)
        if self._places is not None:
            self._places.look(now)
        if self._valve.jammed(now) and self._queue:
            self._waited_too_long(set(self._queue))
        for account in list(self.accounts.values()):
            doomed = set(account.leases.keep(self._running, now))
            if doomed:
                self._waited_too_long(doomed)

    def _waited_too_long(self, doomed: set[Message]) -> None:
        log.warning("handler %s: %d messages waited too long for a free slot; given back", self.spec.name, len(doomed))
        self._valve.overdue()
        self._unqueue(doomed.__contains__)
        self._unstarted.give_back(doomed, PUT_OFF)
        self._grants.regrant_all()

    def _running(self) -> dict[Message, float]:
        return {message: slot.started for slot in self._slots.busy() for message in messages_of(slot.job)}

    # -- the end

    def hold(self) -> None:
        """Start no more; may be called from anywhere. ``drain`` follows when the hub turns, which computing handlers delay."""
        self._slots.held = True

    def kept(self) -> Container[Message]:
        """What is not to be given back while it stops, as long as there is time for it. May be called from any thread."""
        return Kept(self.calls.running(), self._unstarted)

    def drain(self) -> None:
        """Start and take no more; what runs goes on, and its leases are kept."""
        self.stopping = self._grants.stopped = True
        self._left = self._unqueue()
        for connection in list(self.accounts):
            connection.grant(0)
            connection.drain()

    def give_back_unstarted(self) -> None:
        """After ``drain`` has been answered, or the broker could deliver them here again. What must be stored instead is
        ``handling`` until then."""
        self._unstarted.give_back(self._left or (), 0.0)
        self._left = None

    @property
    def handling(self) -> bool:
        """Some message can still be settled, or is still told of. What runs for a connection that ended cannot be settled."""
        return self._settlement.telling or any(connection.in_flight for connection in self.accounts)

    @property
    def deaf(self) -> bool:
        """No message can come any more."""
        return all(account.drained for account in self.accounts.values())

    @property
    def quiet(self) -> bool:
        """Nothing is in flight or unsent, and nothing can come any more."""
        return self.deaf and not self.handling and not any(connection.unsent() for connection in self.accounts)

    @property
    def goodbye(self) -> float:
        """Seconds that its brokers may take to confirm that they send no more."""
        return max((connection.limits.goodbye for connection in self.accounts), default=0.0)

    @property
    def ended(self) -> bool:
        """After ``close``: the connections have ended, and all that ran calls as far as it can."""
        return not self.accounts and (self._places is None or self._places.ended)

    @property
    def able(self) -> bool:
        """It has a connection, and handlers can be called."""
        return bool(self.accounts) and (self._places is None or self._places.usable > 0)

    @property
    def refusal(self) -> BadHandler | None:
        """Why its handler can never be called."""
        return self._places.refusal if self._places is not None else None

    @property
    def left_behind(self) -> bool:
        """After the end: some call still runs, in a thread, which cannot be ended."""
        return self._places is not None and bool(self._places.calls())

    def abandon(self) -> None:
        """Give back all that is in flight, and tell the handlers that still run."""
        for connection in list(self.accounts):
            give_back(list(connection.in_flight))
        self._slots.abandon("the worker stops")

    def forget(self) -> None:
        """In a forked child: start nothing more. The messages are the parent's, those that wait as well: the pump that called the
        handler that forked goes on here."""
        self.stopping = self._slots.held = True
        self._queue.clear()
        self._unstarted.forget()
        self._grants.stop()

    def close(self) -> None:
        """Close the connections and end the slots. ``accounts`` empties as the connections end."""
        self._grants.close()
        if isinstance(self._queue, BatchQueue):
            self._queue.close()
        self._slots.close()
        if self._places is not None:
            self._places.close()
        for connection in list(self.accounts):
            connection.close()

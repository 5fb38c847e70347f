"""The loop of one handler, over all its connections: receive -> dispatch -> settle. There is no policy in it.

What happens to a failed message is ``middleware``'s, how many may be in flight is ``credit``'s, how long a lease is kept is
``lease``'s, and which connections there are is ``supervisor``'s.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakSet

from framework.engine.batches import BatchQueue
from framework.engine.calls import RunningCalls
from framework.engine.credit import SPAN as CREDIT_SPAN
from framework.engine.credit import TURN as CREDIT_TURN
from framework.engine.credit import Credit, Line
from framework.engine.lease import LeaseKeeper
from framework.engine.ledger import Ledger
from framework.engine.places import Places, messages_of
from framework.engine.restraint import Watch
from framework.engine.slots import Slot, Slots, clock
from framework.engine.turns import SLICE, Turns
from framework.errors import AlreadySettled, BadHandler
from framework.handler import HandlerSpec
from framework.message import Message, calls_of
from framework.middleware.outcome import BatchOutcome, Deferred, Outcome, Requeue
from framework.transports.contract import Connection, Tally

log = logging.getLogger(__name__)

JAMMED = 1.0
"""Seconds without a place for any call after which what waits is given back."""


class Account:
    """What the consumer keeps for one connection."""

    __slots__ = ("drained", "gone", "leases", "line", "warned")

    def __init__(self, line: Line, leases: LeaseKeeper, gone: Callable[[Exception | None], None]) -> None:
        self.line = line
        self.leases = leases
        self.gone = gone
        self.drained = False
        self.warned = False


class Consumer:
    """``transports.contract.Receiver`` for one handler. All of it is called on the hub or in its slots.

    ``places``: where calls run, when not in the slots themselves.
    """

    def __init__(
        self,
        hub: Any,
        turns: Turns,
        spec: HandlerSpec,
        chain: Callable[[Any], Outcome | BatchOutcome],
        ledger: Ledger,
        *,
        places: Places | None = None,
    ) -> None:
        self.spec = spec
        self.tally: Tally = ledger
        self._ledger = ledger
        self.accounts: dict[Connection, Account] = {}
        self.stopping = False
        self.paused = False
        """Nothing is asked for; what has come is handled."""
        self._turns = turns
        self._chain = chain
        self._queue: deque[Message] | BatchQueue = deque()
        self._places = places
        self._jammed_since = clock() if places is not None and not places.usable else None
        self._slots = Slots(hub, turns, spec.concurrency, self._queue, self._work if places is None else self._work_elsewhere)
        if spec.batch:
            self._queue = self._slots.queue = BatchQueue(hub, spec.batch, spec.linger, self._slots.pump)
        self.calls = RunningCalls(hub, spec.timeout, self._slots, places)
        # The slots of a batch handler hold whole batches, and one more may fill meanwhile.
        depth = (spec.concurrency + 1) * spec.batch if spec.batch else spec.concurrency
        self._credit = Credit(spec.max_in_flight, depth)
        self._watch = Watch(spec.name, ledger, self._credit)
        self._decay = hub.loop.timer(CREDIT_SPAN, CREDIT_SPAN)
        self._rotation = hub.loop.timer(CREDIT_TURN, CREDIT_TURN)
        self._ticked_at, self._ticked_settled = clock(), 0
        self._closed_early: WeakSet[Connection] = WeakSet()
        self._unstarted: list[Message] = []

    # -- THE loop

    def deliver(self, connection: Connection, batch: list[Message]) -> None:
        """Receive. Handlers that do not block are through, and their messages settled, when it returns."""
        if self.stopping or self._watch.pausing:
            self._give_back(batch)
            return
        account = self.accounts[connection]
        self._credit.arrived(account.line, len(batch), clock(), self._turns.mean)
        self._queue.extend(batch)
        self._slots.pump()
        self._regrant(connection, account)

    def _work(self, slot: Slot) -> None:
        """Dispatch, in a slot, until nothing waits or the hub's turn is spent."""
        queue: Any = self._queue
        chain, turns, slots, now = self._chain, self._turns, self._slots, clock()
        try:
            while queue:
                slot.job = job = queue.popleft()  # a Message; of a BatchQueue, a list of them
                slot.started = now
                outcome = chain(job)
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
            self._give_back(messages_of(slot.job))
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
            self._give_back(messages_of(slot.job))
            raise

    def _settle(self, job: Any, outcome: Outcome | BatchOutcome) -> None:
        """Settle: tell the broker, and the ledger what the connection cannot know."""
        if isinstance(outcome, dict):
            for message, each in outcome.items():
                self._settle(message, each)
        elif isinstance(outcome, Requeue):
            self._requeue(job, outcome.delay)
            self._heed(job, outcome)
        elif isinstance(outcome, Deferred):
            if self._finish(job):
                self._ledger.deferred()
            self._heed(job, outcome)
        elif self._finish(job) and outcome is not None:
            self._ledger.buried()

    def settled(self, connection: Connection) -> None:
        """Slots settled messages of ``connection`` in this turn; what its grant should be now goes out with them."""
        account = self.accounts.get(connection)
        if account is not None:
            self._regrant(connection, account)

    # -- one message

    def _finish(self, message: Message) -> bool:
        try:
            message.connection.finish(message)
        except AlreadySettled:
            return False
        return True

    def _requeue(self, message: Message, delay: float) -> None:
        try:
            message.connection.requeue(message, delay)
        except AlreadySettled:
            pass

    def _give_back(self, messages: Iterable[Message]) -> None:
        """Have them delivered again at once, here or elsewhere."""
        for message in messages:
            self._requeue(message, 0.0)

    def _unqueue(self, doomed: Callable[[Message], bool]) -> None:
        kept = [message for message in self._queue if not doomed(message)]
        if len(kept) < len(self._queue):
            self._queue.clear()
            self._queue.extend(kept)

    # -- connections come and go

    def attach(self, connection: Connection, gone: Callable[[Exception | None], None]) -> None:
        """Use a new connection; ``gone(error)`` is called when it has ended."""
        if connection in self._closed_early:  # it ended between its handshake and now
            self._closed_early.discard(connection)
            gone(None)
            return
        line = self._credit.connect(connection.limits.max_grant, clock())
        calls_of[connection] = self.calls
        account = self.accounts[connection] = Account(line, LeaseKeeper(connection, self.spec.timeout), gone)
        if self.stopping:
            connection.drain()
        else:
            self._regrant(connection, account)

    def lost(self, connection: Connection, message: Message | None, words: str) -> None:
        """A lease is gone. What waits is not started any more; what runs ends with nothing to settle."""
        account = self.accounts.get(connection)
        if account is not None and not account.warned:
            account.warned = True  # once a connection: an overloaded worker loses thousands
            log.warning(
                "handler %s: lost a lease on %s (%s); see lease_lost for the count", self.spec.name, connection.node, words
            )
        if message is not None:
            self._unqueue(lambda waiting: waiting is message)

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
        self._unqueue(lambda waiting: waiting.connection is connection)
        account.gone(error)

    # -- credit

    def _heed(self, message: Message, outcome: Requeue | Deferred) -> None:
        """When most fail, or the handler says that it cannot work, what has not started is for other workers."""
        if self._watch.pauses_after(message, outcome):
            waiting = list(self._queue)
            self._queue.clear()
            self._give_back(waiting)
            self._regrant_all()

    def pause(self, paused: bool) -> None:
        """Ask for nothing until told otherwise. Its accounts are kept, so that what it had is granted again at once."""
        self.paused = paused
        self._regrant_all()

    @property
    def max_in_flight(self) -> int:
        """How many may be in flight, over all connections."""
        return self._credit.max_in_flight

    def resize(self, max_in_flight: int) -> None:
        """What is in flight over ``max_in_flight`` is handled as the rest."""
        self._credit.resize(max_in_flight, clock())
        self._regrant_all()

    def _regrant_all(self) -> None:
        for connection, account in list(self.accounts.items()):
            self._regrant(connection, account)

    def _regrant(self, connection: Connection, account: Account) -> None:
        if self.stopping or connection not in self.accounts:
            return
        line = account.line
        granted = self._credit.grant(line, len(connection.in_flight))
        if self.paused or self._jammed_since is not None:
            granted = 0
        if granted != connection.granted:
            connection.grant(granted)
        if line.headroom > 1 and not self._decay.active:
            self._decay.start(self._lower)

    def _lower(self) -> None:
        """The traffic slackened on some connections: a broker that waits for its buffer to fill sends when a grant falls."""
        if self.stopping or not self._credit.decay(clock(), self._turns.mean, self._turns.idle):
            self._decay.stop()
        for connection, account in list(self.accounts.items()):
            if account.line.granted > account.line.headroom + len(connection.in_flight):
                self._regrant(connection, account)

    def _rotate(self) -> None:
        """There are more connections than may have a message each: they take turns."""
        if self.stopping or not self._credit.crowded:
            self._rotation.stop()
        self._credit.rotate(clock())
        self._regrant_all()

    # -- the supervisor's timer

    def tick(self, now: float) -> None:
        """Share the credit anew."""
        if self.stopping:
            return
        for connection, account in self.accounts.items():
            account.line.in_flight = len(connection.in_flight)
        self._watch.look(now)
        settled = self._ledger.settled
        ordered = self._credit.tick(now, settled - self._ticked_settled, now - self._ticked_at)
        self._ticked_at, self._ticked_settled = now, settled
        owners = {account.line: (connection, account) for connection, account in self.accounts.items()}
        for line in ordered:
            self._regrant(*owners[line])
        if self._credit.crowded and not self._rotation.active:
            self._rotation.start(self._rotate)

    def keep_leases(self, now: float) -> None:
        """Touch, give back what waited too long, and stop what has run too long."""
        self._slots.enforce(self.spec.timeout, now)
        if self._places is not None:
            self._places.look(now)
            self._look_for_a_jam(self._places, now)
        for account in list(self.accounts.values()):
            doomed = set(account.leases.keep(self._running, now))
            if doomed:
                self._waited_too_long(doomed)

    def _waited_too_long(self, doomed: set[Message]) -> None:
        log.warning("handler %s: %d messages waited too long for a free slot; given back", self.spec.name, len(doomed))
        self._unqueue(doomed.__contains__)
        self._give_back(doomed)

    def _running(self) -> dict[Message, float]:
        return {message: slot.started for slot in self._slots.busy() for message in messages_of(slot.job)}

    def _look_for_a_jam(self, places: Places, now: float) -> None:
        """While every place is stuck or being started again, messages are for other workers."""
        if places.usable:
            self._jammed_since = None
        elif self._jammed_since is None:
            self._jammed_since = now
        elif now - self._jammed_since > JAMMED and self._queue:
            self._waited_too_long(set(self._queue))

    # -- the end

    def hold(self) -> None:
        """Start no more; may be called from anywhere. ``drain`` follows when the hub turns, which computing handlers delay."""
        self._slots.held = True

    def drain(self) -> None:
        """Start and take no more; what runs goes on, and its leases are kept."""
        self.stopping = True
        self._unstarted = list(self._queue)
        self._queue.clear()
        for connection in list(self.accounts):
            connection.grant(0)
            connection.drain()

    def give_back_unstarted(self) -> None:
        """After ``drain`` has been sent, or the broker could deliver them here again."""
        self._give_back(self._unstarted)
        self._unstarted.clear()

    @property
    def handling(self) -> bool:
        """Some message can still be settled. What runs for a connection that ended cannot."""
        return any(connection.in_flight for connection in self.accounts)

    @property
    def quiet(self) -> bool:
        """Nothing is in flight or unsent, and nothing can come any more."""
        settled = all(account.drained and not connection.unsent() for connection, account in self.accounts.items())
        return settled and not self.handling

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
            self._give_back(list(connection.in_flight))
        self._slots.abandon("the worker stops")

    def close(self) -> None:
        """Close the connections and end the slots. ``accounts`` empties as the connections end."""
        for timer in (self._decay, self._rotation):
            timer.stop()
            timer.close()
        if isinstance(self._queue, BatchQueue):
            self._queue.close()
        self._slots.close()
        if self._places is not None:
            self._places.close()
        for connection in list(self.accounts):
            connection.close()

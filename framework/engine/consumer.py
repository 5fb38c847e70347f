"""The loop of one handler, over all its connections: receive -> dispatch -> settle. There is no policy in it.

What happens to a failed message is ``middleware``'s, how many messages are asked for is ``flow``'s, which of them are given back
is ``in_flight``'s, how the handler ends is ``shutdown``'s, and which connections there are is ``supervisor``'s.
"""

from __future__ import annotations

from collections import deque
from typing import Any
from weakref import WeakSet

from framework.engine.batches import BatchQueue
from framework.engine.elsewhere import Elsewhere
from framework.engine.endings import Endings, Run
from framework.engine.flow import Flow
from framework.engine.grants import Account, Gone
from framework.engine.in_flight import InFlight
from framework.engine.lease import LeaseKeeper
from framework.engine.ledger import Ledger
from framework.engine.pulse import Pulse
from framework.engine.remote_slots import RemoteSlots, messages_of
from framework.engine.running import RunningCalls
from framework.engine.settlement import Settlement, give_back
from framework.engine.shutdown import Shutdown
from framework.engine.slots import Slot, Slots, clock
from framework.engine.times import FAST, Times
from framework.engine.turns import SLICE, Turns
from framework.engine.unstarted import Keeps, Unstarted
from framework.engine.waiting import Waiting
from framework.errors import AlreadySettled, BadHandler
from framework.handler import HandlerSpec
from framework.message import Message, calls_of
from framework.middleware.envelope import known_as
from framework.middleware.outcome import DEFERRED, Chain
from framework.observe import hublog
from framework.transports.contract import Connection, Tally, away

log = hublog.get(__name__)


class Consumer:
    """``transports.contract.Receiver`` for one handler. All of it is called on the hub or in its slots.

    ``chain`` is for what comes from the handler's topic, ``later_chain`` for what comes from where its messages wait, and for a
    batch that has messages of both.
    ``remote``: where calls run, when not in the slots themselves. ``later``: where messages wait that must not be requeued.
    """

    def __init__(
        self,
        hub: Any,
        turns: Turns,
        spec: HandlerSpec,
        chain: Chain,
        ledger: Ledger,
        *,
        later_chain: Chain | None = None,
        remote: RemoteSlots | None = None,
        later: Keeps | None = None,
        pulse: Pulse | None = None,
        longest_pause: float | None = None,
    ) -> None:
        self.spec = spec
        self.tally: Tally = ledger
        self._turns = turns
        self._chain, self._later_chain = chain, later_chain
        self._remote = remote
        self._pulse = pulse or Pulse()
        self._elsewhere = Elsewhere(ledger)
        self._endings = Endings(spec) or None
        self.times = Times()
        self._closed_early: WeakSet[Connection] = WeakSet()
        self._queue: deque[Message] | BatchQueue = deque()
        work = self._work if remote is None else self._work_remotely
        self._slots = Slots(hub, turns, spec.concurrency, self._queue, work, name=spec.name, known_as=known_as)
        if spec.batch:
            self._queue = self._slots.queue = BatchQueue(hub, spec.batch, spec.linger, self._slots.pump)
        self._unstarted = Unstarted(later, lambda message: self._settle(message, DEFERRED, heed=False))
        self._waiting = Waiting(self._queue, self._unstarted)
        self.flow = Flow(
            hub, turns, spec, ledger, self._waiting, slots=self._slots, remote=remote, rouse=self.rouse,
            longest_pause=longest_pause,
        )  # fmt: skip
        self.accounts = self.flow.accounts
        self._credit, self._breaker, self._regrant = self.flow.credit, self.flow.breaker, self.flow.grants.regrant
        self._in_flight = InFlight(spec, self.flow, self._waiting, self._slots, remote)
        settlement = self._settlement = Settlement(
            ledger, self._elsewhere, self._breaker, self.flow.heed, self._endings, uncounted=self._unstarted.note
        )
        self._settle = settlement.settle
        self.running = RunningCalls(hub, spec.timeout, self._slots, remote)
        self.shutdown = Shutdown(
            self.flow, self._in_flight, self._waiting, settlement, running=self.running, slots=self._slots, remote=remote
        )
        self.awake = False
        """Its timers call it; else it is ``at_rest``."""
        self.rouse()

    @property
    def capacity(self) -> int:
        """How many messages its handler can work on at once."""
        slots = self.concurrency if self._remote is None else max(0, self._remote.usable)
        return slots * max(1, self.spec.batch)

    @property
    def concurrency(self) -> int:
        """How many calls may run at once."""
        return self.flow.concurrency

    def resize(self, concurrency: int) -> None:
        """Have so many slots. What runs in those that are too many ends as it would, and they take no other message."""
        if self._remote is not None:
            self._remote.resize(concurrency)
        self._slots.resize(concurrency)
        self.flow.work_at_once(concurrency)

    # -- THE loop

    def deliver(self, connection: Connection, batch: list[Message]) -> None:
        """Receive. Handlers that do not block are through, and their messages settled, when it returns."""
        if self._unstarted:
            self._unstarted.correct(batch)
        if self.shutdown.begun:
            self.shutdown.decline(batch)
            return
        if self._breaker.pausing or self.flow.drained:
            self._waiting.put_off(batch)
            return
        if not self.awake:
            self.rouse()
        if self._endings is not None:
            self._endings.came(batch)
        account, before = self.accounts[connection], len(connection.in_flight)
        self._credit.arrived(account.share, len(batch), clock(), self._turns.mean)
        self._queue.extend(batch)
        self._slots.pump()
        if len(connection.in_flight) < before:
            account.worked = True
        self._regrant(connection, account)

    def _work(self, slot: Slot) -> None:
        """Dispatch, in a slot, until nothing waits or the hub's turn is spent."""
        queue: Any = self._queue
        turns, slots, times, began = self._turns, self._slots, self.times, clock()
        now = since = began
        context, base, spent_at = slot.context, slot.base, 0.0
        endings: Any = self._endings
        chain, known, run = self._chain, self, None
        if endings is not None:
            run = slot.run = slot.run or Run()
            add = run.ids.append
        try:
            while queue:
                slot.job = job = queue.popleft()  # a Message; of a BatchQueue, a list of them
                slot.started = now
                connection = job.connection
                if connection is not known:  # most come by the connection of the one before
                    known, chain = connection, self._chain_of(connection)
                outcome = chain(job)
                try:
                    left = context != base
                except Exception:  # values that cannot be compared are others
                    left = True
                if left:  # a new one for every call was 4 % of what a message costs
                    context = slots.renew(slot)
                if outcome is None:
                    try:
                        connection.finish(job)
                    except AlreadySettled:  # its lease was lost while it ran, and has been counted as lost
                        if run is not None:
                            endings.cut(run, now)
                            endings.ended(job, job, "lease_lost", now)
                    else:
                        if run is not None:
                            if connection is not run.connection or job.attempts != run.attempts:
                                endings.begin(run, job, now)
                            add(job.id)
                else:
                    if run is not None:
                        endings.cut(run, now)
                    self._settle(job, outcome, now)
                slot.job = None
                now = clock()  # the end of this one is the start of the next: one clock a message
                if now > spent_at:  # as of the last look: neither part of it is ever put back
                    if now - slot.started > FAST:
                        times.slow(now - slot.started)
                    times.ended_at = now  # a run of calls that block for less may last for hours
                    times.busy += now - since
                    since = now
                    if run is not None:
                        endings.look(run, slot.started, now)
                    spent_at = max(turns.stamp + SLICE, slots.own_time_ends)
                    if now > spent_at or slot.leaving:
                        break
            if now is not began:
                times.ran(since, slot.started, now, job)
                if run is not None:
                    endings.cut(run, now)
        except BaseException:  # not the handler's: the chain takes those
            slots.renew(slot)
            if run is not None:
                endings.cut(run, now)
            give_back(messages_of(slot.job))
            raise

    def _work_remotely(self, slot: Slot) -> None:
        """Dispatch where the chain waits for a thread or a process: a message is taken when a remote slot is free."""
        queue: Any = self._queue
        remote: Any = self._remote
        try:
            # Others have taken from the queue while it waited.
            while queue and not slot.leaving and remote.wait() and queue and not (slot.leaving or self._slots.halted):
                slot.started = clock()
                slot.job = job = queue.popleft()
                self._settle(job, self._chain_of(job.connection)(job), slot.started)
                slot.job = None
                self._took(slot.started, job)
        except BaseException:
            give_back(messages_of(slot.job))
            raise

    def _chain_of(self, connection: Connection | None) -> Chain:
        """For what comes by ``connection``; None: a batch of the handler's own topic."""
        return self._chain if connection is None else self.accounts[connection].chain

    def _took(self, started: float, job: Any) -> None:
        now = clock()
        if now - started > FAST:
            self.times.slow(now - started)
        self.times.ran(started, started, now, job)

    @property
    def waiting(self) -> int:
        """How many messages have come and have not been started. May be asked from any thread."""
        return len(self._queue)

    @property
    def calls_ended(self) -> int:
        """May be asked from any thread."""
        return self._settlement.batches if self.spec.batch else self.flow.ended

    def settled(self, connection: Connection) -> None:
        """Slots settled messages of ``connection`` in this turn; what its grant should be now goes out with them."""
        account = self.accounts.get(connection)
        if account is not None:
            account.worked = True
            self._regrant(connection, account)

    # -- connections come and go

    def attach(self, connection: Connection, gone: Gone) -> None:
        """Use a new connection; ``gone`` is called when it has ended."""
        if connection in self._closed_early:  # it ended between its handshake and now
            self._closed_early.discard(connection)
            gone(None, worked=False)
            return
        calls_of[connection] = self.running
        share, leases = self.flow.connect(connection), LeaseKeeper(connection, self.spec.timeout)
        account = self.accounts[connection] = Account(share, leases, self._chain_for(connection), gone)
        self.flow.connections_changed()
        if self.shutdown.begun:
            connection.drain()
        else:
            self._regrant(connection, account)

    def _chain_for(self, connection: Connection) -> Chain:
        if self._later_chain is None or connection.topic == self.spec.topic:
            return self._chain
        if isinstance(self._queue, BatchQueue):
            self._queue.apart.add(connection)
        return self._later_chain

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
            self._waiting.lost(message)

    def drained(self, connection: Connection) -> None:
        """No message comes on ``connection`` any more."""
        if connection in self.accounts:
            self.accounts[connection].drained = True

    def closed(self, connection: Connection, error: Exception | None) -> None:
        """The connection ended, its leases with it."""
        account = self.accounts.pop(connection, None)
        if account is None:
            self._closed_early.add(connection)
            return
        self._elsewhere.closed(connection)
        self.flow.disconnect(account.share)
        self._waiting.closed(connection)
        if isinstance(self._queue, BatchQueue):
            self._queue.apart.discard(connection)
        account.gone(error, worked=account.worked)

    def stood_still(self, seconds: float) -> None:
        """Nothing of this process ran for so long. Where that is a lease, what came meanwhile looks new when it is read, and the
        broker has given it to others by now: the connection is closed, and dialled anew."""
        if not self.shutdown.begun:
            for connection in list(self.accounts):
                if seconds >= connection.limits.lease:
                    connection.close()

    @property
    def connected(self) -> int:
        """How many of its connections reach their nodes. May be asked from any thread."""
        return sum(not away(connection) for connection in list(self.accounts))

    @property
    def able(self) -> bool:
        """It has a connection that reaches its node, and handlers can be called."""
        return bool(self.connected) and (self._remote is None or self._remote.usable > 0)

    @property
    def refusal(self) -> BadHandler | None:
        """Why its handler can never be called."""
        return self._remote.refusal if self._remote is not None else None

    # -- the supervisor's timers, unless it is at rest

    @property
    def at_rest(self) -> bool:
        """There is nothing to do for it until something comes: nothing runs, waits, is held back or let go of."""
        return self._remote is None and not self.shutdown.handling and self.flow.at_rest and not self._in_flight.started

    def rouse(self) -> None:
        """Something came: have the timers call it until it is at rest again."""
        if not self.awake:
            self.awake = True
            self.flow.roused(self._pulse.rouse(self))

    def tick(self, now: float) -> None:
        """Divide the credit anew."""
        if not self.shutdown.begun:
            self.flow.tick(now)

    def keep_leases(self, now: float) -> None:
        self._in_flight.look(now)
        if self._endings is not None:
            self._endings.look_at(self._slots.busy())

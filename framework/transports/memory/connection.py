"""One subscription on a node of the memory broker: ``contract.Connection``, on the hub that it was made on. No policy.

What is said on it is heard by the node in the same turn of the hub, as if it went through a socket: until then it can be lost.
"""

from __future__ import annotations

from time import monotonic

from gevent import monkey
from gevent.hub import get_hub

from framework.alarm import Alarm
from framework.errors import AlreadySettled
from framework.message import Message
from framework.transports.contract import Limits, Receiver
from framework.transports.memory.broker import MAX_DEFER, MemoryNode
from framework.transports.memory.queues import Stored

_thread_ident = monkey.get_original("_thread", "get_ident")


class MemoryConnection:
    """``contract.Connection`` in memory. Made by ``MemoryTransport.connect``."""

    lasting_ids = False
    """A broker that is made anew counts from 1 again."""

    def __init__(self, node: MemoryNode, topic: str, channel: str, receiver: Receiver, limits: Limits) -> None:
        self.node = node.name
        self.topic = topic
        self.channel = channel
        self.limits = limits
        self.granted = 0
        self.in_flight: dict[Message, float] = {}
        self.leases: dict[Message, Stored] = {}
        """What the node knows to be in flight here."""
        self._node = node
        self._clock = node.broker.clock
        self._lock = node.broker.lock
        self._receiver = receiver
        self._tally = receiver.tally
        self._loop = get_hub().loop
        self._thread = _thread_ident()
        self._alarm = Alarm(self.wake)
        self._rung = False
        self._busy = False
        self._draining = self._drain_due = self._closing = self._closed = False
        self._cut: Exception | None = None
        self._touches: list[Message] = []
        self._fins: list[Message] = []
        self._reqs: list[tuple[Message, float]] = []
        self._told: list[Message] = []
        with self._lock:
            self._channel = node.join(self, topic, channel)

    rescuable = None
    """It has no socket that would fall silent; its leases run out."""

    @property
    def exposed(self) -> int:
        return max(self.granted, len(self.leases), len(self.in_flight))

    # -- what the engine says

    def grant(self, n: int) -> None:
        n = min(n, self.limits.max_grant)
        if n != self.granted and not self._draining:
            self.granted = n
            self._schedule()

    def finish(self, message: Message) -> None:
        if self.in_flight.pop(message, None) is None:
            raise AlreadySettled.of(message.id)
        self._fins.append(message)
        if not self._busy:
            self._schedule()

    def requeue(self, message: Message, delay: float) -> None:
        if self.in_flight.pop(message, None) is None:
            raise AlreadySettled.of(message.id)
        self._reqs.append((message, min(delay, MAX_DEFER)))
        self._schedule()

    def touch(self, message: Message) -> None:
        if self.in_flight.pop(message, None) is None:
            raise AlreadySettled.of(message.id)
        self.in_flight[message] = monotonic()
        self._touches.append(message)
        self._schedule()

    def drain(self) -> None:
        if self._draining:
            return
        self.granted = 0
        self._draining = self._drain_due = True
        self._schedule()

    def unsent(self) -> int:
        """How many settlements wait: there are no bytes."""
        return len(self._fins) + len(self._reqs)

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if not self._busy:
            self._turn()

    # -- what the node says, from any thread

    def room(self) -> int:
        return 0 if self._closing or self._cut else self.granted - len(self.leases)

    def wake(self) -> None:
        if self._rung:
            return
        self._rung = True
        here = _thread_ident() == self._thread
        run = self._loop.run_callback if here else self._loop.run_callback_threadsafe
        try:
            run(self._turn)
        except Exception:  # its thread has ended without closing it, and its loop with it
            self._leave()

    def cut(self, error: Exception) -> None:
        self._cut = error
        self.wake()

    def tell(self, message: Message) -> None:
        self._told.append(message)
        self.wake()

    # -- a turn of the hub

    def _schedule(self) -> None:
        if not self._busy:
            self.wake()

    def _turn(self) -> None:
        """Settle what slots have settled, take what there is room for, settle that. The hub would only print an exception."""
        self._rung = False
        if self._closed:
            return
        self._busy = True
        try:
            self._talk()
        except Exception as error:
            self._end(error)
        finally:
            self._busy = False
        if self._closing and not self._closed:
            self._end(None)

    def _talk(self) -> None:
        if self._cut is not None:
            return self._end(self._cut)
        self._hear()
        if self._fins or self._reqs:
            self._receiver.settled(self)
        self._flush()
        if self._drain_due:
            self._drain_due = False
            self._receiver.drained(self)
        self._take()
        return None

    def _take(self) -> None:
        with self._lock:
            batch = self._lease()
        if batch:
            self.in_flight.update(dict.fromkeys(batch, monotonic()))
            self._tally.received += len(batch)
            self._receiver.deliver(self, batch)
            self._flush()
        if self._channel.ready and self.room() > 0:
            self.wake()
        self._alarm.set(self._clock.real(self._channel.next_due))

    def _lease(self) -> list[Message]:
        now = self._clock.now()
        stored = self._channel.take(self, now)
        for one in stored:
            one.attempts += 1
        batch = [Message(one.id, one.timestamp, one.attempts, one.body, self, one.headers) for one in stored]
        if batch:
            self._channel.leased(self, batch, stored, now + self.limits.lease, now + self.limits.max_lease)
        return batch

    def _flush(self) -> None:
        """Have the node hear what was said, in the order in which a socket would bring it."""
        if not (self._fins or self._reqs or self._touches) or self._cut is not None:
            return
        fins, reqs, touches = self._fins, self._reqs, self._touches
        self._fins, self._reqs, self._touches = [], [], []
        with self._lock:
            now = self._clock.now()
            self._channel.release(now)
            gone = [message for message in touches if not self._prolonged(message, now)]
            late_fins = self._node.finish(self, self._channel, fins)
            late_reqs = self._node.requeue(self, self._channel, reqs)
        self._tally.finished += len(fins) - len(late_fins)
        self._tally.requeued += len(reqs) - len(late_reqs)
        self._tally.lease_lost += len(late_fins) + len(late_reqs)
        for message in gone:
            self._lost(message, "TOUCH failed")
        for message in late_fins + late_reqs:
            self._receiver.lost(self, None, "settled too late", settled=message.id)

    def _prolonged(self, message: Message, now: float) -> bool:
        stored = self.leases.get(message)
        if stored is not None:
            stored.deadline = min(now + self.limits.lease, stored.latest)
        return stored is not None

    def _hear(self) -> None:
        while self._told:  # another thread may add to it meanwhile
            self._lost(self._told.pop(), "the lease was ended")

    def _lost(self, message: Message, words: str) -> None:
        """One that was settled since is counted when the settlement fails."""
        if self.in_flight.pop(message, None) is not None:
            self._tally.lease_lost += 1
            self._receiver.lost(self, message, words)

    # -- the end

    def _end(self, error: Exception | None) -> None:
        if self._closed:
            return
        self._draining = self._closing = self._closed = True
        self._alarm.cancel()
        self._tally.lease_lost += len(self.in_flight) + len(self._fins) + len(self._reqs)
        for waiting in (self._fins, self._reqs, self._touches, self._told):
            waiting.clear()
        self.in_flight.clear()
        self.granted = 0
        self._leave()
        self._receiver.closed(self, error)

    def _leave(self) -> None:
        with self._lock:
            self._node.leave(self, self.topic, self.channel)

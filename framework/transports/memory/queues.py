"""The messages of one node of the memory broker: topics, channels, and what each connection has in flight.

Plain state: no lock, no hub, no clock. The caller holds the lock of the broker, and says what time it is.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Protocol

import msgspec
from msgspec.structs import replace

from framework.headers import NONE, Headers
from framework.message import Message
from framework.names import EPHEMERAL

DEFAULT_PRIORITY = 65_536
"""Of a message that was published without one: what beanstalkd's clients use."""


class Stored(msgspec.Struct, gc=False, eq=False):
    """One message as one channel holds it. Times by the broker's clock."""

    id: bytes
    timestamp: int
    body: bytes
    order: int
    """Its place among all messages of the node."""
    priority: int = DEFAULT_PRIORITY
    attempts: int = 0
    deadline: float = 0.0
    """When the lease ends, while it is in flight."""
    latest: float = 0.0
    """The latest that touching can move ``deadline`` to."""
    headers: Headers = NONE


class Subscriber(Protocol):
    """A connection, as its channel sees it."""

    leases: dict[Message, Stored]
    """Its messages in flight, by what the broker knows."""
    in_flight: dict[Message, float]
    """Its messages in flight, by what its client knows."""

    def unsent(self) -> int:
        """How many settlements its client has made and the broker has not heard."""

    def room(self) -> int:
        """How many more messages it may be given."""

    def wake(self) -> None:
        """There is, or soon will be, something for it. From any thread."""


@dataclass(slots=True)
class Outlook:
    """What there is to do."""

    now: int = 0
    """Messages that are ready, or that a client has."""
    deferred: int = 0
    """Messages that are deferred, or in flight although their client has done with them."""
    due: float = math.inf
    """When some of ``later`` may come due: never after it does, sometimes before."""


class Ready:
    """What could be delivered now, the most urgent first, and then in the order in which it was stored.

    A message that was given back returns to its own place. Of the usual priority and never delivered, it costs no heap.
    """

    def __init__(self) -> None:
        self._fresh: deque[Stored] = deque()
        self._others: list[tuple[int, int, Stored]] = []

    def __len__(self) -> int:
        return len(self._fresh) + len(self._others)

    def __iter__(self) -> Iterator[Stored]:
        """In no order."""
        yield from self._fresh
        yield from (entry[2] for entry in self._others)

    def add(self, messages: Iterable[Stored]) -> None:
        """New messages, of the usual priority, later than all before."""
        self._fresh.extend(messages)

    def put(self, message: Stored) -> None:
        """Any message, at its place."""
        heappush(self._others, (message.priority, message.order, message))

    def take(self, count: int) -> list[Stored]:
        """As many as there are; none where ``count`` is negative."""
        fresh, others = self._fresh, self._others
        if not others:
            return [fresh.popleft() for _ in range(min(count, len(fresh)))]
        return [self._next() for _ in range(min(count, len(self)))]

    def _next(self) -> Stored:
        fresh, others = self._fresh, self._others
        if not others or (fresh and (DEFAULT_PRIORITY, fresh[0].order) < others[0][:2]):
            return fresh.popleft()
        return heappop(others)[2]


class Channel:
    """A copy of its topic's messages, shared by its subscribers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready = Ready()
        self.subscribers: list[Subscriber] = []
        self.next_due = math.inf
        """When something may come due: never later than it does, sometimes earlier."""
        self._deferred: list[tuple[float, int, Stored]] = []

    @property
    def in_flight(self) -> int:
        return sum(len(one.leases) for one in self.subscribers)

    @property
    def depth(self) -> int:
        """All that is not finished."""
        return len(self.ready) + len(self._deferred) + self.in_flight

    def look(self, outlook: Outlook, now: float) -> None:
        """Add to ``outlook`` what there is to do here."""
        self.release(now)
        outlook.now += len(self.ready)
        outlook.deferred += len(self._deferred)
        for one in self.subscribers:
            held = len(one.in_flight) + one.unsent()
            outlook.now += held
            outlook.deferred += 0 if held else len(one.leases)
        outlook.due = min(outlook.due, self.next_due)

    @property
    def first_deferred(self) -> float:
        """When the first of the deferred comes due; infinite without any."""
        return self._deferred[0][0] if self._deferred else math.inf

    def messages(self) -> Iterator[Stored]:
        """All that is there and not in flight, in no order."""
        yield from self.ready
        yield from (entry[2] for entry in self._deferred)

    # -- messages come

    def add(self, messages: list[Stored], due: float | None) -> None:
        """New messages; ``due`` None: now."""
        if due is not None:
            for message in messages:
                self.defer(message, due)
        elif messages and messages[0].priority == DEFAULT_PRIORITY:
            self.ready.add(messages)
        else:
            for message in messages:
                self.ready.put(message)
        self.ring()

    def defer(self, message: Stored, due: float) -> None:
        heappush(self._deferred, (due, message.order, message))
        self.next_due = min(self.next_due, due)

    def ring(self) -> None:
        """Wake whoever may be given something."""
        for subscriber in tuple(self.subscribers):  # waking one that has died removes it
            if subscriber.room() > 0:
                subscriber.wake()

    def copy(self, other: Channel) -> None:
        """Add what ``other`` has, which nobody has been given yet."""
        for message in other.ready:
            self.ready.put(replace(message))
        for due, _, message in other._deferred:
            self.defer(replace(message), due)

    # -- messages go

    def take(self, subscriber: Subscriber, now: float) -> list[Stored]:
        """What ``subscriber`` has room for; the subscriber notes the lease."""
        self.release(now)
        return self.ready.take(subscriber.room())

    def leased(
        self, subscriber: Subscriber, batch: list[Message], messages: list[Stored], deadline: float, latest: float
    ) -> None:
        """``batch`` is in flight at ``subscriber``."""
        for message in messages:
            message.deadline, message.latest = deadline, latest
        subscriber.leases.update(zip(batch, messages, strict=True))
        self.next_due = min(self.next_due, deadline)

    def release(self, now: float) -> None:
        """Make ready what has come due: deferred messages, and those whose lease has run out."""
        if now < self.next_due:
            return
        while self._deferred and self._deferred[0][0] <= now:
            self.ready.put(heappop(self._deferred)[2])
        self.next_due = self.first_deferred
        for subscriber in self.subscribers:
            self._expire(subscriber.leases, now)
        if self.ready:
            self.ring()

    def _expire(self, leases: dict[Message, Stored], now: float) -> None:
        for delivery, message in list(leases.items()):
            if message.deadline <= now:
                self.ready.put(leases.pop(delivery))
            else:
                self.next_due = min(self.next_due, message.deadline)

    # -- subscribers come and go

    def leave(self, subscriber: Subscriber) -> None:
        """What it had in flight can be delivered to others at once."""
        if subscriber not in self.subscribers:
            return
        self.subscribers.remove(subscriber)
        for message in subscriber.leases.values():
            self.ready.put(message)
        subscriber.leases.clear()
        self.ring()


class Topic:
    """A name that is published to; what comes before it has a channel waits for the first."""

    def __init__(self) -> None:
        self.channels: dict[str, Channel] = {}
        self._waiting = Channel("")

    def channel(self, name: str) -> Channel:
        """The channel of that name, made when there is none."""
        if name not in self.channels:
            self.channels[name] = Channel(name) if self.channels else self._first(name)
        return self.channels[name]

    def _first(self, name: str) -> Channel:
        channel, self._waiting = self._waiting, Channel("")
        channel.name = name
        return channel

    def declare(self, names: Iterable[str]) -> None:
        """Make these channels at once: what waits for the first is copied to each."""
        early = not self.channels
        first, *others = [self.channel(name) for name in names]
        for channel in others if early else ():
            channel.copy(first)

    def preview(self, name: str) -> Channel:
        """The channel of that name, or one that holds what it would get if it were made now."""
        return self.channels.get(name, self._waiting)

    def holders(self) -> list[Channel]:
        """Whoever gets a copy of what is published."""
        return list(self.channels.values()) or [self._waiting]

    def leave(self, name: str, subscriber: Subscriber) -> None:
        """As ``Channel.leave``; an ephemeral channel ends with its last subscriber."""
        channel = self.channels.get(name)
        if channel is None:
            return
        channel.leave(subscriber)
        if name.endswith(EPHEMERAL) and not channel.subscribers:
            del self.channels[name]

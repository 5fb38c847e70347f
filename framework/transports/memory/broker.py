"""The broker behind ``memory://``: its nodes, the faults that a test can inject, and what there is to see. It runs no handler.

Everything here may be called from any thread and greenlet; none of it blocks.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from gevent import monkey

from framework.errors import BrokerUnreachable, PublishError
from framework.headers import NONE, Headers
from framework.message import Message
from framework.transports.contract import Capabilities, Limits
from framework.transports.memory.clock import Clock
from framework.transports.memory.queues import DEFAULT_PRIORITY, Channel, Outlook, Stored, Subscriber, Topic

#: nsqd's defaults, in seconds and bytes: what fits here fits there.
LIMITS = Limits(lease=60.0, max_lease=900.0, max_grant=1_000_000)
MAX_SIZE = 1 << 20
MAX_DEFER = 366 * 86_400.0
"""Seconds. Not nsqd's hour: what waits longer than a broker takes would wait by the wall clock, which no test can move."""

CAPABILITIES = Capabilities(
    touch=True, attempts=True, fan_out=True, max_requeue=MAX_DEFER, max_defer=MAX_DEFER, priority=True, headers=True,
    ordered=True, longer_lease="set the limits of the memory broker",
)  # fmt: skip

# Native, also where gevent has patched: it is asked for on the hub, and by threads. Nobody switches while holding it. Not
# threading.RLock, even the original: patching takes away what that is made of.
_Lock = monkey.get_original("_thread", "RLock")


class Session(Subscriber, Protocol):
    """A connection, as its node sees it."""

    def cut(self, error: Exception) -> None:
        """The connection breaks: nothing more is said or heard on it."""

    def tell(self, message: Message) -> None:
        """Say that the lease of ``message`` is gone."""


@dataclass(slots=True)
class Faults:
    """What is still to go wrong, counted down as it does."""

    refuse: int = 0
    no_answer: int = 0
    kept: bool = True
    lost_finishes: int = 0
    twice: int = 0
    latency: float = 0.0


class MemoryNode:
    """One server of a broker: its own topics, and its own ups and downs."""

    def __init__(self, broker: MemoryBroker, name: str) -> None:
        self.broker = broker
        self.name = name
        self.up = True
        self.sessions: list[Session] = []
        self.topics: dict[str, Topic] = {}
        self._numbers = itertools.count()

    # -- faults

    def stop(self) -> None:
        """It goes down: connections break, new ones and publishes are refused. It keeps what it holds."""
        with self.broker.lock:  # whoever joins just now is dropped, or refused
            self.up = False
            self.drop()

    def start(self) -> None:
        """It is back."""
        self.up = True

    def drop(self) -> None:
        """Its connections break; it stays up."""
        for session in list(self.sessions):
            session.cut(BrokerUnreachable(f"{self.name} closed the connection"))

    # -- what connections and producers ask; under the broker's lock

    def topic(self, name: str) -> Topic:
        """The topic of that name, made when there is none."""
        if name not in self.topics:
            self.topics[name] = Topic()
        return self.topics[name]

    def depth(self, topic: str, channel: str) -> int:
        """How many messages ``channel`` holds here, or would get if it were made now."""
        with self.broker.lock:
            return self.topics[topic].preview(channel).depth

    def store(self, topic: str, bodies: Sequence[bytes], delay: float, priority: int | None, headers: Headers = NONE) -> None:
        """A copy for each channel of ``topic``."""
        wait = delay + self.broker.faults.latency
        due = self.broker.clock.now() + wait if wait else None
        timestamp, level = time.time_ns(), DEFAULT_PRIORITY if priority is None else priority
        numbers = list(itertools.islice(self._numbers, len(bodies)))
        for channel in self.topic(topic).holders():
            entries = zip(numbers, bodies, strict=True)
            channel.add([Stored(b"%016x" % n, timestamp, body, n, level, headers=headers) for n, body in entries], due)

    def join(self, session: Session, topic: str, channel: str) -> Channel:
        """The channel that ``session`` is subscribed to from now on. Raises BrokerUnreachable."""
        if not self.up:
            raise BrokerUnreachable(f"{self.name} refused the connection")
        joined = self.topic(topic).channel(channel)
        joined.subscribers.append(session)
        self.sessions.append(session)
        return joined

    def leave(self, session: Session, topic: str, channel: str) -> None:
        """What it had in flight can be delivered to others at once, as with beanstalkd; nsqd waits for the leases to end."""
        if session in self.sessions:
            self.sessions.remove(session)
            self.topic(topic).leave(channel, session)

    def finish(self, session: Session, channel: Channel, deliveries: Sequence[Message]) -> list[Message]:
        """They are done; returns those that were not in flight here."""
        faults = self.broker.faults
        if faults.lost_finishes or faults.twice:
            return [delivery for delivery in deliveries if not self._finish(session, channel, delivery)]
        forget = session.leases.pop
        return [delivery for delivery in deliveries if forget(delivery, None) is None]

    def _finish(self, session: Session, channel: Channel, delivery: Message) -> bool:
        faults = self.broker.faults
        if faults.lost_finishes:
            faults.lost_finishes -= 1
            return True  # as its sender must believe
        message = session.leases.pop(delivery, None)
        if message is not None and faults.twice:
            faults.twice -= 1
            self._requeue(channel, message, 0.0)
        return message is not None

    def requeue(self, session: Session, channel: Channel, deliveries: Sequence[tuple[Message, float]]) -> list[Message]:
        """They shall be delivered again after so many seconds; returns those that were not in flight here."""
        late = []
        for delivery, delay in deliveries:
            message = session.leases.pop(delivery, None)
            if message is None:
                late.append(delivery)
            else:
                self._requeue(channel, message, delay)
        return late

    def _requeue(self, channel: Channel, message: Stored, delay: float) -> None:
        wait = delay + self.broker.faults.latency
        if wait:
            channel.defer(message, self.broker.clock.now() + wait)
        else:
            channel.ready.put(message)
        channel.ring()


class MemoryBroker:
    """One or more nodes, with what a test needs: the clock, the faults, and a look inside.

    What a handler would need a broken network for is one call here: ``drop``, ``stop`` and ``start``, ``lose_finishes``,
    ``expire``, ``deliver_twice``, ``delay_deliveries``, ``refuse_publishes``, ``lose_answers``.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.clock = Clock(self._wake_all)
        self.limits = LIMITS
        """What new connections are granted."""
        self.max_size = MAX_SIZE
        """The largest body that it takes, in bytes."""
        self.capabilities = CAPABILITIES
        """What it says that it can do; less than that is refused by whoever asks."""
        self.accept: Callable[[str, Collection[str]], None] = _accept_any
        """``contract.Transport.accept``."""
        self.faults = Faults()
        self.lock = _Lock()
        self.nodes: dict[str, MemoryNode] = {}
        self.add_node()

    @property
    def url(self) -> str:
        """For ``--broker`` and ``Publisher``, in this process."""
        return f"memory://{self.name}"

    def add_node(self) -> MemoryNode:
        """One more server; handlers are connected to it when the topic is next looked up."""
        with self.lock:
            name = f"{self.name or 'memory'}:{len(self.nodes) + 1}"
            node = self.nodes[name] = MemoryNode(self, name)
        return node

    def declare(self, topic: str, *channels: str) -> None:
        """Make these channels, as if they had been there before what waits in ``topic`` was published."""
        with self.lock:
            for node in self.nodes.values():
                node.topic(topic).declare(channels)

    # -- faults

    def drop(self) -> None:
        """Every connection breaks. What was in flight is delivered again."""
        for node in self.nodes.values():
            node.drop()

    def stop(self) -> None:
        """Every node goes down, and keeps what it holds."""
        for node in self.nodes.values():
            node.stop()

    def start(self) -> None:
        """Every node is up again."""
        for node in self.nodes.values():
            node.start()

    def lose_finishes(self, count: int = 1) -> None:
        """The next ``count`` finishes never arrive: these messages come again when their leases run out."""
        self.faults.lost_finishes += count

    def expire(self, message: Message | None = None, *, told: bool = False) -> int:
        """Every lease (or that of ``message``) runs out now, and is delivered again; returns how many there were.

        A broker says so only when it is asked to settle or touch such a message; ``told``: at once.
        """
        with self.lock:
            held = [(one, each) for one in self._sessions() for each in one.leases if message is None or each is message]
            for session, each in held:
                session.leases[each].deadline = -math.inf
            for channel in self._channels():
                channel.next_due = -math.inf
                channel.release(self.clock.now())
        for session, each in held if told else ():
            session.tell(each)
        return len(held)

    def deliver_twice(self, count: int = 1) -> None:
        """The next ``count`` messages are delivered once more after they have been finished."""
        self.faults.twice += count

    def delay_deliveries(self, seconds: float) -> None:
        """From now on what is published or given back is delivered ``seconds`` later, by the broker's clock."""
        self.faults.latency = seconds

    def refuse_publishes(self, count: int = 1) -> None:
        """The next ``count`` publishes are refused: nothing is stored, and the publisher is told so."""
        self.faults.refuse += count

    def lose_answers(self, count: int = 1, *, kept: bool = True) -> None:
        """The next ``count`` publishes end without an answer: their publisher cannot know whether they are stored (``kept``)."""
        self.faults.no_answer, self.faults.kept = self.faults.no_answer + count, kept

    # -- publishing

    def store(self, topic: str, bodies: Sequence[bytes], delay: float, priority: int | None, headers: Headers = NONE) -> None:
        """By the first node that is up. Raises PublishError."""
        with self.lock:
            node = next((node for node in self.nodes.values() if node.up), None)
            if node is None:
                raise PublishError(f"no node of {self.url} is up", stored=False)
            faults = self.faults
            if faults.refuse:
                faults.refuse -= 1
                raise PublishError(f"{node.name} refused the publish, as the test wanted", stored=False)
            if faults.no_answer:
                faults.no_answer -= 1
                if faults.kept:
                    node.store(topic, bodies, delay, priority, headers)
                raise PublishError(f"{node.name} did not answer the publish, as the test wanted", stored=None)
            node.store(topic, bodies, delay, priority, headers)

    # -- a look inside

    def topics(self) -> set[str]:
        """The topics that were published to or subscribed to."""
        return {topic for node in self.nodes.values() for topic in list(node.topics)}

    def outlook(self, subscriptions: Iterable[tuple[str, str]]) -> Outlook:
        """What there is to do on these channels, each a (topic, channel); ``due`` by this broker's clock."""
        found, now = Outlook(), self.clock.now()
        with self.lock:
            for topic, channel in subscriptions:
                for node in self.nodes.values():
                    if topic in node.topics:
                        node.topics[topic].preview(channel).look(found, now)
        return found

    def waiting(self, topic: str, channel: str | None = None) -> list[bytes]:
        """The bodies, in the order of storing, that ``topic`` holds for ``channel`` (None: for all), deferred ones included."""
        return [message.body for message in self.stored(topic, channel)]

    def stored(self, topic: str, channel: str | None = None) -> list[Stored]:
        """As ``waiting``, with all that is known of each."""
        with self.lock:
            found = [message for one in self._holders(topic, channel) for message in one.messages()]
        return sorted(found, key=lambda message: message.order)

    def in_flight(self, topic: str, channel: str | None = None) -> int:
        """How many messages are delivered and not settled."""
        with self.lock:
            return sum(one.in_flight for one in self._holders(topic, channel))

    def _holders(self, topic: str, channel: str | None) -> Iterable[Channel]:
        for node in self.nodes.values():
            if topic in node.topics:
                yield from (one for one in node.topics[topic].holders() if channel is None or one.name == channel)

    def _sessions(self) -> Iterator[Session]:
        for node in self.nodes.values():
            yield from node.sessions

    def _channels(self) -> Iterator[Channel]:
        for node in self.nodes.values():
            for topic in node.topics.values():
                yield from topic.holders()

    def _wake_all(self) -> None:
        for session in list(self._sessions()):
            session.wake()


def _accept_any(topic: str, channels: Collection[str]) -> None:
    """It takes the names that nsqd takes."""


_brokers: dict[str, MemoryBroker] = {}
_brokers_lock = _Lock()


def named(name: str = "") -> MemoryBroker:
    """The broker of ``memory://name`` in this process, made when there is none."""
    with _brokers_lock:
        if name not in _brokers:
            _brokers[name] = MemoryBroker(name)
        return _brokers[name]


def add(broker: MemoryBroker) -> None:
    """Make ``broker`` the one of its name. Raises ValueError when there is one."""
    with _brokers_lock:
        if _brokers.setdefault(broker.name, broker) is not broker:
            raise ValueError(f"there is a broker {broker.url} already: take another name")


def forget(name: str) -> None:
    """Drop the broker of that name and what it holds; the next ``memory://name`` is a new one."""
    with _brokers_lock:
        broker = _brokers.pop(name, None)
    if broker is not None:
        broker.stop()

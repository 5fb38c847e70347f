"""All that the engine knows of a broker. A transport implements these; the engine names no other type of one."""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol, runtime_checkable

from framework.errors import PublishError
from framework.headers import NONE, Headers
from framework.message import Message


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a broker can do. Checked against the handlers' options at start. Times in seconds."""

    touch: bool
    """A lease can be prolonged."""
    attempts: bool
    """The broker counts deliveries, so a crash counts as one."""
    fan_out: bool
    """Each channel of a topic gets its own copy."""
    max_requeue: float
    """The longest delay of what comes again (``Connection.requeue``), as far as its nodes are known: it may change as they
    come to be. 0: it comes at once."""
    max_defer: float
    """The longest delay of a publish, as far as its nodes are known. 0: none, and then nothing waits in hops either."""
    delay_levels: tuple[float, ...] = ()
    """Where a broker keeps only some delays: these, ascending. One between two is kept as the longer: late, and never early."""
    acknowledges: bool = True
    """What was delivered and not finished is delivered again. Else each message comes once, to whichever client is connected."""
    stores: bool = True
    """What is published while nobody is subscribed waits for whoever is. Else a publish needs a subscriber, and waits for one
    itself, as long as its timeout is."""
    priority: bool = False
    """A publish may say how urgent it is."""
    headers: bool = False
    """A publish may have headers, which come with the message (``Message.headers``)."""
    with_headers: str = ""
    """What to change for headers, written as ``longer_lease``."""
    packed: bool = False
    """Publishers may pack bodies, and some may come as ``message.Unreadable``."""
    ordered: bool = False
    """Messages are delivered in the order in which they were stored, as long as one at a time is in flight."""
    lease_at_publish: bool = False
    """The publisher of a message says how long its leases are."""
    longer_delay: str = ""
    """What to change at the broker for longer delays of publishes, written as ``longer_lease``."""
    discovers: bool = True
    """Nodes may come and go; else ``discover`` names those of the URLs for ever, and is asked once."""
    auto_create: bool = True
    """Topics and channels come to be by being published and subscribed to. Else ``Transport.ensure`` makes them first."""
    longer_lease: str = ""
    """What to change at the broker for a longer lease, as it follows "or": ``start nsqd with --max-msg-timeout``."""


GOODBYE = 2.0
"""Seconds in which most brokers confirm a goodbye."""
TOUCH_AT = 1 / 3
"""The part of a lease after which it is touched, by the engine or by a rescue: two more tries may fail before its end."""
RESCUE_PATIENCE = 0.1
"""Seconds that a rescue waits for the lock of a hub that does turn after all."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one node granted to one connection. Times in seconds."""

    lease: float
    """How long a delivered message is ours before it must be touched or settled."""
    max_lease: float
    """The longest that touching can keep it, from delivery; the ``lease`` itself where touching gains nothing, and nothing is
    touched."""
    max_grant: int
    """The most that ``Connection.grant`` may be asked for."""
    max_requeue: float | None = None
    """The longest delay of a requeue that this node keeps: it cuts a longer one. None: ``Capabilities.max_requeue``."""
    max_defer: float | None = None
    """The longest delay of a publish that this node takes: it refuses a longer one. None: ``Capabilities.max_defer``."""
    goodbye: float = GOODBYE
    """How long it may take from ``drain`` to ``drained``, at most: where a request cannot be taken back, until it ends."""
    round_trip: float = 0.0
    """How long it may take from ``grant`` until messages come that the node had already, where each grant is a request of its
    own: messages that come within it come quickly. 0: at once."""
    distance: float = inf
    """How long the node's quickest answer took while it was dialled. One that is near is asked for messages one at a time, and
    never for two to see how far it is. inf: not known."""


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """What is found of a node: ``workers check`` shows it, and handlers are judged by it."""

    node: str
    server: str
    """Its product and version, as ``nsqd 1.3.0``."""
    limits: Limits
    capabilities: Capabilities | None = None
    """What it can do, which depends on its version and settings; None: all that its transport says."""
    obstacles: tuple[str, ...] = ()
    """Why it cannot serve the topic and channel that were asked for, in sentences: their handler is refused at start."""
    notes: tuple[str, ...] = ()
    """What else somebody who runs a handler of them should know, in sentences: shown by ``workers check``, logged at start."""


class Tally(Protocol):
    """The counters of one handler that a connection adds to; ``engine.ledger.Ledger`` is one.

    received = finished + requeued + dead + lease_lost + lost + what is still in flight or unsent.
    """

    received: int
    """Added to once per read, by the number of messages decoded."""
    finished: int
    """Added to when the finish of a message has been handed to the socket."""
    requeued: int
    lease_lost: int
    """Messages the broker will deliver again without being asked: the connection ended, or the broker
    answered a finish, requeue or touch with "not in flight" (which then takes back the count above)."""
    lost: int
    """In place of ``lease_lost`` and ``requeued`` where nothing is delivered again (``Capabilities.acknowledges``)."""


class Receiver(Protocol):
    """The engine's side of a connection. Called on the hub: none of these may block or raise."""

    tally: Tally

    @property
    def capacity(self) -> int:
        """How many messages its handler can work on at once."""

    def deliver(self, connection: Connection, batch: list[Message]) -> None:
        """Messages arrived; they are in ``connection.in_flight`` already. Handlers that do not block run
        inside this call, so many are settled when it returns; the connection flushes after it, once."""

    def settled(self, connection: Connection) -> None:
        """Messages were settled outside ``deliver``; called once per hub turn, before the flush, so that
        the engine may adjust the grant in the same send."""

    def lost(self, connection: Connection, message: Message | None, words: str, *, settled: bytes = b"") -> None:
        """The broker says that a lease is gone: ``message`` (None: not known which).

        ``settled``: the id of the message when it is a finish or a requeue that was refused, where that is known."""

    def drained(self, connection: Connection) -> None:
        """The broker confirmed ``drain``: no further message will come on this connection."""

    def closed(self, connection: Connection, error: Exception | None) -> None:
        """The connection ended (also after ``close``), called exactly once. Its ``in_flight`` is empty: what
        was in it, and what was settled but not yet sent, has been added to ``tally.lease_lost`` (or ``lost``)."""


class Connection(Protocol):
    """One subscription of one handler on one node. All methods are called on its hub and none blocks."""

    node: str
    topic: str
    channel: str
    lasting_ids: bool
    """Whether no other message of ``topic`` ever gets the id of one: not when the node's clock is set back, nor when it has lost
    its data. Where not, a message's ``timestamp`` is the same in each delivery, and tells it from another with its id."""
    limits: Limits
    granted: int
    """The last ``grant``; 0 once the connection has ended."""
    in_flight: dict[Message, float]
    """Delivered and not settled -> monotonic time of receipt or of the last touch. All leases being equal,
    insertion order is deadline order: a touch re-inserts at the end."""

    @property
    def exposed(self) -> int:
        """How many messages may be in flight here before the next ``grant``: what is, and what may still come, by a request that
        has not ended as well. Never less than ``granted`` or what is in flight. Credit reads it every 50 ms, and
        grants nobody else what is counted here."""

    @property
    def rescuable(self) -> Rescuable | None:
        """What is kept alive while its hub is blocked: itself, or a socket that it shares with others. None: nothing is, and what
        was in flight on it is lost then."""

    def grant(self, n: int) -> None:
        """Allow ``n`` messages in flight (NSQ: RDY). Kept until changed; 0 pauses.

        Lowering recalls nothing that is on its way, and the engine gives what it took back to another connection after 50 ms
        (``engine.credit.PERIOD``), unless ``exposed`` still counts it. So whatever waits at the broker for a message, such as a
        parked request, is taken back within that time, or is counted there until it ends."""

    def finish(self, message: Message) -> None:
        """It is done: never deliver it again. Raises AlreadySettled."""

    def requeue(self, message: Message, delay: float) -> None:
        """Deliver it again after ``delay`` seconds (cut to ``Limits.max_requeue``); where nothing is acknowledged, count it as
        ``Tally.lost``. Raises AlreadySettled."""

    def touch(self, message: Message) -> None:
        """Start its lease anew. Raises AlreadySettled."""

    def drain(self) -> None:
        """Ask the broker to send no more (NSQ: RDY 0, CLS); ``Receiver.drained`` follows."""

    def unsent(self) -> int:
        """How many bytes wait to be sent."""

    def close(self) -> None:
        """Send what waits (bounded, at most 1 s), close the socket, call ``Receiver.closed`` once."""


class Rescuable(Protocol):
    """What can be kept alive while its hub is blocked: a connection, or a socket that several share, which is asked once for all.

    ``expired``, below, has the messages of every connection."""

    def rescue(self, now: float, expired: Collection[Message]) -> None:
        """Called from another native thread, again and again while the hub is blocked, and perhaps just as it goes on.

        Read all that has come and keep it for the hub, answer heartbeats, touch what has held a third of its lease unless it
        is in ``expired``, and send what waits. Changes nothing else: ``in_flight`` and the tally are the hub's. Must not block
        or raise. ``now``: monotonic seconds."""

    def rescued(self) -> None:
        """The hub turns again: learn of what ``rescue`` did, and hand over what it read. Does nothing if it did nothing."""


@runtime_checkable
class Terminating(Protocol):
    """A connection whose broker tells a message that was given up from one that is done. Any other is told that it is done."""

    def terminate(self, message: Message) -> None:
        """As ``Connection.finish``, in place of it: ``message`` was given up, and its dead letter is stored. Raises
        AlreadySettled."""


@runtime_checkable
class Releasable(Protocol):
    """A connection that can stop while its hub is blocked. What others have is given back when their process ends."""

    def release(self, kept: Container[Message]) -> None:
        """Called from another native thread, again and again while the hub is blocked and the worker stops.

        Ask the broker to send no more (``drain``); from the next call on give back at once what is in flight and not in ``kept``,
        what was read in the hub's place as well. ``in_flight`` and the tally stay the hub's. Must not block or raise."""

    def write_off(self) -> None:
        """Called from another native thread: the process ends without another turn of the hub. Send nothing more, and add to the
        tally what was done in the hub's place; what is left in flight is lost."""


@runtime_checkable
class HandsOn(Protocol):
    """A connection that can itself give another worker what has not started here, where the broker takes nothing back."""

    def hand_on(self, message: Message) -> bool:
        """Give it to another worker, and count it as requeued. False: there is none, and it stays in flight. Raises
        AlreadySettled."""


@runtime_checkable
class Outliving(Protocol):
    """A connection that can outlive what it reaches its node by, while calls hold leases."""

    @property
    def away(self) -> str:
        """Why its node cannot be reached now; empty: it can. May be asked from any thread."""


def away(connection: Connection) -> str:
    """Why its node cannot be reached now; empty: it can."""
    words: str = getattr(connection, "away", "")  # isinstance(connection, Outliving) takes a hundred times as long
    return words


class Producer(Protocol):
    """Publishes to a broker. Safe to share between greenlets (and between threads when unpatched).

    ``delay``: seconds until the first delivery. ``priority``: 0 is the most urgent, None the broker's own default; given only
    where ``Capabilities.priority``. ``lease``: seconds that a consumer of this app may need for a message; for brokers whose
    publisher decides how long a lease is, None where no handler of it is known here. ``headers``: of every one of the
    bodies; given only where ``Capabilities.headers``, and when there are any, each checked by ``framework.headers``. ``timeout``:
    seconds, after which a request that was not answered fails; None the producer's own. A broker that has been down for as long
    is not waited for again: then it fails at once.
    """

    def publish(
        self, topic: str, bodies: Sequence[bytes], *, delay: float = 0.0, priority: int | None = None,
        lease: float | None = None, timeout: float | None = None, headers: Headers = NONE,
    ) -> None:  # fmt: skip
        """Return when the broker has stored all of ``bodies``, in as few requests as its limits allow. When there are several, a
        Publisher hands over ``Bodies``, which are known to be bytes and not empty.

        Raises BadMessage (empty or oversized: nothing was sent), PublishError.
        """

    def publish_each(
        self, topic: str, bodies: Sequence[bytes], *, delay: float = 0.0, priority: int | None = None,
        lease: float | None = None, timeout: float | None = None, headers: Headers = NONE,
    ) -> list[PublishError | None]:  # fmt: skip
        """Store each of ``bodies`` by a request of its own, many of them under way at once.

        Returns, in their order, None for each that is stored, and for the others what is known of them.
        Raises BadMessage (empty or oversized: nothing was sent).
        """

    def close(self) -> None: ...


@runtime_checkable
class HeadsEach(Protocol):
    """A producer that takes many messages at once, each with headers of its own. Where it cannot, each is published alone."""

    def publish_headed(
        self, topic: str, bodies: Sequence[bytes], headers: Sequence[Headers], *, delay: float = 0.0, priority: int | None = None,
        lease: float | None = None, timeout: float | None = None,
    ) -> None:  # fmt: skip
        """As ``Producer.publish``, with one of ``headers`` for each of ``bodies``."""


@runtime_checkable
class TellsTime(Protocol):
    """A transport whose messages have their ``timestamp`` from the clocks of its nodes, which may be off, and can be asked."""

    def clock_of(self, node: str) -> float:
        """What the clock of ``node`` says now at the most, in seconds since 1970; it may be a second less. Blocks; never longer
        than a few seconds. Raises FrameworkError where it does not say."""


class Transport(Protocol):
    """A broker (one or more nodes), as named by one or more URLs of one scheme.

    ``start`` and ``close`` are for what its connections and producers share, as one socket to a server. Whoever only publishes or
    looks does not call ``start``; what they use then lives until ``close`` as well."""

    def start(self, hub: Any) -> None:
        """A worker begins on ``hub``, gevent's of this thread: called once, before it connects. Does not block."""

    def close(self) -> None:
        """It is not used any more, and its connections and producers have been closed: free what they shared. Blocks for a
        second at most. Does nothing where there is nothing left."""

    @property
    def capabilities(self) -> Capabilities:
        """As far as is known: some of it is learned from the nodes."""

    def accept(self, topic: str, channels: Collection[str]) -> None:
        """Asked at start for each topic, with the channels of its handlers (of none for a topic of dead letters); connects
        to nothing.

        Raises WrongUse, in a sentence that names the fix, for names that this broker does not take, and for several
        channels of a topic where it makes no copy for each."""

    def describe(self, topic: str, channel: str) -> list[NodeInfo]:
        """What each node that answers would grant a connection for ``channel`` of ``topic``, whether it has the topic yet or not.

        Asked for each handler before it is judged, for thousands of them at once: what is the same for all should be asked of a
        node once. Blocks, never longer than a few seconds; changes nothing anywhere, but may bring ``capabilities`` up to date. A
        node that does not answer is left out: what it cannot do is seen when a handler is connected to it."""

    def discover(self, topic: str, channel: str) -> set[str]:
        """The nodes that may hold ``topic`` for ``channel``, as ``host:port`` (or a name, where a cluster is one node). Blocks;
        never longer than a few seconds.

        Raises BrokerUnreachable when nothing answered: the engine then keeps the nodes that it has."""

    def channels(self, topic: str) -> set[str]:
        """The channels that ``topic`` has on any node. Blocks; never longer than a few seconds.

        Raises BrokerUnreachable when it has none as far as is known, but not all could be asked."""

    def topics(self) -> set[str]:
        """The topics that exist on any node. Blocks; never longer than a few seconds.

        Raises BrokerUnreachable when not every node could be asked, SomeUnreachable where the others are down."""

    def backlog(self, topic: str, channel: str) -> dict[str, int]:
        """Node that has ``topic`` -> how many messages it keeps there for ``channel``: waiting, deferred and in flight.

        For a channel that does not exist yet, what the first one would get; where there are no channels, what the topic
        holds. Blocks; never longer than a few seconds. Raises as ``topics``."""

    def ensure(self, topic: str, channels: Collection[str]) -> None:
        """Have each node that there is now keep for each of ``channels`` what it stores in ``topic`` from now on, whoever else
        reads it and whenever they are subscribed to; of no channels, have it keep the topic. Whatever that takes (a stream, a
        consumer, a queue) is made where it is missing; what there is stays as it is.

        Called before something is stored that no other channel may take; and where topics do not come to be by themselves
        (``Capabilities.auto_create``), before a handler is connected, for its topic and for that of its dead letters. Blocks;
        never longer than a few seconds. Raises as ``topics``."""

    def connect(self, node: str, topic: str, channel: str, receiver: Receiver) -> Connection:
        """Dial, negotiate, subscribe with a grant of 0. Blocks up to its connect timeout. How long a lease to ask for,
        where a broker can be asked, is an option of its URL.

        Raises BrokerUnreachable, BrokerError, ProtocolError."""

    def producer(self) -> Producer:
        """A producer over all its nodes; connects lazily."""

    def probe(self) -> list[NodeInfo]:
        """Ask every node for its name and version. Blocks. Raises BrokerUnreachable naming those that do not answer,
        BrokerRefuses when one rejects the credentials or options of its URL."""

"""Subscribes a handler to its ``.later`` topic, where its messages wait that wait longer than the broker allows, once that
topic exists.

``middleware.later`` says what is in the envelopes, and when they are due.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

import gevent
from gevent.event import Event
from gevent.lock import Semaphore

from framework.engine.consumer import Consumer
from framework.engine.dialler import Dialler
from framework.engine.ways import Ways
from framework.errors import REFUSALS, BrokerUnreachable, FrameworkError, MessageRefused, PublishError, SomeUnreachable
from framework.headers import NONE, Headers
from framework.message import Message
from framework.middleware.envelope import opened
from framework.middleware.later import ANY, LEAST_HOP, Delays, lasts, later_topic
from framework.middleware.on_end import OnEnd
from framework.transports.contract import Connection, Tally, Transport

POLL = 60.0
"""Seconds between two looks for waiting messages of earlier workers. Those that this one stores itself are looked for at once."""
CROWD = 16
"""Handlers above which the broker is asked for all of its topics, once for all, in place of each handler's."""
FRESH = 20.0
"""Seconds for which that answer is as good as new."""
REST = 60.0
"""Seconds without a connection to a node that can only hand out at once what is another app's, and was given back."""
REMEMBERED = 10_000
"""Messages of others after which a node has a rest in any case."""
LOOK, LOOK_WHEN_SUBSCRIBED = 0.1, 10.0
"""Seconds between two looks, at least, for what this worker stores."""
LOOK_WHEN_BLIND = 1.0
"""Seconds after which a broker that did not say what waits there is asked again: before something is stored there, and while
something is."""
PATIENCE = 10.0
"""Seconds on end for which nothing can be stored there, and whoever wants to store something tries again: about as long as a
cluster takes to choose who leads it."""


def known_delays(transports: Iterable[Transport]) -> Delays:
    """The delays that every one of ``transports`` keeps, as far as their nodes are known by now."""
    known = [transport.capabilities for transport in transports]
    if not known:
        return ANY
    levels = next((one.delay_levels for one in known if one.delay_levels), ())
    return Delays(min(one.max_requeue for one in known), min(one.max_defer for one in known), levels)


def carry_headers(transports: Iterable[Transport]) -> bool:
    """Whether every one of ``transports`` carries headers, as far as their nodes are known by now."""
    return all(transport.capabilities.headers for transport in transports)


class Topics:
    """The topics of ``transport``, asked for once for all of many handlers."""

    def __init__(self, transport: Transport, handlers: int) -> None:
        self._transport = transport
        self._crowd = handlers > CROWD
        self._found: set[str] = set()
        self.down: frozenset[str] = frozenset()
        """The nodes that did not say what they have, when the others did."""
        self._silence: BrokerUnreachable | None = None
        self._asked_at = float("-inf")
        self._asking = Semaphore()

    def may_have(self, topic: str) -> bool:
        """Whether ``topic`` exists; where there are few handlers it is not asked. Raises BrokerUnreachable."""
        if not self._crowd:
            return True
        with self._asking:  # whoever comes while one asks has the same answer
            if time.monotonic() - self._asked_at > FRESH:
                self._ask()
        if self._silence is not None:
            raise self._silence
        return topic in self._found

    def _ask(self) -> None:
        try:
            self._found, self._silence, self.down = self._transport.topics(), None, frozenset()
        except SomeUnreachable as error:
            self._found, self._silence, self.down = set(error.answers), None, error.down
        except BrokerUnreachable as error:
            self._silence = error
        self._asked_at = time.monotonic()


class Waits:
    """Where messages of all handlers of a worker wait. ``publish(topic, body, delay=, headers=)`` stores; headers are
    given when there are any."""

    def __init__(self, transports: Sequence[Transport], ways: Sequence[Ways], publish: Callable[..., None]) -> None:
        self._transports = list(zip(transports, ways, strict=True))
        self._publish = publish
        self._diallers: dict[str, list[LaterDialler]] = {}
        """By the topic where messages wait."""
        self._failing: dict[str, OnEnd] = {}
        """By topic."""

    def defer(self, topic: str, body: bytes, delay: float, headers: Headers = NONE) -> None:
        """Returns when it is stored, and the handler whose it is will be told. Raises BrokerUnreachable, PublishError."""
        diallers = self._diallers.get(topic, ())
        while not self._stored(topic, diallers, partial(self._publish, topic, body, delay=delay, **_given(headers))):
            gevent.sleep(LOOK_WHEN_BLIND)
        for dialler in diallers:
            dialler.stored()

    def _stored(self, topic: str, diallers: Sequence[LaterDialler], publish: Callable[[], None]) -> bool:
        """False: it is worth another try. Raises as ``defer``."""
        began = time.monotonic()
        try:
            for dialler in diallers:
                dialler.check()
            publish()
        except FrameworkError as error:
            seconds = self._failing.setdefault(topic, OnEnd()).failed(began, time.monotonic())
            stopped = any(dialler.stopped for dialler in diallers)
            if stopped or not _passes(error) or seconds + LOOK_WHEN_BLIND > PATIENCE:
                raise
            return False
        self._failing.pop(topic, None)
        return True

    def prepare(self, consumers: Iterable[Consumer], changed: Event) -> None:
        """Have what is stored from now on kept for ``consumers``."""
        lasting = [consumer for consumer in consumers if lasts(consumer.spec)]
        brokers = [(transport, ways, Topics(transport, len(lasting))) for transport, ways in self._transports]
        for consumer in lasting:
            self._diallers[later_topic(consumer.spec)] = [
                LaterDialler(consumer, transport, ways, changed, topics) for transport, ways, topics in brokers
            ]

    def start(self) -> list[LaterDialler]:
        """Subscribe each handler to where its messages wait, as soon as there is such a topic."""
        started = [dialler for diallers in self._diallers.values() for dialler in diallers]
        for dialler in started:
            dialler.start()
        return started


def _given(headers: Headers) -> dict[str, Headers]:
    return {"headers": headers} if headers else {}


def _passes(error: FrameworkError) -> bool:
    """It may be stored in a moment. Where it may be stored already, another try leaves it there twice; so would giving the
    message back, which costs an attempt as well."""
    if isinstance(error, PublishError):
        return error.stored is not True and not isinstance(error, MessageRefused)
    return isinstance(error, BrokerUnreachable) and not isinstance(error, REFUSALS)


class LaterDialler(Dialler):
    """Subscribes only where the topic exists: few handlers ever have a message wait."""

    def __init__(self, consumer: Consumer, transport: Transport, ways: Ways, changed: Event, topics: Topics) -> None:
        super().__init__(consumer, transport, ways, POLL, changed)
        self.topic = later_topic(consumer.spec)
        self.receiver = _Resting(consumer, self)
        self._resting: dict[str, float] = {}  # node -> until when
        self._unknown_poll = POLL
        self._blind: BrokerUnreachable | None = None
        self._blind_at = 0.0
        self._looked_at = 0.0
        self._topics = topics
        self._started = False
        self._stored = False
        self._ensuring = Semaphore()

    @property
    def stopped(self) -> bool:
        """Its worker ends."""
        return self._stopped

    @property
    def _settled(self) -> bool:
        return False  # the nodes may be known, and yet not which of them have the topic

    def check(self) -> None:
        """Before something is stored there. Raises BrokerUnreachable when it cannot see what waits there: nobody would fetch it
        after a restart; or when it cannot have it kept for its channel: another's that is there first would have it alone."""
        with self._ensuring:
            if self._blind is not None and time.monotonic() - self._blind_at > LOOK_WHEN_BLIND:
                self._survey()
            if self._blind is not None:
                raise self._blind
            if not self._ensured:
                self._keep_for_channel()
                self._ensured = True

    def start(self) -> None:
        self._started = True
        super().start()

    def stored(self) -> None:
        """Something waits there since just now: it may be the first, and perhaps on a node that had none."""
        if not self._started:
            self._stored = True
            return
        subscribed = any(connection.topic == self.topic for connection in self.consumer.accounts)
        if time.monotonic() - self._looked_at > (LOOK_WHEN_SUBSCRIBED if subscribed else LOOK):
            self._looked_at = time.monotonic()
            self._stored = True
            self.look()

    def _find(self) -> set[str]:
        stored, self._stored = self._stored, False
        try:
            exists = stored or self._topics.may_have(self.topic)
            if stored:  # there may be nodes that are new
                self._keep_for_channel()
        except BrokerUnreachable as error:
            self._is_blind(error)
            found = None
        else:
            found = self._survey(stored=stored) if exists else self._nothing_there()
        if found is None:
            self._stored = stored or self._stored
            return self._known or set()
        now = time.monotonic()
        return {node for node in found if self._resting.get(node, now) <= now}

    def _pause(self) -> float:
        return LOOK_WHEN_BLIND if self._blind is not None and self._stored else super()._pause()

    def _survey(self, *, stored: bool = False) -> set[str] | None:
        """The nodes that have the topic, as far as can be seen: of those that do not say, the ones that had it, or all where
        something was ``stored`` just now. None: it is blind, and no word of that is in the log unless a handler asks for such a
        delay."""
        try:
            found = set(self.transport.backlog(self.topic, self.consumer.spec.channel))
        except SomeUnreachable as error:  # those say it when they are back
            found = set(error.answers) | (error.down if stored else error.down & (self._known or set()))
        except BrokerUnreachable as error:
            self._is_blind(error)
            return None
        self._blind = None
        return found

    def _nothing_there(self) -> set[str]:
        self._blind = None
        return (self._known or set()) & self._topics.down

    def _is_blind(self, error: BrokerUnreachable) -> None:
        self._blind, self._blind_at = error, time.monotonic()

    def _keep_for_channel(self) -> None:
        """On all nodes that something can be stored on."""
        with suppress(SomeUnreachable):
            self.transport.ensure(self.topic, [self.consumer.spec.channel])

    def keeps_delays(self, connection: Connection) -> bool:
        """Whether what is given back on ``connection`` with a delay comes again later than at once."""
        of_node = connection.limits.max_requeue
        return (self.transport.capabilities.max_requeue if of_node is None else of_node) >= LEAST_HOP

    def rest(self, connection: Connection) -> None:
        """Be without ``connection`` and its like for a while, once what came on it is settled."""
        self._resting[connection.node] = time.monotonic() + REST
        self._known = (self._known or set()) - {connection.node}
        gevent.spawn(self._leave, connection)

    def _leave(self, connection: Connection) -> None:
        """What the broker had sent before it knew would be without anybody until its lease ends."""
        connection.drain()
        accounts, until = self.consumer.accounts, time.monotonic() + connection.limits.goodbye
        while (account := accounts.get(connection)) is not None and not account.drained and time.monotonic() < until:
            gevent.sleep(LOOK)
        while connection.in_flight:
            gevent.sleep(LOOK)
        connection.close()

    def failed(self, node: str, error: Exception | None, failures: int) -> None:
        if error is not None or node not in self._resting:  # else nothing failed
            super().failed(node, error, failures)


class _Resting:
    """``contract.Receiver``: the consumer, and on a node that keeps no delays a rest when all of another app's has come once.

    It cannot be finished, because it may be the only copy, and given back it would come at once, for ever."""

    def __init__(self, consumer: Consumer, dialler: LaterDialler) -> None:
        self._consumer = consumer
        self._dialler = dialler
        self._owner = (consumer.spec.topic, consumer.spec.channel)
        self._seen: set[tuple[str, bytes]] = set()
        self.tally: Tally = consumer.tally
        self.settled = consumer.settled
        self.lost = consumer.lost
        self.drained = consumer.drained
        self.closed = consumer.closed

    @property
    def capacity(self) -> int:
        """As many as the consumer's, which an operator may change."""
        return self._consumer.capacity

    def deliver(self, connection: Connection, batch: list[Message]) -> None:
        others = [] if self._dialler.keeps_delays(connection) else list(filter(self._is_anothers, batch))
        self._consumer.deliver(connection, batch)
        if others and not self._consumer.shutdown.begun and self._have_all_come(others):
            self._seen.clear()
            self._dialler.rest(connection)

    def _is_anothers(self, message: Message) -> bool:
        found = opened(message)
        return found is not None and found[0].owner != self._owner

    def _have_all_come(self, others: Iterable[Message]) -> bool:
        """Each goes to the end of the queue, so the first that comes again ends the round. Where there is one queue for all, the
        first that comes at all is for another worker."""
        came = {(message.node, message.id) for message in others}
        again = not came.isdisjoint(self._seen) or not self._dialler.transport.capabilities.fan_out
        self._seen |= came
        return again or len(self._seen) > REMEMBERED

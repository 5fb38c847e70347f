"""Connects a handler to where its messages wait that have to wait longer than the broker takes, once there is such a place.

What is in their envelopes, and when they are due, is ``middleware.later``'s to say.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from gevent.event import Event
from gevent.lock import Semaphore

from framework.engine.consumer import Consumer
from framework.engine.dialler import Dialler
from framework.engine.ways import Ways
from framework.errors import BrokerUnreachable
from framework.middleware.later import ANY, Delays, lasts, later_topic
from framework.transports.contract import Transport

POLL = 60.0
"""Seconds between two looks for waiting messages of earlier workers. Those that this one stores itself are looked for at once."""
CROWD = 16
"""Handlers above which the broker is asked for all of its topics, once for all, in place of each handler's."""
FRESH = 20.0
"""Seconds for which that answer is as good as new."""
LOOK, LOOK_WHEN_SUBSCRIBED = 0.1, 10.0
"""Seconds between two looks, at least, for what this worker stores."""


def known_delays(transports: Iterable[Transport]) -> Delays:
    """The delays that every one of ``transports`` keeps, as far as their nodes are known by now."""
    known = [transport.capabilities for transport in transports]
    if not known:
        return ANY
    levels = next((one.delay_levels for one in known if one.delay_levels), ())
    return Delays(min(one.max_requeue for one in known), min(one.max_defer for one in known), levels)


class Topics:
    """The topics of ``transport``, asked for once for all of many handlers."""

    def __init__(self, transport: Transport, handlers: int) -> None:
        self._transport = transport
        self._crowd = handlers > CROWD
        self._found: set[str] = set()
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
            self._found, self._silence = self._transport.topics(), None
        except BrokerUnreachable as error:
            self._silence = error
        self._asked_at = time.monotonic()


class Waits:
    """Where messages of all handlers of a worker wait. ``publish(topic, body, delay=)`` stores."""

    def __init__(self, transports: Sequence[Transport], ways: Sequence[Ways], publish: Callable[..., None]) -> None:
        self._transports = list(zip(transports, ways, strict=True))
        self._publish = publish
        self._diallers: dict[str, list[LaterDialler]] = {}
        """By the topic where messages wait."""

    def defer(self, topic: str, body: bytes, delay: float) -> None:
        """Returns when it is stored, and the handler whose it is will be told. Raises BrokerUnreachable, PublishError."""
        diallers = self._diallers.get(topic, ())
        for dialler in diallers:
            dialler.check()
        self._publish(topic, body, delay=delay)
        for dialler in diallers:
            dialler.stored()

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


class LaterDialler(Dialler):
    """Subscribes only where the topic exists: few handlers ever have a message wait."""

    def __init__(self, consumer: Consumer, transport: Transport, ways: Ways, changed: Event, topics: Topics) -> None:
        super().__init__(consumer, transport, ways, POLL, changed)
        self.topic = later_topic(consumer.spec)
        self._unknown_poll = POLL
        self._blind: BrokerUnreachable | None = None
        self._looked_at = 0.0
        self._topics = topics
        self._started = False
        self._stored = False
        self._ensuring = Semaphore()

    @property
    def _settled(self) -> bool:
        return False  # the nodes may be known, and yet not which of them have the topic

    def check(self) -> None:
        """Before something is stored there. Raises BrokerUnreachable when it cannot see what waits there: nobody would fetch it
        after a restart; or when it cannot have it kept for its channel: another's that is there first would have it alone."""
        if self._blind is not None:
            raise self._blind
        if not self._ensured:
            with self._ensuring:
                if not self._ensured:
                    self.transport.ensure(self.topic, [self.consumer.spec.channel])
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
        try:
            exists = self._stored or self._topics.may_have(self.topic)
            if self._stored:  # there may be nodes that are new
                self.transport.ensure(self.topic, [self.consumer.spec.channel])
            self._stored = False
            found = set(self.transport.backlog(self.topic, self.consumer.spec.channel)) if exists else set()
        except BrokerUnreachable as error:  # no word of it in the log unless a handler asks for such a delay
            self._blind = error
            return self._known or set()
        self._blind = None
        return found

"""Finds the nodes of one transport for one handler, and keeps it tied to each. It handles no message."""

from __future__ import annotations

import logging
import time

import gevent
from gevent.event import Event

from framework.engine import backoff
from framework.engine.consumer import Consumer
from framework.engine.tie import Tie
from framework.engine.ways import Ways
from framework.errors import REFUSALS, BadHandler, BrokerRefuses, FrameworkError, WrongUse, words_of
from framework.middleware.dead_letter import topic_name
from framework.observe import hublog
from framework.transports.contract import Receiver, Transport

log = hublog.get(__name__)

UNKNOWN_POLL = 1.0
"""Seconds between two discoveries, at most, while no node is known."""
SETTLING = 0.1
"""The part of the time since the nodes last changed after which they are looked for again: where one has come or gone (servers
are being started, nsqlookupd has forgotten all) others follow soon."""


class Dialler:
    """A greenlet now and then discovers; a ``Tie`` for each node that is known. ``ways``: those of ``transport``, shared by the
    handlers."""

    def __init__(self, consumer: Consumer, transport: Transport, ways: Ways, poll_interval: float, changed: Event) -> None:
        self.consumer = consumer
        self.receiver: Receiver = consumer
        self.topic = consumer.spec.topic
        self.transport = transport
        self._error: Exception | None = None
        self._ways = ways
        self._poll_interval = poll_interval
        self._unknown_poll = min(UNKNOWN_POLL, poll_interval)
        self._changed = changed
        self._known: set[str] | None = None
        """The nodes of the last discovery that got an answer; None before the first."""
        self._known_since = time.monotonic()
        self._silences = 0
        self._nodes: dict[str, Tie] = {}
        """What is connected, or being dialled."""
        self._untried: set[str] = set()
        self._next: gevent.Greenlet | None = None
        self._looking = self._again = self._stopped = False
        self._ensured = False
        """What it needs has been made at the broker, as far as it can be lacking."""
        self.refusal: WrongUse | None = None
        """What no waiting can mend: a node that cannot honour the handler's timeout, a URL that names another server."""
        self._admitted = False
        self._refusing: dict[str, Exception] = {}
        """The nodes that rejected this worker at the last dial, with their words."""
        self._rejected: BrokerRefuses | None = None
        """All who were asked for the nodes did so, the last time."""

    @property
    def error(self) -> Exception | None:
        """The error of the last time that there was no connection; another handler may have dialled then."""
        return self._error or next((way.error for way in map(self._ways.__getitem__, self._nodes) if way.error), None)

    @property
    def found_no_node(self) -> bool:
        """Discovery was answered, and no node has the topic yet."""
        return self._known == set()

    @property
    def wanted(self) -> int:
        """How many nodes have the topic, as far as is known."""
        return len(self._known or ())

    @property
    def tried(self) -> bool:
        """Discovery was answered, and every node has been dialled, with whatever result."""
        return self._known is not None and not self._untried

    @property
    def silent(self) -> list[str]:
        """The nodes whose first dial has no result yet."""
        return sorted(self._untried)

    @property
    def shut_out(self) -> BrokerRefuses | None:
        """Every node rejects this worker, and none ever accepted it: a wrong secret, certificate or option. Waiting does not
        mend it."""
        if self._admitted:
            return None
        if self._rejected is not None:
            return BrokerRefuses(f"handler {self.consumer.spec.name}: no broker accepts it ({self._rejected})")
        if not self._known or not self._known <= self._refusing.keys():
            return None
        words = "; ".join(words_of(node, self._refusing[node]) for node in sorted(self._known))
        return BrokerRefuses(f"handler {self.consumer.spec.name}: no broker accepts it ({words})")

    def start(self) -> None:
        self.look()

    def stop(self) -> None:
        """Dial no more. Connections are left as they are."""
        self._stopped = True
        if self._next is not None:
            self._next.kill(block=False)
        for tie in self._nodes.values():
            tie.stop()

    # -- discovery

    def look(self) -> None:
        """Look for nodes now, or once more after the look that is under way."""
        if self._looking or self._stopped:
            self._again = True
            return
        if self._next is not None:
            self._next.kill(block=False)
        self._looking = True
        self._next = gevent.spawn(self._look)

    def _look(self) -> None:
        self._looking = self._again = True
        try:
            while self._again:
                self._again = False
                self._silences = 0 if self._discover() else self._silences + 1
                if _worth_a_line(self._silences):
                    log.warning("topic %s: discovery failed: %s; its nodes stay as they were", self.topic, self._error)
        finally:
            self._looking = False
        if not (self._stopped or self._settled):
            self._next = gevent.spawn_later(backoff.spread(self._pause()), self._look)

    @property
    def _settled(self) -> bool:
        """The nodes are known for ever."""
        return self._known is not None and not self.transport.capabilities.discovers

    def _pause(self) -> float:
        if not self._known:
            return self._unknown_poll
        settled = time.monotonic() - self._known_since
        return min(self._poll_interval, max(self._unknown_poll, SETTLING * settled))

    def _discover(self) -> bool:
        """Whether discovery was answered. Only an answer can remove a node."""
        self._rejected = None
        try:
            known = self._find()
        except FrameworkError as error:
            self._error = error
            if isinstance(error, BrokerRefuses):
                self._rejected = error
                self._changed.set()
            elif isinstance(error, WrongUse) and not self._admitted:
                self.refusal = error
                self._changed.set()
            return False
        except Exception as error:
            log.exception("topic %s: discovery failed, which is a bug", self.topic)
            self._error = error
            return False
        if known != self._known:
            self._known, self._known_since = known, time.monotonic()
        for node in known - self._nodes.keys():
            self._untried.add(node)
            self._nodes[node] = Tie(self, node, self._ways[node])
        return True

    def _find(self) -> set[str]:
        if not self._ensured:
            self._ensure()
        return self.transport.discover(self.topic, self.consumer.spec.channel)

    def _ensure(self) -> None:
        """Where nothing comes to be by itself: first the topic of its dead letters, or one would be kept from dying."""
        if not self.transport.capabilities.auto_create:
            spec = self.consumer.spec
            self.transport.ensure(topic_name(spec.topic, spec.channel), [])
            self.transport.ensure(spec.topic, [spec.channel])
        self._ensured = True

    # -- what its ties say

    def wants(self, node: str) -> bool:
        return not self._stopped and node in (self._known or ())

    def connected(self, node: str) -> None:
        self._admitted = True
        self._untried.discard(node)
        self._refusing.pop(node, None)
        self._changed.set()

    def unfit(self, refusal: BadHandler) -> None:
        """A node cannot do what the handler needs."""
        self.refusal = refusal

    def failed(self, node: str, error: Exception | None, failures: int) -> None:
        """There is no connection, for the time number ``failures`` in a row."""
        self._untried.discard(node)
        self._error = error or self._error
        if isinstance(error, REFUSALS):
            self._refusing[node] = error
        else:
            self._refusing.pop(node, None)
        level = logging.WARNING if _worth_a_line(failures) else logging.DEBUG
        log.log(level, "handler %s: not connected to %s: %s", self.consumer.spec.name, node, error or "the connection was closed")
        self._changed.set()

    def lost(self, node: str) -> None:
        """There was a connection: perhaps the node is gone, and the topic elsewhere, or nowhere."""
        self._ensured = False
        if not self._settled:
            self.look()

    def let_go(self, node: str) -> None:
        """No handler dials it any more."""
        self._untried.discard(node)
        self._refusing.pop(node, None)
        self._nodes.pop(node, None)


def _worth_a_line(failures: int) -> bool:
    """A node that stays away for hours must not fill the log."""
    return failures in (1, 2, 5) or (failures > 0 and failures % 20 == 0)

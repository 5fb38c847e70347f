"""Keeps one handler connected to the nodes of one transport: discovers, dials, waits, dials again. It handles no message."""

from __future__ import annotations

import logging
import time

import gevent
from gevent.event import Event

from framework.engine import backoff
from framework.engine.consumer import Consumer
from framework.engine.refusals import lease_refusal
from framework.errors import REFUSALS, BadHandler, BrokerRefuses, FrameworkError, words_of
from framework.transports.contract import Connection, Receiver, Transport

log = logging.getLogger(__name__)

UNKNOWN_POLL = 1.0
"""Seconds between two discoveries, at most, while no node is known."""
STEADY = 10.0
"""Seconds after which a connection counts as good, and the next failure as the first."""


class Dialler:
    """One greenlet discovers; one more for each node dials, waits for the end of its connection, and dials again, for ever."""

    def __init__(self, consumer: Consumer, transport: Transport, poll_interval: float, changed: Event) -> None:
        self.consumer = consumer
        self._receiver: Receiver = consumer
        self._topic = consumer.spec.topic
        self.error: Exception | None = None
        """Why there was no connection, the last time that there was none."""
        self._transport = transport
        self._poll_interval = poll_interval
        self._unknown_poll = min(UNKNOWN_POLL, poll_interval)
        self._changed = changed
        self._look = Event()
        self._known: set[str] | None = None
        """The nodes of the last discovery that got an answer; None before the first."""
        self._nodes: dict[str, gevent.Greenlet] = {}
        self._discoverer: gevent.Greenlet | None = None
        self.refusal: BadHandler | None = None
        """What no waiting can mend: a node that cannot honour the handler's timeout."""
        self._admitted = False
        self._refusing: dict[str, Exception] = {}
        """The nodes that answered the last dial by refusing us, and in what words."""

    @property
    def found_no_node(self) -> bool:
        """Discovery was answered, and no node has the topic yet."""
        return self._known == set()

    @property
    def shut_out(self) -> BrokerRefuses | None:
        """Every node refuses us, and none ever let us in: a wrong secret, certificate or option, which waiting does not mend."""
        if self._admitted or not self._known or not self._known <= self._refusing.keys():
            return None
        words = "; ".join(words_of(node, self._refusing[node]) for node in sorted(self._known))
        return BrokerRefuses(f"handler {self.consumer.spec.name}: no broker lets it in ({words})")

    def start(self) -> None:
        self._discoverer = gevent.spawn(self._discover_for_ever)

    def stop(self) -> None:
        """Dial no more. Connections are left as they are."""
        gevent.killall([g for g in (self._discoverer, *self._nodes.values()) if g is not None], block=False)

    # -- discovery

    def _discover_for_ever(self) -> None:
        failures = 0
        while True:
            self._look.clear()
            failures = 0 if self._discover() else failures + 1
            if _worth_a_line(failures):
                log.warning("topic %s: discovery failed: %s; its nodes stay as they were", self._topic, self.error)
            pause = self._poll_interval if self._known else self._unknown_poll
            self._look.wait(backoff.spread(pause))

    def _discover(self) -> bool:
        """Whether discovery was answered. Only an answer can remove a node."""
        try:
            self._known = self._find()
        except FrameworkError as error:
            self.error = error
            return False
        except Exception as error:
            log.exception("topic %s: discovery failed, which is a bug", self._topic)
            self.error = error
            return False
        self._use(self._known)
        return True

    def _find(self) -> set[str]:
        return self._transport.discover(self._topic)

    def _use(self, nodes: set[str]) -> None:
        for node in nodes:
            if node not in self._nodes or self._nodes[node].dead:
                self._nodes[node] = gevent.spawn(self._keep_connected, node)

    # -- one node

    def _keep_connected(self, node: str) -> None:
        failures = 0
        while self._known is not None and node in self._known:
            began = time.monotonic()
            error = self._connect_and_wait(node)
            failures = 1 if time.monotonic() - began > STEADY else failures + 1
            self._note(node, error, failures)
            self._look.set()
            gevent.sleep(backoff.reconnect_delay(failures))

    def _connect_and_wait(self, node: str) -> Exception | None:
        """One connection from its dial to its end; returns why it ended, or was never made."""
        spec, ended = self.consumer.spec, Ended()
        try:
            connection = self._transport.connect(node, self._topic, spec.channel, self._receiver)
        except FrameworkError as error:
            return error
        except Exception as error:
            log.exception("handler %s: connecting to %s failed", spec.name, node)
            return error
        if self._refused(connection):
            connection.close()
            return self.refusal
        self._admitted = True
        self.consumer.attach(connection, ended)
        log.info("handler %s: subscribed to %s", spec.name, node)
        self._changed.set()
        return ended.wait()

    def _refused(self, connection: Connection) -> bool:
        words = lease_refusal(self.consumer.spec, connection.node, connection.limits, self._transport.capabilities)
        if words:
            self.refusal = BadHandler(words)
        return bool(words)

    def _note(self, node: str, error: Exception | None, failures: int) -> None:
        self.error = error or self.error
        if isinstance(error, REFUSALS):
            self._refusing[node] = error
        else:
            self._refusing.pop(node, None)
        level = logging.WARNING if _worth_a_line(failures) else logging.DEBUG
        log.log(level, "handler %s: not connected to %s: %s", self.consumer.spec.name, node, error or "the connection was closed")
        self._changed.set()


class Ended:
    """What a consumer calls when a connection has ended, and a greenlet can wait for."""

    def __init__(self) -> None:
        self._event = Event()
        self._error: Exception | None = None

    def __call__(self, error: Exception | None) -> None:
        self._error = error
        self._event.set()

    def wait(self) -> Exception | None:
        self._event.wait()
        return self._error


def _worth_a_line(failures: int) -> bool:
    """A node that stays away for hours must not fill the log."""
    return failures in (1, 2, 5) or (failures > 0 and failures % 20 == 0)

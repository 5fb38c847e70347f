"""Keeps one handler connected to one node: dials, waits for the end of the connection, dials again. It handles no message.

While the connection stands nothing waits for its end but a callback: a greenlet for each would take 20 KB of memory.
"""

from __future__ import annotations

import time
from typing import Protocol

import gevent

from framework.engine import backoff
from framework.engine.consumer import Consumer
from framework.engine.refusals import lease_refusal
from framework.engine.ways import Way
from framework.errors import BadHandler, BrokerRefuses, BrokerUnreachable, FrameworkError
from framework.observe import hublog
from framework.transports.contract import Connection, Receiver, Transport

log = hublog.get(__name__)

BRIEF = 1.0
"""Seconds that a connection stands at most when the node takes it only to close it."""
STEADY = 10.0
"""Seconds after which a connection counts as good although nothing came on it, and the next failure as the first."""


class Owner(Protocol):
    """Whose connection it is: a ``dialler.Dialler``."""

    consumer: Consumer
    receiver: Receiver
    topic: str
    transport: Transport

    def wants(self, node: str) -> bool: ...

    def connected(self, node: str) -> None: ...

    def unfit(self, refusal: BadHandler) -> None: ...

    def failed(self, node: str, error: Exception | None, failures: int) -> None: ...

    def lost(self, node: str) -> None: ...

    def let_go(self, node: str) -> None: ...


class Tie:
    """Dials from when it is made until its owner does not want ``node`` any more. It hears itself of its connection's end."""

    def __init__(self, owner: Owner, node: str, way: Way) -> None:
        self._owner = owner
        self._node = node
        self._way = way
        self._failures = 0
        self._began = 0.0
        self._missed = self._stopped = False
        self._greenlet = gevent.spawn(self._dial, 0.0)

    def __call__(self, error: Exception | None, *, worked: bool) -> None:
        """The connection has ended. On the hub, where nothing may wait, not even for a line in the log."""
        if not self._stopped:
            self._greenlet = gevent.spawn(self._dial_anew, error, worked)

    def stop(self) -> None:
        """Dial no more. A connection is left as it is."""
        self._stopped = True
        self._greenlet.kill(block=False)

    def _dial_anew(self, error: Exception | None, worked: bool) -> None:
        stood = time.monotonic() - self._began
        self._failures = 1 if worked or stood > STEADY else self._failures + 1
        self._way.seen()
        self._owner.failed(self._node, error, self._failures)
        self._owner.lost(self._node)
        self._dial(pause_after(stood, self._failures))

    def _dial(self, pause: float) -> None:
        """Returns when there is a connection, or none is wanted."""
        gevent.sleep(pause)
        try:
            while (error := self._try()) is not None:
                self._failures += 1
                self._owner.failed(self._node, error, self._failures)
                if not self._missed:  # else its way makes it wait
                    gevent.sleep(pause_after(0.0, self._failures))
        except BaseException:
            self._owner.let_go(self._node)
            raise

    def _try(self) -> Exception | None:
        """Once it may dial: why there is no connection."""
        with self._way.dialling():
            if not self._owner.wants(self._node):
                self._owner.let_go(self._node)
                return None
            try:
                connection = self._connect()
            except Exception as error:
                self._missed = isinstance(error, BrokerUnreachable) and not isinstance(error, BrokerRefuses)
                self._way.missed(error) if self._missed else self._way.reached()
                return error
            self._missed = False
            self._way.reached()
        return self._use(connection)

    def _connect(self) -> Connection:
        owner = self._owner
        spec = owner.consumer.spec
        try:
            return owner.transport.connect(self._node, owner.topic, spec.channel, owner.receiver)
        except Exception as error:
            if not isinstance(error, FrameworkError):
                log.exception("handler %s: connecting to %s failed, which is a bug", spec.name, self._node)
            raise

    def _use(self, connection: Connection) -> BadHandler | None:
        owner = self._owner
        words = lease_refusal(owner.consumer.spec, self._node, connection.limits, owner.transport.capabilities)
        if words:
            refusal = BadHandler(words)
            owner.unfit(refusal)
            connection.close()
            return refusal
        self._began = time.monotonic()
        owner.consumer.attach(connection, self)
        log.info("handler %s: subscribed to %s", owner.consumer.spec.name, self._node)
        owner.connected(self._node)
        return None


def pause_after(stood: float, failures: int) -> float:
    """Seconds until the next dial. What stands for seconds only, behind a proxy perhaps, is missed for no longer than that."""
    delay = backoff.reconnect_delay(failures)
    return min(delay, stood) if stood > BRIEF else delay

"""What the tests of the NATS transport share: connections with a strict receiver, and a look at the server by its own API."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest

from framework.testing.conformance.receiver import Held
from framework.testing.servers import Server
from framework.transports import open_transports
from framework.transports.nats.dial import dial
from framework.transports.nats.session import Session
from framework.transports.nats.streams import Api


def until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    """Turn the hub until ``condition`` holds; fails the test when it does not in time."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s"
        gevent.sleep(0.005)
    return value


class Kit:
    """A server, transports to it, and what it says of itself."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._sessions: list[Session] = []
        self._held: list[Held] = []
        self._producers: list[Any] = []

    def open(self, options: str = "", login: str = "") -> Any:
        (transport,) = open_transports([f"nats://{login}{self.server.address}{options}"])
        return transport

    def hold(self, transport: Any, topic: str = "orders", channel: str = "billing", *, grant: int = 10) -> Held:
        """A connection that no worker uses; its receiver forgives nothing."""
        held = Held(lambda receiver: transport.connect(self.server.address, topic, channel, receiver))
        held.grant(grant)
        self._held.append(held)
        return held

    def producer(self, transport: Any) -> Any:
        self._producers.append(transport.producer())
        return self._producers[-1]

    @property
    def session(self) -> Session:
        """One of its own, to look at the server with."""
        if not self._sessions:
            with dial(self.server.address) as line:
                self._sessions.append(Session(line, 30.0))
        return self._sessions[0]

    @property
    def api(self) -> Api:
        return Api(self.session)

    def close(self) -> None:
        for held in self._held:
            held.connection.close()
        until(lambda: all(held.receiver.closings for held in self._held))
        for producer in self._producers:
            producer.close()
        for session in self._sessions:
            session.close()
        for held in self._held:
            held.check()


@pytest.fixture
def make_kit(start_nats: Callable[..., Server]) -> Iterator[Callable[..., Kit]]:
    """``make_kit(config, version="2.9")``."""
    made: list[Kit] = []

    def make(config: str = "", **options: Any) -> Kit:
        made.append(Kit(start_nats(config, **options)))
        return made[-1]

    yield make
    for kit in made:
        kit.close()


@pytest.fixture
def kit(make_kit: Callable[..., Kit]) -> Kit:
    """A server of the newest version with default settings."""
    return make_kit()

"""A transport over brokers that are made up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from framework.errors import (
    BrokerUnreachable,
)
from framework.transports import open_transports
from framework.transports.rocketmq import administration
from framework.transports.rocketmq import transport as module
from framework.transports.rocketmq.administration import Broker
from framework.transports.rocketmq.queues import Place
from framework.transports.rocketmq.routes import Master
from tests.transports.rocketmq.paper import Paper

NEW, OLD = Broker("5.3.3", {}), Broker("4.9.7", {})


class Servers:
    """``routes.NameServers``, which knows what the test says."""

    def __init__(self) -> None:
        self.routes: dict[str, dict[str, Master]] = {}
        self.all = {name: Master(name, f"{name}:1", "c") for name in ("a", "b")}
        self.names: list[str] = []
        self.own: list[str] = []
        self.forgotten = 0

    def route(self, topic: str, *, within: float = 0.0) -> dict[str, Master]:
        return self.routes.get(topic, {})

    def masters_of(self, cluster: str) -> dict[str, Master]:
        return self.all

    def some_masters(self) -> dict[str, Master]:
        return self.all

    def topics(self) -> list[str]:
        return self.names

    def own_topics(self) -> list[str]:
        return self.own

    def queues(self, topic: str) -> list[Place]:
        return []

    def forget(self) -> None:
        self.forgotten += 1


class Sessions:
    """``sessions.Sessions`` that dials nothing."""

    def __init__(self) -> None:
        self.down: set[str] = set()
        self.back: list[Any] = []
        self.closed = False

    @contextmanager
    def use(self, server: str) -> Iterator[Any]:
        yield self.take(server)

    def take(self, server: str) -> Any:
        if server in self.down:
            raise BrokerUnreachable(f"{server} is down")
        session = Paper()
        session.server = server  # type: ignore[attr-defined]
        return session

    def give_back(self, session: Any) -> None:
        self.back.append(session)

    def close(self) -> None:
        self.closed = True


class House:
    """A transport, and what it knows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, options: str = "") -> None:
        made: Any
        (made,) = open_transports([f"rocketmq://names:9876{options}"])
        self.transport = made
        self.servers, self.sessions = Servers(), Sessions()
        made._servers, made._sessions = self.servers, self.sessions
        self.brokers = dict.fromkeys(("a:1", "b:1"), NEW)
        self.groups: dict[str, list[str]] = {}
        self.made: list[tuple[str, list[str]]] = []
        monkeypatch.setattr(administration, "look_at", lambda session: self.brokers[session.server])
        monkeypatch.setattr(administration, "groups_of", lambda session, topic: self.groups.get(session.server, []))
        monkeypatch.setattr(administration, "groups_that_drop", lambda session: frozenset())
        self.deleted: set[str] = set()
        """Topics that their brokers have no more, which no name server hears of."""
        monkeypatch.setattr(administration, "make_topics", self._make)
        monkeypatch.setattr(administration, "has_topic", lambda session, topic: topic not in self.deleted)
        monkeypatch.setattr(module.SetBack, "look", lambda back: None)

    def _make(self, session: Any, wanted: Any) -> dict[str, Any]:
        if wanted:
            self.made.append((session.server, list(wanted)))
        for name in wanted:
            self.servers.routes.setdefault(name, {})[session.server[0]] = self.servers.all[session.server[0]]
        return {}

    def has(self, topic: str, *nodes: str, **more: Any) -> None:
        self.servers.routes[topic] = {node: Master(node, f"{node}:1", "c", **more) for node in nodes}

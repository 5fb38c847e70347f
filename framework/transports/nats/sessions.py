"""The sessions of a transport: one for each cluster and hub, dialled when it is needed, closed when it is used no more."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from gevent import monkey
from gevent.lock import Semaphore

from framework.errors import REFUSALS, BrokerUnreachable, FrameworkError, words_of
from framework.transports.nats.dial import CONNECT_TIMEOUT, Line, Way, dial
from framework.transports.nats.session import Session
from framework.transports.nats.urls import Cluster, Options, Secrets

_get_ident = monkey.get_original("_thread", "get_ident")


class Servers:
    """Those of one cluster, as far as they are known: of the URL, and what they say of each other. Shared by threads."""

    def __init__(self, cluster: Cluster, way: Way) -> None:
        self.node = cluster.node
        self._way = replace(way, login=cluster.login)
        self._cluster = cluster
        self._told: tuple[str, ...] = ()
        self._last = ""

    def learn(self, line: Line) -> None:
        self._last = line.server
        self._told = tuple(line.info.connect_urls or ())

    @contextmanager
    def dial(self, timeout: float = CONNECT_TIMEOUT, *, avoid: str = "") -> Iterator[Line]:
        """A Line to the first server that accepts us; ``avoid`` is asked last. Raises as ``dial.dial`` does, for all of them."""
        line, failures = None, list[FrameworkError]()
        order = self._order(avoid)
        for server in order:
            try:
                with dial(server, self._way, timeout / len(order) if len(order) > 1 else timeout) as line:
                    self.learn(line)
                    yield line
                    return
            except FrameworkError as error:
                if line is not None:  # it is the caller's
                    raise
                failures.append(error)
        if len(failures) == 1 or all(isinstance(error, REFUSALS) for error in failures):
            raise failures[0]
        raise BrokerUnreachable("; ".join(words_of(server, error) for server, error in zip(order, failures, strict=True)))

    def _order(self, avoid: str) -> list[str]:
        """The server that accepted us last, then those of the URL, then those that they named."""
        known = list(dict.fromkeys([*self._cluster.servers, *random.sample(self._told, len(self._told))]))
        known.sort(key=lambda server: (server == avoid, server != self._last))
        return known[:8]


class Sessions:
    """``with sessions.use(node) as session``. A hub has its own; those of other hubs are left alone."""

    def __init__(self, clusters: Mapping[str, Cluster], options: Options, secrets: Secrets) -> None:
        way = Way(tls=options.tls, tls_first=options.tls_first, secrets=secrets)
        self.servers = {node: Servers(cluster, way) for node, cluster in clusters.items()}
        self._options = options
        self._open: dict[tuple[str, int], Session] = {}
        self._users: dict[Session, int] = {}
        self._dialling: dict[tuple[str, int], Semaphore] = {}

    @contextmanager
    def use(self, node: str) -> Iterator[Session]:
        """That of this hub; blocks while it is dialled. Raises BrokerUnreachable, AccessDenied, BrokerError, ProtocolError."""
        session = self.take(node)
        try:
            yield session
        finally:
            self.give_back(session)

    def take(self, node: str) -> Session:
        """As ``use``, until ``give_back``."""
        key = (node, _get_ident())
        with self._dialling.setdefault(key, Semaphore()):
            session = self._open.get(key)
            if session is None or session.error is not None or session.leaving:
                session = self._open[key] = self._dialled(node, avoid=session.server if session and session.leaving else "")
            self._users[session] = self._users.get(session, 0) + 1
            return session

    def _dialled(self, node: str, avoid: str) -> Session:
        with self.servers[node].dial(avoid=avoid) as line:
            return Session(line, self._options.ping_interval)

    def give_back(self, session: Session) -> None:
        """The last one closes it."""
        left = self._users.pop(session, 1) - 1
        if left:
            self._users[session] = left
            return
        for key in [key for key, one in self._open.items() if one is session]:
            del self._open[key]
        session.close()

    def close(self) -> None:
        """Those of this hub."""
        for (_, thread), session in list(self._open.items()):
            if thread == _get_ident():
                session.close()

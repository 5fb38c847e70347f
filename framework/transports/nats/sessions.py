"""The sessions of a transport, one for each cluster and hub, and the servers of a cluster."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from framework.errors import REFUSALS, BrokerUnreachable, FrameworkError, words_of
from framework.transports.addresses import is_address
from framework.transports.nats.credentials import is_number, server_name
from framework.transports.nats.dial import CONNECT_TIMEOUT, Line, Way, dial
from framework.transports.nats.session import Session
from framework.transports.nats.strangers import strangers
from framework.transports.nats.urls import Cluster, Options, Secrets
from framework.transports.nats.wire import Info
from framework.transports.shared_sessions import SharedSessions


class Servers:
    """Those of one cluster, as far as they are known: of the URL, and what they say of each other. Shared by threads."""

    def __init__(self, cluster: Cluster, way: Way) -> None:
        self.node = cluster.node
        self._way = replace(way, login=cluster.login)
        self._cluster = cluster
        self._told: tuple[str, ...] = ()
        self._last = self._name = ""

    def learn(self, line: Line) -> None:
        self._last = line.server
        self.told(line.server, line.info)

    def told(self, server: str, info: Info) -> None:
        """``server`` says which others there are: when it accepts us, and whenever one comes or goes."""
        self._told = tuple(filter(_dialable, info.connect_urls or self._told))
        if not is_number(server):
            self._name = server_name(server)

    @contextmanager
    def dial(self, timeout: float = CONNECT_TIMEOUT, *, avoid: str = "") -> Iterator[Line]:
        """A Line to the first server that accepts us; ``avoid`` is asked last. Raises as ``dial.dial`` does, for all of them."""
        line, failures = None, list[FrameworkError]()
        order = self._order(avoid)
        for server in order:
            try:
                with dial(server, self._way_to(server), timeout / len(order) if len(order) > 1 else timeout) as line:
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

    def strangers(self, session: Session) -> list[str]:
        """A sentence for each server of the URL that is of another cluster than ``session``. Raises FrameworkError."""
        return strangers(session, self._cluster.servers, self._way)

    def _way_to(self, server: str) -> Way:
        """Servers tell of one another by IP addresses, and their certificates are for names: that of the one that told is
        expected, as other clients of NATS do."""
        if self._name and server not in self._cluster.servers and is_number(server):
            return replace(self._way, tls_name=self._name)
        return self._way

    def _order(self, avoid: str) -> list[str]:
        """The server that accepted us last, then those of the URL, then those that they named."""
        known = list(dict.fromkeys([*self._cluster.servers, *random.sample(self._told, len(self._told))]))
        known.sort(key=lambda server: (server == avoid, server != self._last))
        return known[:8]


def _dialable(told: str) -> bool:
    host, _, port = told.rpartition(":")
    return port.isdecimal() and bool(host) and is_address(host.removeprefix("[").removesuffix("]"), int(port))


class Sessions(SharedSessions[Session]):
    """By node. To dial raises BrokerUnreachable, AccessDenied, BrokerError, ProtocolError."""

    def __init__(self, clusters: Mapping[str, Cluster], options: Options, secrets: Secrets) -> None:
        way = Way(tls=options.tls, tls_first=options.tls_first, secrets=secrets)
        self.servers = {node: Servers(cluster, way) for node, cluster in clusters.items()}
        self._options = options
        super().__init__(self._dialled)

    def _dialled(self, node: str, last: Session | None) -> Session:
        with self.servers[node].dial(avoid=last.server if last and last.leaving else "") as line:
            return Session(line, self._options.ping_interval, self.servers[node].told)


class Loan:
    """The session to ``node`` that one user has, and what takes its place when it has ended.

    To make one blocks and raises as ``Sessions.take`` does."""

    def __init__(self, sessions: Sessions, node: str) -> None:
        self._sessions = sessions
        self._node = node
        self._over = False
        self.session = sessions.take(node)

    def renew(self) -> Session:
        """Another; blocks while it is dialled. Raises what ``Sessions.take`` does."""
        fresh = self._sessions.take(self._node)
        if self._over:
            self._sessions.give_back(fresh)
            raise BrokerUnreachable(f"nats-server {fresh.server} is not used here any more")
        self._sessions.give_back(self.session)
        self.session = fresh
        return fresh

    def give_back(self) -> None:
        self._over = True
        self._sessions.give_back(self.session)

"""A peer of a NATS cluster as a ``contract.Producer`` of JetStream: each message is answered when it is stored.

A publish runs on the hub of the peer, whichever thread asks for it. Clusters are tried in turn.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from framework.errors import BrokerUnreachable, PublishError
from framework.headers import NONE, Headers
from framework.transports.nats.outgoing import Outgoing, check, check_sizes
from framework.transports.nats.publish_link import WINDOW, Command, PublishLink
from framework.transports.nats.urls import Options
from framework.transports.nats_route.home import Home
from framework.transports.nats_route.peer import Peer
from framework.transports.nats_route.producer import in_turn, meet
from framework.transports.nats_route.session import RouteSession
from framework.transports.one_by_one import OneByOne
from framework.transports.per_thread import PerThread

DEADLINE = 30.0
_AT_ONCE = 20 * WINDOW
"""Messages that are handed to the peer's thread at a time."""


class StoredProducer(OneByOne):
    """Safe to share between greenlets and between native threads. ``homes()``: of the peers, in the order in which they are
    tried."""

    def __init__(self, homes: Callable[[], Sequence[Home]], options: Options, *, deadline: float = DEADLINE) -> None:
        self._homes = homes
        self._options = options
        self._deadline = deadline
        self._outgoing = Outgoing()
        self._publishing: dict[str, PerThread[Command]] = {}
        self._closed = False

    def publish_each(
        self, topic: str, bodies: Sequence[bytes], *, delay: float = 0.0, priority: int | None = None,
        lease: float | None = None, timeout: float | None = None, headers: Headers = NONE,
    ) -> list[PublishError | None]:  # fmt: skip
        """Return when JetStream has answered for all of ``bodies``; ``delay`` in seconds. Leases are the consumers'.

        Raises BadName, BadMessage (nothing was sent), PublishError when the producer is closed.
        """
        if self._closed:
            raise PublishError("the producer is closed: make a new one")
        check(topic, bodies, delay, headers)
        check_sizes(topic, bodies, sys.maxsize, headers, "")  # what is no body is refused at once
        until = monotonic() + (self._deadline if timeout is None else timeout)
        homes = sorted(self._homes(), key=lambda home: not home.peer.sessions.servers)  # one that is down comes last
        meet(homes, (monotonic() + until) / 2)
        check_sizes(topic, bodies, min(home.peer.max_payload for home in homes), headers, "the servers' max_payload")
        commands = self._outgoing.commands(topic, bodies, delay, headers)
        return in_turn(homes, until, lambda home, left: self._stored_at(home, commands, left))

    def _stored_at(self, home: Home, commands: Sequence[Command], timeout: float) -> list[PublishError | None]:
        answers: list[PublishError | None] = []
        for at in range(0, len(commands), _AT_ONCE):
            some = commands[at : at + _AT_ONCE]
            try:
                answers += home.call(lambda some=some: self._store(home, some, timeout), 20 * timeout)  # type: ignore[misc]
            except BrokerUnreachable as error:
                answers += [PublishError(str(error), stored=None)] * len(some)
        return answers

    def _store(self, home: Home, commands: Sequence[Command], timeout: float) -> list[PublishError | None]:
        """On the peer's hub."""
        return self._of(home).here().store_each(commands, timeout)

    def _of(self, home: Home) -> PerThread[Command]:
        node = home.peer.node
        if node not in self._publishing:
            self._publishing[node] = PerThread(lambda: [node], self._dial, broker="nats-server")
        return self._publishing[node]

    def _dial(self, node: str, timeout: float) -> Any:
        """On the peer's hub; or on that of a thread which looks whether a cluster that was down answers again."""
        (home,) = [one for one in self._homes() if one.peer.node == node]
        link = home.call(lambda: _linked(home.peer, self._options, timeout), timeout)
        return link if home.here else _Elsewhere(home, link)

    def close(self) -> None:
        """Publishes that wait for an answer fail. The peers are their transport's."""
        self._closed = True
        for publishing in self._publishing.values():
            publishing.close()


def _linked(peer: Peer, options: Options, timeout: float) -> PublishLink:
    peer.sessions.reach(timeout)
    return PublishLink(peer.node, RouteSession(peer.sessions), options)


class _Elsewhere:
    """A link on the hub of another thread, which is asked and not used."""

    def __init__(self, home: Home, link: PublishLink) -> None:
        self._home = home
        self._link = link

    def prove(self, until: float) -> Exception | None:
        left = max(0.0, until - monotonic())
        return self._home.call(lambda: self._link.prove(until), left)

    def close(self) -> None:
        self._home.call(self._link.close, 1.0)

"""``nats-route://…?jetstream=true`` as a ``contract.Transport``: JetStream as a peer of its servers uses it, over routes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from framework.errors import BrokerUnreachable
from framework.transports.contract import NodeInfo, Receiver
from framework.transports.nats.carrier import Asking
from framework.transports.nats.connection import JetStreamConnection
from framework.transports.nats.jetstream import JetStreamTransport, Question
from framework.transports.nats.place import place
from framework.transports.nats.streams import Api
from framework.transports.nats.urls import mapped
from framework.transports.nats_route import judgement, urls
from framework.transports.nats_route.homes import Homes
from framework.transports.nats_route.peer import Peer
from framework.transports.nats_route.publishes import CONNECT_TIMEOUT
from framework.transports.nats_route.session import ELECTION, RouteSession
from framework.transports.nats_route.stored import StoredProducer

T = TypeVar("T")

_QUESTION = CONNECT_TIMEOUT + 4 * ELECTION
"""Seconds that several requests may take, to a cluster that answers none of them."""


class RouteJetStream(JetStreamTransport):
    """A peer of each cluster, which every handler and publisher of the process shares."""

    def __init__(self, addresses: urls.Addresses) -> None:
        super().__init__(addresses.clusters, addresses.options.streams)
        self._clusters = addresses.clusters
        self._route_options = addresses.options
        self._secrets = addresses.secrets
        self._homes = Homes(addresses)

    def start(self, hub: Any) -> None:
        """The peers live on ``hub`` from now on."""
        self._homes.start()

    def close(self) -> None:
        self._homes.close()

    def _answer(self, node: str, question: Question[T]) -> T:
        home = self._homes.anywhere(node)
        return home.call(lambda: _answered(home.peer, node, question), _QUESTION)

    def _described(self, node: str, session: Asking, topic: str, channel: str) -> NodeInfo:
        found = super()._described(node, session, topic, channel)
        stream = Api(session).stream_of(topic) if topic else ""
        names = stream or mapped(topic), mapped(channel)
        obstacles = judgement.stream_obstacles(session.info, topic, *names) if topic else ()
        return replace(found, obstacles=(*found.obstacles, *obstacles))

    def _info(self, node: str, session: Asking, lease: float) -> NodeInfo:
        tls = bool(self._secrets.tls_cert)
        notes = judgement.notes(session.info, self._route_options, self._clusters[node], tls)
        return replace(super()._info(node, session, lease), notes=tuple(notes))

    def connect(
        self, node: str, topic: str, channel: str, receiver: Receiver, *, lease: float | None = None
    ) -> JetStreamConnection:
        """``lease`` changes nothing: it belongs to the consumer, which all workers of the channel share."""
        peer = self._homes.here(node).peer
        consumer = _answered(peer, node, lambda _, session: self._consumer(session, topic, channel))
        here = place(node, topic, channel, consumer)
        mine = _Mine(peer, f"$JS.API.CONSUMER.MSG.NEXT.{here.stream}.{here.consumer}".encode())
        limits = self._info(node, mine.session, consumer.lease).limits
        return JetStreamConnection(mine.session, here, limits, receiver, ended=mine.close, renew=mine.renew)

    def producer(self) -> StoredProducer:
        return StoredProducer(self._homes.all, self._options)


class _Mine:
    """The session of one connection, and what takes its place when all routes had ended."""

    def __init__(self, peer: Peer, consumer: bytes) -> None:
        self._peer = peer
        self._consumer = consumer
        self._over = False
        self.session = RouteSession(peer.sessions, consumer)

    def renew(self) -> RouteSession:
        """Blocks until there is a route. Raises as ``Sessions.reach``, and BrokerUnreachable when it is not used any more."""
        self._peer.sessions.reach(CONNECT_TIMEOUT)
        if self._over:
            raise BrokerUnreachable(f"the routes of {self._peer.node} are not used here any more")
        self.session = RouteSession(self._peer.sessions, self._consumer)
        return self.session

    def close(self) -> None:
        self._over = True
        self.session.close()


def _answered(peer: Peer, node: str, question: Question[T]) -> T:
    """On the peer's hub."""
    peer.sessions.reach(CONNECT_TIMEOUT)
    session = RouteSession(peer.sessions)
    try:
        return question(node, session)
    finally:
        session.close()

"""NATS as a ``contract.Transport``: JetStream by the protocol of its clients, on one or more clusters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from gevent.lock import Semaphore

from framework.errors import AccessDenied
from framework.transports.contract import NodeInfo, Receiver, Transport
from framework.transports.nats import credentials, permission
from framework.transports.nats import urls as _urls
from framework.transports.nats.carrier import Asking
from framework.transports.nats.connection import JetStreamConnection
from framework.transports.nats.jetstream import JetStreamTransport, Question
from framework.transports.nats.place import place
from framework.transports.nats.producer import NatsProducer
from framework.transports.nats.session import Session
from framework.transports.nats.sessions import Loan, Sessions
from framework.transports.nats.streams import Api

T = TypeVar("T")


def open(urls: Sequence[str]) -> Transport:
    """A transport over all of ``urls`` (``nats://``, ``tls://``). Raises BadSetting; connects to nothing."""
    addresses = _urls.read(urls)
    credentials.check(addresses.options, addresses.secrets)
    return NatsTransport(addresses)


class NatsTransport(JetStreamTransport):
    """A client of each cluster, by one socket for each hub."""

    def __init__(self, addresses: _urls.Addresses) -> None:
        super().__init__(addresses.clusters, addresses.options)
        self._sessions = Sessions(addresses.clusters, addresses.options, addresses.secrets)
        self._looking = Semaphore()
        self._found_strangers: dict[str, list[str]] = {}

    def start(self, hub: Any) -> None:
        """Sessions are dialled when they are needed."""

    def close(self) -> None:
        self._sessions.close()

    def _answer(self, node: str, question: Question[T]) -> T:
        with self._sessions.use(node) as session:
            return question(node, session)

    def _described(self, node: str, session: Asking, topic: str, channel: str) -> NodeInfo:
        found = super()._described(node, session, topic, channel)
        assert isinstance(session, Session)
        return replace(found, obstacles=(*found.obstacles, *_may_not(session, topic, channel), *self._strangers(node, session)))

    def _strangers(self, node: str, session: Session) -> list[str]:
        """Found once: thousands of handlers ask."""
        with self._looking:
            if node not in self._found_strangers:
                self._found_strangers[node] = self._sessions.servers[node].strangers(session)
            return self._found_strangers[node]

    def connect(
        self, node: str, topic: str, channel: str, receiver: Receiver, *, lease: float | None = None
    ) -> JetStreamConnection:
        """``lease`` changes nothing: it belongs to the consumer, which all workers of the channel share."""
        loan = Loan(self._sessions, node)
        session = loan.session
        try:
            consumer = self._consumer(session, topic, channel)
            if words := permission.unsettled(session, consumer.stream_name, consumer.name):
                raise AccessDenied(words)
            limits = self._info(node, session, consumer.lease).limits
            here = place(node, topic, channel, consumer)
            return JetStreamConnection(session, here, limits, receiver, ended=loan.give_back, renew=loan.renew)
        except BaseException:
            loan.give_back()
            raise

    def producer(self) -> NatsProducer:
        return NatsProducer(self._sessions.servers, self._options)


def _may_not(session: Session, topic: str, channel: str) -> list[str]:
    if not (topic and channel):
        return []
    stream = Api(session).stream_of(topic) or _urls.mapped(topic)
    return list(permission.obstacles(session, stream, _urls.mapped(channel)))

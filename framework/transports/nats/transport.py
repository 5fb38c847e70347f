"""NATS as a ``contract.Transport``: JetStream by the protocol of its clients, on one or more clusters."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from framework.transports.contract import Receiver, Transport
from framework.transports.nats import credentials
from framework.transports.nats import urls as _urls
from framework.transports.nats.away import MadeAnew
from framework.transports.nats.connection import JetStreamConnection
from framework.transports.nats.jetstream import JetStreamTransport, Question
from framework.transports.nats.place import place
from framework.transports.nats.producer import NatsProducer
from framework.transports.nats.session import Session
from framework.transports.nats.sessions import Loan, Sessions
from framework.transports.nats.streams import Api, Consumer

T = TypeVar("T")
SAME = timedelta(milliseconds=50)
"""2.9 says of a new consumer when it was created less than a millisecond otherwise than after its next start."""


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

    def start(self, hub: Any) -> None:
        """Sessions are dialled when they are needed."""

    def close(self) -> None:
        self._sessions.close()

    def _answer(self, node: str, question: Question[T]) -> T:
        with self._sessions.use(node) as session:
            return question(node, session)

    def connect(
        self, node: str, topic: str, channel: str, receiver: Receiver, *, lease: float | None = None
    ) -> JetStreamConnection:
        """``lease`` changes nothing: it belongs to the consumer, which all workers of the channel share."""
        loan = Loan(self._sessions, node)
        session = loan.session
        try:
            consumer = self._consumer(session, topic, channel)
            limits = self._info(node, session, consumer.lease).limits
            here = place(node, topic, channel, consumer)
            renewed = partial(_renewed, loan, consumer)
            return JetStreamConnection(session, here, limits, receiver, ended=loan.give_back, renewed=renewed)
        except BaseException:
            loan.give_back()
            raise

    def producer(self) -> NatsProducer:
        return NatsProducer(self._sessions.servers, self._options)


def _renewed(loan: Loan, consumer: Consumer) -> Session:
    """Another session, by which what ``consumer`` delivered can be settled. Raises MadeAnew where it is there no more."""
    fresh = loan.renew()
    found = Api(fresh).consumer(consumer.stream_name, consumer.name)
    if found is None or abs(found.created - consumer.created) > SAME:
        what = "gone" if found is None else "not the one that it was"
        raise MadeAnew(f"consumer {consumer.stream_name}/{consumer.name} of nats-server {fresh.server} is {what}")
    return fresh

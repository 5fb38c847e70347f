"""``nats-route://`` as a ``contract.Transport``: a peer of clusters of NATS; a topic is a subject, a channel a queue group."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from framework import names
from framework.errors import FrameworkError
from framework.transports.asking_all import all_admitted, answered, ask_each
from framework.transports.contract import Capabilities, NodeInfo, Receiver, Transport
from framework.transports.nats_route import judgement, urls
from framework.transports.nats_route.connection import LIMITS, RouteConnection
from framework.transports.nats_route.homes import Homes
from framework.transports.nats_route.jetstream import RouteJetStream
from framework.transports.nats_route.look import Looked, look
from framework.transports.nats_route.producer import RouteProducer
from framework.transports.nats_route.tls import contexts

SUBSCRIBED = 2.0
"""Seconds that a server may take to read a subscription. One that stands still keeps no handler from what the others send."""


def open(urls_: Sequence[str]) -> Transport:
    """A transport over the clusters of the URLs (``nats-route://``). Raises BadSetting; connects to nothing."""
    addresses = urls.read(urls_)
    contexts(addresses.secrets)  # files that cannot be used are refused at start
    return RouteJetStream(addresses) if addresses.options.jetstream else RouteTransport(addresses)


class RouteTransport:
    """One or more clusters, each a node to the engine: what one server of it brings is no other's to take back."""

    capabilities = Capabilities(
        touch=False, attempts=False, fan_out=True, max_requeue=0.0, max_defer=0.0, acknowledges=False, stores=False,
        headers=True, discovers=False,
    )  # fmt: skip

    def __init__(self, addresses: urls.Addresses) -> None:
        self._clusters = addresses.clusters
        self._options = addresses.options
        self._secrets = addresses.secrets
        self._homes = Homes(addresses)

    def start(self, hub: Any) -> None:
        """The peers live on ``hub`` from now on."""
        self._homes.start()

    def close(self) -> None:
        self._homes.close()

    def accept(self, topic: str, channels: Collection[str]) -> None:
        urls.accept(topic)

    def describe(self, topic: str, channel: str) -> list[NodeInfo]:
        """What the permissions of each cluster mean for ``topic``."""
        return [self._info(node, looked, topic) for node, looked in answered(self._look_at_each()).items()]

    def _info(self, node: str, looked: Looked, topic: str = "") -> NodeInfo:
        obstacles = tuple(judgement.obstacles(looked.info, topic)) if topic else ()
        notes = tuple(judgement.notes(looked.info, self._options, self._clusters[node], bool(self._secrets.tls_cert)))
        return NodeInfo(node, f"nats-server {looked.info.version}", LIMITS, self.capabilities, obstacles, notes)

    def discover(self, topic: str, channel: str) -> set[str]:
        """All clusters there are."""
        return set(self._clusters)

    def channels(self, topic: str) -> set[str]:
        """The queue groups of ``topic``, as far as the server that is asked knows them: of its own clients."""
        wanted = topic.encode()
        return {queue for subject, queue in self._subscribed() if subject == wanted and names.is_valid(queue.decode())}  # type: ignore[misc]

    def topics(self) -> set[str]:
        """The subjects of queue groups, as far as they are names of topics."""
        found = (subject.decode(errors="replace") for subject, _ in self._subscribed())
        return {topic for topic in found if names.is_valid(topic)}

    def _subscribed(self) -> set[tuple[bytes, bytes]]:
        answers = all_admitted(self._look_at_each())
        found = {one for looked in answers.values() for one in looked.subscribed}
        for home in self._homes.there():
            found |= home.peer.interests.patterns() | home.peer.mine()
        return {(subject, queue) for subject, queue in found if queue}

    def backlog(self, topic: str, channel: str) -> dict[str, int]:
        """Nothing is kept by any server."""
        return {}

    def ensure(self, topic: str, channels: Collection[str]) -> None:
        """Nothing has to be made."""

    def connect(self, node: str, topic: str, channel: str, receiver: Receiver) -> RouteConnection:
        """Returns when each server has read what is subscribed to: it drops what a client publishes before that."""
        home = self._homes.here(node)
        connection = RouteConnection(home.peer, topic, channel, receiver, backlog=self._options.backlog)
        try:
            home.peer.await_readers(SUBSCRIBED)
        except BaseException:  # the worker stops
            connection.close()
            raise
        return connection

    def producer(self) -> RouteProducer:
        return RouteProducer(self._homes.all)

    def probe(self) -> list[NodeInfo]:
        return [self._info(node, looked) for node, looked in all_admitted(self._look_at_each()).items()]

    def _look_at_each(self) -> dict[str, Looked | FrameworkError]:
        """Node -> its answer, or why there is none; all asked at once."""
        return ask_each(sorted(self._clusters), lambda node: look(self._clusters[node], self._options, self._secrets))

"""What a transport of JetStream is, whatever carries its words: streams for topics, durable consumers for channels.

How a cluster is reached is its subclasses' (``nats.transport`` as a client, ``nats_route.jetstream`` as a peer).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TypeVar

from framework import names
from framework.errors import FrameworkError, NegotiationRefused
from framework.transports.asking_all import all_admitted, all_answered, answered, ask_each, made_of_all
from framework.transports.contract import Capabilities, Limits, NodeInfo
from framework.transports.kept import Kept
from framework.transports.nats import judgement, streams
from framework.transports.nats import urls as _urls
from framework.transports.nats.carrier import Asking
from framework.transports.nats.changes import refusal
from framework.transports.nats.streams import COUNTS, LATER, SCHEDULES, Api, Consumer
from framework.transports.nats.urls import Options

T = TypeVar("T")
Question = Callable[[str, Asking], T]
"""(node, whom to ask) -> the answer. Raises FrameworkError."""

MAX_DELAY = 366 * 86_400.0
"""Seconds. JetStream itself keeps any delay."""
MAX_GRANT = 5000
ROUND_TRIP = 0.2
"""Seconds in which a pull brings what there is: milliseconds nearby, more where servers are far or busy. Where it takes longer
than that, a worker asks for no more than one at a time."""
NEWER = "run nats-server 2.12 or newer, which keeps schedules"


class JetStreamTransport:
    """One or more clusters, each a node to the engine: any of its servers serves every consumer of it."""

    capabilities = Capabilities(
        touch=True, attempts=True, fan_out=True, max_requeue=MAX_DELAY, max_defer=MAX_DELAY, headers=True, discovers=False,
        longer_delay=NEWER,
    )  # fmt: skip

    def __init__(self, nodes: Collection[str], options: Options) -> None:
        self._nodes = frozenset(nodes)
        self._options = options
        self.capabilities = replace(self.capabilities, fan_out=options.retention != "workqueue")

    def _answer(self, node: str, question: Question[T]) -> T:
        """Of the cluster ``node``; blocks. Raises what ``question`` raises, and BrokerUnreachable."""
        raise NotImplementedError

    def accept(self, topic: str, channels: Collection[str]) -> None:
        """Topics that are subjects; several channels unless each message is for one of them."""
        _urls.accept(topic, list(channels), self._options)

    def describe(self, topic: str, channel: str) -> list[NodeInfo]:
        """With the lease of the durable, where there is one."""
        answers = self._ask_each(lambda node, session: self._described(node, session, topic, channel))
        return list(answered(answers).values())

    def _described(self, node: str, session: Asking, topic: str, channel: str) -> NodeInfo:
        api = Api(session)
        stream = api.stream_of(topic) if topic else ""
        consumer = api.consumer(stream, _urls.mapped(channel)) if stream and channel else None
        found = self._info(node, session, consumer.lease if consumer else self._options.ack_wait)
        there = api.stream(stream) if stream else None
        account = api.account() if topic and (there is None or consumer is None) else streams.Account()
        if there is None:
            return self._about_to_be_made(found, session, topic, account)
        shared = there.config.retention == "workqueue" or judgement.most_consumers(there.config, account) > 0
        others = api.all_consumers(stream) if consumer is None and shared else []
        obstacles = judgement.obstacles(there, consumer, others, judgement.Wish(topic, self._options, account))
        notes = judgement.notes(there, consumer, self._options)
        return replace(found, obstacles=tuple(obstacles), notes=(*found.notes, *notes))

    def _about_to_be_made(self, found: NodeInfo, session: Asking, topic: str, account: streams.Account) -> NodeInfo:
        """What would become of a stream for ``topic`` where there is none."""
        obstacles = found.obstacles
        if topic and self._options.replicas > 1 and not session.info.cluster:
            lone = f"nats-server {session.server} is in no cluster, which replicas={self._options.replicas} needs: leave that out"
            obstacles = (*obstacles, lone)
        if topic and (taken := Api(session).in_the_way(topic)):
            obstacles = (*obstacles, f"stream {_urls.mapped(topic)}: {taken}")
        if topic and 0 < account.limits.max_streams <= account.streams:
            full = f"{account.limits.max_streams} streams (max_streams), and one more is needed for {topic}"
            obstacles = (*obstacles, f"the account may have {full}: allow more, or remove one")
        return replace(found, obstacles=obstacles, notes=(*found.notes, *judgement.notes_before(self._options)))

    def _info(self, node: str, session: Asking, lease: float) -> NodeInfo:
        version = streams.version_of(session.info)
        longest, counts = MAX_DELAY if version >= SCHEDULES else 0.0, version >= COUNTS
        limits = Limits(lease, math.inf, MAX_GRANT, MAX_DELAY, longest, round_trip=ROUND_TRIP)
        here = replace(self.capabilities, max_defer=longest, attempts=counts)
        self.capabilities = replace(
            here, max_defer=min(self.capabilities.max_defer, longest), attempts=self.capabilities.attempts and counts
        )
        return NodeInfo(node, f"nats-server {session.info.version}", limits, here)

    def discover(self, topic: str, channel: str) -> set[str]:
        """All clusters there are: a stream is made wherever it is asked for."""
        return set(self._nodes)

    def channels(self, topic: str) -> set[str]:
        """The durables of the stream that keeps ``topic``."""
        answers = self._ask_each(lambda _, session: _channels(Api(session), topic))
        return made_of_all(answers, lambda there: set().union(*there.values()))

    def topics(self) -> set[str]:
        """The subjects that are kept by any stream, as far as they are names of topics."""
        answers = self._ask_each(lambda _, session: Api(session).topics())
        return made_of_all(answers, lambda there: {one for found in there.values() for one in found if names.is_valid(one)})

    def backlog(self, topic: str, channel: str) -> dict[str, int]:
        """What the durable has not delivered or not had acknowledged, and what is stored for later."""
        answers = self._ask_each(lambda _, session: _kept(Api(session), topic, channel))
        return made_of_all(answers, lambda there: {node: one.total for node, one in there.items() if one})

    def kept(self, topic: str, channel: str) -> dict[str, Kept]:
        """As ``backlog``, told apart. What waits for its next attempt is in flight for JetStream."""
        answers = self._ask_each(lambda _, session: _kept(Api(session), topic, channel))
        return made_of_all(answers, lambda there: {node: one for node, one in there.items() if one})

    def ensure(self, topic: str, channels: Collection[str]) -> None:
        """The stream, and a durable for each channel."""
        made_of_all(self._ask_each(lambda _, session: self._ensured(session, topic, channels)), len)

    def _ensured(self, session: Asking, topic: str, channels: Collection[str]) -> list[Consumer]:
        api = Api(session)
        stream = api.ensure_stream(topic, self._options)
        return [api.ensure_consumer(stream, topic, channel, self._options) for channel in channels]

    def _consumer(self, session: Asking, topic: str, channel: str) -> Consumer:
        """That of ``channel``, made if there is none. Raises NegotiationRefused for one that cannot serve."""
        [consumer] = self._ensured(session, topic, [channel])
        if words := refusal(Api(session), consumer, topic):
            raise NegotiationRefused("CONSUMER", "", fix=words)
        return consumer

    def probe(self) -> list[NodeInfo]:
        return list(all_admitted(self._ask_each(self._probed)).values())

    def _probed(self, node: str, session: Asking) -> NodeInfo:
        Api(session).stream_of("any")  # JetStream answers
        return self._info(node, session, self._options.ack_wait)

    def _ask_all(self, question: Question[T]) -> dict[str, T]:
        """Node -> its answer. Raises BrokerUnreachable naming those that gave none."""
        return all_answered(self._ask_each(question))

    def _ask_each(self, question: Question[T]) -> dict[str, T | FrameworkError]:
        """Node -> its answer, or why there is none; all asked at once."""
        return ask_each(sorted(self._nodes), lambda node: self._answer(node, question))


def _channels(api: Api, topic: str) -> set[str]:
    stream = api.stream_of(topic)
    consumers = api.all_consumers(stream) if stream else []
    return {_urls.unmapped(consumer.name) for consumer in consumers if not judgement.refusal(consumer, topic, None)}


def _kept(api: Api, topic: str, channel: str) -> Kept | None:
    stream = api.stream_of(topic)
    if not stream:
        return None
    info = api.stream(stream, ">")
    subjects = (info and info.state.subjects) or {}
    later = sum(count for subject, count in subjects.items() if subject.startswith(f"{LATER}{topic}."))
    consumer = api.consumer(stream, _urls.mapped(channel)) if channel else None  # of a topic without any the first is asked
    if consumer is None:
        return Kept(subjects.get(topic, 0), deferred=later)
    return Kept(consumer.num_pending, consumer.num_ack_pending, later)

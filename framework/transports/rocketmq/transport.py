"""RocketMQ as a ``contract.Transport``: consumer groups for channels, read by POP or PULL; a node is a master broker, by its
name."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any, TypeVar

import gevent
from gevent.lock import Semaphore

from framework.errors import REFUSALS, BrokerRefuses, BrokerUnreachable, FrameworkError, NegotiationRefused, words_of
from framework.observe import hublog
from framework.transports.contract import Capabilities, Limits, NodeInfo, Receiver, Transport
from framework.transports.lease_guard import CERTAIN
from framework.transports.publish_link import Refused
from framework.transports.recent import Recent
from framework.transports.rocketmq import administration, judgement, tls
from framework.transports.rocketmq import urls as _urls
from framework.transports.rocketmq.administration import Broker
from framework.transports.rocketmq.connection import PopConnection
from framework.transports.rocketmq.heartbeat import Subscription
from framework.transports.rocketmq.producer import MAX_DELAY, RocketProducer
from framework.transports.rocketmq.publish_link import PublishLink
from framework.transports.rocketmq.pulled import LEVELS
from framework.transports.rocketmq.pulling import PullConnection
from framework.transports.rocketmq.routes import READABLE, Master, NameServers
from framework.transports.rocketmq.session import Session
from framework.transports.rocketmq.sessions import Sessions

log = hublog.get(__name__)
T = TypeVar("T")

MAX_GRANT = 5000
ROUND_TRIP = 0.05
"""Seconds in which a POP or a PULL brings what there is: a few milliseconds nearby, more where brokers are busy or far."""
MAKING = 2
"""Topics that are being made at a time, at most: a broker makes one after the other. Of the topics of a thousand handlers, asked
for at once, most were given up while they waited there."""
ROUTED = 3.0
"""Seconds in which a topic that was made is known to the name servers."""


def open(urls: Sequence[str]) -> Transport:
    """A transport over all of ``urls`` (``rocketmq://``, ``rocketmq+tls://``). Raises BadSetting; connects to nothing."""
    addresses = _urls.read(urls)
    if addresses.options.tls:
        tls.context(addresses.secrets)
    return RocketTransport(addresses)


POPS = Capabilities(
    touch=True, attempts=True, fan_out=True, max_requeue=MAX_DELAY, max_defer=MAX_DELAY, headers=True, auto_create=False,
)  # fmt: skip
PULLS = replace(POPS, touch=False, max_requeue=LEVELS[-1], delay_levels=LEVELS)


class _Home:
    """``publish_link.Broker``."""

    def __init__(self, transport: RocketTransport, master: Master) -> None:
        self._transport, self._master = transport, master

    def make(self, topic: str) -> None:
        """Raises Refused where another master has it."""
        self._transport.make_on(self._master.name, topic)

    def queues(self, topic: str) -> int:
        return self._transport.queues_on(self._master.name, topic)

    def has_timers(self) -> bool:
        return self._transport.looked_at(self._master).timers


class RocketTransport:
    """The brokers that some name servers know."""

    def __init__(self, addresses: _urls.Addresses) -> None:
        self.capabilities = PULLS if addresses.options.mode == "pull" else POPS
        """Those of PULL as soon as one broker is known that has no POP, and those of levels when one has no timers."""
        self._options = addresses.options
        self._names = _urls.Names(addresses.options.namespace)
        self._sessions = Sessions(addresses.options, addresses.secrets)
        self._servers = NameServers(addresses.name_servers, self._sessions)
        self._masters = Recent(lambda: self._servers.masters_of(self._options.cluster))
        self._looks: dict[str, Recent[Broker]] = {}
        self._making = Semaphore(MAKING)

    def start(self, hub: Any) -> None:
        """Sessions are dialled when they are needed."""

    def close(self) -> None:
        self._sessions.close()

    def accept(self, topic: str, channels: Collection[str]) -> None:
        """Names that fit with their dots written as RocketMQ takes them; any number of channels."""
        self._names.accept(topic, channels)
        if self._options.mode == "pull":
            self._names.accept_pull(topic, channels)

    def describe(self, topic: str, channel: str) -> list[NodeInfo]:
        """As the brokers are set up, and whether a topic that is missing would be made."""
        masters = self._servers.route(self._names.mapped(topic)) if topic else {}
        missing = bool(topic) and not masters
        answers = self._ask_each(masters or self._masters(), self._info)
        found = [answer for answer in answers.values() if not isinstance(answer, FrameworkError)]
        return [self._judged(info, broker, topic if missing else "") for info, broker in found]

    def _judged(self, info: NodeInfo, broker: Broker, missing: str) -> NodeInfo:
        return judgement.judged(info, broker, missing, pulls=self._pulls(broker))

    def _info(self, master: Master, session: Session) -> tuple[NodeInfo, Broker]:
        broker = self.looked_at(master)
        mode = "PULL" if self._pulls(broker) else "POP"
        return NodeInfo(master.name, f"RocketMQ {broker.version} by {mode}", self._limits(broker), self.capabilities), broker

    def looked_at(self, master: Master) -> Broker:
        """Asked once for many who ask at the same time. Blocks. Raises FrameworkError."""
        recent = self._looks.setdefault(master.address, Recent(lambda: self._look(master.address)))
        return recent()

    def _look(self, address: str) -> Broker:
        with self._sessions.use(address) as session:
            broker = administration.look_at(session)
        can = PULLS if self._pulls(broker) else self.capabilities
        longest = min(self.capabilities.max_defer, MAX_DELAY if broker.timers else LEVELS[-1])
        self.capabilities = replace(can, max_defer=longest, delay_levels=can.delay_levels if broker.timers else LEVELS)
        return broker

    def _pulls(self, broker: Broker) -> bool:
        return self._options.mode == "pull" or not (broker.pops or self._options.mode)

    def _limits(self, broker: Broker) -> Limits:
        options = self._options
        longest = MAX_DELAY if broker.timers else LEVELS[-1]
        if self._pulls(broker):
            return Limits(math.inf, math.inf, MAX_GRANT, LEVELS[-1], longest, round_trip=ROUND_TRIP)
        # A POP that waits cannot be taken back. Twice its time, because what the broker says at its end can be late.
        goodbye = 2 * options.poll + 1.0
        return Limits(options.lease * CERTAIN, math.inf, MAX_GRANT, MAX_DELAY, longest, goodbye, ROUND_TRIP)

    def discover(self, topic: str, channel: str) -> set[str]:
        """The masters that have ``topic`` for reading."""
        route = self._servers.route(self._names.mapped(topic))
        return {name for name, master in route.items() if master.perm & READABLE}

    def channels(self, topic: str) -> set[str]:
        """The groups that have read ``topic``."""
        name = self._names.mapped(topic)
        answers = self._ask_all(self._servers.route(name), lambda _, session: administration.groups_of(session, name))
        return {channel for groups in answers.values() for group in groups if (channel := self._names.channel_of(topic, group))}

    def topics(self) -> set[str]:
        """Those of this namespace that are not RocketMQ's own."""
        own = {*self._servers.own_topics(), *judgement.OWN_TOPICS}
        found = [topic for topic in self._servers.topics() if topic not in own and not judgement.is_own(topic)]
        return {topic for name in found if (topic := self._names.unmapped(name))}

    def backlog(self, topic: str, channel: str) -> dict[str, int]:
        """What waits to be delivered. RocketMQ does not say what is in flight, or waits for a delay."""
        name = self._names.mapped(topic)

        def waiting(master: Master, session: Session) -> int:
            what = self._subscription(topic, channel, pulls=self._pulls(self.looked_at(master)))
            if what.pulls:
                return administration.unread(session, (name, what.retry_topic), what.group)
            return administration.waiting(session, name, what.group)

        return self._ask_all(self._servers.route(name), waiting)

    def _subscription(self, topic: str, channel: str, *, pulls: bool) -> Subscription:
        group = self._names.pull_group(topic, channel) if pulls else self._names.mapped(channel)
        return Subscription(self._names.mapped(topic), group, self._options.tags, pulls)

    def ensure(self, topic: str, channels: Collection[str]) -> None:
        """The topic, on each master of the cluster, where no broker has it. A group is made by its first POP, which begins with
        the first message that there is."""
        with self._making:
            self._make(topic)

    def _make(self, topic: str) -> None:
        name = self._names.mapped(topic)
        if self._servers.route(name):
            return
        masters = self._masters()
        if not masters:
            raise BrokerUnreachable("the name server knows no broker: is one started with this namesrvAddr?")
        self._ask_all(masters, lambda master, session: self._made(master, session, topic))
        self._await_route(name)

    def _await_route(self, name: str) -> None:
        """A broker tells the name servers of a new topic behind its answer."""
        until = monotonic() + ROUTED
        while monotonic() < until and not self._servers.route(name):
            gevent.sleep(0.005)

    def _made(self, master: Master, session: Session, topic: str) -> None:
        if not self.looked_at(master).allows("autoCreateTopicEnable"):
            raise NegotiationRefused("TOPIC", "", fix=judgement.no_topic(topic, master.name))
        administration.make_topic(session, self._names.mapped(topic))

    def connect(self, node: str, topic: str, channel: str, receiver: Receiver) -> PopConnection | PullConnection:
        master = self._servers.route(self._names.mapped(topic)).get(node)
        if master is None:
            raise BrokerUnreachable(f"the name server has no route to topic {topic!r} on {node}")
        session = self._sessions.take(master.address)
        try:
            broker = self.looked_at(master)
            pulls = self._pulls(broker)
            if words := judgement.refusal(broker, node, pulls=pulls):
                raise NegotiationRefused("POP", "", fix=words)
            what = self._subscription(topic, channel, pulls=pulls)
            if session.error is not None:  # meanwhile: whoever attaches to it now is never told
                raise session.error
            made: Any = partial(PullConnection, places=self._servers.queues) if pulls else PopConnection
            found: PopConnection | PullConnection = made(
                session, (node, topic, channel), what, receiver, limits=self._limits(broker), options=self._options,
                ended=self._sessions.give_back,
            )  # fmt: skip
        except BaseException:
            self._sessions.give_back(session)
            raise
        return found

    def producer(self) -> RocketProducer:
        return RocketProducer(self._writable, self._link, self._names, self._options)

    def _writable(self) -> Collection[str]:
        return self._masters().keys()

    def _link(self, node: str, timeout: float) -> PublishLink:
        master = self._masters().get(node)
        if master is None:
            raise BrokerUnreachable(f"the name server knows no master {node}")
        return PublishLink(node, self._sessions.dialled(master.address, timeout), _Home(self, master))

    def queues_on(self, node: str, topic: str) -> int:
        """How many queues ``topic`` has there to write to."""
        found = self._servers.route(self._names.mapped(topic)).get(node)
        return found.queues if found else 0

    def make_on(self, node: str, topic: str) -> None:
        """Make ``topic`` there, where it is missing. Raises Refused where another master has it."""
        route = self._servers.route(self._names.mapped(topic))
        if route and node not in route:
            raise Refused(f"topic {topic!r} is on {', '.join(sorted(route))}, and not on {node}")
        self._make(topic)

    def probe(self) -> list[NodeInfo]:
        answers = self._ask_each(self._servers.masters_of(self._options.cluster), self._info)
        failures = {node: answer for node, answer in answers.items() if isinstance(answer, FrameworkError)}
        if failures:
            refused = any(isinstance(error, REFUSALS) for error in failures.values())
            raise (BrokerRefuses if refused else BrokerUnreachable)("; ".join(map(words_of, failures, failures.values())))
        found = [answer for answer in answers.values() if not isinstance(answer, FrameworkError)]
        return [self._judged(info, broker, "") for info, broker in found]

    def _ask_all(self, masters: dict[str, Master], question: Callable[[Master, Session], T]) -> dict[str, T]:
        """Node -> its answer. Raises BrokerUnreachable naming those that gave none."""
        answers = self._ask_each(masters, question)
        failures = {node: answer for node, answer in answers.items() if isinstance(answer, FrameworkError)}
        if failures:
            raise BrokerUnreachable("; ".join(map(words_of, failures, failures.values())))
        return {node: answer for node, answer in answers.items() if not isinstance(answer, FrameworkError)}

    def _ask_each(
        self, masters: dict[str, Master], question: Callable[[Master, Session], T]
    ) -> dict[str, T | FrameworkError]:  # fmt: skip
        """Node -> its answer, or why there is none; all asked at once."""
        asked = {name: gevent.spawn(self._answer, masters[name], question) for name in sorted(masters)}
        gevent.joinall(list(asked.values()))
        return {name: one.get() for name, one in asked.items()}

    def _answer(self, master: Master, question: Callable[[Master, Session], T]) -> T | FrameworkError:
        try:
            with self._sessions.use(master.address) as session:
                return question(master, session)
        except FrameworkError as error:
            return error

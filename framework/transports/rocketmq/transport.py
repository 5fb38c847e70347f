"""RocketMQ as a ``contract.Transport``: consumer groups for channels, read by POP or PULL; a node is a master broker, by its
name."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from framework.errors import (
    REFUSALS,
    AccessDenied,
    BrokerRefuses,
    BrokerUnreachable,
    FrameworkError,
    NegotiationRefused,
    SomeUnreachable,
    words_of,
)
from framework.observe import hublog
from framework.transports.asking_all import all_admitted, answered, ask_each, made_of_all
from framework.transports.contract import Capabilities, Limits, NodeInfo, Receiver, Transport
from framework.transports.lease_guard import CERTAIN
from framework.transports.publish_link import Refused
from framework.transports.recent import Recent
from framework.transports.rocketmq import administration, judgement, tls, topics
from framework.transports.rocketmq import urls as _urls
from framework.transports.rocketmq.administration import Broker
from framework.transports.rocketmq.connection import PopConnection
from framework.transports.rocketmq.heartbeat import Subscription
from framework.transports.rocketmq.producer import RocketProducer
from framework.transports.rocketmq.publish_link import PublishLink
from framework.transports.rocketmq.pulled import LEVELS
from framework.transports.rocketmq.pulling import PullConnection
from framework.transports.rocketmq.queues import Past, Pasts
from framework.transports.rocketmq.requests import MAX_DELAY
from framework.transports.rocketmq.routes import READABLE, WRITABLE, Master, NameServers
from framework.transports.rocketmq.session import Session
from framework.transports.rocketmq.sessions import Sessions
from framework.transports.rocketmq.set_back import SetBack
from framework.transports.rocketmq.topics import TopicMaker

log = hublog.get(__name__)
T = TypeVar("T")

MAX_GRANT = 5000
JUST_NOW = 1.0
"""Seconds for which the route of a topic is not asked for again to dial where it leads, while all connections stand."""
ROUND_TRIP = 0.05
"""Seconds in which a POP or a PULL brings what there is: a few milliseconds nearby, more where brokers are busy or far."""


def open(urls: Sequence[str]) -> Transport:
    """A transport over all of ``urls`` (``rocketmq://``, ``rocketmq+tls://``). Raises BadSetting; connects to nothing."""
    addresses = _urls.read(urls)
    if addresses.options.tls:
        tls.context(addresses.secrets)
    return RocketTransport(addresses)


POPS = Capabilities(
    touch=True, attempts=True, fan_out=True, max_requeue=MAX_DELAY, max_defer=MAX_DELAY, headers=True, packed=True,
    auto_create=False,
)  # fmt: skip
PULLS = replace(POPS, touch=False, max_requeue=LEVELS[-1], delay_levels=LEVELS)


class _Home:
    """``publish_link.Broker``."""

    def __init__(self, transport: RocketTransport, master: Master) -> None:
        self._transport, self._master = transport, master

    def make(self, topic: str) -> None:
        """Raises Refused where another master has it, FrameworkError."""
        self._transport.make_on(self._master.name, topic)

    def queues(self, topic: str) -> int:
        return self._transport.queues_on(self._master.name, topic)

    def closed(self, topic: str) -> str:
        return self._transport.closed_on(self._master.name, topic)

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
        self._pasts: Pasts = {}
        self._looks: dict[str, Recent[Broker]] = {}
        self._droppers: dict[str, Recent[frozenset[str]]] = {}
        self._maker = TopicMaker(self._make_together)

    def start(self, hub: Any) -> None:
        """Sessions are dialled when they are needed, and those to name servers are kept."""
        self._servers.keep()

    def close(self) -> None:
        self._sessions.close()

    def accept(self, topic: str, channels: Collection[str]) -> None:
        """Names that fit with their dots written as RocketMQ takes them; any number of channels."""
        self._names.accept(topic, channels)
        if self._options.mode == "pull":
            self._names.accept_pull(topic, channels)

    def describe(self, topic: str, channel: str) -> list[NodeInfo]:
        """As the brokers are set up, whether a topic that is missing would be made, and whether a channel was read otherwise."""
        masters = self._servers.route(self._names.mapped(topic)) if topic else {}
        missing = (topic, self._names.mapped(topic)) if topic and not masters else None

        def told(master: Master, session: Session) -> NodeInfo:
            info, broker = self._info(master, session)
            judged = self._judged(info, broker, missing)
            if masters and not master.perm & READABLE:
                judged = replace(judged, notes=(*judged.notes, judgement.unreadable(topic, master.name, master.perm)))
            if words := self._drops(master, self._subscription(topic, channel, pulls=self._pulls(broker))):
                judged = replace(judged, obstacles=(*judged.obstacles, words))
            if masters and (words := self._begins_again(session, topic, channel, pulls=self._pulls(broker))):
                return replace(judged, notes=(*judged.notes, f"{master.name}: {words}"))
            return judged

        return list(answered(self._ask_each(masters or self._masters(), told)).values())

    def _begins_again(self, session: Session, topic: str, channel: str, *, pulls: bool) -> str:
        """What is to be said where the channel was read by the other mode, under the name that its group has there, and never by
        this one."""
        groups = {mode: self._subscription(topic, channel, pulls=mode).group for mode in (False, True)}
        known = administration.groups_of(session, self._names.mapped(topic))
        if groups[not pulls] not in known or groups[pulls] in known:
            return ""
        return judgement.begins_again(topic, channel, pulls=pulls)

    def _drops(self, master: Master, what: Subscription) -> str:
        """What is to be said where nothing that is sent back would come again; empty: it does. Blocks."""
        if not what.pulls:
            return ""
        recent = self._droppers.setdefault(master.address, Recent(lambda: self._that_drop(master.address)))
        return judgement.drops(what.group, master.name) if what.group in recent() else ""

    def _that_drop(self, address: str) -> frozenset[str]:
        with self._sessions.use(address) as session:
            return administration.groups_that_drop(session)

    def _judged(self, info: NodeInfo, broker: Broker, missing: tuple[str, str] | None) -> NodeInfo:
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
        return self._servers.readers(self._names.mapped(topic))

    def channels(self, topic: str) -> set[str]:
        """The groups that have read ``topic``."""
        name = self._names.mapped(topic)

        def channels_of(answers: Mapping[str, Collection[str]]) -> set[str]:
            return {one for groups in answers.values() for group in groups if (one := self._names.channel_of(topic, group))}

        try:
            return channels_of(
                self._ask_all(self._servers.route(name), lambda _, session: administration.groups_of(session, name))
            )
        except SomeUnreachable as error:
            error.answers = channels_of(error.answers)
            raise

    def topics(self) -> set[str]:
        """Those of this namespace that are not RocketMQ's own."""
        self._servers.some_masters()
        own = set(self._servers.own_topics())
        found = [topic for topic in self._servers.topics() if topic not in own and not _urls.is_own(topic)]
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
        the first message that there is. For who pulls, the topic of what comes again as well, where a broker has none yet."""
        name = self._names.mapped(topic)
        if not self._servers.route(name):
            self._maker.make(name)
        if channels and not self.capabilities.touch:
            self._make_retry_topics(name, [self._subscription(topic, one, pulls=True).retry_topic for one in channels])

    def _make_retry_topics(self, name: str, retry_topics: Sequence[str]) -> None:
        """A broker makes each by itself when its group subscribes: one after the other, a thousand in four minutes."""
        there = self._servers.route(name).keys()
        if missing := [one for one in retry_topics if there - self._servers.route(one).keys()]:
            with suppress(FrameworkError):
                self._maker.make(*missing)

    def _make_together(self, wanted: Sequence[str]) -> dict[str, FrameworkError]:
        masters = self._masters()
        silent: SomeUnreachable | None = None
        try:
            answers = self._ask_all(masters, lambda master, session: self._made(master, session, wanted))
        except SomeUnreachable as error:
            silent, answers = error, error.answers
        refused: dict[str, FrameworkError] = {}
        for topic in wanted:
            if errors := {node: failed[topic] for node, failed in answers.items() if topic in failed}:
                final = len(errors) == len(masters) and all(isinstance(error, REFUSALS) for error in errors.values())
                words = "; ".join(map(words_of, errors, errors.values()))
                refused[topic] = BrokerRefuses(words) if final else BrokerUnreachable(words)
        if made := [topic for topic in wanted if topic not in refused]:  # the last is known when all are
            topics.await_route(lambda: bool(self._servers.route(made[-1])))
        return refused if silent is None else dict.fromkeys(wanted, silent) | refused

    def _made(self, master: Master, session: Session, wanted: Sequence[str]) -> dict[str, FrameworkError]:
        refused: dict[str, FrameworkError] = {}
        if not self.looked_at(master).allows("autoCreateTopicEnable"):  # which is not asked for those of what comes again
            users = [name for name in wanted if not _urls.is_own(name)]
            words = {name: judgement.no_topic(self._names.unmapped(name) or name, name, master.name) for name in users}
            refused = {name: NegotiationRefused("TOPIC", "", fix=words[name]) for name in users}
        failed = administration.make_topics(session, [name for name in wanted if name not in refused])
        return refused | {name: self._explained(name, master.name, error) for name, error in failed.items()}

    def _explained(self, name: str, node: str, error: FrameworkError) -> FrameworkError:
        if not isinstance(error, AccessDenied):
            return error
        words = judgement.may_not_make(self._names.unmapped(name) or name, name, node, error)
        return NegotiationRefused("TOPIC", "", fix=words)

    def connect(self, node: str, topic: str, channel: str, receiver: Receiver) -> PopConnection | PullConnection:
        master = self._servers.route(self._names.mapped(topic), within=JUST_NOW).get(node)
        if master is None:
            raise BrokerUnreachable(f"the name server has no route to topic {topic!r} on {node}")
        try:
            session = self._sessions.take(master.address)
        except FrameworkError:
            self._servers.forget()
            raise
        try:
            broker = self.looked_at(master)
            pulls = self._pulls(broker)
            if words := judgement.refusal(broker, node, pulls=pulls):
                raise NegotiationRefused("POP", "", fix=words)
            what = self._subscription(topic, channel, pulls=pulls)
            if words := self._drops(master, what):
                raise NegotiationRefused("GROUP", "", fix=words)
            made: Any = partial(PullConnection, places=self._servers.queues, pasts=self._pasts)
            if not pulls:
                past = self._pasts.setdefault(what.group, Past())
                back = SetBack(session, node, what, past, self._servers.queues)
                back.look()
                made = partial(PopConnection, past=past, back=back)
            if session.error is not None:  # meanwhile: whoever attaches to it now is never told
                raise session.error
            found: PopConnection | PullConnection = made(
                session, (node, topic, channel), what, receiver, limits=self._limits(broker), options=self._options,
                ended=self._over,
            )  # fmt: skip
        except BaseException:
            self._over(session)
            raise
        return found

    def _over(self, session: Session) -> None:
        """Perhaps its broker is elsewhere now."""
        self._servers.forget()
        self._sessions.give_back(session)

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

    def closed_on(self, node: str, topic: str) -> str:
        """Why ``topic`` may not be written to there; empty: it may, or is not there."""
        found = self._servers.route(self._names.mapped(topic)).get(node)
        if found is None or found.perm & WRITABLE:
            return ""
        fix = "give it back by mqadmin updateTopicPerm, or addWritePerm for all of that broker"
        return f"topic {topic!r} takes no messages on RocketMQ's {node}, where its perm is {found.perm}: {fix}"

    def make_on(self, node: str, topic: str) -> None:
        """Make ``topic`` there, where it is missing. Raises Refused where another master has it, FrameworkError."""
        name = self._names.mapped(topic)
        route = self._servers.route(name)
        if route and node not in route:
            raise Refused(f"topic {topic!r} is on {', '.join(sorted(route))}, and not on {node}")
        if route:
            self._make_again(route[node], name)
            return
        with suppress(SomeUnreachable):  # it is there where it can be
            self.ensure(topic, [])

    def _make_again(self, master: Master, name: str) -> None:
        """One that was deleted in its broker, of which no name server hears. Where it is, it is left as it is: to be made once
        more would leave it the queues of a new one."""
        with self._sessions.use(master.address) as session:
            if not administration.has_topic(session, name):
                for error in self._made(master, session, [name]).values():
                    raise error

    def probe(self) -> list[NodeInfo]:
        answers = self._ask_each(self._servers.masters_of(self._options.cluster), self._info)
        return [self._judged(info, broker, None) for info, broker in all_admitted(answers).values()]

    def _ask_all(self, masters: dict[str, Master], question: Callable[[Master, Session], T]) -> dict[str, T]:
        """Node -> its answer. Raises BrokerUnreachable naming those that gave none: SomeUnreachable where others answered, and
        BrokerRefuses where all reject us."""
        answers = self._ask_each(masters, question)
        if all(isinstance(answer, REFUSALS) for answer in answers.values()):
            return all_admitted(answers)
        return made_of_all(answers, dict)

    def _ask_each(
        self, masters: dict[str, Master], question: Callable[[Master, Session], T]
    ) -> dict[str, T | FrameworkError]:  # fmt: skip
        """Node -> its answer, or why there is none; all asked at once."""
        return ask_each(sorted(masters), lambda name: self._answer(masters[name], question))

    def _answer(self, master: Master, question: Callable[[Master, Session], T]) -> T:
        with self._sessions.use(master.address) as session:
            return question(master, session)

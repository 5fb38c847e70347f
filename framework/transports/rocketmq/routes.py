"""What name servers say: which brokers there are, and which of them have a topic. Blocks its greenlet."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import monotonic
from typing import Annotated, TypeVar

import msgspec
from gevent import monkey

from framework.decoding import UNREADABLE, prepared
from framework.errors import (
    REFUSALS,
    AccessDenied,
    BadSetting,
    BrokerRefuses,
    BrokerUnreachable,
    FrameworkError,
    ProtocolError,
    words_of,
)
from framework.transports.recent import Recent
from framework.transports.rocketmq.queues import Place
from framework.transports.rocketmq.session import Session
from framework.transports.rocketmq.sessions import Sessions
from framework.transports.rocketmq.wire.codes import Request
from framework.transports.rocketmq.wire.errors import NotSupported, RocketError, TopicMissing
from framework.transports.rocketmq.wire.frames import Frame

T = TypeVar("T")
_get_ident = monkey.get_original("_thread", "get_ident")

OLDEST = 20.0
"""Seconds for which an answer is kept, while the same brokers are there: Java's clients keep one for 30."""
SETTLED = 5.0
"""Seconds for which it is not asked whether they are."""
NO_NAME_SERVER = (
    "RocketMQ at {} is no name server, but a broker perhaps: name servers, at port 9876 mostly, stand in the broker URL"
)
NOWHERE = "the name server knows no broker: is one started with this namesrvAddr?"
MASTER = "0"
READABLE, WRITABLE = 4, 2
_Count = Annotated[int, msgspec.Meta(ge=0, le=65_536)]
"""Queues of a topic on one broker."""
MOST_QUEUES = 65_536
"""Of a topic on all brokers: a list is made of them."""
_BARE_NUMBER = re.compile(rb'("(?:[^"\\]|\\.)*(?:"|\\?\Z))|([{,])(-?\d+):', re.DOTALL)
"""Behind a name or value in quotation marks, of which the last may not end."""


class _Queues(msgspec.Struct, rename="camel"):
    broker_name: str
    perm: int = READABLE | WRITABLE
    read_queue_nums: _Count = 0
    write_queue_nums: _Count = 0


class _Broker(msgspec.Struct, rename="camel"):
    broker_name: str
    broker_addrs: dict[str, str]
    cluster: str = ""


@prepared
class _Route(msgspec.Struct, rename="camel"):
    queue_datas: list[_Queues] = []
    broker_datas: list[_Broker] = []

    @property
    def masters(self) -> dict[str, Master]:
        """By broker name: those that have the topic."""
        there = {one.broker_name: one for one in self.queue_datas if one.perm}
        return {
            name: replace(one, perm=there[name].perm, queues=there[name].write_queue_nums)
            for name, one in _masters(self.broker_datas).items()
            if name in there
        }


@prepared
class _Cluster(msgspec.Struct, rename="camel"):
    broker_addr_table: dict[str, _Broker] = {}


@prepared
class _Topics(msgspec.Struct, rename="camel"):
    topic_list: list[str] = []


@dataclass(frozen=True, slots=True)
class Master:
    """A broker that takes messages. ``perm``: of the topic that was asked for."""

    name: str
    address: str
    cluster: str = ""
    perm: int = READABLE | WRITABLE
    queues: int = 0
    """Of that topic, to write to."""


class NameServers:
    """All of them know the same: they are asked one after the other, the one first that answered last."""

    def __init__(self, servers: Sequence[str], sessions: Sessions) -> None:
        self._servers = list(servers)
        self._sessions = sessions
        self._recent: dict[str, tuple[float, _Route]] = {}
        """The oldest first."""
        self._kept: dict[str, Session] = {}
        """Of the hub that asks all the time: else each question of its own would be a dial."""
        self._keeper: int | None = None
        self._brokers = Recent(self.masters, fresh=SETTLED)
        self._there: dict[str, Master] = {}
        self._there_since = math.inf
        """Since when these have been there, as far as was asked."""

    def keep(self) -> None:
        """From now on keep the connections that are dialled on this hub, until ``Sessions.close``."""
        self._keeper = _get_ident()

    def forget(self) -> None:
        """What was answered before now will not do any more."""
        self._recent.clear()

    def route(self, topic: str, *, within: float = 0.0) -> dict[str, Master]:
        """Broker name -> the master that has ``topic`` (RocketMQ's name); empty: there is none. ``within``: an answer will
        do that is no older (seconds). Raises BrokerUnreachable, RocketError."""
        return self._route(topic, within).masters

    def readers(self, topic: str) -> set[str]:
        """The names of the masters that have ``topic`` for reading, by an answer that may be OLDEST where no broker has come or
        gone since: for the many who ask all the time whether one has. Raises BrokerUnreachable, RocketError."""
        route = self._settled(topic)
        reachable = {one.broker_name for one in route.broker_datas if MASTER in one.broker_addrs}
        return {one.broker_name for one in route.queue_datas if one.perm & READABLE and one.broker_name in reachable}

    def _settled(self, topic: str) -> _Route:
        return self._route(topic, OLDEST if self._stands(topic) else 0.0)

    def _stands(self, topic: str) -> bool:
        """Whether the brokers are those of when ``topic`` was last asked for. One question for all topics."""
        if _get_ident() != self._keeper:
            return False
        try:
            brokers = self._brokers()
        except (RocketError, BadSetting):  # it answers no such question
            return False
        if brokers != self._there:
            self._there, self._there_since = brokers, monotonic()
        last = self._recent.get(topic)
        return last is not None and last[0] >= self._there_since

    def _route(self, topic: str, within: float) -> _Route:
        asked, last = monotonic(), self._recent.get(topic)
        if last is not None and asked - last[0] < within and _get_ident() == self._keeper:
            return last[1]
        try:
            found = self._ask(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, "acceptStandardJsonOnly": "true"}, _Route)
        except TopicMissing:
            found = _Route()
        return self._remembered(topic, asked, found)

    def _remembered(self, topic: str, asked: float, found: _Route) -> _Route:
        if _get_ident() == self._keeper:
            self._recent.pop(topic, None)
            if any(one.perm & READABLE for one in found.queue_datas):  # else it is asked for again until one may be read
                self._recent[topic] = asked, found
            for old in list(itertools.takewhile(lambda one: asked - self._recent[one][0] >= OLDEST, self._recent)):
                del self._recent[old]
        return found

    def queues(self, topic: str) -> list[Place]:
        """All queues of ``topic`` (RocketMQ's name) that may be read, as an answer had them that is not old. Raises
        BrokerUnreachable, RocketError."""
        route = self._settled(topic)
        readable = [one for one in route.queue_datas if one.perm & READABLE]
        if (count := sum(one.read_queue_nums for one in readable)) > MOST_QUEUES:
            raise ProtocolError(f"RocketMQ's name server says that topic {topic} has {count} queues: no topic has so many")
        return [Place(topic, one.broker_name, number) for one in readable for number in range(one.read_queue_nums)]

    def masters(self) -> dict[str, Master]:
        """Broker name -> every master there is. Raises BrokerUnreachable, RocketError."""
        return _masters(self._ask(Request.GET_BROKER_CLUSTER_INFO, {}, _Cluster).broker_addr_table.values())

    def some_masters(self) -> dict[str, Master]:
        """As ``masters``. Raises BrokerUnreachable where there is none: nothing that is asked then is true of a broker."""
        found = self.masters()
        if not found:
            raise BrokerUnreachable(NOWHERE)
        return found

    def masters_of(self, cluster: str) -> dict[str, Master]:
        """Those where topics are made. Raises BadSetting where it is not said which of several clusters that is, and
        BrokerUnreachable where there is none."""
        found = self.some_masters()
        clusters = sorted({one.cluster for one in found.values()})
        if not cluster and len(clusters) > 1:
            raise BadSetting(
                f"the name server knows the clusters {', '.join(clusters)}: name one in the broker URL, as ?cluster="
            )
        chosen = {name: one for name, one in found.items() if cluster in ("", one.cluster)}
        if not chosen:
            raise BrokerUnreachable(
                f"the name server knows no broker of the cluster {cluster}, but of {', '.join(clusters)}: "
                "is cluster= right in the broker URL?"
            )
        return chosen

    def topics(self) -> list[str]:
        """All there are, RocketMQ's own as well."""
        return self._ask(Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}, _Topics).topic_list

    def own_topics(self) -> list[str]:
        """RocketMQ's."""
        return self._ask(Request.GET_SYSTEM_TOPIC_LIST_FROM_NS, {}, _Topics).topic_list

    def _ask(self, code: int, fields: dict[str, str], kind: type[T]) -> T:
        """The first answer that says anything: a name server that was just started has not heard of all brokers. Raises
        TopicMissing where all that answer know none."""
        failures: list[str] = []
        refusals = 0
        nothing: T | TopicMissing | None = None
        for server in list(self._servers):
            try:
                with self._session(server) as session:
                    answer = session.ask(code, fields)
                found = read_json(answer, kind)
            except NotSupported:
                raise BadSetting(NO_NAME_SERVER.format(server)) from None
            except AccessDenied:
                raise
            except TopicMissing as error:
                nothing = error
            except FrameworkError as error:
                # What it cannot answer now another may. Nor do its words name it: see ``words_of``.
                if len(self._servers) == 1 and not isinstance(error, (ProtocolError, RocketError, *REFUSALS)):
                    raise
                failures.append(words_of(server, error))
                refusals += isinstance(error, REFUSALS)
            else:
                if found != kind():
                    self._servers.sort(key=lambda one: one != server)
                    return found
                nothing = found
        if isinstance(nothing, TopicMissing):
            raise nothing
        if nothing is not None:
            return nothing
        raise (BrokerRefuses if refusals == len(failures) else BrokerUnreachable)("; ".join(failures))

    @contextmanager
    def _session(self, server: str) -> Iterator[Session]:
        with self._sessions.use(server) as session:
            if _get_ident() == self._keeper and self._kept.get(server) is not session:
                taken = self._sessions.take(server)
                last, self._kept[server] = self._kept.get(server), taken
                if last is not None:
                    self._sessions.give_back(last)
            yield session


def _masters(brokers: Iterable[_Broker]) -> dict[str, Master]:
    return {
        one.broker_name: Master(one.broker_name, one.broker_addrs[MASTER], one.cluster)
        for one in brokers
        if MASTER in one.broker_addrs
    }


def read_json(answer: Frame, kind: type[T]) -> T:
    """The body of ``answer``. Raises ProtocolError."""
    try:
        return msgspec.json.decode(standard(answer.body), type=kind)
    except UNREADABLE as error:
        raise ProtocolError(f"RocketMQ answered with a body that cannot be read ({error}): {answer.body[:80]!r}") from None


def standard(body: bytes) -> bytes:
    """``body`` with its numbers in place of names quoted: Java's library writes ``{0:"..."}``."""
    return _BARE_NUMBER.sub(lambda found: found[1] or b'%b"%b":' % (found[2], found[3]), body) if body else b"{}"

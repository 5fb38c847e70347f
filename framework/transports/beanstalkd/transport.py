"""beanstalkd as a ``contract.Transport``: tubes for topics, on one or more servers that know nothing of each other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from framework.errors import BrokerError, FrameworkError
from framework.transports.asking_all import all_answered, answered, ask_each, made_of_all
from framework.transports.beanstalkd import urls as _urls
from framework.transports.beanstalkd import wire
from framework.transports.beanstalkd.connection import MAX_DEFER, BeanstalkdConnection
from framework.transports.beanstalkd.dial import Line, dial
from framework.transports.beanstalkd.job_leases import limits_of
from framework.transports.beanstalkd.producer import BeanstalkdProducer
from framework.transports.contract import Capabilities, NodeInfo, Producer, Receiver, Transport
from framework.transports.enveloped import SealingProducer
from framework.transports.kept import Kept
from framework.transports.recent import Recent

T = TypeVar("T")
U = TypeVar("U")
LONGEST_PAUSE = 366 * 86_400
"""Seconds of a pause that nobody ends."""


def open(urls: Sequence[str]) -> Transport:
    """A transport over all of ``urls`` (``beanstalkd://``). Raises BadSetting; connects to nothing."""
    return BeanstalkdTransport(_urls.read(urls))


class BeanstalkdTransport:
    """One or more beanstalkds, each served by every handler."""

    capabilities = Capabilities(
        touch=True, attempts=True, fan_out=False, max_requeue=MAX_DEFER, max_defer=MAX_DEFER, priority=True, ordered=True,
        lease_at_publish=True, discovers=False, with_headers="add headers=true to the broker URL, here and at their readers",
    )  # fmt: skip

    def __init__(self, addresses: _urls.Addresses) -> None:
        self._nodes = addresses.nodes
        self._options = addresses.options
        self._described = Recent(self._describe)
        self.capabilities = replace(self.capabilities, headers=self._options.headers)

    def start(self, hub: object) -> None:
        """Nothing is shared: each connection has its own sockets."""

    def close(self) -> None: ...

    def accept(self, topic: str, channels: Collection[str]) -> None:
        """Several channels of a topic only with ``fanout=``, and no names that are no tube's."""
        _urls.accept(topic, channels, self._options)

    def describe(self, topic: str = "", channel: str = "") -> list[NodeInfo]:
        """The same for every topic and channel: each server is asked once for all that ask within a moment."""
        return self._described()

    def discover(self, topic: str, channel: str = "") -> set[str]:
        """All there are: a tube exists wherever it is asked for."""
        return set(self._nodes)

    def channels(self, topic: str) -> set[str]:
        """Those that ``fanout=`` names: elsewhere a topic is one queue, whatever the channel."""
        return set(self._options.fanout.get(topic, ()))

    def topics(self) -> set[str]:
        """The tubes of every server; of a tube ``topic/channel``, its topic."""
        return self._asked(
            lambda line: wire.names(line.ask(wire.LIST_TUBES, "OK").data),
            lambda answers: {tube.partition("/")[0] for tubes in answers.values() for tube in tubes} - {"default"},
        )

    def backlog(self, topic: str, channel: str) -> dict[str, int]:
        """By ``stats-tube``, of every server that has the tube."""
        tube = _urls.tube_of(topic, channel, self._options)
        return self._asked(lambda line: _kept(line, tube), lambda kept: {node: one.total for node, one in kept.items() if one})

    def kept(self, topic: str, channel: str) -> dict[str, Kept]:
        """As ``backlog``, told apart."""
        tube = _urls.tube_of(topic, channel, self._options)
        return self._asked(lambda line: _kept(line, tube), lambda kept: {node: one for node, one in kept.items() if one})

    def pause(self, topic: str, channel: str, *, paused: bool) -> set[str]:
        """By ``pause-tube``, for a year, unless the server ends before. Of a topic that is one tube it is for all channels."""
        tube = _urls.tube_of(topic, channel, self._options)
        answers = self._ask_all(lambda line: _pause(line, tube, LONGEST_PAUSE if paused else 0))
        return {node for node, there in answers.items() if there}

    def ensure(self, topic: str, channels: Collection[str]) -> None:
        """A tube keeps what it gets; and those of ``fanout=`` are known from the start."""

    def connect(self, node: str, topic: str, channel: str, receiver: Receiver) -> BeanstalkdConnection:
        tube = _urls.tube_of(topic, channel, self._options)
        return connect(node, topic, channel, tube, receiver, ttr=self._options.ttr, opens=self._options.headers)

    def producer(self) -> Producer:
        made = BeanstalkdProducer(self._nodes, self._options)
        return SealingProducer(made) if self._options.headers else made

    def probe(self) -> list[NodeInfo]:
        return self._asked(_stats, self._infos)

    def _describe(self) -> list[NodeInfo]:
        return self._infos(answered(self._ask_each(_stats)))

    def _infos(self, answers: Mapping[str, Mapping[str, str]]) -> list[NodeInfo]:
        limits = limits_of(self._options.ttr)
        return [NodeInfo(node, f"beanstalkd {stats.get('version', '?')}", limits) for node, stats in answers.items()]

    def _asked(self, question: Callable[[Line], T], made: Callable[[Mapping[str, T]], U]) -> U:
        """``made`` of the answers of all servers. Raises as ``_ask_all``, and SomeUnreachable where some are down."""
        return made_of_all(self._ask_each(question), made)

    def _ask_all(self, question: Callable[[Line], T]) -> dict[str, T]:
        """Node -> its answer. Raises BrokerUnreachable naming those that gave none."""
        return all_answered(self._ask_each(question))

    def _ask_each(self, question: Callable[[Line], T]) -> dict[str, T | FrameworkError]:
        """Node -> its answer, or why there is none; all asked at once."""
        return ask_each(sorted(self._nodes), lambda node: _answer(node, question))


def _stats(line: Line) -> dict[str, str]:
    return wire.stats(line.ask(wire.STATS, "OK").data)


def _answer(node: str, question: Callable[[Line], T]) -> T:
    with dial(node) as line:
        return question(line)


def _pause(line: Line, tube: str, seconds: int) -> bool:
    """Whether there is such a tube."""
    try:
        line.ask(wire.pause_tube(tube, seconds), "PAUSED")
    except BrokerError as error:
        if error.code == "NOT_FOUND":
            return False
        raise
    return True


def _kept(line: Line, tube: str) -> Kept | None:
    """What ``tube`` holds; None where there is none. The buried ones wait for a human, not for a handler."""
    try:
        stats = wire.stats(line.ask(wire.stats_tube(tube), "OK").data)
    except BrokerError as error:
        if error.code == "NOT_FOUND":
            return None
        raise
    waiting, in_flight, deferred = (int(stats[f"current-jobs-{state}"]) for state in ("ready", "reserved", "delayed"))
    return Kept(
        waiting, in_flight, deferred, int(stats["total-jobs"]), int(stats["current-watching"]),
        int(stats.get("pause-time-left", "0")) > 0,
    )  # fmt: skip


def connect(
    node: str, topic: str, channel: str, tube: str, receiver: Receiver, *, ttr: float, opens: bool = False
) -> BeanstalkdConnection:
    """Dial the poller and the first waiter; blocks. ``ttr``: the lease that is likely, until a job shows what it is.

    Raises BrokerUnreachable, BrokerError, ProtocolError."""
    with dial(node) as poller, dial(node) as waiter:
        poller.subscribe(tube)
        waiter.subscribe(tube)
        instance = wire.stats(poller.ask(wire.STATS, "OK").data).get("id", "")
        connection = BeanstalkdConnection(poller, topic, channel, receiver, tube=tube, ttr=ttr, instance=instance, opens=opens)
        connection.waiters.add(waiter)
        return connection

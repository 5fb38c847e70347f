"""Which topics there are, and how many messages each nsqd keeps for each channel, by HTTP: the TCP protocol cannot say it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from time import monotonic
from typing import TypeVar

import gevent

from framework.errors import REFUSALS, BrokerUnreachable, FrameworkError, SomeUnreachable
from framework.transports.asking_all import answered, ask_each
from framework.transports.kept import Kept
from framework.transports.nsq.dial import dial
from framework.transports.nsq.discovery import Discovery
from framework.transports.nsq.http import Lookupd, Nsqd, TopicStats
from framework.transports.nsq.lookups import Lookups
from framework.transports.nsq.urls import Addresses, join_address

T = TypeVar("T")

PATIENCE = 5.0
"""Seconds that a node has for each answer, as for a dial: one that stands still for a moment, or is far, is not given up."""
BRIEF = 1.0
"""So many for one that gave none a moment ago: a look takes several questions, and a handler may wait for it."""
RECENT = 10.0
"""Seconds, such a moment."""
A_MOMENT = 0.5
"""Seconds without an answer after which a node is also dialled: whether it is down is known sooner."""


class Backlog:
    """Of the nsqds of ``addresses``; where no nsqlookupd answers, of those that ``discovery`` knows.

    All of it raises BrokerUnreachable when a node that is known did not answer, or no nsqlookupd did. That is SomeUnreachable
    where it is so for the moment: the nodes are down by TCP as well, or their HTTP has answered before.
    """

    def __init__(self, addresses: Addresses, discovery: Discovery) -> None:
        self._addresses = addresses
        self._discovery = discovery
        self._lookups = Lookups(Lookupd.of(address, addresses.options) for address in addresses.lookupds)
        self._heard: set[str] = set()
        """Nodes whose HTTP has answered: it is where it is believed to be."""
        self._silent: dict[str, float] = {}
        """Nodes that did not answer -> when they had last been waited for with ``PATIENCE``."""

    def topics(self) -> set[str]:
        """The topics of every nsqd."""
        return self._asked("", lambda answers: {one.topic_name for stats in answers.values() for one in stats})

    def of_channel(self, topic: str, channel: str) -> dict[str, int]:
        """Node that has ``topic`` -> messages kept there for ``channel``."""
        return self._asked(topic, lambda answers: {node: one.total for node, one in _all_kept(answers, topic, channel).items()})

    def kept(self, topic: str, channel: str) -> dict[str, Kept]:
        """As ``of_channel``, told apart."""
        return self._asked(topic, lambda answers: _all_kept(answers, topic, channel))

    def pause(self, topic: str, channel: str, *, paused: bool) -> set[str]:
        """Of a channel, or of a topic where none is named; the nodes that have it."""
        nsqds, unknown = self._nsqds()
        there = [
            node
            for node, stats in self._of_each(nsqds, unknown, _stats_of(topic)).items()
            for one in stats
            if one.topic_name == topic and (not channel or channel in [known.channel_name for known in one.channels])
        ]
        _together([partial(_pause, nsqds[node], topic, channel, paused) for node in there])
        return set(there)

    def ensure(self, topic: str, channels: Collection[str]) -> None:
        """Make the topic and its channels on every nsqd."""
        self._of_each(*self._nsqds(), lambda nsqd: _ensure(nsqd, topic, channels))

    # -- asking

    def _asked(self, topic: str, made: Callable[[Mapping[str, list[TopicStats]]], T]) -> T:
        """``made`` of all answers, or in the error of those that there are."""
        try:
            return made(self._of_each(*self._nsqds(), _stats_of(topic)))
        except SomeUnreachable as error:
            error.answers = made(error.answers)
            raise

    def _of_each(self, nsqds: Mapping[str, Nsqd], unknown: str, question: Callable[[Nsqd], T]) -> dict[str, T]:
        """Node -> its answer, all asked at once. ``unknown``: why there may be others."""
        down: set[str] = set()
        answers = ask_each(nsqds, lambda node: self._ask(nsqds[node], node, question, down))
        failures = {node: answer for node, answer in answers.items() if isinstance(answer, FrameworkError)}
        if not failures and not unknown:
            return answered(answers)
        words = "; ".join(filter(None, [unknown, *map(str, failures.values())]))
        if len(failures) < len(answers) and down == failures.keys():
            raise SomeUnreachable(words, down, answered(answers))
        raise BrokerUnreachable(words)

    def _ask(self, nsqd: Nsqd, node: str, question: Callable[[Nsqd], T], down: set[str]) -> T:
        asked = gevent.spawn(_answer, lambda: question(nsqd))
        is_down = None
        if node not in self._heard:
            asked.join(A_MOMENT)
            if not asked.ready():
                is_down = self._is_down(node, nsqd.timeout)
        answer: T | FrameworkError = asked.get()
        if not isinstance(answer, FrameworkError):
            self._heard.add(node)
            self._silent.pop(node, None)
            return answer
        if isinstance(answer, BrokerUnreachable):
            if nsqd.timeout == PATIENCE:
                self._silent[node] = monotonic()
            is_down = node in self._heard or is_down
        if self._is_down(node, nsqd.timeout) if is_down is None else is_down:
            down.add(node)
        raise answer

    def _is_down(self, node: str, timeout: float) -> bool:
        """Whether nothing can be published to it. Its HTTP alone may be elsewhere than is known."""
        try:
            with dial(node, self._addresses.options, timeout=timeout):
                return False
        except FrameworkError as error:
            return isinstance(error, BrokerUnreachable) and not isinstance(error, REFUSALS)

    def _nsqds(self) -> tuple[dict[str, Nsqd], str]:
        """Where each node answers HTTP. A silent nsqlookupd hides no node that another one knows. Where all are silent, the nodes
        that they named last, and why there may be others."""
        addresses, discovery = self._addresses, self._discovery
        found = {node: self._nsqd(node) for node in addresses.nsqds}
        try:
            named = self._lookups.producers()
        except BrokerUnreachable as error:
            known = discovery.everywhere()
            if not known:
                raise
            return {node: self._nsqd(node, discovery.http_of(node)) for node in known} | found, str(error)
        for producers in named:
            for one in producers:
                found.setdefault(one.node, self._nsqd(one.node, join_address(one.broadcast_address, one.http_port)))
        return found, ""

    def _nsqd(self, node: str, http: str = "") -> Nsqd:
        nsqd = Nsqd(http, options=self._addresses.options) if http else Nsqd.of(node, self._addresses.options)
        lately = monotonic() - self._silent.get(node, float("-inf")) < RECENT
        nsqd.timeout = BRIEF if lately else PATIENCE
        return nsqd


def _pause(nsqd: Nsqd, topic: str, channel: str, paused: bool) -> None:
    if channel:
        nsqd.pause_channel(topic, channel, paused=paused)
    else:
        nsqd.pause_topic(topic, paused=paused)


def _ensure(nsqd: Nsqd, topic: str, channels: Collection[str]) -> None:
    nsqd.create_topic(topic)
    for channel in channels:
        nsqd.create_channel(topic, channel)


def _all_kept(answers: Mapping[str, list[TopicStats]], topic: str, channel: str) -> dict[str, Kept]:
    return {node: _kept(one, channel) for node, stats in answers.items() for one in stats if one.topic_name == topic}


def _kept(topic: TopicStats, channel: str) -> Kept:
    """What waits in the topic itself goes to every channel there is, and all of it to the first that comes."""
    for one in topic.channels:
        if one.channel_name == channel:
            return Kept(
                topic.depth + one.depth, one.in_flight_count, one.deferred_count, topic.depth + one.message_count,
                one.client_count, topic.paused or one.paused,
            )  # fmt: skip
    return Kept(0 if topic.channels else topic.depth, consumers=0, paused=topic.paused)


def _stats_of(topic: str) -> Callable[[Nsqd], list[TopicStats]]:
    """Its topics, or the one that is named, where it has it."""
    return lambda nsqd: nsqd.stats(topic, clients=False).topics or []


def _together(questions: list[Callable[[], T]]) -> None:
    """All at once. Raises BrokerUnreachable where one failed."""
    asked = [gevent.spawn(_answer, question) for question in questions]
    gevent.joinall(asked)
    failures = [str(one.value) for one in asked if isinstance(one.value, FrameworkError)]
    if failures:
        raise BrokerUnreachable("; ".join(failures))


def _answer(question: Callable[[], T]) -> T | FrameworkError:
    try:
        return question()
    except FrameworkError as error:
        return error

"""Which topics there are, and how many messages each nsqd keeps for each channel, by HTTP: the TCP protocol cannot say it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TypeVar

import gevent

from framework.errors import REFUSALS, BrokerUnreachable, FrameworkError, SomeUnreachable
from framework.transports.asking_all import answered, ask_each
from framework.transports.kept import Kept
from framework.transports.nsq.dial import dial
from framework.transports.nsq.http import Lookupd, Nsqd, Producer, TopicStats
from framework.transports.nsq.urls import Addresses, join_address

T = TypeVar("T")


def topics(addresses: Addresses) -> set[str]:
    """The topics of every nsqd. Raises BrokerUnreachable when one that is known did not answer, SomeUnreachable where all such
    are down by TCP as well, and others are not."""
    return _asked(addresses, "", lambda answers: {one.topic_name for stats in answers.values() for one in stats})


def of_channel(topic: str, channel: str, addresses: Addresses) -> dict[str, int]:
    """Node that has ``topic`` -> messages kept there for ``channel``. Raises BrokerUnreachable as ``topics`` does."""
    return _asked(addresses, topic, lambda answers: {node: one.total for node, one in _all_kept(answers, topic, channel).items()})


def kept(topic: str, channel: str, addresses: Addresses) -> dict[str, Kept]:
    """As ``of_channel``, told apart. Raises BrokerUnreachable as ``topics`` does."""
    return _asked(addresses, topic, lambda answers: _all_kept(answers, topic, channel))


def pause(topic: str, channel: str, addresses: Addresses, *, paused: bool) -> set[str]:
    """Of a channel, or of a topic where none is named; the nodes that have it. Raises BrokerUnreachable as ``topics`` does."""
    there = [
        node
        for node, stats in _ask_all(addresses, topic).items()
        for one in stats
        if one.topic_name == topic and (not channel or channel in [known.channel_name for known in one.channels])
    ]
    nsqds = _nsqds(addresses)
    _together([partial(_pause, nsqds[node], topic, channel, paused) for node in there])
    return set(there)


def _pause(nsqd: Nsqd, topic: str, channel: str, paused: bool) -> None:
    if channel:
        nsqd.pause_channel(topic, channel, paused=paused)
    else:
        nsqd.pause_topic(topic, paused=paused)


def ensure(topic: str, channels: Collection[str], addresses: Addresses) -> None:
    """Make the topic and its channels on every nsqd. Raises BrokerUnreachable as ``topics`` does."""
    nsqds = _nsqds(addresses)
    _of_each(addresses, {node: partial(_ensure, nsqd, topic, channels) for node, nsqd in nsqds.items()})


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


def _ask_all(addresses: Addresses, topic: str) -> dict[str, list[TopicStats]]:
    """Node -> its topics, or the one that is named, where it has it."""
    return _of_each(addresses, {node: _stats_of(nsqd, topic) for node, nsqd in _nsqds(addresses).items()})


def _asked(addresses: Addresses, topic: str, made: Callable[[Mapping[str, list[TopicStats]]], T]) -> T:
    """``made`` of all answers, or in the error of those that there are."""
    try:
        return made(_ask_all(addresses, topic))
    except SomeUnreachable as error:
        error.answers = made(error.answers)
        raise


def _of_each(addresses: Addresses, questions: Mapping[str, Callable[[], T]]) -> dict[str, T]:
    """Node -> its answer, all asked at once."""
    answers = ask_each(questions, lambda node: questions[node]())
    failures = {node: answer for node, answer in answers.items() if isinstance(answer, FrameworkError)}
    if not failures:
        return answered(answers)
    words = "; ".join(map(str, failures.values()))
    if len(failures) < len(answers):
        down = {node for node, is_down in ask_each(failures, partial(_is_down, addresses)).items() if is_down is True}
        if down == failures.keys():
            raise SomeUnreachable(words, down, answered(answers))
    raise BrokerUnreachable(words)


def _is_down(addresses: Addresses, node: str) -> bool:
    """Whether nothing can be published to it. Its HTTP alone may be elsewhere than is known."""
    try:
        with dial(node, addresses.options):
            return False
    except BrokerUnreachable as error:
        return not isinstance(error, REFUSALS)


def _stats_of(nsqd: Nsqd, topic: str) -> Callable[[], list[TopicStats]]:
    return lambda: nsqd.stats(topic, clients=False).topics or []


def _nsqds(addresses: Addresses) -> dict[str, Nsqd]:
    """Where each node answers HTTP. A silent nsqlookupd hides no node that another one knows."""
    found: dict[str, Nsqd] = {}
    options = addresses.options
    for node in addresses.nsqds:
        found[node] = Nsqd.of(node, options)
    lookups: list[Callable[[], list[Producer]]] = [Lookupd.of(address, options).nodes for address in addresses.lookupds]
    for producers in _together(lookups, enough=1):
        for one in producers:
            found.setdefault(one.node, Nsqd(join_address(one.broadcast_address, one.http_port), options=options))
    return found


def _together(questions: list[Callable[[], T]], *, enough: int | None = None) -> list[T]:
    """The answers, asked for at once. Raises BrokerUnreachable unless ``enough`` of them (None: all) came."""
    asked = [gevent.spawn(_answer, question) for question in questions]
    gevent.joinall(asked)
    answers = [one.value for one in asked if not isinstance(one.value, FrameworkError)]
    if len(answers) < (len(asked) if enough is None else min(enough, len(asked))):
        raise BrokerUnreachable("; ".join(str(one.value) for one in asked if isinstance(one.value, FrameworkError)))
    return answers


def _answer(question: Callable[[], T]) -> T | FrameworkError:
    try:
        return question()
    except FrameworkError as error:
        return error

"""Which dead letter topics there are, how many letters each has, and what a user calls them. It takes no letter."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from framework import names
from framework.errors import SomeUnreachable, WrongUse
from framework.handler import HandlerSpec
from framework.middleware.dead_letter import SUFFIX, lasting, topic_name
from framework.transports.contract import Transport

T = TypeVar("T")
Absent = Callable[[SomeUnreachable], None]
"""Is told that some nodes could not be asked: what the others keep is all that is known then."""

CHANNEL = "dead"
"""The channel that keeps the letters for ``workers dead``, where a broker has channels."""


@dataclass(frozen=True, slots=True)
class DeadTopic:
    """One dead letter topic on one broker."""

    name: str
    transport: Transport
    channel: str
    """Where its letters are: the one asked for, unless another one has them."""
    nodes: dict[str, int]
    """Node -> letters there, when it was looked at."""
    owners: frozenset[tuple[str, str]] = frozenset()
    """Whose letters are meant, topic and channel; empty: everybody's. The names of two handlers can make one topic."""

    @property
    def count(self) -> int:
        return sum(self.nodes.values())


def owner_of(name: str) -> tuple[str, str] | None:
    """Whose letters are meant by ``name``; None for all that are in the topic. Raises BadName."""
    topic, slash, channel = name.partition("/")
    return lasting(names.check("topic", topic), names.check("channel", channel)) if slash else None


def meant(topic: DeadTopic, words: Iterable[str]) -> DeadTopic:
    """``topic``, with the letters that those of ``words`` mean that mean this topic."""
    owners = {owner_of(name) for name in words if topic_of(name) == topic.name}
    return topic if None in owners else replace(topic, owners=frozenset(owner for owner in owners if owner))


def topic_of(name: str) -> str:
    """The dead letter topic that is meant by ``name``: itself, ``topic/channel``, or ``topic.channel``. Raises BadName."""
    topic, slash, channel = name.partition("/")
    if slash:
        return topic_name(names.check("topic", topic), names.check("channel", channel))
    if name.endswith(SUFFIX):
        return names.check("topic", name)
    if len(name) + len(SUFFIX) > names.MAX_LENGTH:
        raise WrongUse(
            f"{name!r} is too long to tell its topic from its channel: write topic/channel, or the {SUFFIX} topic itself"
        )
    return names.check("topic", name) + SUFFIX


def of_handler(spec: HandlerSpec) -> str:
    """Where the dead letters of a handler are."""
    return topic_name(spec.topic, spec.channel)


def _all_must_answer(error: SomeUnreachable) -> None:
    raise error


def find(
    transports: Sequence[Transport],
    wanted: Collection[str] | None = None,
    *,
    channel: str = CHANNEL,
    absent: Absent = _all_must_answer,
) -> list[DeadTopic]:
    """The dead letter topics that there are, those ``wanted`` (None: all); blocks, and takes nothing from anywhere.

    Raises BrokerUnreachable when a count would not be definite, unless ``absent`` takes it that some nodes are down.
    """
    return [topic for transport in transports for topic in _find(transport, wanted, channel, absent)]


def _find(transport: Transport, wanted: Collection[str] | None, channel: str, absent: Absent) -> Iterator[DeadTopic]:
    there = _asked(transport.topics, absent)
    for name in sorted(there if wanted is None else there.intersection(wanted)):
        if wanted is not None or name.endswith(SUFFIX):
            yield _look(transport, name, channel, absent)


def _look(transport: Transport, name: str, channel: str, absent: Absent) -> DeadTopic:
    """The first channel of a topic gets the letters. Where that was another channel, a count of 0 would be a lie."""
    nodes = _asked(partial(transport.backlog, name, channel), absent)
    if transport.capabilities.fan_out and not any(nodes.values()):
        for other in sorted(_asked(partial(transport.channels, name), absent) - {channel}):
            if any((elsewhere := _asked(partial(transport.backlog, name, other), absent)).values()):
                return DeadTopic(name, transport, other, elsewhere)
    return DeadTopic(name, transport, channel, nodes)


def _asked(question: Callable[[], T], absent: Absent) -> T:
    """The answer of all nodes, or of those that are there."""
    try:
        return question()
    except SomeUnreachable as error:
        absent(error)
        answers: T = error.answers
        return answers

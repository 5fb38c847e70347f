"""Finds the topics that the verbs of ``workers dead`` work on, and turns wrong names into a sentence. It reads no letter."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from framework import names
from framework.cli.brokers import Absent, reach, reach_some
from framework.deadletters import DeadTopic, find, meant, topic_of
from framework.errors import WrongUse
from framework.settings import Settings


def named(words: Iterable[str], settings: Settings, channel: str, absent: Absent | None = None) -> list[DeadTopic]:
    """The dead letter topics that ``words`` name, those that exist. Raises WrongUse, BrokerUnreachable."""
    names.check("channel", channel)
    words = list(words)
    found = [meant(topic, words) for topic in on_brokers(settings, list(map(topic_of, words)), channel, absent)]
    for topic in found:
        require_channel(topic, channel)
    return found


def every(settings: Settings, channel: str, absent: Absent | None = None) -> list[DeadTopic]:
    """All dead letter topics there are."""
    names.check("channel", channel)
    return on_brokers(settings, None, channel, absent)


def on_brokers(settings: Settings, wanted: Collection[str] | None, channel: str, absent: Absent | None) -> list[DeadTopic]:
    """Those ``wanted``, on all nodes; where there is somebody to be told which are ``absent``, on those that are there."""
    if absent is None:
        return find(reach(settings), wanted, channel=channel)
    return find(reach_some(settings, absent), wanted, channel=channel, absent=absent)


def require_channel(topic: DeadTopic, channel: str) -> None:
    """To read another channel is to take what its readers wait for: that has to be said."""
    if topic.channel != channel:
        raise WrongUse(
            f"the letters of {topic.name} are in its channel {topic.channel!r}, not in {channel!r}: "
            f"name it, with --channel {topic.channel}"
        )


def missing(words: Iterable[str], found: Sequence[DeadTopic]) -> list[str]:
    """The dead letter topics that were named and do not exist."""
    there = {topic.name for topic in found}
    return [name for name in map(topic_of, words) if name not in there]

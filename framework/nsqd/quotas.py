"""Refuses publishes to a topic that has as many unfinished messages as it may have. What is under way to the disk counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from framework.nsqd.journal import Group, QuotaReached
from framework.nsqd.pertopic import PerTopic
from framework.nsqd.store import Entry
from framework.nsqd.topic import Topic


class Quotas:
    """One nsqd's."""

    def __init__(self, limits: PerTopic[int]) -> None:
        self._limits = limits
        self._under_way: dict[str, list[tuple[Group, int]]] = {}

    def __bool__(self) -> bool:
        return bool(self._limits)

    def check(self, entries: Sequence[tuple[Topic, Entry]]) -> None:
        """Raises QuotaReached, and counts what is refused."""
        wanted = _counted(entries)
        for topic, count in wanted.items():
            limit = self._limits.of(topic.name)
            if limit is not None and topic.unfinished + self._waiting(topic) + count > limit:
                for each, refused in wanted.items():
                    each.refused_count += refused
                raise QuotaReached(f"topic {topic.name!r} may have {limit} unfinished messages (--topic-quota), and has no room")

    def taken(self, group: Group, entries: Sequence[tuple[Topic, Entry]]) -> None:
        """They are part of the group that is written next."""
        for topic, count in _counted(entries).items():
            if self._limits.of(topic.name) is not None and not topic.ephemeral:
                self._under_way.setdefault(topic.name, []).append((group, count))

    def _waiting(self, topic: Topic) -> int:
        left = [(group, count) for group, count in self._under_way.get(topic.name, ()) if not group.done.is_set()]
        self._under_way[topic.name] = left
        return sum(count for _, count in left)


def _counted(entries: Sequence[tuple[Topic, Entry]]) -> Counter[Topic]:
    counts = Counter[Topic]()
    for topic, entry in entries:
        counts[topic] += entry.count
    return counts

"""The broker of the fixture ``broker``: the one in memory, with what a test wants to publish to it and read from it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from framework.deadletters.letter import Letter, read
from framework.message import Message
from framework.middleware.dead_letter import SUFFIX, lasting, topic_name
from framework.publisher import Publisher
from framework.testing.likeness import likeness
from framework.transports.memory import MemoryBroker


class Broker(MemoryBroker):
    """``memory://`` for one test: its faults and its clock are ``MemoryBroker``'s."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._publisher: Publisher | None = None

    @property
    def publisher(self) -> Publisher:
        """Publishes here; while the test runs, ``framework.publish`` does too."""
        if self._publisher is None:
            self._publisher = Publisher(self.url)
        return self._publisher

    def like(self, broker: str) -> Broker:
        """Refuse from now on what ``broker`` would: a scheme, ``nsq``, or a URL with its options. Returns itself.

        Delays and priorities that it does not keep, names that it does not take, bodies that are too large for it, handlers
        whose timeout is longer than its leases. Raises WrongUse, BadSetting."""
        one = likeness(broker)
        self.capabilities, self.accept, self.limits, self.max_size = one.capabilities, one.accept, one.limits, one.max_size
        return self

    def publish(self, topic: str, payload: Any, **options: Any) -> None:
        """As ``framework.publish``."""
        self.publisher.publish(topic, payload, **options)

    def publish_many(self, topic: str, payloads: Iterable[Any], **options: Any) -> int:
        """As ``framework.publish_many``."""
        return self.publisher.publish_many(topic, payloads, **options)

    def dead_letters(self, topic: str | None = None, channel: str | None = None) -> list[Letter]:
        """What was given up and is not handled by anybody, in that order; all of it, or of one handler."""
        if topic is None or channel is None:
            topics, owners = [name for name in self.topics() if name.endswith(SUFFIX)], frozenset[tuple[str, str]]()
        else:
            topics, owners = [topic_name(topic, channel)], frozenset([lasting(topic, channel)])
        found = sorted((one for name in topics for one in self.stored(name)), key=_by_time)
        letters = (read(Message(one.id, one.timestamp, one.attempts, one.body, None, one.headers)) for one in found)
        return [letter for letter in letters if letter.belongs_to(owners)]


def _by_time(message: Any) -> Any:
    return message.timestamp, message.order

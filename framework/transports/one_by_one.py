"""Producers for whose brokers a request for many messages is many requests for one. It knows no protocol."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from framework.errors import PublishError
from framework.headers import NONE, Headers
from framework.transports.per_thread import raise_first


class OneByOne(ABC):
    """Most of a ``contract.Producer``: all are stored where each is."""

    def publish(
        self, topic: str, bodies: Sequence[bytes], *, delay: float = 0.0, priority: int | None = None,
        lease: float | None = None, timeout: float | None = None, headers: Headers = NONE,
    ) -> None:  # fmt: skip
        """As ``publish_each``; raises PublishError where one of ``bodies`` is not stored for certain."""
        answers = self.publish_each(
            topic, bodies, delay=delay, priority=priority, lease=lease, timeout=timeout, headers=headers
        )  # fmt: skip
        raise_first(answers)

    @abstractmethod
    def publish_each(
        self, topic: str, bodies: Sequence[bytes], *, delay: float = 0.0, priority: int | None = None,
        lease: float | None = None, timeout: float | None = None, headers: Headers = NONE,
    ) -> list[PublishError | None]:  # fmt: skip
        """As ``contract.Producer`` asks for. Raises BadName, BadMessage (nothing was sent), PublishError when the producer is
        closed."""

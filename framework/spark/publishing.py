"""Publishes rows of the sink, each with a header of its own where it has a key. It knows neither Spark nor Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from framework.headers import KEY, Headers, OneEach
from framework.payload import encode
from framework.publisher import Publisher
from framework.transports.contract import HeadsEach, Producer


class RowPublisher(Publisher):
    """A Publisher whose messages of one request may have a key each."""

    def check(self, topic: str, bodies: Sequence[bytes], *, delay: float = 0.0) -> None:
        """Raises what ``publish_rows`` does for a topic, a body or a delay that no broker here takes. It publishes nothing."""
        self._how(topic, delay, None, None, None)
        if not all(bodies):
            encode(b"")

    def publish_rows(self, topic: str, bodies: Sequence[bytes], keys: Sequence[str] | None, *, delay: float = 0.0) -> None:
        """Return when a broker has stored all of ``bodies``, in their order where it keeps one. ``delay`` in seconds.

        Raises as ``publish_many`` does.
        """
        if keys is None:
            self.publish_many(topic, bodies, delay=delay)
            return
        headers = OneEach(KEY, keys)
        how = self._how(topic, delay, None, None, None)
        self._in_turn(how, lambda producer, share: _headed(producer, topic, bodies, headers, share))


def _headed(producer: Producer, topic: str, bodies: Sequence[bytes], headers: Sequence[Headers], how: Any) -> None:
    if isinstance(producer, HeadsEach):
        producer.publish_headed(topic, bodies, headers, **how)
        return
    for body, given in zip(bodies, headers, strict=True):
        producer.publish(topic, [body], **{**how, "headers": given})

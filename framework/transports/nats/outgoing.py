"""Bodies to be published -> what is sent: checked before anything is, each with an id by which its stream drops doubles."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from framework import names
from framework.errors import BadMessage
from framework.headers import Headers
from framework.transports.checked import check_bodies
from framework.transports.message_ids import MessageIds
from framework.transports.nats import urls
from framework.transports.nats.headers import encode
from framework.transports.nats.publish_link import Command
from framework.transports.nats.streams import LATER

MAX_DELAY = 366 * 86_400.0
"""Seconds until the first delivery, at most."""
ID = "Nats-Msg-Id"
_ID = "%s-%010d"
OVERHEAD = len(encode([(ID, _ID % ("0" * 16, 0))]))
"""Bytes that a message has beside its body, and that count against max_payload."""


class Outgoing:
    """The messages of one producer."""

    def __init__(self) -> None:
        self._ids = MessageIds()

    def commands(self, topic: str, bodies: Sequence[bytes], delay: float, headers: Headers) -> list[Command]:
        """``delay`` in seconds."""
        return [self._command(topic, body, delay, headers) for body in bodies]

    def headed(self, topic: str, bodies: Sequence[bytes], delay: float, headers: Sequence[Headers]) -> list[Command]:
        """As ``commands``, with one of ``headers`` for each."""
        return [self._command(topic, body, delay, given) for body, given in zip(bodies, headers, strict=True)]

    def _command(self, topic: str, body: bytes, delay: float, headers: Headers) -> Command:
        fields = {ID: _ID % (self._ids.name, next(self._ids.numbers)), **headers}
        if not delay:
            return Command(topic, topic.encode(), encode(fields.items()), body)
        due = datetime.now(UTC) + timedelta(seconds=delay)
        fields |= {"Nats-Schedule": f"@at {due:%Y-%m-%dT%H:%M:%S.%fZ}", "Nats-Schedule-Target": topic}
        subject = f"{LATER}{topic}.{secrets.token_hex(12)}"
        return Command(topic, subject.encode(), encode(fields.items()), body, delay)


def check(topic: str, bodies: Sequence[bytes], delay: float, headers: Headers) -> None:
    """What needs no server to be known. Raises BadName, BadMessage."""
    names.check("topic", topic)
    urls.check(topic)
    if not 0 <= delay <= MAX_DELAY:
        raise BadMessage(f"topic {topic!r}: a delay of {delay!r} s is out of range, 0 to {MAX_DELAY:g} s are taken")
    if ID in headers and len(bodies) > 1:
        raise BadMessage(f"topic {topic!r}: {len(bodies)} messages with one {ID} would be one to NATS: publish each by itself")


def check_sizes(
    topic: str, bodies: Sequence[bytes], max_payload: int, headers: Headers, fix: str, *, number: int = 1, of: int | None = None
) -> None:
    """``fix``: what to change for a larger one. ``number``, ``of``: as ``check_bodies`` has them. Raises BadMessage."""
    beside = len(encode({ID: headers.get(ID, _ID % ("0" * 16, 0)), **headers}.items())) if headers else OVERHEAD
    largest = max_payload - beside
    check_bodies(topic, bodies, largest, f"NATS takes up to {largest} beside the headers ({fix})", number=number, of=of)

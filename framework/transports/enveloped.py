"""Headers on brokers that carry none: an envelope around the body, of lines that anybody can read. No I/O.

    workers-headers/1
    {"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
    the body, as it is

The first line is always the same, the second is a JSON object of strings, and the body begins after the second newline. What does
not begin so is no envelope, and is left as it is. Only what has headers is put into one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from framework.bodies import Bodies, which
from framework.decoding import UNREADABLE
from framework.errors import BadMessage, PublishError
from framework.headers import NONE, Headers, OneEach
from framework.message import Message
from framework.transports.contract import Producer

MAGIC = b"workers-headers/1\n"
_read = msgspec.json.Decoder(dict[str, str]).decode
_json = msgspec.json.Encoder().encode

Others: TypeAlias = list[Any]
Feed: TypeAlias = Callable[[bytes], tuple[list[Message], Others]]


def sealed(headers: Headers, body: bytes) -> bytes:
    """``body`` with its ``headers``. One without any that looks like an envelope is put into one, or its reader would open it."""
    if not headers and not body.startswith(MAGIC):
        return body
    return MAGIC + msgspec.json.encode(dict(headers)) + b"\n" + body


def sealed_each(headers: Sequence[Headers], bodies: Sequence[bytes]) -> list[bytes]:
    """As ``sealed``, each body with its own."""
    if not isinstance(headers, OneEach):
        return [sealed(given, body) for given, body in zip(headers, bodies, strict=True)]
    before = b"%b{%b:" % (MAGIC, _json(headers.name))
    join = b"".join
    return [join((before, value, b"}\n", body)) for value, body in zip(map(_json, headers.values), bodies, strict=True)]


def opened(message: Message) -> Message:
    """``message`` as it was before it was sealed; any other as it is."""
    if not message.body.startswith(MAGIC):
        return message
    line, newline, body = message.body[len(MAGIC) :].partition(b"\n")
    try:
        headers = _read(line)
    except UNREADABLE:
        return message
    if newline:
        message.headers, message.body = headers or NONE, body
    return message


def opening(feed: Feed) -> Feed:
    """A decoder's ``feed`` whose messages are opened."""

    def feed_and_open(data: bytes) -> tuple[list[Message], Others]:
        messages, others = feed(data)
        for message in messages:
            opened(message)
        return messages, others

    return feed_and_open


class SealingProducer:
    """``contract.Producer``: ``inner``, with the headers in the bodies."""

    def __init__(self, inner: Producer) -> None:
        self._inner = inner

    def publish(self, topic: str, bodies: Sequence[bytes], *, headers: Headers = NONE, **how: Any) -> None:
        self._inner.publish(topic, _all_sealed(topic, bodies, headers), **how)

    def publish_each(
        self, topic: str, bodies: Sequence[bytes], *, headers: Headers = NONE, **how: Any
    ) -> list[PublishError | None]:
        return self._inner.publish_each(topic, _all_sealed(topic, bodies, headers), **how)

    def publish_headed(self, topic: str, bodies: Sequence[bytes], headers: Sequence[Headers], **how: Any) -> None:
        """``contract.HeadsEach``"""
        self._inner.publish(topic, sealed_each(headers, bodies), **how)

    def close(self) -> None:
        self._inner.close()


def _all_sealed(topic: str, bodies: Sequence[bytes], headers: Headers) -> Sequence[bytes]:
    if isinstance(bodies, bytes | str) or not set(map(type, bodies)) <= {bytes}:
        return bodies  # refused by the inner producer
    if not headers and not all(bodies):
        name = which(bodies, list(map(bool, bodies)).index(False) + 1)
        raise BadMessage(f"topic {topic!r}: {name} is empty; give it a body or leave it out")
    found = [sealed(headers, body) for body in bodies]
    if all(map(_same, found, bodies)):
        return bodies  # what was checked already need not be checked again
    return Bodies(found, bodies.before, bodies.of) if isinstance(bodies, Bodies) else found


def _same(one: object, other: object) -> bool:
    return one is other

"""publish and publish_many: a payload becomes a body and is stored by a broker before the call returns."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from framework import names, payload
from framework.errors import BadMessage, PublishError, WrongUse
from framework.transports import open_transports
from framework.transports.contract import Producer, Transport

#: How much one call of a producer is given at most: enough for full MPUBs, little enough to hold in memory.
CHUNK_MESSAGES = 1000
CHUNK_BYTES = 1_000_000


class Publisher:
    """Publishes through ``brokers``, URLs or transports: the first kind of broker that stores a message keeps it.

    Connects at the first publish. May be shared by greenlets, and by threads where nothing is patched. Raises BadSetting
    for a URL that cannot be used.
    """

    def __init__(self, brokers: str | Sequence[str | Transport]) -> None:
        transports = _transports([brokers] if isinstance(brokers, str) else brokers)
        if not transports:
            raise WrongUse("a Publisher needs a broker: give at least one URL, as nsq://host:4150")
        self._producers: list[Producer] = [transport.producer() for transport in transports]
        *self._first, self._last = self._producers
        self._longest_delay = min(transport.capabilities.max_defer for transport in transports)

    def publish(self, topic: str, payload: Any, *, delay: float = 0.0) -> None:
        """Return when the broker has stored one message, to be delivered after ``delay`` seconds.

        ``payload``: bytes as they are, a str as UTF-8, a dict, list, dataclass or msgspec.Struct as JSON.
        Raises BadName, BadMessage, PublishError, and WrongUse for a delay that the broker cannot keep.
        """
        names.check("topic", topic)
        if delay != 0:
            self._check_delay(delay)
        self._send(topic, [_encode(payload)], delay)

    def publish_many(self, topic: str, payloads: Iterable[Any]) -> int:
        """Store every one of ``payloads``, many in one request; returns how many there were.

        An iterator is not held in memory. When it raises (as ``publish`` does), what was sent before is stored:
        a note on the error says how many.
        """
        names.check("topic", topic)
        if isinstance(payloads, str | bytes | bytearray | dict):
            raise WrongUse(f"publish_many takes a list of payloads, not a {type(payloads).__name__}: give one payload to publish")
        stored = 0
        try:
            for bodies in _requests(payloads):
                self._send(topic, bodies, 0.0)
                stored += len(bodies)
        except (BadMessage, PublishError) as error:
            error.add_note(f"{stored} of the messages before it were stored on {topic}")
            raise
        return stored

    def close(self) -> None:
        """Close its connections. What was published is stored already."""
        for producer in self._producers:
            producer.close()

    def _send(self, topic: str, bodies: Sequence[bytes], delay: float) -> None:
        for producer in self._first:
            try:
                return producer.publish(topic, bodies, delay=delay)
            except PublishError as error:
                if error.stored is not False:  # it may be stored: a second try elsewhere could duplicate it
                    raise
        return self._last.publish(topic, bodies, delay=delay)

    def _check_delay(self, delay: float) -> None:
        if isinstance(delay, bool) or not isinstance(delay, (int, float)) or not 0 <= delay <= self._longest_delay:
            raise WrongUse(f"delay={delay!r}: this broker takes a delay of 0 to {self._longest_delay:g} seconds")


def publish(topic: str, payload: Any, *, delay: float = 0.0) -> None:
    """``Publisher.publish`` on this process's publisher: the worker's own, else $BROKER_URL, else 127.0.0.1:4150."""
    default().publish(topic, payload, delay=delay)


def publish_many(topic: str, payloads: Iterable[Any]) -> int:
    """``Publisher.publish_many`` on this process's publisher: the worker's own, else $BROKER_URL, else 127.0.0.1:4150."""
    return default().publish_many(topic, payloads)


def default() -> Publisher:
    """This process's publisher, made at first use. Raises BadSetting for a $BROKER_URL that cannot be used."""
    from framework.settings import DEFAULT_BROKER, load  # noqa: PLC0415

    global _default  # noqa: PLW0603
    with _default_lock:  # no connection is made under it
        if _default is None:
            _default = Publisher(open_transports(load().brokers or [DEFAULT_BROKER]))
        return _default


def use(publisher: Publisher | None) -> None:
    """Make ``publisher`` this process's; None: back to $BROKER_URL. The one before is not closed."""
    global _default  # noqa: PLW0603
    with _default_lock:
        _default = publisher


def _transports(brokers: Sequence[str | Transport]) -> list[Transport]:
    opened = [broker for broker in brokers if not isinstance(broker, str)]
    return opened + open_transports([broker for broker in brokers if isinstance(broker, str)])


_default: Publisher | None = None
_default_lock = threading.Lock()

_encode = payload.encode  # the name payload is an argument's above


def _requests(payloads: Iterable[Any]) -> Iterator[Sequence[bytes]]:
    """The bodies of ``payloads``, as many at a time as one call of a producer is given."""
    if isinstance(payloads, list | tuple) and set(map(type, payloads)) == {bytes} and all(payloads):
        return _slices(payloads)
    return _chunks(map(_encode, payloads))


def _slices(bodies: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """What ``_chunks`` yields, or less, of bodies that need no encoding: no Python runs for each."""
    for start in range(0, len(bodies), CHUNK_MESSAGES):
        some = bodies[start : start + CHUNK_MESSAGES]
        if sum(map(len, some)) <= CHUNK_BYTES:
            yield some
        else:
            yield from _chunks(some)


def _chunks(bodies: Iterable[bytes]) -> Iterator[list[bytes]]:
    chunk: list[bytes] = []
    size = 0
    for body in bodies:
        if chunk and (len(chunk) == CHUNK_MESSAGES or size + len(body) > CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(body)
        size += len(body)
    if chunk:
        yield chunk

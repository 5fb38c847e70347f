"""publish and publish_many: a payload becomes a body and is stored by a broker before the call returns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import monotonic
from typing import Any, TypedDict

from framework import headers as _headers
from framework import names, payload, published
from framework.bodies import Bodies, chunks
from framework.durations import are_seconds
from framework.errors import BadMessage, PublishError, WrongUse, shown
from framework.handler import longest_timeout
from framework.headers import Headers
from framework.transports import open_transports
from framework.transports.contract import Producer, Transport

LEAST_URGENT = 2**32 - 1
PATIENT = 30.0
"""The timeout in seconds of programs that have nothing else to do but publish."""


class How(TypedDict, total=False):
    """The keywords of ``contract.Producer.publish``."""

    delay: float
    priority: int | None
    lease: float | None
    timeout: float
    headers: Headers


class Publisher:
    """Publishes through ``brokers``, URLs or transports: the first kind of broker that stores a message keeps it.

    Connects at the first publish. May be shared by greenlets, by threads where nothing is patched, and by forked processes,
    which connect anew. ``timeout``: seconds that a publish may take which does not say so itself; None is the setting
    ``publish_timeout``, by the environment. Raises BadSetting for a URL that cannot be used.
    """

    def __init__(self, brokers: str | Sequence[str | Transport], *, timeout: float | None = None) -> None:
        self._opened, transports = _transports([brokers] if isinstance(brokers, str) else brokers)
        if not transports:
            raise WrongUse("a Publisher needs a broker: give at least one URL, as nsq://host:4150")
        self._producers: list[Producer] = [transport.producer() for transport in transports]
        self._transports = transports
        self._says_lease = any(transport.capabilities.lease_at_publish for transport in transports)
        self._plain: How = {"timeout": _default_timeout() if timeout is None else _checked_timeout(timeout)}

    def publish(
        self, topic: str, payload: Any, *, delay: float = 0.0, priority: int | None = None, timeout: float | None = None,
        headers: Headers | None = None,
    ) -> None:  # fmt: skip
        """Return when the broker has stored one message, to be delivered after ``delay`` seconds.

        ``payload``: bytes as they are, a str as UTF-8, a dict, list, dataclass or msgspec.Struct as JSON.
        ``priority``: 0 is the most urgent, for brokers that know it. ``headers``: names and values that come with the message
        (``Message.headers``), for brokers that carry them. ``timeout``: seconds for all of it, the publisher's own if not given;
        after a broker has been down for as long, at once. Raises BadName, BadMessage, PublishError, whose
        ``stored`` says what is known, and WrongUse for a delay, a priority, headers or a timeout that cannot be kept.
        """
        self._send(topic, [_encode(payload)], self._how(topic, delay, priority, timeout, headers))

    def publish_many(
        self, topic: str, payloads: Iterable[Any], *, delay: float = 0.0, priority: int | None = None,
        timeout: float | None = None, headers: Headers | None = None,
    ) -> int:  # fmt: skip
        """Store every one of ``payloads``, many in one request, each of which may take ``timeout`` seconds; returns how many
        there were.

        An iterator is not held in memory. When it raises (as ``publish`` does), what was sent before is stored:
        a note on the error says how many.
        """
        how = self._how(topic, delay, priority, timeout, headers)
        stored = 0
        try:
            for bodies in _requests("publish_many", payloads):
                self._send(topic, bodies, how)
                stored += len(bodies)
        except (BadMessage, PublishError) as error:
            error.add_note(f"{stored} of the messages before it were stored on {topic}")
            raise
        return stored

    def publish_each(
        self, topic: str, payloads: Iterable[Any], *, delay: float = 0.0, priority: int | None = None,
        timeout: float | None = None, headers: Headers | None = None,
    ) -> list[PublishError | None]:  # fmt: skip
        """Store each of ``payloads`` by a request of its own, many under way at once, and say what became of each. The end
        comes ``timeout`` seconds after the last of them that was stored.

        Returns, in their order, None for each that is stored and a PublishError for each that is not, or of which that is
        not known. Raises BadName, BadMessage and WrongUse as ``publish`` does, with a note that says how many came before.
        """
        how = self._how(topic, delay, priority, timeout, headers)
        answers: list[PublishError | None] = []
        try:
            for bodies in _requests("publish_each", payloads):
                answers += self._send_each(topic, bodies, how)
        except BadMessage as error:
            error.add_note(f"{answers.count(None)} of the messages before it were stored on {topic}")
            raise
        return answers

    def close(self) -> None:
        """Close its connections. What was published is stored already."""
        for producer in self._producers:
            producer.close()
        for transport in self._opened:
            transport.close()

    def _send(self, topic: str, bodies: Sequence[bytes], how: How) -> None:
        if published.tracer is None:
            self._store(topic, bodies, how)
        else:
            with published.tracer(topic, bodies, carried=self._carries, answers=()) as headers:
                self._store(topic, bodies, _with(how, headers))
        published.count(topic, len(bodies))

    def _store(self, topic: str, bodies: Sequence[bytes], how: How) -> None:
        if len(self._producers) == 1:
            self._producers[0].publish(topic, bodies, **how)
        else:
            self._in_turn(how, lambda producer, share: producer.publish(topic, bodies, **share))

    def _in_turn(self, how: How, store: Callable[[Producer, How], None]) -> None:
        """``store`` by the first kind of broker that takes it."""
        *first, last = self._producers
        shares = self._shares(how)
        for producer in first:
            try:
                return store(producer, next(shares))
            except PublishError as error:
                if error.stored is not False:  # it may be stored: a second try elsewhere could duplicate it
                    raise
        return store(last, next(shares))

    def _shares(self, how: How) -> Iterator[How]:
        """For each kind of broker in turn, ``how`` with its share of the time that is left."""
        until = monotonic() + how["timeout"]
        for left in range(len(self._producers), 0, -1):
            yield {**how, "timeout": max(0.0, until - monotonic()) / left}

    @property
    def _carries(self) -> bool:
        """Whatever stores a message carries its headers."""
        return all(transport.capabilities.headers for transport in self._transports)

    def _send_each(self, topic: str, bodies: Sequence[bytes], how: How) -> list[PublishError | None]:
        if published.tracer is None:
            return self._store_each(topic, bodies, how)
        answers: list[PublishError | None] = []
        with published.tracer(topic, bodies, carried=self._carries, answers=answers) as headers:
            answers += self._store_each(topic, bodies, _with(how, headers))
        return answers

    def _store_each(self, topic: str, bodies: Sequence[bytes], how: How) -> list[PublishError | None]:
        first, *others = self._producers
        shares = self._shares(how)
        answers = first.publish_each(topic, bodies, **next(shares))
        for producer in others:
            left = [i for i, error in enumerate(answers) if error is not None and error.stored is False]
            if left:
                again = producer.publish_each(topic, [bodies[i] for i in left], **next(shares))
                for i, answer in zip(left, again, strict=True):
                    answers[i] = answer
        published.count(topic, answers.count(None))
        return answers

    def _how(self, topic: str, delay: float, priority: int | None, timeout: float | None, headers: Headers | None) -> How:
        """What a producer is told beside the bodies."""
        names.check("topic", topic)
        plain: How = self._plain if timeout is None else {"timeout": _checked_timeout(timeout)}
        if headers:
            plain = {**plain, "headers": self._checked_headers(headers)}
        if isinstance(delay, int | float) and delay == 0 and priority is None and not self._says_lease:
            return plain
        self._check_delay(delay)
        self._check_priority(priority)
        return {**plain, "delay": delay, "priority": priority, "lease": longest_timeout(topic) if self._says_lease else None}

    def _check_delay(self, delay: float) -> None:
        longest = min(transport.capabilities.max_defer for transport in self._transports)  # it is learned from the nodes
        if not are_seconds(delay) or delay > longest:
            raise WrongUse(f"delay={shown(delay)}: this broker takes a delay of 0 to {longest:g} seconds")

    def _checked_headers(self, headers: Headers) -> Headers:
        for transport in self._transports:
            can = transport.capabilities
            if not can.headers:
                otherwise = f", or {can.with_headers}" if can.with_headers else ""
                raise WrongUse(f"headers={shown(headers)}: this broker carries none: leave them out{otherwise}")
        return _headers.check(headers)

    def _check_priority(self, priority: int | None) -> None:
        if priority is None:
            return
        if not all(transport.capabilities.priority for transport in self._transports):
            raise WrongUse(
                f"priority={shown(priority)}: this broker knows no priorities; leave it out, or use a topic for urgent messages"
            )
        if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= LEAST_URGENT:
            raise WrongUse(f"priority={shown(priority)}: a priority is a whole number from 0, the most urgent, to {LEAST_URGENT}")


def _with(how: How, headers: Headers) -> How:
    """An app's own win."""
    return {**how, "headers": {**headers, **how.get("headers", {})}} if headers else how


def publish(
    topic: str, payload: Any, *, delay: float = 0.0, priority: int | None = None, timeout: float | None = None,
    headers: Headers | None = None,
) -> None:  # fmt: skip
    """``Publisher.publish`` on this process's publisher: the worker's own, else $BROKER_URL, else 127.0.0.1:4150."""
    default().publish(topic, payload, delay=delay, priority=priority, timeout=timeout, headers=headers)


def publish_many(
    topic: str, payloads: Iterable[Any], *, delay: float = 0.0, priority: int | None = None, timeout: float | None = None,
    headers: Headers | None = None,
) -> int:  # fmt: skip
    """``Publisher.publish_many`` on this process's publisher: the worker's own, else $BROKER_URL, else 127.0.0.1:4150."""
    return default().publish_many(topic, payloads, delay=delay, priority=priority, timeout=timeout, headers=headers)


def publish_each(
    topic: str, payloads: Iterable[Any], *, delay: float = 0.0, priority: int | None = None, timeout: float | None = None,
    headers: Headers | None = None,
) -> list[PublishError | None]:  # fmt: skip
    """``Publisher.publish_each`` on this process's publisher: the worker's own, else $BROKER_URL, else 127.0.0.1:4150."""
    return default().publish_each(topic, payloads, delay=delay, priority=priority, timeout=timeout, headers=headers)


def default() -> Publisher:
    """This process's publisher, made at first use. Raises BadSetting for a $BROKER_URL that cannot be used."""
    from framework.settings import DEFAULT_BROKER, load  # noqa: PLC0415

    global _default  # noqa: PLW0603
    with _default_lock:  # no connection is made under it
        if _default is None:
            settings = load()
            _default = Publisher(open_transports(settings.brokers or [DEFAULT_BROKER]), timeout=settings.publish_timeout)
        return _default


def use(publisher: Publisher | None) -> None:
    """Make ``publisher`` this process's; None: back to $BROKER_URL. The one before is not closed."""
    global _default  # noqa: PLW0603
    with _default_lock:
        _default = publisher


def _default_timeout() -> float:
    from framework.settings import load  # noqa: PLC0415

    return load().publish_timeout


def _checked_timeout(timeout: float) -> float:
    if not are_seconds(timeout) or timeout == 0:
        raise WrongUse(f"timeout={shown(timeout)}: give the seconds that a publish may take, more than 0")
    return float(timeout)


def _transports(brokers: Sequence[str | Transport]) -> tuple[list[Transport], list[Transport]]:
    """The transports that were opened here, which only this publisher closes, and all transports."""
    opened = open_transports([broker for broker in brokers if isinstance(broker, str)])
    return opened, [broker for broker in brokers if not isinstance(broker, str)] + opened


_default: Publisher | None = None
_default_lock = threading.Lock()

_encode = payload.encode  # the name payload is an argument's above


def _requests(verb: str, payloads: Iterable[Any]) -> Iterator[Bodies]:
    """The bodies of ``payloads``, as many at a time as one call of a producer is given."""
    if isinstance(payloads, str | bytes | bytearray | dict):
        raise WrongUse(f"{verb} takes a list of payloads, not a {type(payloads).__name__}: give one payload to publish")
    return chunks(payloads, _encode)

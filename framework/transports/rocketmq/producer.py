"""RocketMQ as a ``contract.Producer``: bodies checked before anything is sent, masters tried in turn until a deadline.

Each native thread has its own hub, and so its own connection here; greenlets of one thread share one.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Collection, Sequence
from time import time

from framework import names
from framework.errors import BadMessage, PublishError
from framework.headers import NONE, Headers
from framework.transports.checked import check_bodies
from framework.transports.per_thread import PerThread, raise_first
from framework.transports.rocketmq.publish_link import Command, PublishLink
from framework.transports.rocketmq.urls import Names, Options
from framework.transports.rocketmq.wire import properties

DEADLINE = 30.0
MAX_DELAY = 259_000.0
"""Seconds: a little less than the three days of timerMaxDelaySec, by a clock that need not be the broker's."""
_SYSTEM = "CLIENT_INNER_PRODUCER"
"""The group that we publish as. No broker looks at it."""


class RocketProducer:
    """Publishes to the masters that ``nodes`` names. Safe to share between greenlets and between native threads."""

    def __init__(
        self, nodes: Callable[[], Collection[str]], dial: Callable[[str, float], PublishLink], names: Names, options: Options,
        *, deadline: float = DEADLINE,
    ) -> None:  # fmt: skip
        """``dial(node, timeout)`` makes a link. ``deadline``: the timeout of a publish that names none."""
        self._names = names
        self._options = options
        self._deadline = deadline
        self._id = secrets.token_hex(8).upper()
        self._numbers = itertools.count(1)
        self._publishing: PerThread[Command] = PerThread(
            nodes, dial, broker="RocketMQ", nowhere="the name server knows no broker: is one started with this namesrvAddr?"
        )

    def publish(
        self, topic: str, bodies: Sequence[bytes], *, delay: float = 0.0, priority: int | None = None,
        lease: float | None = None, timeout: float | None = None, headers: Headers = NONE,
    ) -> None:  # fmt: skip
        """Return when a broker has answered for all of ``bodies``; ``delay`` in seconds. Leases are the consumers'.

        Raises BadName, BadMessage (nothing was sent), PublishError.
        """
        raise_first(self.publish_each(topic, bodies, delay=delay, timeout=timeout, headers=headers))

    def publish_each(
        self, topic: str, bodies: Sequence[bytes], *, delay: float = 0.0, priority: int | None = None,
        lease: float | None = None, timeout: float | None = None, headers: Headers = NONE,
    ) -> list[PublishError | None]:  # fmt: skip
        """As ``publish``, with an answer for each of ``bodies``.

        Raises BadName, BadMessage (nothing was sent), PublishError when the producer is closed.
        """
        self._check(topic, bodies, delay, headers)
        commands = [self._command(topic, body, delay, headers) for body in bodies]
        return self._publishing.here().store_each(commands, self._deadline if timeout is None else timeout)

    def close(self) -> None:
        """Close every connection; publishes that wait for an answer fail."""
        self._publishing.close()

    def _command(self, topic: str, body: bytes, delay: float, headers: Headers) -> Command:
        now = round(time() * 1000)
        given = [
            (properties.UNIQ_KEY, f"{self._id}{next(self._numbers):016X}"),
            ("WAIT", "true"),
            *properties.of_headers(headers),
        ]
        if delay:
            given.append((properties.TIMER_DELIVER_MS, str(now + round(delay * 1000))))
        fields = {
            "a": _SYSTEM, "b": self._names.mapped(topic), "c": "", "d": "4", "e": "-1", "f": "0", "g": str(now), "h": "0",
            "i": properties.encode(given), "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        return Command(topic, fields, body)

    def _check(self, topic: str, bodies: Sequence[bytes], delay: float, headers: Headers) -> None:
        names.check("topic", topic)
        self._names.accept(topic, ())
        if not 0 <= delay <= MAX_DELAY:
            raise BadMessage(f"topic {topic!r}: a delay of {delay!r} s is out of range, 0 to {MAX_DELAY:g} s are taken")
        for name in headers:
            if properties.is_reserved(name):
                raise BadMessage(f"topic {topic!r}: RocketMQ uses the header {name!r} itself; give it another name")
        size = len(properties.encode(properties.of_headers(headers)).encode())
        if size > properties.MAX_PROPERTIES:
            raise BadMessage(
                f"topic {topic!r}: headers of {size} bytes, and RocketMQ takes {properties.MAX_PROPERTIES}: make them smaller"
            )
        limit = "(its maxMessageSize; max_body= in the broker URL, if yours takes more)"
        check_bodies(topic, bodies, self._options.max_body, f"RocketMQ takes up to {self._options.max_body} {limit}")

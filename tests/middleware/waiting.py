"""A handler whose long delays are kept in the broker's ``.later`` topic, with the broker played and a clock of its own."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from framework.errors import Retry
from framework.handler import HandlerSpec, make_spec
from framework.headers import NONE, Headers
from framework.message import Batch, Message
from framework.middleware import compile_chain, later
from framework.middleware.later import Delays, LaterTopic, compile_later
from framework.transports.contract import Limits

LONGEST = 3600.0
LIMITS = Limits(60.0, 900.0, 2500)


class Origin(SimpleNamespace):
    """A connection, as far as a message needs one."""

    def __hash__(self) -> int:
        return id(self)


class Waiting:
    """What was published to the ``.later`` topic, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_700_000_000.0
        self.published: list[tuple[str, bytes, float]] = []
        self.carries = False
        self.headers: Headers = NONE
        """Those of the last that was published."""
        self.dead: list[bytes] = []
        self.refuse: Exception | None = None
        self.longest = LONGEST
        self.requeue: float | None = None
        self.levels: tuple[float, ...] = ()
        self.published_at = self.now
        self.copies = True
        self.broker_ahead = 0.0
        self.set_forward = 0.0
        """Seconds by which the wall clock was."""
        monkeypatch.setattr(later, "time", lambda: self.now)
        monkeypatch.setattr(later, "monotonic", lambda: self.now - self.set_forward)

    def defer(self, topic: str, body: bytes, delay: float, headers: Headers = NONE) -> None:
        if self.refuse:
            raise self.refuse
        assert self.carries or not headers
        self.headers = headers
        assert 0 < delay <= self.longest
        self.published.append((topic, body, delay))
        self.published_at = self.now

    def chain(self, function: Callable[..., Any], names: tuple[str, str] = ("orders", "billing"), **options: Any) -> Any:
        self.spec: HandlerSpec = make_spec(_annotated(function, "batch" in options), *names, options)
        room = LaterTopic(self.spec, self.defer, self.delays, copies=self.copies, carries=lambda: self.carries)
        chain = compile_chain(
            self.spec,
            publish=lambda topic, body: self.dead.append(body),
            delay=lambda attempts: 10.0 * attempts,
            later=room,
        )
        return compile_later(self.spec, chain, room)

    def delays(self) -> Delays:
        return Delays(self.longest if self.requeue is None else self.requeue, self.longest, self.levels)

    def original(self, body: bytes = b"body", attempts: int = 1) -> Message:
        origin = Origin(topic="orders", channel="billing", node="a:4150", in_flight={}, limits=LIMITS)
        made = Message(b"0123456789abcdef", 1_600_000_000_000_000_000, attempts, body, origin)
        origin.in_flight[made] = 0.0
        return made

    def envelope(self, attempts: int = 1) -> Message:
        """The last that was published, as it is delivered."""
        topic, body, _ = self.published[-1]
        origin = Origin(topic=topic, channel="billing", node="b:4150", in_flight={}, touched=0, limits=LIMITS)
        made = Message(
            b"fedcba9876543210", round((self.published_at + self.broker_ahead) * 1e9), attempts, body, origin, self.headers
        )
        origin.in_flight[made] = 0.0
        origin.touch = lambda message: setattr(origin, "touched", origin.touched + (message is made))
        return made


def _annotated(function: Callable[..., Any], batch: bool) -> Callable[..., Any]:
    if not batch or function.__annotations__:
        return function

    def handle(batch: Batch) -> None:
        function(batch)

    return handle


def noting(seen: list[object]) -> Callable[..., Any]:
    def function(job):
        seen.append(job)

    return function


def retry_in(seconds: float) -> Callable[[Message], None]:
    def function(_: Message) -> None:
        raise Retry("later", delay=seconds)

    return function

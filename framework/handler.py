"""@handler and HandlerSpec: a function bound to a topic and a channel, every option checked at import."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from framework.message import Message


@dataclass(frozen=True, slots=True)
class HandlerSpec:
    """What the engine needs to know of one handler. Made by ``@handler``, which checks every field."""

    topic: str
    channel: str
    function: Callable[[Any], Any]
    decode: Callable[[Message], Any] | None
    """Message -> the function's argument; None hands over the Message (or the Batch) itself.
    Raises UndecodablePayload."""
    concurrency: int
    """How many calls run at once in one process."""
    max_in_flight: int
    """The most messages received and not settled, over all nodes."""
    timeout: float
    """Seconds a call may run; its lease is kept that long and no longer."""
    max_attempts: int
    """Deliveries before the message goes to the dead letter topic; 0: no limit."""
    batch: int
    """The most messages in one call; 0: the handler takes one message at a time."""
    linger: float
    """Seconds to wait for a batch to fill."""

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.channel}"

"""The handler that writes down each message that it handled."""

from __future__ import annotations

from framework import Message, handler
from tests.chaos.notes import write_down


@handler("chaos", "record", concurrency=20, max_in_flight=50, max_attempts=0)
def record(message: Message) -> None:
    """Called for each message."""
    write_down(message)

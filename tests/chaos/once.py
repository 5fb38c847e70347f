"""The handler of what Spark publishes: it skips what was handled by its key, and writes down each call."""

from __future__ import annotations

from framework import Dedupe, Message, handler
from tests.chaos.notes import FOLDER, write_down


@handler("chaos", "record", concurrency=20, max_in_flight=50, max_attempts=0, middleware=[Dedupe(str(FOLDER / "done.sqlite"))])
def record(message: Message) -> None:
    """Called once for each key."""
    write_down(message)

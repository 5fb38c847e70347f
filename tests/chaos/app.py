"""The handlers that the faults hit. Each writes down what it handled where a kill cannot take it back."""

from __future__ import annotations

from framework import Batch, Spool, handler
from tests.chaos.notes import FOLDER
from tests.chaos.recorder import record

__all__ = ["land", "record"]

_spool = Spool(FOLDER / "spool")


@handler("chaos", "land", batch=100, linger=0.05, concurrency=1, max_in_flight=500, max_attempts=0)
def land(batch: Batch) -> None:
    """Into the spool, durable when it returns."""
    _spool.land(batch)

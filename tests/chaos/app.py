"""The handlers that the faults hit. Each writes down what it handled where a kill cannot take it back."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

from gevent import sleep

from framework import Batch, Message, Spool, handler
from framework.engine import backoff

backoff.RECONNECT_CAP = 0.5  # kills come every second here: who waits longer is away at most of them

_FOLDER = Path(os.environ["CHAOS_FOLDER"])
_handled = os.open(_FOLDER / "handled", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
_spool = Spool(_FOLDER / "spool")


@handler("chaos", "record", concurrency=20, max_in_flight=50, max_attempts=0)
def record(message: Message) -> None:
    """Takes a moment, so that a fault finds some of them running, then writes one line."""
    sleep(random.uniform(0, 0.01))
    os.write(_handled, b"%b %d\n" % (message.body, time.time_ns()))


@handler("chaos", "land", batch=100, linger=0.05, concurrency=1, max_in_flight=500, max_attempts=0)
def land(batch: Batch) -> None:
    """Into the spool, durable when it returns."""
    _spool.land(batch)

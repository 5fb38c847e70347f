"""Where handlers write down what they handled, so that a kill cannot take it back; several processes may."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

from gevent import sleep

from framework import Message
from framework.engine import backoff

backoff.RECONNECT_CAP = 0.5  # kills come every second here: who waits longer is away at most of them

FOLDER = Path(os.environ["CHAOS_FOLDER"])
_handled = os.open(FOLDER / "handled", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def write_down(message: Message) -> None:
    """Takes a moment, so that a fault finds some of them running, then writes one line, which ends in a dot where it is whole."""
    sleep(random.uniform(0, 0.01))
    line = b"\n%b %d ." % (message.body, time.time_ns())
    if os.write(_handled, line) != len(line):
        raise OSError("the disk is full")

"""One of several collectors of one channel: it lands in the spool that all share, and is killed where it is told to be."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from framework import Batch, Spool, handler
from framework.engine import backoff
from tests.chaos.notes import FOLDER

backoff.RECONNECT_CAP = 0.5
_spool = Spool(FOLDER / "spool", shared=True, node_ids=True)


@handler("chaos", "land", batch=2500, max_in_flight=2500, linger=0.25, max_attempts=0)
def land(batch: Batch) -> None:
    """Durable when it returns. Where the folder holds a file ``die``, its first taker dies then, before anything is finished."""
    if _spool.land(batch):
        with suppress(FileNotFoundError):
            os.rename(FOLDER / "die", FOLDER / f"died-{os.getpid()}")
            os.kill(os.getpid(), signal.SIGKILL)

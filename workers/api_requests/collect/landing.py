"""Three channels of the topic of API requests, each landed in a spool of its own: their jobs go at their own pace, and may be
replayed one by one.

The spools are in the folder that API_REQUESTS_SPOOL names, var/spool. A batch fails when the disk does, for as long as that
takes: no line is given up for it (``max_attempts=0``). API_REQUESTS_SPOOL_BYTES is the most that each spool may hold: from then
on lines stay at the broker until the job has read some. There is no limit without it. Any number of processes may land.
"""

from __future__ import annotations

import os
from pathlib import Path

from framework import BadSetting, Batch, Spool, handler
from workers.api_requests.collect.topics import CHANNELS, TOPIC

_SPOOL = Path(os.environ.get("API_REQUESTS_SPOOL") or "var/spool")
_BYTES = os.environ.get("API_REQUESTS_SPOOL_BYTES") or None
if _BYTES is not None and not (_BYTES.isdecimal() and int(_BYTES)):
    raise BadSetting(f"API_REQUESTS_SPOOL_BYTES={_BYTES}: a whole number above 0 is needed")
_archive, _growth, _spam = (Spool(_SPOOL / channel, max_bytes=_BYTES and int(_BYTES), shared=True) for channel in CHANNELS)


@handler(TOPIC, "archive", batch=2500, linger=0.25, max_in_flight=5000, concurrency=1, max_attempts=0)
def archive(batch: Batch) -> None:
    """Keeps every line."""
    _archive.land(batch)


@handler(TOPIC, "growth", batch=2500, linger=0.25, max_in_flight=5000, concurrency=1, max_attempts=0)
def growth(batch: Batch) -> None:
    """Counts requests and addresses."""
    _growth.land(batch)


@handler(TOPIC, "spam", batch=2500, linger=0.25, max_in_flight=5000, concurrency=1, max_attempts=0)
def spam(batch: Batch) -> None:
    """Finds those who abuse the site."""
    _spam.land(batch)

"""The handlers of the topic of API requests: three channels that land in spools for Spark, and the block list.

``workers run workers.api_requests.handlers``. Where they keep things comes from the environment:
API_REQUESTS_SPOOL (a folder; var/spool) and API_REQUESTS_BLOCKLIST (a file; var/blocklist.sqlite).
"""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import msgspec

from framework import Batch, Reject, Spool, handler
from workers.api_requests.blocklist import BlockList, Entry

TOPIC = "api_requests"
CHANNELS = ("archive", "growth", "spam")
SUSPECTS_TOPIC = "spam_suspects"

_SPOOL = Path(os.environ.get("API_REQUESTS_SPOOL") or "var/spool")
_BLOCKLIST = BlockList(Path(os.environ.get("API_REQUESTS_BLOCKLIST") or "var/blocklist.sqlite"))

# A spool for each channel: their jobs go at their own pace, and may be replayed one by one.
_archive, _growth, _spam = (Spool(_SPOOL / channel) for channel in CHANNELS)


@handler(TOPIC, "archive", batch=2500, linger=0.25, max_in_flight=5000, concurrency=1)
def archive(batch: Batch) -> None:
    """Keeps every line."""
    _archive.land(batch)


@handler(TOPIC, "growth", batch=2500, linger=0.25, max_in_flight=5000, concurrency=1)
def growth(batch: Batch) -> None:
    """Counts requests and addresses."""
    _growth.land(batch)


@handler(TOPIC, "spam", batch=2500, linger=0.25, max_in_flight=5000, concurrency=1)
def spam(batch: Batch) -> None:
    """Finds those who abuse the site."""
    _spam.land(batch)


class Suspect(msgspec.Struct):
    """What the job publishes about an address."""

    address: str
    first_seen: datetime
    last_seen: datetime
    requests: int
    reasons: list[str]


@handler(SUSPECTS_TOPIC, "blocklist")
def block(suspect: Suspect) -> None:
    """Puts a suspect on the block list, or brings its entry up to date."""
    if not suspect.address:
        raise Reject("a suspect without an address")
    _BLOCKLIST.put(Entry(suspect.address, suspect.first_seen, suspect.last_seen, suspect.requests, tuple(suspect.reasons)))

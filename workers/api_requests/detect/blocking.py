"""The way back: suspects that the job publishes are put on the block list, the file that API_REQUESTS_BLOCKLIST names
(var/blocklist.sqlite)."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import msgspec

from framework import Reject, handler
from workers.api_requests.collect.topics import SUSPECTS_CHANNEL, SUSPECTS_TOPIC
from workers.api_requests.detect.blocklist import BlockList, Entry

_BLOCKLIST = BlockList(Path(os.environ.get("API_REQUESTS_BLOCKLIST") or "var/blocklist.sqlite"))


class Suspect(msgspec.Struct):
    """What the job publishes about an address."""

    address: str
    first_seen: datetime
    last_seen: datetime
    requests: int
    reasons: list[str]


@handler(SUSPECTS_TOPIC, SUSPECTS_CHANNEL)
def block(suspect: Suspect) -> None:
    """Puts a suspect on the block list, or brings its entry up to date."""
    if not suspect.address:
        raise Reject("a suspect without an address")
    _BLOCKLIST.put(Entry(suspect.address, suspect.first_seen, suspect.last_seen, suspect.requests, tuple(suspect.reasons)))

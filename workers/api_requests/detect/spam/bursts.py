"""When one address missed most: its worst ten minutes, and its worst minute."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime

from workers.api_requests.detect.spam.state import SHARED
from workers.api_requests.detect.spam.verdict import Burst

_BURST, _BURST_SLIDE = 20, 10  # in half minutes: ten minutes, every five
_RUSH, _RUSH_SLIDE = 2, 1  # a minute, every half

_MISSED = f"""
select slot, path, requests, case when searched and not {SHARED} then place end from missed b where address = ?
"""
_WHOLE = "select sum(requests), min(first), max(last) from slots where address = ? and slot >= ? and slot < ?"


@dataclass(slots=True)
class _Window:
    errors: int = 0
    paths: set[str] = field(default_factory=set)
    places: set[str] = field(default_factory=set)


def worst(database: sqlite3.Connection, address: str) -> tuple[Burst | None, Burst | None]:
    """The worst ten minutes and the worst minute of ``address``: with the most places, then with the most errors."""
    missed = database.execute(_MISSED, (address,)).fetchall()
    return _worst(database, address, missed, _BURST, _BURST_SLIDE), _worst(database, address, missed, _RUSH, _RUSH_SLIDE)


def _worst(
    database: sqlite3.Connection, address: str, missed: list[tuple[int, str, int, str | None]], length: int, slide: int
) -> Burst | None:
    windows: dict[int, _Window] = defaultdict(_Window)
    for slot, path, requests, place in missed:
        for start in range(slot // slide * slide, slot - length, -slide):
            window = windows[start]
            window.errors += requests
            window.paths.add(path)
            if place is not None:
                window.places.add(place)
    if not windows:
        return None
    most = max((len(one.places), one.errors) for one in windows.values())
    start = min(start for start, one in windows.items() if (len(one.places), one.errors) == most)
    requests, first, last = database.execute(_WHOLE, (address, start, start + length)).fetchone()
    window = windows[start]
    began = datetime.fromtimestamp(first / 1e6, UTC)
    return Burst(requests, window.errors, len(window.paths), len(window.places), began, last // 10**6 - first // 10**6)

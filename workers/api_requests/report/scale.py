"""Axes for both kinds of charts: round ticks, and periods joined until they fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta

from workers.api_requests.report.figures import Period

_STEPS = [timedelta(hours=hours) for hours in (1, 3, 6, 12, 24, 7 * 24, 30 * 24, 365 * 24)]
_NAMES = ["hour", "3 hours", "6 hours", "12 hours", "day", "week", "30 days", "365 days"]
_MOST_BARS = 400


def ticks(most: float, about: int = 4) -> list[int]:
    """Round whole numbers from 0 to at least ``most``."""
    if most <= 0:
        return [0, 1]
    rough = max(1.0, most / about)
    power = 10 ** math.floor(math.log10(rough))
    step = int(next(nice * power for nice in (1, 2, 2.5, 5, 10) if nice * power >= rough and nice * power == int(nice * power)))
    return list(range(0, step * math.ceil(most / step) + 1, step))


def midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def joined(hours: Sequence[Period]) -> tuple[str, timedelta, list[tuple[datetime, int]]]:
    """The requests of consecutive periods without gaps, few enough for a chart: the period's name, its length, the counts."""
    known = [(hour.start, hour.requests) for hour in hours if isinstance(hour.start, datetime)]
    if not known:
        return _NAMES[0], _STEPS[0], []
    first, last = midnight(known[0][0].date()), known[-1][0]
    index = next((i for i, step in enumerate(_STEPS) if (last - first) / step < _MOST_BARS), len(_STEPS) - 1)
    step = _STEPS[index]
    counts = [0] * ((last - first) // step + 1)
    for start, requests in known:
        counts[(start - first) // step] += requests
    return _NAMES[index], step, [(first + n * step, count) for n, count in enumerate(counts)]


def day_marks(start: datetime, end: datetime, about: int = 10) -> list[datetime]:
    """Midnights between the two, about so many."""
    days = max(1, math.ceil((end - start) / timedelta(days=1)))
    every = max(1, math.ceil(days / about))
    first = midnight(start.date())
    return [mark for n in range(0, days + 1, every) if start <= (mark := first + timedelta(days=n)) <= end]


def day_name(day: date) -> str:
    """12 May."""
    return f"{day.day} {day:%b}"


def span_name(days: Sequence[Period]) -> str:
    """12 to 20 May 2024; empty without days."""
    if not days:
        return ""
    first, last = days[0].start, days[-1].start
    if first == last:
        return f"{day_name(first)} {first.year}"
    begin = f"{first.day}" if (first.year, first.month) == (last.year, last.month) else day_name(first)
    return f"{begin}{f' {first.year}' if first.year != last.year else ''} to {day_name(last)} {last.year}"

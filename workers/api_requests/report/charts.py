"""The report's charts as shapes; how a shape becomes SVG, ``templates/chart.svg`` says, and its colour the page's style."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import ClassVar

from workers.api_requests.detect.spam.verdict import Suspect
from workers.api_requests.report.figures import Period, printable
from workers.api_requests.report.scale import day_marks, day_name, joined, midnight, ticks

WIDTH = 960
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 14, 24
_ROWS = 14  # suspects in the chart of when they came
_MOST_DAYS = 62

Activity = Sequence[tuple[datetime, str, int]]


@dataclass(frozen=True, slots=True)
class Text:
    x: float
    y: float
    words: str
    kind: str
    anchor: str = "start"
    is_a: ClassVar[str] = "text"


@dataclass(frozen=True, slots=True)
class Stroke:
    x1: float
    x2: float
    y1: float
    y2: float
    kind: str = "grid"
    is_a: ClassVar[str] = "line"


@dataclass(frozen=True, slots=True)
class Bar:
    x: float
    y: float
    width: float
    height: float
    kind: str
    tip: str
    is_a: ClassVar[str] = "bar"


@dataclass(frozen=True, slots=True)
class Dot:
    x: float
    y: float
    radius: float
    tip: str
    is_a: ClassVar[str] = "dot"


Shape = Text | Stroke | Bar | Dot


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing, WIDTH wide; the later shapes lie on the earlier ones."""

    height: float
    title: str
    description: str
    shapes: Sequence[Shape]
    width: int = WIDTH


def requests(hours: Sequence[Period], activity: Activity) -> Chart | None:
    """Requests over time; the part that suspects sent stands out."""
    name, step, counts = joined(hours)
    if not counts:
        return None
    height = 240
    start, end = counts[0][0], counts[-1][0] + step
    abuse = _binned(activity, start, step)
    marks = ticks(max(count for _, count in counts))
    bars = []
    for when, count in counts:
        x, width = _x(when, start, end), (WIDTH - _LEFT - _RIGHT) / len(counts)
        gap = 0.6 if width > 2 else 0
        bad = min(abuse.get(when, 0), count)
        top, bottom = _y(count, marks, height), _y(0, marks, height)
        tip = f"{when:%Y-%m-%d %H:%M} UTC: {count:,} requests" + (f", {bad:,} by suspects" if bad else "")
        bars.append(_bar(x, top, width - gap, bottom - top, "good", tip))
        if bad:
            y = _y(bad, marks, height)
            bars.append(_bar(x, y, width - gap, bottom - y, "bad", tip))
    total = sum(count for _, count in counts)
    return Chart(
        height, f"Requests by {name}", f"{total:,} requests from {start:%d %B %Y} to {end:%d %B %Y}",
        [*_grid(marks, height), *_dates(start, end, height), *bars],
    )  # fmt: skip


def addresses(days: Sequence[Period]) -> Chart | None:
    """Distinct addresses by day: those that are new, and those that came before."""
    shown = [day for day in days if isinstance(day.start, date)][-_MOST_DAYS:]
    if not shown:
        return None
    height = 220
    marks = ticks(max(day.addresses for day in shown))
    slot = (WIDTH - _LEFT - _RIGHT) / len(shown)
    width = min(slot * 0.72, 64)
    shapes = _grid(marks, height)
    bottom = _y(0, marks, height)
    every = max(1, len(shown) // 12)
    for n, day in enumerate(shown):
        x = _LEFT + slot * n + (slot - width) / 2
        known = day.addresses - day.new_addresses
        tip = f"{day.start}: {day.addresses:,} addresses, {day.new_addresses:,} of them new"
        middle, top = _y(known, marks, height), _y(day.addresses, marks, height)
        shapes.append(_bar(x, middle, width, bottom - middle, "soft", tip))
        shapes.append(_bar(x, top, width, middle - top, "good", tip))
        if len(shown) <= 20:
            shapes.append(Text(x + width / 2, top - 5, f"{day.addresses:,}", "value", "middle"))
        if n % every == 0:
            shapes.append(Text(x + width / 2, height - 8, day_name(_as_date(day)), "tick", "middle"))
    return Chart(height, "Addresses by day", f"{len(shown)} days", shapes)


def visits(suspects: Sequence[Suspect], activity: Activity, days: Sequence[Period]) -> Chart | None:
    """When the busiest suspects came: a row each, a dot for every hour, its area the requests."""
    top = list(suspects)[:_ROWS]
    if not top or not days:
        return None
    start = midnight(_as_date(days[0]))
    end = midnight(_as_date(days[-1])) + timedelta(days=1)
    row, left = 26, 130
    height = _TOP + row * len(top) + _BOTTOM + 4
    ranks = {one.address: n for n, one in enumerate(top)}
    shapes: list[Shape] = []
    for mark in day_marks(start, end):
        x = _beside_names(mark, start, end, left)
        shapes.append(Stroke(x, x, _TOP, height - _BOTTOM))
        if mark < end:
            shapes.append(Text(x + 3, height - 8, day_name(mark), "tick"))
    for address, n in ranks.items():
        y = _TOP + row * (n + 0.5)
        shapes.append(Stroke(left, WIDTH - 70, y, y))
        shapes.append(Text(left - 10, y + 4, _short(address), "label", "end"))
        shapes.append(Text(WIDTH - 8, y + 4, f"{top[n].requests:,}", "value", "end"))
    for hour, address, requests in activity:
        if address in ranks:
            x, y = _beside_names(hour, start, end, left), _TOP + row * (ranks[address] + 0.5)
            tip = f"{address}, {hour:%Y-%m-%d %H:00} UTC: {requests:,} requests"
            shapes.append(Dot(x, y, min(12.0, 2.2 + 0.55 * requests**0.5), tip))
    return Chart(height, "When the busiest suspects came", f"{len(top)} of {len(suspects)} suspects", shapes)


def phases(spans: Mapping[str, tuple[float, float]], seconds: float) -> Chart | None:
    """Where the time went: a bar for each phase, from its start to its end."""
    if not spans:
        return None
    row, left = 24, 100
    height = _TOP + row * len(spans) + _BOTTOM
    marks = ticks(seconds, 6)
    wide = WIDTH - left - 60
    shapes: list[Shape] = []
    for mark in marks:
        x = left + mark / marks[-1] * wide
        shapes.append(Stroke(x, x, _TOP, height - _BOTTOM))
        shapes.append(Text(x, height - 8, f"{mark} s", "tick", "middle"))
    for n, (name, (start, end)) in enumerate(sorted(spans.items(), key=lambda item: item[1])):
        y, x = _TOP + row * n, left + start / marks[-1] * wide
        width = max((end - start) / marks[-1] * wide, 1.5)
        shapes.append(Text(left - 10, y + 16, name, "label", "end"))
        shapes.append(_bar(x, y + 5, width, row - 10, "good", f"{name}: {end - start:.1f} s"))
        shapes.append(Text(x + width + 6, y + 16, f"{end - start:.1f} s", "value"))
    return Chart(height, "Where the time went", f"{seconds:.1f} seconds in all", shapes)


def _grid(marks: Sequence[int], height: float) -> list[Shape]:
    """Horizontal lines with their numbers."""
    shapes: list[Shape] = []
    for mark in marks:
        y = _y(mark, marks, height)
        shapes.append(Stroke(_LEFT, WIDTH - _RIGHT, y, y, "axis" if mark == 0 else "grid"))
        shapes.append(Text(_LEFT - 8, y + 4, f"{mark:,}", "tick", "end"))
    return shapes


def _dates(start: datetime, end: datetime, height: float) -> list[Shape]:
    shapes: list[Shape] = []
    for mark in day_marks(start, end):
        x = _x(mark, start, end)
        shapes.append(Stroke(x, x, _TOP, height - _BOTTOM))
        if x < WIDTH - 50:
            shapes.append(Text(x + 3, height - 8, day_name(mark), "tick"))
    return shapes


def _bar(x: float, y: float, width: float, height: float, kind: str, tip: str) -> Bar:  # noqa: PLR0917
    """One that can be seen, however small."""
    return Bar(x, y, max(width, 0.4), max(height, 0), kind, tip)


def _y(value: float, marks: Sequence[int], height: float) -> float:
    return height - _BOTTOM - value / marks[-1] * (height - _BOTTOM - _TOP)


def _x(when: datetime, start: datetime, end: datetime) -> float:
    share = (when - start) / (end - start) if end > start else 0.0
    return _LEFT + share * (WIDTH - _LEFT - _RIGHT)


def _beside_names(when: datetime, start: datetime, end: datetime, left: float) -> float:
    return left + (_x(when, start, end) - _LEFT) * (WIDTH - left - 70) / (WIDTH - _LEFT - _RIGHT)


def _binned(activity: Activity, start: datetime, step: timedelta) -> dict[datetime, int]:
    found: dict[datetime, int] = {}
    for hour, _, requests in activity:
        when = start + (hour - start) // step * step
        found[when] = found.get(when, 0) + requests
    return found


def _as_date(day: Period) -> date:
    return day.start.date() if isinstance(day.start, datetime) else day.start


def _short(address: str) -> str:
    shown = printable(address)
    return shown if len(shown) <= 18 else shown[:17] + "…"

"""The report's charts as inline SVG; colours and fonts are the page's, so that they follow its light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from html import escape

from workers.api_requests.job.spam.verdict import Suspect
from workers.api_requests.report.figures import Period
from workers.api_requests.report.scale import day_marks, day_name, joined, midnight, ticks

WIDTH = 960
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 14, 24
_ROWS = 14  # suspects in the chart of when they came
_MOST_DAYS = 62

Activity = Sequence[tuple[datetime, str, int]]


def _svg(height: float, title: str, description: str, parts: Iterable[str]) -> str:
    body = "".join(parts)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}. {escape(description)}">'
        f"<title>{escape(title)}</title>{body}</svg>"
    )


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def _rect(x: float, y: float, width: float, height: float, kind: str, tip: str = "") -> str:  # noqa: PLR0917
    title = f"<title>{escape(tip)}</title>" if tip else ""
    return (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(width, 0.4):.2f}" height="{max(height, 0):.2f}" class="{kind}">{title}</rect>'
    )


def _grid(marks: Sequence[int], height: float) -> list[str]:
    """Horizontal lines with their numbers."""
    lines = []
    for mark in marks:
        y = _y(mark, marks, height)
        lines.append(
            f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="{"axis" if mark == 0 else "grid"}"/>'
        )
        lines.append(_text(_LEFT - 8, y + 4, f"{mark:,}", "tick", "end"))
    return lines


def _y(value: float, marks: Sequence[int], height: float) -> float:
    return height - _BOTTOM - value / marks[-1] * (height - _BOTTOM - _TOP)


def _dates(start: datetime, end: datetime, height: float) -> list[str]:
    drawn = []
    for mark in day_marks(start, end):
        x = _x(mark, start, end)
        drawn.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{height - _BOTTOM}" class="grid"/>')
        if x < WIDTH - 50:
            drawn.append(_text(x + 3, height - 8, day_name(mark), "tick"))
    return drawn


def _x(when: datetime, start: datetime, end: datetime) -> float:
    share = (when - start) / (end - start) if end > start else 0.0
    return _LEFT + share * (WIDTH - _LEFT - _RIGHT)


def requests(hours: Sequence[Period], activity: Activity) -> str:
    """Requests over time; the part that suspects sent stands out."""
    name, step, counts = joined(hours)
    if not counts:
        return ""
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
        bars.append(_rect(x, top, width - gap, bottom - top, "good", tip))
        if bad:
            y = _y(bad, marks, height)
            bars.append(_rect(x, y, width - gap, bottom - y, "bad", tip))
    total = sum(count for _, count in counts)
    return _svg(
        height, f"Requests by {name}", f"{total:,} requests from {start:%d %B %Y} to {end:%d %B %Y}",
        [*_grid(marks, height), *_dates(start, end, height), *bars],
    )  # fmt: skip


def _binned(activity: Activity, start: datetime, step: timedelta) -> dict[datetime, int]:
    found: dict[datetime, int] = {}
    for hour, _, requests in activity:
        when = start + (hour - start) // step * step
        found[when] = found.get(when, 0) + requests
    return found


def addresses(days: Sequence[Period]) -> str:
    """Distinct addresses by day: those that are new, and those that came before."""
    shown = [day for day in days if isinstance(day.start, date)][-_MOST_DAYS:]
    if not shown:
        return ""
    height = 220
    marks = ticks(max(day.addresses for day in shown))
    slot = (WIDTH - _LEFT - _RIGHT) / len(shown)
    width = min(slot * 0.72, 64)
    parts = _grid(marks, height)
    bottom = _y(0, marks, height)
    every = max(1, len(shown) // 12)
    for n, day in enumerate(shown):
        x = _LEFT + slot * n + (slot - width) / 2
        known = day.addresses - day.new_addresses
        tip = f"{day.start}: {day.addresses:,} addresses, {day.new_addresses:,} of them new"
        middle = _y(known, marks, height)
        parts.append(_rect(x, middle, width, bottom - middle, "soft", tip))
        parts.append(_rect(x, _y(day.addresses, marks, height), width, middle - _y(day.addresses, marks, height), "good", tip))
        if len(shown) <= 20:
            parts.append(_text(x + width / 2, _y(day.addresses, marks, height) - 5, f"{day.addresses:,}", "value", "middle"))
        if n % every == 0:
            parts.append(_text(x + width / 2, height - 8, day_name(_as_date(day)), "tick", "middle"))
    return _svg(height, "Addresses by day", f"{len(shown)} days", parts)


def _as_date(day: Period) -> date:
    return day.start.date() if isinstance(day.start, datetime) else day.start


def visits(suspects: Sequence[Suspect], activity: Activity, days: Sequence[Period]) -> str:
    """When the busiest suspects came: a row each, a dot for every hour, its area the requests."""
    top = list(suspects)[:_ROWS]
    if not top or not days:
        return ""
    start = midnight(_as_date(days[0]))
    end = midnight(_as_date(days[-1])) + timedelta(days=1)
    row, left = 26, 130
    height = _TOP + row * len(top) + _BOTTOM + 4
    places = {one.address: n for n, one in enumerate(top)}
    parts = []
    for mark in day_marks(start, end):
        x = left + (_x(mark, start, end) - _LEFT) * (WIDTH - left - 70) / (WIDTH - _LEFT - _RIGHT)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{height - _BOTTOM}" class="grid"/>')
        if mark < end:
            parts.append(_text(x + 3, height - 8, day_name(mark), "tick"))
    for address, n in places.items():
        y = _TOP + row * (n + 0.5)
        parts.append(f'<line x1="{left}" x2="{WIDTH - 70}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(_text(left - 10, y + 4, _short(address), "label", "end"))
        parts.append(_text(WIDTH - 8, y + 4, f"{top[n].requests:,}", "value", "end"))
    for hour, address, requests in activity:
        if address in places:
            x = left + (_x(hour, start, end) - _LEFT) * (WIDTH - left - 70) / (WIDTH - _LEFT - _RIGHT)
            radius = min(12.0, 2.2 + 0.55 * requests**0.5)
            tip = f"{address}, {hour:%Y-%m-%d %H:00} UTC: {requests:,} requests"
            parts.append(
                f'<circle cx="{x:.1f}" cy="{_TOP + row * (places[address] + 0.5):.1f}" r="{radius:.1f}" class="dot">'
                f"<title>{escape(tip)}</title></circle>"
            )
    return _svg(height, "When the busiest suspects came", f"{len(top)} of {len(suspects)} suspects", parts)


def _short(address: str) -> str:
    return address if len(address) <= 18 else address[:17] + "…"


def phases(spans: Mapping[str, tuple[float, float]], seconds: float) -> str:
    """Where the time went: a bar for each phase, from its start to its end."""
    if not spans:
        return ""
    row, left = 24, 100
    height = _TOP + row * len(spans) + _BOTTOM
    marks = ticks(seconds, 6)
    wide = WIDTH - left - 60
    parts = []
    for mark in marks:
        x = left + mark / marks[-1] * wide
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{height - _BOTTOM}" class="grid"/>')
        parts.append(_text(x, height - 8, f"{mark} s", "tick", "middle"))
    for n, (name, (start, end)) in enumerate(sorted(spans.items(), key=lambda item: item[1])):
        y, x = _TOP + row * n, left + start / marks[-1] * wide
        width = max((end - start) / marks[-1] * wide, 1.5)
        parts.append(_text(left - 10, y + 16, name, "label", "end"))
        parts.append(_rect(x, y + 5, width, row - 10, "good", f"{name}: {end - start:.1f} s"))
        parts.append(_text(x + width + 6, y + 16, f"{end - start:.1f} s", "value"))
    return _svg(height, "Where the time went", f"{seconds:.1f} seconds in all", parts)

"""growth.png and spam.png, for those who want a picture and no page."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from workers.api_requests.report.figures import Figures, printable
from workers.api_requests.report.scale import day_marks, day_name, joined, midnight, span_name

_GOOD, _SOFT, _BAD, _QUIET = "#2f6f73", "#b9d3d0", "#c2491d", "#66625a"
_ROWS = 14
_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.edgecolor": "#e4e0d7",
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#ece8df",
    "xtick.color": _QUIET,
    "ytick.color": _QUIET,
    "ytick.left": False,
    "text.parse_math": False,  # an address may hold anything
    "figure.facecolor": "white",
}


@contextmanager
def _drawn(path: Path, rows: int, height: float) -> Iterator[Any]:
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(11, height), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.2, h_pad=0.2)  # type: ignore[union-attr, call-arg]
        yield figure.subplots(rows, 1, squeeze=False)[:, 0]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing")  # a box stands for it; the terminal is for what matters
            figure.savefig(path, dpi=150)


def growth(figures: Figures, path: Path) -> None:
    """Requests over time, and addresses by day."""
    name, step, counts = joined(figures.by_hour)
    with _drawn(path, 2, 7.5) as (above, below):
        above.set_title(", ".join(filter(None, [f"Requests by {name}", span_name(figures.by_day)])))
        above.bar([when for when, _ in counts], [count for _, count in counts], width=step, align="edge", color=_GOOD)
        _dates(above, figures)
        below.set_title("Distinct addresses by day")
        days = figures.by_day
        names = [day_name(day.start) if len(days) <= 31 else str(day.start) for day in days]
        known = [day.addresses - day.new_addresses for day in days]
        ranks = range(len(days))
        below.bar(ranks, known, color=_SOFT, label="seen before")
        bars = below.bar(ranks, [day.new_addresses for day in days], bottom=known, color=_GOOD, label="new")
        every = max(1, len(days) // 12)
        below.set_xticks(list(ranks)[::every], names[::every])
        if days:
            below.legend(frameon=False, loc="upper right")
        if 0 < len(days) <= 20:
            below.bar_label(bars, [f"{day.addresses:,}" for day in days], padding=2, color=_QUIET)


def spam(figures: Figures, path: Path) -> None:
    """When the busiest suspects came, and how much they asked for."""
    top = list(figures.suspects)[:_ROWS]
    with _drawn(path, 1, 1.6 + 0.36 * max(len(top), 3)) as (axes,):
        axes.set_title(f"When the busiest of {len(figures.suspects):,} suspects came" if top else "No suspects")
        ranks = {one.address: len(top) - n for n, one in enumerate(top)}
        mine = [(hour, ranks[address], requests) for hour, address, requests in figures.activity if address in ranks]
        sizes = [min(18 + 2.2 * requests, 1200) for _, _, requests in mine]
        axes.scatter([h for h, _, _ in mine], [p for _, p, _ in mine], s=sizes, color=_BAD, alpha=0.7, linewidths=0)
        axes.set_yticks(list(ranks.values()), [f"{printable(one.address)[:24]}  ({one.requests:,})" for one in top])
        axes.set_ylim(0.3, len(top) + 0.7)
        _dates(axes, figures)


def _dates(axes: Any, figures: Figures) -> None:
    if not figures.by_day:
        return
    start, end = midnight(figures.by_day[0].start), midnight(figures.by_day[-1].start) + timedelta(days=1)
    marks = day_marks(start, end)
    axes.set_xlim(start, end)
    axes.set_xticks(marks, [day_name(mark) for mark in marks])

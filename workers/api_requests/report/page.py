"""The report as one self-contained page: what is shown is chosen and worded here, how it looks is in ``templates``.

All that comes from the log is escaped there by itself, and nothing is loaded from anywhere.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from workers.api_requests.detect.spam.verdict import Suspect
from workers.api_requests.report import charts
from workers.api_requests.report.figures import Figures, Period, printable
from workers.api_requests.report.scale import day_name, joined, span_name

_SUSPECTS_SHOWN = 12
_DAYS_SHOWN = 31
_ENDS = ("received", "finished", "requeued", "dead", "lease_lost")
_STATUS_KINDS = {"2": "", "3": "soft", "4": "bad", "5": "bad"}


def page(figures: Figures) -> str:
    """The whole document."""
    days = figures.by_day[-_DAYS_SHOWN:]
    return (
        _templates()
        .get_template("report.html")
        .render(
            figures=figures,
            in_time=span_name(figures.by_day),
            lead=_lead(figures),
            period=joined(figures.by_hour)[0],
            growth_words=_growth_words(figures),
            days=days,
            years=bool(days) and days[0].start.year != days[-1].start.year,
            suspects=figures.suspects[:_SUSPECTS_SHOWN],
            more_suspects=figures.suspects[_SUSPECTS_SHOWN:],
            suspects_requests=sum(one.requests for one in figures.suspects),
            ends=_ENDS,
            charts={
                "requests": charts.requests(figures.by_hour, figures.activity),
                "addresses": charts.addresses(figures.by_day),
                "visits": charts.visits(figures.suspects, figures.activity, figures.by_day),
                "phases": charts.phases(figures.phases, figures.seconds),
            },
        )
    )


def _templates() -> Environment:
    found = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,  # of all: a log is hostile, and also a chart has its addresses in it
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {"number": _number, "share": _share, "change": _change, "status_kind": _status_kind}
    found.globals |= {"day_name": day_name, "moments": _moments}
    return found


def _shown(value: Any) -> Any:
    """What is put into a template: text without what nobody should be shown; what a macro has made is put in as it is."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "\n".join(map(printable, value.split("\n")))


def _number(number: int) -> str:
    return f"{number:,}"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "0 %"


def _change(share: float) -> str:
    return f"{share:+.0%}".replace("-", "−")


def _status_kind(status: str) -> str:
    return _STATUS_KINDS.get(status[0], "soft")


def _lead(figures: Figures) -> str:
    if not figures.published:
        return "Not one line could be published."
    refused = sum(figures.refused.values())
    suspects = len(figures.suspects)
    abuse = "Nobody was found abusing the site." if not suspects else (
        f"{suspects:,} {'addresses were' if suspects > 1 else 'address was'} found abusing the site "
        f"and put on the block list."
    )  # fmt: skip
    return (
        f"{figures.published:,} lines went through the queue" + (f" ({refused:,} were refused before it)" if refused else "")
        + f". {figures.archived:,} of them are requests, from {figures.addresses:,} addresses; {figures.rejected:,} are none. "
        + abuse
    )  # fmt: skip


def _growth_words(figures: Figures) -> str:
    if not figures.by_day:
        return ""
    busiest: Period = max(figures.by_day, key=lambda day: day.requests)
    new = sum(day.new_addresses for day in figures.by_day[1:])
    average = figures.archived / len(figures.by_day)
    words = f"On average {average:,.0f} requests a day; the busiest was {day_name(busiest.start)} with {busiest.requests:,}."
    return words + (f" {new:,} addresses came for the first time after the first day." if len(figures.by_day) > 1 else "")


def _moments(one: Suspect) -> list[str]:
    """When it was seen: a moment, or from when to when."""
    first, last = one.first_seen, one.last_seen
    if f"{first:%Y-%m-%d %H:%M}" == f"{last:%Y-%m-%d %H:%M}":
        return [_moment(first)]
    return [_moment(first), f"{last:%H:%M}" if last.date() == first.date() else _moment(last)]


def _moment(when: datetime) -> str:
    return f"{day_name(when)} {when:%H:%M}"

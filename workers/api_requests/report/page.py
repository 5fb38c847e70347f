"""The report as one self-contained page. Everything that came from the log is escaped; nothing is loaded from anywhere."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from html import escape
from importlib.resources import files

from workers.api_requests.job.spam.verdict import Suspect
from workers.api_requests.report import charts
from workers.api_requests.report.figures import Figures, Period, Rejected
from workers.api_requests.report.scale import day_name, joined, span_name

_SUSPECTS_SHOWN = 12
_DAYS_SHOWN = 31
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page(figures: Figures) -> str:
    """The whole document."""
    sections = (_growth(figures), _abuse(figures), _answers(figures), _rejected(figures), _ledger(figures), _time(figures))
    style = files("workers.api_requests.report").joinpath("report.css").read_text()
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>API requests{_in_time(figures)}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
{_head(figures)}
<main>
{"".join(filter(None, sections))}
</main>
<footer>{escape(_closing(figures))}</footer>
</body>
</html>
"""


def _head(figures: Figures) -> str:
    return f"""<header>
<p class="eyebrow">{escape(figures.source)}</p>
<h1>API requests{_in_time(figures)}</h1>
<p class="lead">{escape(_lead(figures))}</p>
{"".join(f'<p class="note">{escape(note)}</p>' for note in figures.notes)}
<dl class="tiles">
{_tile("Lines read", figures.input_lines)}{_tile("Requests archived", figures.archived)}
{_tile("Lines rejected", figures.rejected)}
{_tile("Addresses", figures.addresses)}{_tile("Suspects", len(figures.suspects), "alarm" if figures.suspects else "")}
</dl>
</header>"""


def _in_time(figures: Figures) -> str:
    name = span_name(figures.by_day)
    return f", {name}" if name else ""


def _tile(name: str, number: int, kind: str = "") -> str:
    return f'<div class="{kind}"><dt>{name}</dt><dd>{number:,}</dd></div>'


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


def _figure(caption: str, drawn: str) -> str:
    if not drawn:
        return ""
    return (
        f'<figure><figcaption>{caption}</figcaption><div class="scroll" tabindex="0" role="group" '
        f'aria-label="chart, scrolls sideways">{drawn}</div></figure>'
    )


def _key(*entries: tuple[str, str]) -> str:
    return "".join(f'<span class="key {kind}"></span>{words}' for kind, words in entries)


def _growth(figures: Figures) -> str:
    if not figures.by_day:
        return ""
    shown = figures.by_day[-_DAYS_SHOWN:]
    more = f" The last {len(shown)} of {len(figures.by_day)} days." if len(shown) < len(figures.by_day) else ""
    one_year = shown[0].start.year == shown[-1].start.year
    rows = "".join(_day(day, "" if one_year else f" {day.start.year}") for day in shown)
    over_time = f"Requests by {joined(figures.by_hour)[0]}: {_key(('good', 'visitors'), ('bad', 'suspects'))}"
    by_day = f"Distinct addresses by day: {_key(('good', 'new'), ('soft', 'seen before'))}"
    return f"""<section><h2>Growth</h2>
<p class="quiet">{escape(_growth_words(figures))}</p>
{_figure(over_time, charts.requests(figures.by_hour, figures.activity))}
{_figure(by_day, charts.addresses(figures.by_day))}
<h3>Day by day</h3>
<div class="scroll" tabindex="0" role="group" aria-label="table, scrolls sideways"><table><caption>Times are UTC.{more}</caption>
<thead><tr><th scope="col">Day</th><th scope="col" class="n">Requests</th><th scope="col" class="n">Change</th>
<th scope="col" class="n">Addresses</th><th scope="col" class="n">New</th></tr></thead><tbody>{rows}</tbody></table></div>
</section>"""


def _growth_words(figures: Figures) -> str:
    busiest = max(figures.by_day, key=lambda day: day.requests)
    new = sum(day.new_addresses for day in figures.by_day[1:])
    average = figures.archived / len(figures.by_day)
    words = f"On average {average:,.0f} requests a day; the busiest was {day_name(busiest.start)} with {busiest.requests:,}."
    return words + (f" {new:,} addresses came for the first time after the first day." if len(figures.by_day) > 1 else "")


def _day(day: Period, year: str) -> str:
    change = '<span class="quiet">–</span>'
    if day.change is not None:
        kind = "up" if day.change >= 0 else "down"
        change = f'<span class="{kind}">{day.change:+.0%}</span>'.replace("-", "−")
    return (
        f'<tr><th scope="row">{day.start:%a} {day_name(day.start)}{year}</th>'
        f'<td class="n">{day.requests:,}</td><td class="n">{change}</td>'
        f'<td class="n">{day.addresses:,}</td><td class="n">{day.new_addresses:,}</td></tr>'
    )


def _abuse(figures: Figures) -> str:
    found = figures.suspects
    if not found:
        return '<section><h2>Abuse</h2><p class="quiet">No address did what only those do who look for a way in.</p></section>'
    first, rest = found[:_SUSPECTS_SHOWN], found[_SUSPECTS_SHOWN:]
    more = f"<details><summary>{len(rest):,} more</summary>{_suspects(rest)}</details>" if rest else ""
    requests = sum(one.requests for one in found)
    drawn = charts.visits(found, figures.activity, figures.by_day)
    return f"""<section><h2>Abuse</h2>
<p class="quiet">{len(found):,} suspects sent {requests:,} requests, {_share(requests, figures.archived)} of all.
They are judged by what they asked for and what came of it, never by their user agent, and never by volume alone.</p>
{_figure("When the busiest came: a dot for each hour, its area the requests; their number on the right", drawn)}
<h3>Who, and why</h3>
{_suspects(first)}{more}
</section>"""


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "0 %"


def _suspects(found: Iterable[Suspect]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(one.address)}</th><td class="n">{one.requests:,}</td><td>{_span(one)}</td>'
        f'<td class="why"><ul>{"".join(f"<li>{escape(reason)}</li>" for reason in one.reasons)}</ul></td></tr>'
        for one in found
    )
    return f"""<div class="scroll" tabindex="0" role="group" aria-label="table, scrolls sideways"><table class="long">
<thead><tr><th scope="col">Address</th><th scope="col" class="n">Requests</th><th scope="col">Seen (UTC)</th>
<th scope="col">Why</th></tr></thead>
<tbody>{rows}</tbody></table></div>"""


def _span(one: Suspect) -> str:
    if one.first_seen == one.last_seen:
        return _moment(one.first_seen)
    last = f"{one.last_seen:%H:%M}" if one.last_seen.date() == one.first_seen.date() else _moment(one.last_seen)
    return f"{_moment(one.first_seen)} to {last}" if last != f"{one.first_seen:%H:%M}" else _moment(one.first_seen)


def _moment(when: datetime) -> str:
    return f'<span style="white-space:nowrap">{day_name(when)} {when:%H:%M}</span>'


def _answers(figures: Figures) -> str:
    if not figures.by_status:
        return ""
    kinds = {"2": "", "3": "soft", "4": "bad", "5": "bad"}
    ordered = sorted(figures.by_status.items())
    bar = "".join(
        f'<span class="{kinds.get(status[0], "soft")}" style="flex:{count}" title="{status}: {count:,}"></span>'
        for status, count in ordered
    )
    rows = "".join(
        f'<tr><th scope="row">{status}</th><td class="n">{count:,}</td><td class="n">{_share(count, figures.archived)}</td></tr>'
        for status, count in sorted(figures.by_status.items(), key=lambda item: -item[1])
    )
    return f"""<section><h2>Answers</h2>
<p class="quiet">What the server answered: {_key(("good", "served"), ("soft", "redirected"), ("bad", "failed"))}</p>
<div class="bar" role="img" aria-label="shares of the statuses in the table below">{bar}</div>
<table><thead><tr><th scope="col">Status</th><th scope="col" class="n">Requests</th><th scope="col" class="n">Share</th></tr>
</thead>
<tbody>{rows}</tbody></table></section>"""


def _rejected(figures: Figures) -> str:
    if not figures.rejects:
        return '<section><h2>Rejected lines</h2><p class="quiet">None: every line is a request.</p></section>'
    return f"""<section><h2>Rejected lines</h2>
<p class="quiet">{figures.rejected:,} lines ({_share(figures.rejected, figures.published)}) are not whole log lines.
They are kept with their bytes and the reason; these are how some of them begin.</p>
{"".join(map(_reject, figures.rejects))}
</section>"""


def _reject(one: Rejected) -> str:
    examples = escape("\n".join(one.examples))
    return f'<p class="reason"><span>{escape(one.reason)}</span><span>{one.lines:,}</span></p><pre>{examples}</pre>'


def _ledger(figures: Figures) -> str:
    columns = ("received", "finished", "requeued", "dead", "lease_lost")
    heads = "".join(f'<th scope="col" class="n">{name.replace("_", " ").capitalize()}</th>' for name in columns)
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th>{"".join(f"""<td class="n">{ends.get(c, 0):,}</td>""" for c in columns)}</tr>'
        for name, ends in sorted(figures.ledger.items())
    )
    return f"""<section><h2>The ledger</h2>
<p class="quiet">How every message ended, by topic and channel. Each was received, and is in one of the columns after that.</p>
<div class="scroll" tabindex="0" role="group" aria-label="table, scrolls sideways"><table>
<thead><tr><th scope="col">Handler</th>{heads}</tr></thead><tbody>{rows}</tbody></table></div></section>"""


def _time(figures: Figures) -> str:
    drawn = charts.phases(figures.phases, figures.seconds)
    return f"""<section><h2>Where the time went</h2>
<p class="quiet">{figures.seconds:.1f} seconds from the command to this page. Spark starts while the lines are published.</p>
{_figure("Phases, in seconds from the start", drawn)}</section>"""


def _closing(figures: Figures) -> str:
    return f"{figures.archived:,} archived + {figures.rejected:,} rejected = {figures.published:,} published."

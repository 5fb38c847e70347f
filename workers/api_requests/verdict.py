"""Is this address a suspect? Evidence is scored, and every point comes with a sentence. No Spark here, and no I/O.

Precision first: one sign alone convicts nobody, except a certain probe by an address that did nothing else. Neither the
user agent nor the volume of requests is looked at.

The points; SUSPECT_AT of them make a suspect:
    certain probes, not served         1: 2 points, 2 to 4: 3, 5 or more: 4 (served ones count too from 5 on)
    possible probes, not there         5, or 3 of two kinds: 2 points; 10, guessed folders included: 3
    three kinds of probes or more      1 point
    probes, and no ordinary page read  1 point
    a burst of errors                  1 point: 20 in ten minutes, 80 % of all requests, in 15 places
    breadth                            3 points: 60 missing places in ten minutes (150 if it reads robots.txt), no page read
    a hammered form                    3 points: 20 posts in ten minutes to a login or comment form, never let in
    another suspect's list             3 points: asks only for what suspects alone ask for, to the letter, two or more
    an ordinary visitor too            -1 point: three ordinary pages or more
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

SUSPECT_AT = 3
BURST_ERRORS, BURST_SHARE, BURST_PLACES = 20, 0.8, 15
BREADTH_PLACES, BREADTH_PLACES_OF_CRAWLERS, BREADTH_SHARE = 60, 150, 0.95
_SENTENCES = 4  # about probes; the rest would only repeat them


@dataclass(frozen=True, slots=True)
class Probes:
    """What one address asked for of one family."""

    label: str
    requests: int
    targets: int
    """Different ones."""
    examples: Sequence[str]
    served: int
    """Requests that got an answer with content."""
    seconds: int
    """From the first to the last."""


@dataclass(frozen=True, slots=True)
class Burst:
    """The ten minutes in which one address missed most."""

    requests: int
    errors: int
    paths: int
    places: int
    """Different folders and pages, without those that ordinary visitors miss too, and without parts of pages."""
    start: datetime
    seconds: int


@dataclass(frozen=True, slots=True)
class Hammering:
    """The ten minutes in which one address posted most often to one form without being let in."""

    requests: int
    path: str
    seconds: int


@dataclass(frozen=True, slots=True)
class Visit:
    """Everything that one address did, in figures."""

    address: str
    first_seen: datetime
    last_seen: datetime
    requests: int
    ordinary: int
    """Different pages that it was served, probes and what browsers fetch by themselves not counted."""
    certain: int
    """Different certain probes that were not served."""
    hostile: int
    """Different certain probes, whatever the answer."""
    possible: int
    """Different possible probes for what does not exist here, guessed folders not among them."""
    guesses: int
    """Different folders that people and dictionaries guess, and that do not exist here."""
    kinds: int
    """Of probes, without the guesses."""
    reads_robots: bool
    probes: Sequence[Probes] = ()
    burst: Burst | None = None
    hammering: Hammering | None = None
    listed: Sequence[str] = ()
    """What it asked for, where all of that is on another suspect's list and nobody else asks for it."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """An address that abuses the site, and why."""

    address: str
    first_seen: datetime
    last_seen: datetime
    requests: int
    score: int
    reasons: list[str] = field(default_factory=list)


def judge(visit: Visit) -> Suspect | None:
    """The verdict: a suspect with reasons, or None."""
    evidence = [*_probes(visit), *_errors(visit), *_hammering(visit), *_listed(visit)]
    score = sum(points for points, _ in evidence) - (1 if visit.ordinary >= 3 else 0)
    if score < SUSPECT_AT:
        return None
    reasons = [sentence for _, sentence in evidence if sentence]
    return Suspect(visit.address, visit.first_seen, visit.last_seen, visit.requests, score, reasons)


Evidence = tuple[int, str]


def _probes(visit: Visit) -> list[Evidence]:
    points = _certain_points(visit) + _possible_points(visit)
    if not points:
        return []
    found: list[Evidence] = [(points, "")]
    found += [(0, _probe_sentence(one)) for one in sorted(visit.probes, key=lambda one: -one.requests)[:_SENTENCES]]
    if visit.kinds >= 3:
        found.append((1, ""))
    if visit.ordinary == 0:
        found.append((1, _no_page(visit)))
    return found


def _certain_points(visit: Visit) -> int:
    count = visit.hostile if visit.hostile >= 5 else visit.certain
    return 4 if count >= 5 else 3 if count >= 2 else 2 if count == 1 else 0


def _possible_points(visit: Visit) -> int:
    if visit.possible + visit.guesses >= 10:
        return 3
    return 2 if visit.possible >= 5 or (visit.possible >= 3 and visit.kinds >= 2) else 0


def _probe_sentence(one: Probes) -> str:
    answer = "none was served" if one.served == 0 else f"{one.served:,} got an answer"
    if one.targets == 1:
        times = "once" if one.requests == 1 else f"{one.requests:,} times{_within(one.seconds)}"
        return f"Probed for {one.label}: {one.examples[0]}, {times}; {answer}."
    times = "" if one.requests == one.targets else f" in {_count(one.requests, 'request')}"
    return (
        f"Probed for {one.label}: {one.targets:,} targets{times}{_within(one.seconds)}, such as {_and(one.examples)}; {answer}."
    )


def _no_page(visit: Visit) -> str:
    if visit.requests == 1:
        return "That was its only request."
    return f"Not one of its {visit.requests:,} requests read an ordinary page."


def _errors(visit: Visit) -> list[Evidence]:
    burst = visit.burst
    if burst is None:
        return []
    enough = BREADTH_PLACES_OF_CRAWLERS if visit.reads_robots else BREADTH_PLACES
    when = f"{_within(burst.seconds)} from {burst.start:%Y-%m-%d %H:%M} UTC"
    failed = f"{burst.errors:,} of {burst.requests:,} requests failed{when}"
    if burst.places >= enough and burst.errors >= BREADTH_SHARE * burst.requests and visit.ordinary == 0:
        return [(3, f"{failed}, in {burst.places:,} different places that do not exist.")]
    if burst.errors >= max(BURST_ERRORS, BURST_SHARE * burst.requests) and burst.places >= BURST_PLACES:
        return [(1, f"{failed}, for {burst.paths:,} different paths.")]
    return []


def _hammering(visit: Visit) -> list[Evidence]:
    one = visit.hammering
    if one is None:
        return []
    return [(3, f"Posted {one.requests:,} times to {one.path}{_within(one.seconds)} and was never let in.")]


def _listed(visit: Visit) -> list[Evidence]:
    if len(visit.listed) < 2:
        return []
    what = f"{len(visit.listed)} missing pages, {_and(sorted(visit.listed)[:2])}"
    return [(3, f"Asked only for {what}: other suspects work through them, and nobody else asks for them.")]


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _and(words: Sequence[str]) -> str:
    return " and ".join(words)


def _within(seconds: int) -> str:
    for unit, size, until in (("seconds", 1, 120), ("minutes", 60, 7200), ("hours", 3600, 172800)):
        if seconds < until:
            amount = -(-seconds // size)
            return "" if amount == 0 else f" within {amount} {unit if amount > 1 else unit[:-1]}"
    return f" within {-(-seconds // 86400)} days"

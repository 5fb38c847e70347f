"""Is this address a suspect? Evidence is scored, and every point comes with a sentence. No Spark here, and no I/O.

Precision first: one sign alone convicts nobody, except a certain probe by an address that did nothing else. Neither the
user agent nor the volume of requests is looked at.

The points; SUSPECT_AT of them make a suspect:
    certain probes, not served         1: 2 points, 2 to 4: 3, 5 or more: 4 (served ones count too from 5 on)
    possible probes, not there         5, or 3 of two kinds: 2 points; 10, guessed folders included: 3
    three kinds of probes or more      1 point
    probes, and no ordinary page read  1 point
    a burst of errors                  1 point: 20 in ten minutes, 80 % of all requests, in 15 places
    breadth                            3 points, 4 where it hit something: 90 missing places in a minute, hardly a page read
    a hammered form                    3 points, 4 where it does little else: see `forms`
    another suspect's list             3 points: asks only for what suspects alone ask for, to the letter, two or more
    one of many in passing             3 points: came for one missing page alone, like others, none of whom did more
    one of many in step                3 points: came for the same missing pages of several products as others, and no more
    an ordinary visitor too            -1 point: three ordinary pages or more; -2 where possible probes are few among much
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

SUSPECT_AT = 3
BURST_ERRORS, BURST_SHARE, BURST_PLACES = 20, 0.8, 15
BREADTH_PLACES, BREADTH_SHARE = 90, 0.95
"""In a minute: crawlers that know only dead links are slower, and dictionaries faster."""
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
    """The ten minutes, or the minute, in which one address missed most."""

    requests: int
    errors: int
    paths: int
    places: int
    """Different folders and pages at the top, without those that others miss too, and without parts of pages."""
    start: datetime
    seconds: int


@dataclass(frozen=True, slots=True)
class Hammering:
    """When one address posted most often to one form without being let in."""

    requests: int
    path: str
    seconds: int
    comments: bool = False
    """A comment form: whether it took them does not matter."""


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
    """Before it missed anything, as crawlers do."""
    only_probes: bool = False
    """Nothing else at all, not even an icon."""
    probes: Sequence[Probes] = ()
    burst: Burst | None = None
    rush: Burst | None = None
    hammering: Hammering | None = None
    listed: Sequence[str] = ()
    """What it asked for, where all of that is on another suspect's list and nobody else asks for it."""
    passing: tuple[str, int] | None = None
    """The page that it came for and nothing else, and how many addresses did the same."""
    in_step: tuple[Sequence[str], int] | None = None
    """The missing pages that it came for and nothing else, and how many addresses did the same."""


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
    evidence = [*_probes(visit), *_errors(visit), *_hammering(visit), *_listed(visit), *_passing(visit), *_in_step(visit)]
    score = sum(points for points, _ in evidence) - _credit(visit)
    if score < SUSPECT_AT:
        return None
    reasons = [sentence for _, sentence in evidence if sentence]
    return Suspect(visit.address, visit.first_seen, visit.last_seen, visit.requests, score, reasons)


Evidence = tuple[int, str]


def _credit(visit: Visit) -> int:
    """What speaks for an address: it may stand for many people, one of whom is curious."""
    doubtful = visit.possible + visit.guesses
    is_crowd = not (visit.certain or visit.hammering) and visit.ordinary >= 20 and visit.requests >= 20 * doubtful
    return 2 if is_crowd else 1 if visit.ordinary >= 3 else 0


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
    count = visit.hostile if visit.hostile >= 5 and 2 * visit.hostile >= visit.ordinary else visit.certain
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
    rush, burst = visit.rush, visit.burst
    if rush is not None and _is_breadth(visit, rush):
        # Its hits look like ordinary pages, and must not count twice.
        return [(4 if visit.ordinary else 3, f"{_failed(rush)}, in {rush.places:,} different places that nobody else asks for.")]
    if burst is not None and burst.errors >= max(BURST_ERRORS, BURST_SHARE * burst.requests) and burst.places >= BURST_PLACES:
        return [(1, f"{_failed(burst)}, for {burst.paths:,} different paths.")]
    return []


def _is_breadth(visit: Visit, rush: Burst) -> bool:
    """Whether this is a search by dictionary. A few words of it may hit; most of a crawler's links, others know too."""
    searches = rush.places >= BREADTH_PLACES and 2 * rush.places >= rush.paths and rush.errors >= BREADTH_SHARE * rush.requests
    return searches and not visit.reads_robots and 20 * visit.ordinary <= rush.places


def _failed(burst: Burst) -> str:
    when = f"{_within(burst.seconds)} from {burst.start:%Y-%m-%d %H:%M} UTC"
    return f"{burst.errors:,} of {burst.requests:,} requests failed{when}"


def _hammering(visit: Visit) -> list[Evidence]:
    one = visit.hammering
    if one is None:
        return []
    points = 4 if 5 * one.requests >= 2 * visit.requests else 3
    what = f"Posted {one.requests:,} times to {one.path}{_within(one.seconds)}"
    return [(points, f"{what}, a form for comments." if one.comments else f"{what} and was never let in.")]


def _listed(visit: Visit) -> list[Evidence]:
    if len(visit.listed) < 2:
        return []
    what = f"{len(visit.listed)} missing pages, {_and(sorted(visit.listed)[:2])}"
    return [(3, f"Asked only for {what}: other suspects work through them, and nobody else asks for them.")]


def _passing(visit: Visit) -> list[Evidence]:
    if visit.passing is None:
        return []
    page, addresses = visit.passing
    return [(3, f"Came for {page} alone, which does not exist here; {addresses:,} addresses did the same, and nothing else.")]


def _in_step(visit: Visit) -> list[Evidence]:
    if visit.in_step is None:
        return []
    pages, addresses = visit.in_step
    what = f"{len(pages)} pages that do not exist here, such as {_and(pages[:2])}"
    return [(3, f"Came for {what}; {addresses:,} addresses asked for the same, and for nothing else.")]


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

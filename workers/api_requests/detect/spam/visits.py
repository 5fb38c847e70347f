"""What every address did, in figures that `verdict` can judge, made of the state. Nothing is decided here.

What exists on this site is learnt from its own answers: a page that anybody was served, redirected by, or asked to log
in to, is no probe here.
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from workers.api_requests.detect.spam import bursts, forms
from workers.api_requests.detect.spam.probes import CERTAIN, FAMILIES, GUESSES
from workers.api_requests.detect.spam.verdict import Probes, Visit, judge

_MANY = 20  # errors or posts before an address's windows are looked at
_BRAZEN = ("secret files", "known exploits", "web shells", "debug consoles")  # nobody meets these in a search field
BRAZEN = frozenset(index for index, one in enumerate(FAMILIES) if one.label in _BRAZEN)
READS = 3
"""Ordinary pages from which on somebody is a reader of the site."""

_TOTALS = """
select address, min(first), max(last), sum(requests), sum(harmless), sum(missing), sum(posts), min(robots), min(lost)
from changed cross join slots using (address) group by address
having sum(missing) >= ? or sum(posts) >= ? or exists (select 1 from probes where probes.address = slots.address)
"""
_PROBES = """
select target, path, shown, served, missing, harmless, family, telling, item, requests, first, last,
    exists (select 1 from there where there.path = probes.path)
from probes where address = ?
"""
_POSTS = "select path, slot, in_window, in_all, comments, let_in, shown, requests, first, last from posts where address = ?"


def renew(database: sqlite3.Connection) -> None:
    """Make the visits of all addresses in ``changed`` anew, and judge each by itself."""
    for table in ("visits", "readers", "listers", "askers", "strides"):
        database.execute(f"delete from {table} where address in (select address from changed)")
    for totals in database.execute(_TOTALS, (_MANY, _MANY)).fetchall():
        _renew(database, totals)


def _renew(database: sqlite3.Connection, totals: tuple[Any, ...]) -> None:
    address, first, last, requests, harmless, missing, posts, robots, lost = totals
    did = _Did()
    for row in database.execute(_PROBES, (address,)):
        did.add(_Probe(*row))
    if not (did.targets["hostile"] or did.items or did.guesses or missing >= _MANY or posts >= _MANY):
        return
    ordinary = database.execute("select count(*) from pages where address = ?", (address,)).fetchone()[0]
    burst, rush = bursts.worst(database, address) if missing >= _MANY else (None, None)
    visit = Visit(
        address, utc(first), utc(last), requests, ordinary,
        certain=len(did.targets["certain"]), hostile=len(did.targets["hostile"]), possible=len(did.items),
        guesses=len(did.guesses), kinds=len(did.kinds),
        reads_robots=robots is not None and lost is not None and robots <= lost,  # a dictionary has the word, too: later
        only_probes=did.count["telling"] + did.count["hostile"] == requests, probes=list(did.families()),
        burst=burst, rush=rush, hammering=forms.hammering(database.execute(_POSTS, (address,))) if posts >= _MANY else None,
    )  # fmt: skip
    suspect = judge(visit)
    asked_only_lists = did.count["asked"] == requests - harmless and len(did.asked) > 1
    in_step = did.count["possible"] == requests and did.tells and did.items and did.guesses
    alone = bool(visit.only_probes and visit.possible)
    row = (
        address,
        msgspec.json.encode(visit),
        msgspec.json.encode(suspect) if suspect else None,
        bool(visit.hostile and not visit.certain and not visit.ordinary),
        alone,
        json.dumps(sorted(did.asked)) if asked_only_lists else None,
        json.dumps(sorted(did.all)) if in_step and visit.possible + visit.guesses >= 3 else None,
    )
    database.execute("insert into visits values (?, ?, ?, ?, ?, ?, ?)", row)
    if ordinary >= READS:
        database.executemany("insert into readers values (?, ?)", [(path, address) for path in did.brazen])
    if asked_only_lists:
        database.executemany("insert into listers values (?, ?)", [(target, address) for target in did.asked])
    kind = 1 if alone else 2
    database.executemany("insert into askers values (?, ?, ?)", [(target, address, kind) for target in did.tells])


@dataclass(slots=True)
class _Probe:
    """What one address asked for of one kind on a day, as `state` keeps it."""

    target: str
    path: str
    shown: str
    served: int
    missing: int
    harmless: int
    family: int
    telling: int
    item: str
    requests: int
    first: int
    last: int
    exists: int

    @property
    def hostile(self) -> bool:
        return self.family in CERTAIN

    @property
    def certain(self) -> bool:
        # Injected code goes to pages that exist: their being there says nothing about whether it was welcome.
        return self.hostile and not self.served and not (self.exists and "?" not in self.target)

    @property
    def possible(self) -> bool:
        return not self.hostile and bool(self.missing) and not self.exists


@dataclass(slots=True)
class _Did:
    """What the probes of one address come to."""

    targets: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    count: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    items: set[str] = field(default_factory=set)
    guesses: set[str] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)
    tells: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)
    """With a query, and not harmless."""
    all: set[str] = field(default_factory=set)
    brazen: set[str] = field(default_factory=set)
    by_label: dict[str, list[_Probe]] = field(default_factory=lambda: defaultdict(list))

    def add(self, one: _Probe) -> None:
        label = FAMILIES[one.family].label
        self.all.add(one.target)
        if one.hostile:
            self._count("hostile", one)
        if one.certain:
            self._count("certain", one)
        if one.possible:
            self._count("possible", one)
            self.guesses.add(one.path) if label == GUESSES else self.items.add(one.item)
        if one.possible and one.telling:
            self._count("telling", one)
            self.tells.add(one.target)
        if (one.certain or one.possible) and label != GUESSES:
            self.kinds.add(label)
        if "?" in one.target and not one.harmless:
            self.count["asked"] += one.requests
            self.asked.add(one.target)
        if one.hostile or one.possible:
            self.by_label[label].append(one)
        if one.family in BRAZEN:
            self.brazen.add(one.path)

    def _count(self, kind: str, one: _Probe) -> None:
        self.count[kind] += one.requests
        self.targets[kind].add(one.target)

    def families(self) -> Iterator[Probes]:
        for label, found in sorted(self.by_label.items()):
            yield Probes(
                label,
                sum(one.requests for one in found),
                len({one.target for one in found}),
                sorted({min(one.shown for one in found), max(one.shown for one in found)}),
                sum(one.requests for one in found if one.served),
                max(one.last for one in found) // 10**6 - min(one.first for one in found) // 10**6,
            )


def utc(micros: int) -> datetime:
    return datetime.fromtimestamp(micros / 1e6, UTC)

"""Who is a suspect: the visits that convict by themselves, then second looks at the others beside what the crowd did.

The looks go through the few visits that each is for, every time: what they find of one address may change with what another did.
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace

import msgspec

from workers.api_requests.job.spam.probes import CERTAIN
from workers.api_requests.job.spam.verdict import Suspect, Visit, judge
from workers.api_requests.job.spam.visits import BRAZEN, READS

_suspect = msgspec.json.Decoder(Suspect)
_visit = msgspec.json.Decoder(Visit)
_BRAZEN = ", ".join(map(str, sorted(BRAZEN)))
_CERTAIN = ", ".join(map(str, sorted(CERTAIN)))

_ANSWERED = f"""
select visit, (select count(distinct target) from probes where probes.address = visits.address and family in ({_BRAZEN})
    and path not in (select path from readers group by path having count(*) >= {READS}))
from visits where answered and suspect is null
"""
_SWEEPERS = f"""
select distinct address from probes where target = ? and missing and family not in ({_CERTAIN})
    and not exists (select 1 from there where there.path = probes.path)
"""
Found = Mapping[str, Suspect]


def suspects(database: sqlite3.Connection) -> list[Suspect]:
    """All suspects of the state, the busiest first."""
    rows = database.execute("select address, suspect from visits where suspect is not null")
    found = {address: _suspect.decode(suspect) for address, suspect in rows}
    for second_look in (_served, _on_a_list, _in_passing, _in_step):
        visits = [visit for visit in second_look(database, found) if visit.address not in found]
        found |= {visit.address: suspect for visit in visits if (suspect := judge(visit))}
    return sorted(found.values(), key=lambda one: (-one.requests, one.address))


def _served(database: sqlite3.Connection, found: Found) -> Iterator[Visit]:
    """Who read no ordinary page, and was answered what nobody happens upon.

    A site that answers everything hides no probe by that. Where readers of the site fetch the same file, it is a part of it.
    """
    for visit, targets in database.execute(_ANSWERED):
        if targets:
            yield replace(_visit.decode(visit), certain=targets)


def _on_a_list(database: sqlite3.Connection, found: Found) -> Iterator[Visit]:
    """Who asked only for missing pages which suspects work through and nobody else asks for.

    Only pages with a query: people guess ``/pma/`` by themselves, and ``/pma/index.php?lang=en`` nobody.
    """
    swept: dict[str, bool] = {}
    for address, visit, listed in database.execute(
        "select address, visit, listed from visits where listed is not null and suspect is null"
    ).fetchall():
        targets = [] if address in found else json.loads(listed)
        for target in targets:
            if target not in swept:
                swept[target] = any(sweeper in found for (sweeper,) in database.execute(_SWEEPERS, (target,)))
            if not swept[target]:
                break
        else:
            if targets:
                yield replace(_visit.decode(visit), listed=targets)


def _in_passing(database: sqlite3.Connection, found: Found) -> Iterator[Visit]:
    """Who came for one missing page of a well-known product alone, as others did, and for nothing else.

    A browser also fetches the page's icon, and somebody who follows a dead link also reads: one such visitor at the same
    page, and all of them are left in peace. Of several pages the one counts that most came for.
    """
    rows = database.execute("select address from visits where alone and suspect is null").fetchall()
    alone = {address for (address,) in rows if address not in found}
    targets = {row[0] for address in alone for row in database.execute("select target from tells where address = ?", (address,))}
    passing: dict[str, tuple[int, str]] = {}
    for target in sorted(targets):
        rows = database.execute("select address from tells where target = ?", (target,)).fetchall()
        askers = {address for (address,) in rows if address not in found}
        if len(askers) >= 2 and askers <= alone:
            for address in askers:
                passing[address] = max(passing.get(address, (0, "")), (len(askers), target), key=lambda one: one[0])
    for address, (count, target) in sorted(passing.items()):
        yield replace(_visit_of(database, address), passing=(target, count))


def _in_step(database: sqlite3.Connection, found: Found) -> Iterator[Visit]:
    """Who asked for the same missing pages as others, to the letter, and for nothing else at all.

    Pages of a well-known product and guesses both: who lost a site of theirs asks for the one, and who forgot where to log in
    for the other.
    """
    marches: dict[str, list[str]] = defaultdict(list)
    for address, step in database.execute("select address, step from visits where step is not null and suspect is null"):
        if address not in found:
            marches[step].append(address)
    for step, addresses in marches.items():
        if len(addresses) >= 2:
            for address in addresses:
                yield replace(_visit_of(database, address), in_step=(tuple(json.loads(step)), len(addresses)))


def _visit_of(database: sqlite3.Connection, address: str) -> Visit:
    return _visit.decode(database.execute("select visit from visits where address = ?", (address,)).fetchone()[0])

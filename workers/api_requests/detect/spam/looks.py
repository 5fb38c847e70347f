"""Who is a suspect: the visits that convict by themselves, then second looks at the others beside what the crowd did.

What is found of one address may change with what another did. So each look is at those who changed and at those whom that
concerns, and at nobody else: what a batch costs does not grow with the history. The order of the looks is fixed, and each knows
who is a suspect by those before it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace

import msgspec

from workers.api_requests.detect.spam.probes import CERTAIN
from workers.api_requests.detect.spam.verdict import Suspect, Visit, judge
from workers.api_requests.detect.spam.visits import BRAZEN, READS

_suspect = msgspec.json.Decoder(Suspect)
_visit = msgspec.json.Decoder(Visit)
_BRAZEN = ", ".join(map(str, sorted(BRAZEN)))
_CERTAIN = ", ".join(map(str, sorted(CERTAIN)))
_BY_ITSELF, _SERVED, _ON_A_LIST, _IN_PASSING, _IN_STEP = range(5)
OF_CROWDS = (_IN_PASSING, _IN_STEP)
"""The looks whose reasons say how many others did the same."""

_BRAZENLY = f"""
select count(distinct target) from probes where address = ? and family in ({_BRAZEN})
    and (select count(*) from readers where readers.path = probes.path) < {READS}
"""
_CONCERNED = """
select address from changed where exists (select 1 from visits where visits.address = changed.address)
    or exists (select 1 from found where found.address = changed.address)
    or exists (select 1 from listed where listed.address = changed.address)
"""
_ANSWERED = """
select distinct address from read_paths cross join probes using (path) cross join visits using (address)
where answered and suspect is null
"""
_LISTERS = f"""
select distinct listers.address from looked cross join probes on probes.address = looked.address
    cross join listers on listers.target = probes.target
where probes.missing and probes.family not in ({_CERTAIN}) and (looked.before <= {_SERVED}
    or exists (select 1 from found where found.address = looked.address and look <= {_SERVED}))
"""
_UNSWEPT = f"""
select 1 from listers where address = ? and not exists (
    select 1 from probes cross join found using (address) where probes.target = listers.target and look <= {_SERVED} and missing
    and family not in ({_CERTAIN}) and not exists (select 1 from there where there.path = probes.path)) limit 1
"""
_TURNED_CROWDS = """
select distinct address from stirred cross join crowds using (target) cross join askers using (target)
where kind = 1 and passes <> (alone >= 2 and others = 0)
"""
_NO_CROWDS = "delete from crowds where target in (select target from stirred) and alone + others = 0"
_TURN_CROWDS = "update crowds set passes = (alone >= 2 and others = 0) where target in (select target from stirred)"
_PASSED = """
select target, alone from askers cross join crowds using (target) where address = ? and passes order by alone desc, target limit 1
"""
_TURNED_MARCHES = """
select distinct address from marched cross join marches using (step) cross join strides using (step)
where passes <> (members >= 2)
"""
_NO_MARCHES = "delete from marches where step in (select step from marched) and members = 0"
_TURN_MARCHES = "update marches set passes = (members >= 2) where step in (select step from marched)"
_MARCHED = "select step, members from strides cross join marches using (step) where address = ? and passes"


def renew(database: sqlite3.Connection, *, everybody: bool = False) -> None:
    """Look at those in ``changed``, whose visits were made anew, and at whom they concern: ``looked`` has them all then.

    ``everybody``: at all there are, as when evidence has gone.
    """
    database.execute("delete from looked")
    _look_at(database, "select address from visits union select address from found" if everybody else _CONCERNED)
    _look_at(database, _ANSWERED)
    _each(database, _by_itself)
    _look_at(database, _LISTERS, _ON_A_LIST)
    _each(database, _on_a_list)
    _count_askers(database)
    _look_at(database, _TURNED_CROWDS, _IN_PASSING)
    database.execute(_TURN_CROWDS)
    _each(database, _in_passing)
    _count_marchers(database)
    _look_at(database, _TURNED_MARCHES, _IN_STEP)
    database.execute(_TURN_MARCHES)
    _each(database, _in_step)
    for statement in (_NO_CROWDS, _NO_MARCHES):
        database.execute(statement)
    for table in ("changed", "read_paths", "stirred", "marched"):
        database.execute(f"delete from {table}")


def suspects(database: sqlite3.Connection) -> list[Suspect]:
    """All that were found, the busiest first."""
    rows = database.execute("select address, suspect, look from found").fetchall()
    return sorted((now(database, *row) for row in rows), key=lambda one: (-one.requests, one.address))


def found(database: sqlite3.Connection, address: str) -> tuple[int, Suspect | None]:
    """What was found of ``address``, and by which look."""
    row = database.execute("select look, suspect from found where address = ?", (address,)).fetchone()
    return (-1, None) if row is None else (row[0], _suspect.decode(row[1]))


def now(database: sqlite3.Connection, address: str, suspect: bytes, look: int) -> Suspect:
    """Who was found by ``look``, with as many others in the reasons as there are by now: they change its words alone."""
    if look not in OF_CROWDS:
        return _suspect.decode(suspect)
    again = (_in_passing if look == _IN_PASSING else _in_step)(database, *_visit_of(database, address))
    return _suspect.decode(suspect) if again is None else again[1]


def _look_at(database: sqlite3.Connection, query: str, look: int = _BY_ITSELF) -> None:
    """Have the addresses that ``query`` gives looked at from ``look`` on: what an earlier look has found stands."""
    for address in database.execute(query).fetchall():
        known = database.execute("select look from found where address = ?", address).fetchone()
        before = None if known is None else known[0]
        if database.execute("insert or ignore into looked values (?, ?)", (*address, before)).rowcount:
            database.execute("delete from found where address = ? and look >= ?", (*address, look))


_Row = tuple[str, bytes, bytes | None, int]
"""address, visit, suspect and answered of a visit."""
_Look = Callable[[sqlite3.Connection, str, bytes, bytes | None, int], "tuple[int, Suspect] | None"]


def _each(database: sqlite3.Connection, look: _Look) -> None:
    """``look`` at all who are to be looked at and of whom nothing is found yet."""
    rows = database.execute(
        "select address, visit, suspect, answered from looked cross join visits using (address)"
        " where not exists (select 1 from found where found.address = looked.address)"
    ).fetchall()
    for row in rows:
        if (verdict := look(database, *row)) is not None:
            database.execute("insert into found values (?, ?, ?)", (row[0], verdict[0], msgspec.json.encode(verdict[1])))


def _found(look: int, visit: Visit) -> tuple[int, Suspect] | None:
    suspect = judge(visit)
    return None if suspect is None else (look, suspect)


def _by_itself(
    database: sqlite3.Connection, address: str, visit: bytes, suspect: bytes | None, answered: int
) -> tuple[int, Suspect] | None:
    """Who convicts itself; and who read no ordinary page, and was answered what nobody happens upon.

    A site that answers everything hides no probe by that. Where readers of the site fetch the same file, it is a part of it.
    """
    if suspect is not None:
        return _BY_ITSELF, _suspect.decode(suspect)
    targets = database.execute(_BRAZENLY, (address,)).fetchone()[0] if answered else 0
    return _found(_SERVED, replace(_visit.decode(visit), certain=targets)) if targets else None


def _on_a_list(database: sqlite3.Connection, address: str, visit: bytes, *_: object) -> tuple[int, Suspect] | None:
    """Who asked only for missing pages which suspects work through and nobody else asks for.

    Only pages with a query: people guess ``/pma/`` by themselves, and ``/pma/index.php?lang=en`` nobody.
    """
    listed = [target for (target,) in database.execute("select target from listers where address = ?", (address,))]
    if not listed or database.execute(_UNSWEPT, (address,)).fetchone():
        return None
    return _found(_ON_A_LIST, replace(_visit.decode(visit), listed=sorted(listed)))


def _count_askers(database: sqlite3.Connection) -> None:
    """Whoever is a suspect by now is none of a crowd."""
    for address, suspect, alone in database.execute(
        f"select address, exists (select 1 from found where found.address = looked.address and look <= {_ON_A_LIST}), alone"
        " from looked cross join visits using (address)"
    ).fetchall():
        kind = 0 if suspect else 1 if alone else 2
        database.execute("update askers set kind = ? where address = ? and kind <> ?", (kind, address, kind))


def _in_passing(database: sqlite3.Connection, address: str, visit: bytes, *_: object) -> tuple[int, Suspect] | None:
    """Who came for one missing page of a well-known product alone, as others did, and for nothing else.

    A browser also fetches the page's icon, and somebody who follows a dead link also reads: one such visitor at the same
    page, and all of them are left in peace. Of several pages the one counts that most came for.
    """
    passing = database.execute(_PASSED, (address,)).fetchone()
    return None if passing is None else _found(_IN_PASSING, replace(_visit.decode(visit), passing=passing))


def _count_marchers(database: sqlite3.Connection) -> None:
    for address, suspect, step in database.execute(
        "select address, exists (select 1 from found where found.address = looked.address), step"
        " from looked cross join visits using (address)"
    ).fetchall():
        if suspect or step is None:
            database.execute("delete from strides where address = ?", (address,))
        else:
            database.execute("insert or ignore into strides values (?, ?)", (step, address))


def _in_step(database: sqlite3.Connection, address: str, visit: bytes, *_: object) -> tuple[int, Suspect] | None:
    """Who asked for the same missing pages as others, to the letter, and for nothing else at all.

    Pages of a well-known product and guesses both: who lost a site of theirs asks for the one, and who forgot where to log in
    for the other.
    """
    march = database.execute(_MARCHED, (address,)).fetchone()
    if march is None:
        return None
    return _found(_IN_STEP, replace(_visit.decode(visit), in_step=(tuple(json.loads(march[0])), march[1])))


def _visit_of(database: sqlite3.Connection, address: str) -> _Row:
    row: _Row = database.execute("select address, visit, suspect, answered from visits where address = ?", (address,)).fetchone()
    return row

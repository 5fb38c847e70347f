"""What every address did, in figures that `verdict` can judge; the counting is Spark's. Nothing is decided here.

What exists on this site is learnt from its own answers: a page that anybody was served, redirected by, or asked to log
in to, is no probe here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as f

from workers.api_requests.job.spam import forms, probes
from workers.api_requests.job.spam.verdict import Burst, Probes, Suspect, Visit, judge

EVIDENCE = ("address", "time", "method", "path", "query", "status")
"""The columns that ``suspects`` needs."""

WINDOW, SLIDE = "10 minutes", "5 minutes"
_RUSH, _RUSH_SLIDE = "1 minute", "30 seconds"
_MISSING = (400, 403, 404, 405, 410, 414, 444)  # not 401, 408, 429, 499 and 5xx: those are clients in trouble
_THERE = (302, 303, 304, 307, 401)  # besides 2xx. Not 301 and 308: that is how http moves to https, whatever the path
_MANY = 20  # errors or posts before an address's windows are looked at
_BRAZEN = ("secret files", "known exploits", "web shells", "debug consoles")  # nobody meets these in a search field


def suspects(requests: DataFrame) -> list[Suspect]:
    """The suspects among ``requests`` (columns EVIDENCE), the busiest first."""
    looked = look(requests).persist()  # read several times below
    visits = _visits(looked)
    found = {visit.address: suspect for visit in visits if (suspect := judge(visit))}
    for second_look in (_served, _on_a_list, _in_passing, _in_step):
        for visit in second_look(looked, [visit for visit in visits if visit.address not in found], found):
            if suspect := judge(visit):
                found[visit.address] = suspect
    looked.unpersist()
    return sorted(found.values(), key=lambda one: (-one.requests, one.address))


def look(requests: DataFrame) -> DataFrame:
    """Every request with what it is: a certain or possible probe, missing, ordinary, harmless, or none of these."""
    named = _named(requests)
    known = named.groupBy("path").agg(f.max("there").alias("exists"))
    certain_family = f.coalesce(probes.is_certain(f.col("family")), f.lit(False))
    # Injected code goes to pages that exist: their being there says nothing about whether it was welcome.
    expected = f.col("exists") & ~f.col("target").contains("?")
    possible = f.col("family").isNotNull() & ~certain_family & f.col("missing") & ~f.col("exists")
    return named.join(known, "path").select(
        "*",
        probes.label(f.col("family")).alias("label"),
        certain_family.alias("hostile"),
        (certain_family & ~f.col("served") & ~expected).alias("certain"),
        possible.alias("possible"),
        (possible & probes.is_telling(f.col("target"), f.col("family"))).alias("telling"),
        (f.col("served") & ~certain_family & ~f.col("harmless")).alias("ordinary"),
    )


def _named(requests: DataFrame) -> DataFrame:
    path, status = f.lower(f.substring("path", 1, probes.PATH_LIMIT)), f.col("status")
    served = status.between(200, 299) | (status == 304)
    seen = requests.select(
        "address",
        "time",
        "method",
        "status",
        path.alias("path"),
        f.substring("path", 1, 120).alias("shown"),
        probes.target(f.col("path"), f.col("query")).alias("target"),
        served.alias("served"),
        (served | status.isin(*_THERE)).alias("there"),
        status.isin(*_MISSING).alias("missing"),
    )
    return seen.withColumn("family", probes.family(f.col("target"))).withColumn("harmless", probes.is_harmless(f.col("path")))


def _visits(looked: DataFrame) -> list[Visit]:
    """One for each address that sent a probe, missed much, or posted much."""
    figures = _figures(looked)
    worth = (
        (f.col("hostile") > 0)
        | (f.col("possible") + f.col("guesses") > 0)
        | (f.col("missing") >= _MANY)
        | (f.col("posts") >= _MANY)
    )
    chosen = figures.where(worth).collect()
    by_family = _by_family(looked)
    busy = [row.address for row in chosen if row.missing >= _MANY]
    bursts, rushes = _errors(looked, busy) if busy else ({}, {})
    hammered = forms.hammering(looked) if any(row.posts >= _MANY for row in chosen) else {}
    return [
        replace(
            _visit(row, by_family[row.address]),
            burst=bursts.get(row.address),
            rush=rushes.get(row.address),
            hammering=hammered.get(row.address),
        )
        for row in chosen
    ]


def _visit(row: Row, found: list[Probes]) -> Visit:
    return Visit(
        row.address, _utc(row.first_seen), _utc(row.last_seen), row.requests, row.ordinary, row.certain, row.hostile,
        row.possible, row.guesses, row.kinds, row.reads_robots, row.only_probes, found,
    )  # fmt: skip


def _figures(looked: DataFrame) -> DataFrame:
    def different(what: str | Column, where: str) -> Column:
        return f.count_distinct(f.when(f.col(where), what if isinstance(what, Column) else f.col(what))).alias(where)

    asked_robots = f.min(f.when(f.col("path") == "/robots.txt", f.col("time")))
    missed = f.min(f.when(f.col("missing") & ~f.col("harmless"), f.col("time")))
    counted, guessed = f.col("certain") | f.col("possible"), f.coalesce(f.col("label") == probes.GUESSES, f.lit(False))
    return looked.groupBy("address").agg(
        f.unix_micros(f.min("time")).alias("first_seen"),
        f.unix_micros(f.max("time")).alias("last_seen"),
        f.count(f.lit(1)).alias("requests"),
        different("path", "ordinary"),
        different("target", "certain"),
        different("target", "hostile"),
        f.count_distinct(f.when(f.col("possible") & ~guessed, _item())).alias("possible"),
        f.count_distinct(f.when(f.col("possible") & guessed, f.col("path"))).alias("guesses"),
        f.count_distinct(f.when(counted & ~guessed, f.col("label"))).alias("kinds"),
        f.coalesce(asked_robots <= missed, f.lit(False)).alias("reads_robots"),  # a dictionary has the word, too: later
        f.bool_and(f.col("hostile") | f.col("telling")).alias("only_probes"),
        f.count_if("missing").alias("missing"),
        f.count_if(f.col("method") == "POST").alias("posts"),
    )


def _item() -> Column:
    """What a possible probe counts as: a program that asks for all its usual pages in one place asks for one thing."""
    home = f.regexp_replace("path", r"/(?:wp-(?!content/plugins/[^/]+/readme)|xmlrpc|wlwmanifest).*\z", "/wordpress")
    return f.when(f.col("label") == "WordPress", home).when(f.col("label") == "mail servers", "mail").otherwise(f.col("path"))


def _by_family(looked: DataFrame) -> dict[str, list[Probes]]:
    rows = looked.where(f.col("hostile") | f.col("possible")).groupBy("address", "label").agg(
        f.count(f.lit(1)).alias("requests"),
        f.count_distinct("target").alias("targets"),
        f.array_distinct(f.array(f.min("shown"), f.max("shown"))).alias("examples"),
        f.count_if("served").alias("served"),
        _seconds(),
    )  # fmt: skip
    found: dict[str, list[Probes]] = defaultdict(list)
    for row in rows.orderBy("label").collect():
        found[row.address].append(Probes(row.label, row.requests, row.targets, row.examples, row.served, row.seconds))
    return found


def _errors(looked: DataFrame, busy: list[str]) -> tuple[dict[str, Burst], dict[str, Burst]]:
    """The worst ten minutes, and the worst minute, of each of the ``busy`` addresses."""
    rows = looked.where(f.col("address").isin(busy)).join(f.broadcast(_shared(looked)), "path", "left")
    searched = f.col("missing") & ~f.col("harmless") & ~probes.is_asset(f.col("path")) & f.col("shared").isNull()
    marked = rows.withColumn("place", f.when(searched, _place()))
    return _worst(marked, f.window("time", WINDOW, SLIDE)), _worst(marked, f.window("time", _RUSH, _RUSH_SLIDE))


def _worst(rows: DataFrame, window: Column) -> dict[str, Burst]:
    windows = rows.groupBy("address", window).agg(
        f.count(f.lit(1)).alias("requests"),
        f.count_if("missing").alias("errors"),
        f.count_distinct(f.when(f.col("missing"), f.col("path"))).alias("paths"),
        f.count_distinct("place").alias("places"),
        f.unix_micros(f.min("time")).alias("start"),
        _seconds(),
    )
    worst = f.struct("requests", "errors", "paths", "places", "start", "seconds")
    found = windows.groupBy("address").agg(f.max_by(worst, f.struct("places", "errors")).alias("worst")).collect()
    return {row.address: _burst(row.worst) for row in found}


def _burst(row: Row) -> Burst:
    return Burst(row.requests, row.errors, row.paths, row.places, _utc(row.start), row.seconds)


def _utc(micros: int) -> datetime:
    """Not left to Row, whose times are in the local zone."""
    return datetime.fromtimestamp(micros / 1e6, UTC)


def _place() -> Column:
    """The first folder of a path, or the page itself at the top; numbers alike, and homes (``/~ann``) alike.

    What a program looks up by name (``/api/users/ann/picture``) is one place; a dictionary is many.
    """
    return f.regexp_replace(f.regexp_extract("path", r"\A/*([^/]*)", 1), "[0-9]+|(?<=^~).*", "#")


def _shared(looked: DataFrame) -> DataFrame:
    """Missing paths that more than one address ran into: the site's own dead links, and what crawlers remember of it."""
    missed = looked.where(f.col("missing") & f.col("family").isNull()).groupBy("path")
    shared = missed.agg(f.count_distinct("address").alias("visitors")).where(f.col("visitors") >= 2)
    return shared.select("path", f.lit(True).alias("shared"))


def _served(looked: DataFrame, visits: list[Visit], known: Iterable[str]) -> list[Visit]:
    """Those of ``visits`` that read no ordinary page, and were answered what nobody happens upon.

    A site that answers everything hides no probe by that. Where readers of the site fetch the same file, it is a part of it.
    """
    addresses = [visit.address for visit in visits if visit.hostile and not visit.certain and not visit.ordinary]
    if not addresses:
        return []
    brazen = looked.where(f.col("label").isin(*_BRAZEN))
    pages = looked.where("ordinary").groupBy("address").agg(f.count_distinct("path").alias("pages"))
    readers = brazen.join(pages.where(f.col("pages") >= 3), "address").groupBy("path").agg(
        f.count_distinct("address").alias("readers")
    )  # fmt: skip
    parts = readers.where(f.col("readers") >= 3).select("path")
    own = brazen.where(f.col("address").isin(addresses)).join(parts, "path", "left_anti").groupBy("address")
    answered = {row.address: row.targets for row in own.agg(f.count_distinct("target").alias("targets")).collect()}
    return [replace(visit, certain=answered[visit.address]) for visit in visits if visit.address in answered]


def _on_a_list(looked: DataFrame, visits: list[Visit], known: Iterable[str]) -> list[Visit]:
    """Those of ``visits`` that asked only for missing pages which ``known`` suspects work through and nobody else asks for.

    Only pages with a query: people guess ``/pma/`` by themselves, and ``/pma/index.php?lang=en`` nobody.
    """
    addresses, suspected = [visit.address for visit in visits], list(known)
    if not addresses or not suspected:
        return []
    probing = looked.where(f.col("family").isNotNull())
    swept = probing.where(f.col("address").isin(suspected) & f.col("possible") & f.contains("target", f.lit("?")))
    own = looked.where(f.col("address").isin(addresses) & ~f.col("harmless"))
    followers = own.join(swept.select("target", f.lit(True).alias("swept")).distinct(), "target", "left").groupBy("address").agg(
        f.bool_and(f.col("swept").isNotNull()).alias("only"), f.collect_set("target").alias("targets")
    )  # fmt: skip
    lists = {row.address: row.targets for row in followers.where("only").collect()}
    return [replace(visit, listed=lists[visit.address]) for visit in visits if visit.address in lists]


def _in_passing(looked: DataFrame, visits: list[Visit], known: Iterable[str]) -> list[Visit]:
    """Those of ``visits`` that came for one missing page of a well-known product alone, as others did, and for nothing else.

    A browser also fetches the page's icon, and somebody who follows a dead link also reads: one such visitor at the same
    page, and all of them are left in peace.
    """
    alone = [visit.address for visit in visits if visit.only_probes and visit.possible]
    asked = looked.where(f.col("telling") & ~f.col("address").isin(list(known)))
    askers = asked.groupBy("target").agg(
        f.collect_set("address").alias("addresses"), f.bool_and(f.col("address").isin(alone)).alias("only")
    )  # fmt: skip
    crowds = askers.where("only").where(f.size("addresses") >= 2).collect() if len(alone) >= 2 else []
    passing = {address: (row.target, len(row.addresses)) for row in crowds for address in row.addresses}
    return [replace(visit, passing=passing[visit.address]) for visit in visits if visit.address in passing]


def _in_step(looked: DataFrame, visits: list[Visit], known: Iterable[str]) -> list[Visit]:
    """Those of ``visits`` that asked for the same missing pages as others, to the letter, and for nothing else at all.

    Pages of a well-known product and guesses both: who lost a site of theirs asks for the one, and who forgot where to log in
    for the other.
    """
    addresses = [one.address for one in visits if one.possible and one.guesses and one.possible + one.guesses >= 3]
    if len(addresses) < 2:
        return []
    lists = looked.where(f.col("address").isin(addresses)).groupBy("address").agg(
        f.bool_and("possible").alias("only"), f.bool_or("telling").alias("tells"),
        f.array_sort(f.collect_set("target")).alias("targets"),
    )  # fmt: skip
    marches = lists.where("only and tells").groupBy("targets").agg(f.collect_list("address").alias("addresses"))
    found = marches.where(f.size("addresses") >= 2).collect()
    in_step = {address: (tuple(row.targets), len(row.addresses)) for row in found for address in row.addresses}
    return [replace(visit, in_step=in_step[visit.address]) for visit in visits if visit.address in in_step]


def _seconds() -> Column:
    return (f.unix_timestamp(f.max("time")) - f.unix_timestamp(f.min("time"))).cast("int").alias("seconds")

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

from workers.api_requests import probes
from workers.api_requests.verdict import Burst, Hammering, Probes, Suspect, Visit, judge

EVIDENCE = ("address", "time", "method", "path", "query", "status")
"""The columns that ``suspects`` needs."""

WINDOW, SLIDE = "10 minutes", "5 minutes"
_MISSING = (400, 403, 404, 405, 410, 414, 444)  # not 401, 408, 429, 499 and 5xx: those are clients in trouble
_THERE = (302, 303, 304, 307, 401)  # besides 2xx. Not 301 and 308: that is how http moves to https, whatever the path
_MANY = 20  # errors or posts before an address's windows are looked at
_FORMS = r"/(?:wp-login\.php|administrator/index\.php|user/login|wp-comments-post\.php)\z"
_XMLRPC = r"/xmlrpc\.php\z"
_POSTS_TO_XMLRPC = 100  # a phone that uploads pictures posts often, too


def suspects(requests: DataFrame) -> list[Suspect]:
    """The suspects among ``requests`` (columns EVIDENCE), the busiest first."""
    looked = look(requests).localCheckpoint()  # read several times below; and the plan starts anew
    visits = _visits(looked)
    found = {visit.address: suspect for visit in visits if (suspect := judge(visit))}
    for visit in _on_a_list(looked, [v for v in visits if v.address not in found], found):
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
    return named.join(known, "path").select(
        "*",
        probes.label(f.col("family")).alias("label"),
        certain_family.alias("hostile"),
        (certain_family & ~f.col("served") & ~expected).alias("certain"),
        (f.col("family").isNotNull() & ~certain_family & f.col("missing") & ~f.col("exists")).alias("possible"),
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
        | (f.col("possible") + f.col("guesses") > 1)
        | (f.col("missing") >= _MANY)
        | (f.col("posts") >= _MANY)
    )
    chosen = figures.where(worth).collect()
    by_family = _by_family(looked)
    busy = [row.address for row in chosen if row.missing >= _MANY]
    bursts = {row.address: _burst(row.worst) for row in _bursts(looked, figures, busy).collect()} if busy else {}
    posting = any(row.posts >= _MANY for row in chosen)
    forms = {row.address: Hammering(*row.worst) for row in _hammering(looked).collect()} if posting else {}
    return [_visit(row, by_family[row.address], bursts.get(row.address), forms.get(row.address)) for row in chosen]


def _visit(row: Row, found: list[Probes], burst: Burst | None, hammering: Hammering | None) -> Visit:
    return Visit(
        row.address, _utc(row.first_seen), _utc(row.last_seen), row.requests, row.ordinary, row.certain, row.hostile,
        row.possible, row.guesses, row.kinds, row.reads_robots, found, burst, hammering,
    )  # fmt: skip


def _figures(looked: DataFrame) -> DataFrame:
    def different(what: str | Column, where: str) -> Column:
        return f.count_distinct(f.when(f.col(where), what if isinstance(what, Column) else f.col(what))).alias(where)

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
        f.max(f.col("path") == "/robots.txt").alias("reads_robots"),
        f.count_if("missing").alias("missing"),
        f.count_if(f.col("method") == "POST").alias("posts"),
    )


def _item() -> Column:
    """What a possible probe counts as: a program that asks for all its usual pages in one place asks for one thing."""
    home = f.regexp_replace("path", r"/(?:wp-|xmlrpc|wlwmanifest).*\z", "/wordpress")
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


def _bursts(looked: DataFrame, figures: DataFrame, busy: list[str]) -> DataFrame:
    """The worst ten minutes of each of the ``busy`` addresses."""
    rows = looked.where(f.col("address").isin(busy)).join(f.broadcast(_broken_links(looked, figures)), "path", "left")
    searched = f.col("missing") & ~f.col("harmless") & ~probes.is_asset(f.col("path")) & f.col("broken").isNull()
    windows = rows.groupBy("address", f.window("time", WINDOW, SLIDE)).agg(
        f.count(f.lit(1)).alias("requests"),
        f.count_if("missing").alias("errors"),
        f.count_distinct(f.when(f.col("missing"), f.col("path"))).alias("paths"),
        f.count_distinct(f.when(searched, _place())).alias("places"),
        f.unix_micros(f.min("time")).alias("start"),
        _seconds(),
    )
    worst = f.struct("requests", "errors", "paths", "places", "start", "seconds")
    return windows.groupBy("address").agg(f.max_by(worst, f.struct("places", "errors")).alias("worst"))


def _burst(row: Row) -> Burst:
    return Burst(row.requests, row.errors, row.paths, row.places, _utc(row.start), row.seconds)


def _utc(micros: int) -> datetime:
    """Not left to Row, whose times are in the local zone."""
    return datetime.fromtimestamp(micros / 1e6, UTC)


def _place() -> Column:
    """The folder of a path, or the page itself at the top; numbers alike, so that the tiles of a map are one place."""
    path = f.rtrim(f.col("path"), f.lit("/"))
    folder = f.regexp_extract(path, r"\A(/.+)/[^/]*\z", 1)
    return f.regexp_replace(f.when(folder == "", path).otherwise(folder), "[0-9]+", "#")


def _broken_links(looked: DataFrame, figures: DataFrame) -> DataFrame:
    """Missing paths that three ordinary visitors or more ran into: the site's own fault."""
    visitors = figures.where(f.col("ordinary") > 0).select("address")
    missed = looked.where(f.col("missing") & f.col("family").isNull()).join(visitors, "address")
    shared = missed.groupBy("path").agg(f.count_distinct("address").alias("visitors")).where(f.col("visitors") >= 3)
    return shared.select("path", f.lit(True).alias("broken"))


def _hammering(looked: DataFrame) -> DataFrame:
    """The worst ten minutes of posting to one login or comment form without once being let in."""
    is_xmlrpc = f.col("path").rlike(_XMLRPC)
    forms = looked.where(
        (f.col("method") == "POST") & (f.col("path").rlike(_FORMS) | is_xmlrpc) & ~f.contains("target", f.lit("jetpack"))
    )
    windows = forms.groupBy("address", "path", f.window("time", WINDOW, SLIDE)).agg(
        f.count(f.lit(1)).alias("requests"),
        f.count_if(f.col("status").isin(301, 302, 303)).alias("let_in"),
        f.min("shown").alias("shown"),
        _seconds(),
    )
    enough = f.when(is_xmlrpc, _POSTS_TO_XMLRPC).otherwise(_MANY)
    hammered = windows.where((f.col("requests") >= enough) & (f.col("let_in") == 0))
    return hammered.groupBy("address").agg(f.max_by(f.struct("requests", "shown", "seconds"), "requests").alias("worst"))


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


def _seconds() -> Column:
    return (f.unix_timestamp(f.max("time")) - f.unix_timestamp(f.min("time"))).cast("int").alias("seconds")

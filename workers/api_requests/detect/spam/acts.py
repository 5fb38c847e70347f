"""What each request is by itself, in columns that `state` keeps: the patterns are matched here, once, by Spark.

Nothing here knows of another request. What a site has, and what others asked for, is asked of the state.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from workers.api_requests.detect.spam import forms, probes

EVIDENCE = ("address", "time", "method", "path", "query", "status")
"""The columns that ``acts`` needs; ``taken``, when the queue took the line, is the time where it is missing."""

_MISSING = (400, 403, 404, 405, 410, 414, 444)  # not 401, 408, 429, 499 and 5xx: those are clients in trouble
_THERE = (302, 303, 304, 307, 401)  # besides 2xx. Not 301 and 308: that is how http moves to https, whatever the path

SCHEMA = pa.schema(
    [
        ("address", pa.string()), ("time", pa.int64()), ("taken", pa.int64()), ("hour", pa.int64()),
        ("post", pa.bool_()), ("error", pa.bool_()), ("path", pa.string()), ("shown", pa.string()), ("target", pa.string()),
        ("served", pa.bool_()), ("there", pa.bool_()), ("missing", pa.bool_()), ("harmless", pa.bool_()),
        ("family", pa.int32()), ("telling", pa.bool_()), ("item", pa.string()), ("place", pa.string()),
        ("in_window", pa.int32()), ("in_all", pa.int32()), ("let_in", pa.bool_()), ("comments", pa.bool_()),
    ]
)  # fmt: skip
"""Of what ``acts`` gives; the times, and the beginning of the hour in the session's time zone, in microseconds."""


def acts(requests: DataFrame) -> DataFrame:
    """One row for each of ``requests`` (columns EVIDENCE and perhaps ``taken``), with the columns of SCHEMA.

    ``family``: the probe that it is, an index in FAMILIES. ``telling``: of a possible probe, whether it says something where it
    is all that an address asked for. ``item``: what a possible probe counts as. ``place``: what was looked for, where something
    was that is missing. ``in_window`` to ``comments``: of a post to a form, see `forms`.
    """
    path, status = f.lower(f.substring("path", 1, probes.PATH_LIMIT)), f.col("status")
    served = status.between(200, 299) | (status == 304)
    taken = f.coalesce("taken", "time") if "taken" in requests.columns else f.col("time")
    seen = requests.select(
        "address",
        f.col("time").alias("at"),
        taken.alias("taken"),
        "method",
        "status",
        path.alias("path"),
        f.col("path").alias("whole"),
        f.substring("path", 1, 120).alias("shown"),
        probes.unescaped(f.col("path"), f.col("query")).alias("unescaped"),
        served.alias("served"),
        (served | status.isin(*_THERE)).alias("there"),
        status.isin(*_MISSING).alias("missing"),
    )
    seen = seen.withColumn("target", probes.target(f.col("unescaped")))
    named = seen.withColumn("family", probes.family(f.col("target"))).withColumn("harmless", probes.is_harmless(f.col("whole")))
    searched = f.col("missing") & ~f.col("harmless") & ~probes.is_asset(f.col("path"))
    columns = {
        "time": f.unix_micros("at"),
        "taken": f.unix_micros("taken"),
        "hour": f.unix_micros(f.date_trunc("hour", "at")),
        "post": f.col("method") == "POST",
        "error": f.coalesce(status >= 400, f.lit(False)),
        "telling": probes.is_telling(f.col("target"), f.col("family")),
        "item": f.when(f.col("family").isNotNull() & f.col("missing"), _item()),
        "place": f.when(searched, _place()),
        **forms.marks(),
    }
    return named.select(*(columns.get(name, f.col(name)).alias(name) for name in SCHEMA.names))


def _item() -> Column:
    """What a possible probe counts as: a program that asks for all its usual pages in one place asks for one thing."""
    home = f.regexp_replace("path", r"/(?:wp-(?!content/plugins/[^/]+/readme)|xmlrpc|wlwmanifest).*\z", "/wordpress")
    label = probes.label(f.col("family"))
    return f.when(label == "WordPress", home).when(label == "mail servers", "mail").otherwise(f.col("path"))


def _place() -> Column:
    """The first folder of a path, or the page itself at the top; numbers alike, and homes (``/~ann``) alike.

    What a program looks up by name (``/api/users/ann/picture``) is one place; a dictionary is many.
    """
    return f.regexp_replace(f.regexp_extract("path", r"\A/*([^/]*)", 1), "[0-9]+|(?<=^~).*", "#")

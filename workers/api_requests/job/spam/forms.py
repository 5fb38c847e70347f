"""Who hammers a login or a comment form: the worst that each address did to one. How much it weighs, `verdict` says."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from workers.api_requests.job.spam.verdict import Hammering

WINDOW, SLIDE = "10 minutes", "5 minutes"
_LOGIN_PAGES = r"/(?:wp-login\.php|administrator/index\.php|user/login)\z"
_LOGINS = r"/(?:log-?in|sign[-_]?in|logon|authenticate)(?:\.[a-z]{2,4})?/?\z"  # not tokens: their clients retry by themselves
_COMMENTS = r"/wp-comments-post\.php\z"
_XMLRPC = r"/xmlrpc\.php\z"
_PAGES_IN_WINDOW, _PAGES_IN_ALL = 20, 50
_LOGINS_IN_WINDOW = 60  # an office where many mistype has some who do not
_COMMENTS_IN_WINDOW = 20
_XMLRPC_IN_WINDOW = 100  # a phone that uploads pictures posts often, too
_REDIRECTS, _REFUSALS = (301, 302, 303), (401, 403, 422, 423, 429)
_NEVER = 1 << 30


def hammering(looked: DataFrame) -> dict[str, Hammering]:
    """By address, its worst ten minutes (at login pages also its whole life) of posting to one form without success.

    ``looked``: requests with address, time, method, status, path and target in lower case, and ``shown``.
    """
    posts = _posts(looked)
    windows = _counted(posts, "in_window", f.window("time", WINDOW, SLIDE))
    lives = _counted(posts, "in_all")
    worst = f.max_by(f.struct("requests", "shown", "seconds", "comments"), "requests").alias("worst")
    rows = windows.unionByName(lives).groupBy("address").agg(worst).collect()
    return {row.address: Hammering(*row.worst) for row in rows}


def _posts(looked: DataFrame) -> DataFrame:
    path, status = f.col("path"), f.col("status")
    kinds = (  # pattern, enough in ten minutes, enough in all, what success looks like
        (_XMLRPC, _XMLRPC_IN_WINDOW, _NEVER, status.isin(*_REDIRECTS)),
        (_LOGIN_PAGES, _PAGES_IN_WINDOW, _PAGES_IN_ALL, status.isin(*_REDIRECTS)),
        (_COMMENTS, _COMMENTS_IN_WINDOW, _NEVER, f.lit(False)),  # a comment that was taken is spam all the same
        (_LOGINS, _LOGINS_IN_WINDOW, _NEVER, ~status.isin(*_REFUSALS)),
    )
    in_window, in_all, let_in = f.lit(None).cast("int"), f.lit(_NEVER), f.lit(False)
    for pattern, window, all_, success in reversed(kinds):
        is_this = path.rlike(pattern)
        in_window, in_all = f.when(is_this, window).otherwise(in_window), f.when(is_this, all_).otherwise(in_all)
        let_in = f.when(is_this, success).otherwise(let_in)
    forms = looked.where((f.col("method") == "POST") & ~f.contains("target", f.lit("jetpack")))
    marked = forms.select(
        "*",
        in_window.alias("in_window"),
        in_all.alias("in_all"),
        let_in.alias("let_in"),
        path.rlike(_COMMENTS).alias("comments"),
    )
    return marked.where(f.col("in_window").isNotNull())


def _counted(posts: DataFrame, enough: str, *window: Column) -> DataFrame:
    seconds = (f.unix_timestamp(f.max("time")) - f.unix_timestamp(f.min("time"))).cast("int")
    counted = posts.groupBy("address", "path", "comments", f.col(enough).alias("enough"), *window).agg(
        f.count(f.lit(1)).alias("requests"),
        f.max("let_in").alias("let_in"),
        f.min("shown").alias("shown"),
        seconds.alias("seconds"),
    )
    hammered = counted.where((f.col("requests") >= f.col("enough")) & ~f.col("let_in"))
    return hammered.select("address", "requests", "shown", "seconds", "comments")

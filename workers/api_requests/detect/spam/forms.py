"""Who hammers a login or a comment form: the worst that each address did to one. How much it weighs, `verdict` says."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as f

from workers.api_requests.detect.spam.verdict import Hammering

_LOGIN_PAGES = r"/(?:wp-login\.php|administrator/index\.php|user/login)\z"
_LOGINS = r"/(?:log-?in|sign[-_]?in|logon|authenticate)(?:\.[a-z]{2,4})?/?\z"  # not tokens: their clients retry by themselves
_COMMENTS = r"/wp-comments-post\.php\z"
_XMLRPC = r"/xmlrpc\.php\z"
_PAGES_IN_WINDOW, _PAGES_IN_ALL = 20, 50
_LOGINS_IN_WINDOW = 60  # an office where many mistype has some who do not
_COMMENTS_IN_WINDOW = 20
_XMLRPC_IN_WINDOW = 100  # a phone that uploads pictures posts often, too
_REDIRECTS, _REFUSALS = (301, 302, 303), (401, 403, 422, 423, 429)
NEVER = 1 << 30


def marks() -> dict[str, Column]:
    """Of a post to a form: how many are enough in ten minutes and in all, whether it was let in, whether comments are meant.

    Null for all else. Columns needed: method, status, path and target in lower case.
    """
    path, status = f.col("path"), f.col("status")
    kinds = (  # pattern, enough in ten minutes, enough in all, what success looks like
        (_XMLRPC, _XMLRPC_IN_WINDOW, NEVER, status.isin(*_REDIRECTS)),
        (_LOGIN_PAGES, _PAGES_IN_WINDOW, _PAGES_IN_ALL, status.isin(*_REDIRECTS)),
        (_COMMENTS, _COMMENTS_IN_WINDOW, NEVER, f.lit(False)),  # a comment that was taken is spam all the same
        (_LOGINS, _LOGINS_IN_WINDOW, NEVER, ~status.isin(*_REFUSALS)),
    )
    in_window, in_all, let_in = f.lit(None).cast("int"), f.lit(NEVER), f.lit(False)
    for pattern, window, all_, success in reversed(kinds):
        is_this = path.rlike(pattern)
        in_window, in_all = f.when(is_this, window).otherwise(in_window), f.when(is_this, all_).otherwise(in_all)
        let_in = f.when(is_this, success).otherwise(let_in)
    is_form = (f.col("method") == "POST") & ~f.contains("target", f.lit("jetpack")) & in_window.isNotNull()
    found = {"in_window": in_window, "in_all": in_all, "let_in": let_in, "comments": path.rlike(_COMMENTS)}
    return {name: f.when(is_form, column) for name, column in found.items()}


def hammering(posts: Iterable[tuple[Any, ...]]) -> Hammering | None:
    """The worst ten minutes (at login pages also the whole life) of one address at one form without success.

    ``posts``: path, slot of five minutes, in_window, in_all, comments, let_in, shown, requests, first and last in microseconds.
    """
    windows: dict[tuple[str, int | None], list[tuple[Any, ...]]] = defaultdict(list)
    for post in posts:
        for window in (post[1] - 1, post[1], None):
            windows[post[0], window].append(post)
    hammered = [
        (sum(post[7] for post in found), -(window or 0), _hammering(found))
        for (_, window), found in windows.items()
        if not any(post[5] for post in found)
        and sum(post[7] for post in found) >= (found[0][3] if window is None else found[0][2])
    ]
    return max(hammered, key=lambda one: (*one[:2], one[2].path))[2] if hammered else None


def _hammering(found: Sequence[tuple[Any, ...]]) -> Hammering:
    requests, shown = sum(post[7] for post in found), min(post[6] for post in found)
    seconds = max(post[9] for post in found) // 10**6 - min(post[8] for post in found) // 10**6
    return Hammering(requests, shown, seconds, bool(found[0][4]))

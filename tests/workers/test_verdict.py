"""The verdict on a visit: which evidence is enough, and that it can be read."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.api_requests.detect.spam.verdict import Burst, Hammering, Probes, Visit, judge

NOON = datetime(2024, 5, 12, 12, tzinfo=UTC)
NOBODY = Visit(
    "10.0.0.1", NOON, NOON, requests=1, ordinary=0, certain=0, hostile=0, possible=0, guesses=0, kinds=0, reads_robots=False
)


def visit(**what: Any) -> Visit:
    return replace(NOBODY, **what)


def burst(requests: int, errors: int, places: int) -> Burst:
    return Burst(requests, errors, paths=errors, places=places, start=NOON, seconds=50)


SUSPECTS = {
    "one certain probe and nothing else": visit(certain=1, hostile=1, kinds=1),
    "two certain probes, and a page": visit(certain=2, hostile=2, kinds=1, ordinary=1),
    "many certain probes by a busy visitor": visit(certain=5, hostile=5, kinds=1, ordinary=80, requests=900),
    "certain probes that were all served": visit(hostile=6, ordinary=1),
    "five possible probes and nothing else": visit(possible=5, kinds=1),
    "three possible probes of two kinds and nothing else": visit(possible=3, kinds=2),
    "ten possible probes, and a page": visit(possible=10, kinds=1, ordinary=1),
    "ten folders guessed and nothing else": visit(guesses=10),
    "a search over ninety places in a minute": visit(rush=burst(100, 100, 90)),
    "a search by dictionary that found two pages": visit(rush=burst(205, 203, 199), ordinary=2),
    "a login form hammered": visit(hammering=Hammering(40, "/wp-login.php", 300), ordinary=1),
    "a comment form hammered, page by page": visit(hammering=Hammering(40, "/c", 300, comments=True), requests=80, ordinary=40),
    "one of several that came for one missing page": visit(possible=1, only_probes=True, passing=("/owa/", 3)),
    "one of several that came for the same three pages": visit(possible=1, guesses=2, kinds=1, in_step=(("/a", "/b", "/c"), 4)),
    "only what is on another suspect's list": visit(possible=2, kinds=1, listed=("/pma/", "/mysql/")),
}

ORDINARY = {
    "nothing at all": visit(),
    "one certain probe among ordinary pages": visit(certain=1, hostile=1, kinds=1, ordinary=1, requests=30),
    "two certain probes by a busy visitor": visit(certain=2, hostile=2, kinds=1, ordinary=3, requests=30),
    "a certain probe that was served": visit(hostile=1, ordinary=0),
    "two possible probes": visit(possible=2, kinds=2),
    "four possible probes of one kind": visit(possible=4, kinds=1),
    "nine folders guessed": visit(guesses=9),
    "three folders guessed beside a WordPress login": visit(guesses=3, possible=1, kinds=1),
    "five possible probes by one who reads": visit(possible=5, kinds=1, ordinary=1),
    "a page with a hundred broken parts": visit(burst=burst(110, 100, 2), ordinary=4),
    "one place missed thousands of times": visit(burst=burst(5000, 5000, 1)),
    "many places missed in ten minutes, not in one": visit(burst=burst(200, 200, 199)),
    "many places missed, and pages read": visit(rush=burst(200, 199, 199), ordinary=20),
    "many places missed by a crawler": visit(rush=burst(100, 100, 100), reads_robots=True),
    "many links missed that others know, too": visit(rush=burst(300, 300, 100)),
    "a crowd's login page, hammered": visit(hammering=Hammering(40, "/wp-login.php", 300), requests=5000, ordinary=3),
    "ten possible probes of three kinds by a crowd": visit(possible=10, kinds=3, requests=3000, ordinary=60),
    "certain probes in the pages of a crawler": visit(hostile=60, ordinary=900, requests=2000),
    "half of many requests failed": visit(burst=burst(400, 200, 150)),
    "one page of another suspect's list": visit(possible=1, kinds=1, listed=("/pma/",)),
    "a hundred thousand requests": visit(requests=100_000, ordinary=9_000),
}


@pytest.mark.parametrize("name", SUSPECTS)
def test_a_suspect_is_who_shows(name: str) -> None:
    found = judge(SUSPECTS[name])
    assert found is not None
    assert found.score >= 3
    assert (found.address, found.first_seen, found.last_seen) == ("10.0.0.1", NOON, NOON)


@pytest.mark.parametrize("name", ORDINARY)
def test_nobody_is_a_suspect_for(name: str) -> None:
    assert judge(ORDINARY[name]) is None


def test_the_reasons_are_sentences_with_figures() -> None:
    probes = (
        Probes("secret files", 300, 218, ("/.env", "/vendor/.env"), 0, 341),
        Probes("WordPress", 12, 1, ("/wp-login.php",), 2, 59),
    )
    found = judge(visit(certain=218, hostile=218, kinds=2, requests=1312, probes=probes, rush=burst(1312, 1300, 990)))
    assert found is not None
    assert found.reasons == [
        "Probed for secret files: 218 targets in 300 requests within 6 minutes, such as /.env and /vendor/.env; none was served.",
        "Probed for WordPress: /wp-login.php, 12 times within 59 seconds; 2 got an answer.",
        "Not one of its 1,312 requests read an ordinary page.",
        "1,300 of 1,312 requests failed within 50 seconds from 2024-05-12 12:00 UTC, in 990 different places that nobody else "
        "asks for.",
    ]


@given(requests=st.integers(1, 10**9), ordinary=st.integers(0, 10**6), robots=st.booleans())
def test_volume_alone_never_makes_a_suspect(requests: int, ordinary: int, robots: bool) -> None:
    assert judge(visit(requests=requests, ordinary=ordinary, reads_robots=robots)) is None


@given(certain=st.integers(0, 50), possible=st.integers(0, 50), kinds=st.integers(0, 5), ordinary=st.integers(0, 10))
def test_reading_more_ordinary_pages_never_makes_one_more_suspect(certain: int, possible: int, kinds: int, ordinary: int) -> None:
    one = visit(certain=certain, hostile=certain, possible=possible, kinds=kinds, ordinary=ordinary)
    if judge(one) is None:
        assert judge(replace(one, ordinary=ordinary + 1)) is None

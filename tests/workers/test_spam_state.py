"""The state between batches: the same verdicts however the requests were split into batches, whatever one did to another."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from framework import WrongUse
from workers.api_requests.detect.spam import listed, looks, state, visits
from workers.api_requests.detect.spam.acts import SCHEMA
from workers.api_requests.detect.spam.allowed import Allowed
from workers.api_requests.detect.spam.groups import DAY
from workers.api_requests.detect.spam.listed import Rules
from workers.api_requests.detect.spam.probes import FAMILIES
from workers.api_requests.detect.spam.verdict import Suspect

LABELS = [one.label for one in FAMILIES]
PATHS = {  # family; None is no probe
    "/wp-login.php": "WordPress", "/blog/wp-login.php": "WordPress", "/pma/": "database administration", "/owa/": "mail servers",
    "/.env": "secret files", "/.git/config": "secret files", "/old.zip": "backups", "/admin": "folders by guessing",
    "/test": "folders by guessing", "/pma/index.php?lang=en": "database administration", "/x?lang=en": "database administration",
    "/": None, "/docs": None, "/about": None, "/robots.txt": None, "/favicon.ico": None, "/gone": None,
}  # fmt: skip
KEPT = ("visits", "readers", "listers", "(select address, look from found)", "askers", "crowds", "strides", "marches")
HOUR = 3_600_000_000
T0 = 1_714_521_600_000_000


def act(address: str, second: float, target: str, status: int, *, day: int = 0) -> tuple[Any, ...]:
    path, time, label = target.partition("?")[0], T0 + int(second * 1e6), PATHS.get(target)
    served, missing = status == 200, status == 404
    harmless = path in ("/", "/robots.txt", "/favicon.ico")
    row = {
        "address": address, "time": time, "taken": time + day * DAY, "hour": time // HOUR * HOUR, "post": False,
        "error": status >= 400, "path": path, "shown": path, "target": target, "served": served, "there": served,
        "missing": missing, "harmless": harmless, "family": LABELS.index(label) if label else None,
        "telling": label not in (None, "folders by guessing"),
        "item": path if label and missing else None, "place": path.split("/")[1] if missing and not harmless else None,
        "in_window": 2 if path == "/pma/" else None, "in_all": 3 if path == "/pma/" else None, "let_in": False, "comments": False,
    }  # fmt: skip
    return tuple(row[name] for name in SCHEMA.names)


def table(acts: list[tuple[Any, ...]]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, one, strict=True)) for one in acts], SCHEMA)


def history(chance: random.Random, count: int) -> list[tuple[Any, ...]]:
    """Few are served a page, which then exists for all; sweepers miss many places, some of which others miss too."""
    acts = []
    for _ in range(count):
        who, second = chance.randrange(40), chance.uniform(0, 3000)
        if who < 3:
            acts.append(act(f"sweeper{who}", second / 10, f"/w{chance.randrange(200)}", 404))
        else:
            target = chance.choice(list(PATHS) if who % 3 else list(PATHS)[:10])
            served = chance.random() < (0.5 if who > 35 and PATHS[target] is None else 0.002)
            acts.append(act(f"visitor{who}", second, target, 200 if served else 404))
    chance.shuffle(acts)
    return acts


def crowds(chance: random.Random, count: int) -> list[tuple[Any, ...]]:
    """Most come for a few pages and nothing else: the same as others, or what suspects ask for too. Some of them do more then."""
    acts = []
    for _ in range(count):
        who, second, served = chance.randrange(30), chance.uniform(0, 3000), chance.random() < 0.003
        if who < 2:
            target = chance.choice(["/.git/config", *LISTED, *MARCH])
        elif who < 8:
            target = chance.choice(LISTED)
        elif who < 16:
            target = chance.choice(MARCH)
        elif who < 18:
            target = "/.env" if chance.random() < 0.5 else "/test"
            served = served or target == "/.env"
        else:
            target = ("/wp-login.php", "/blog/wp-login.php", "/owa/")[who % 3]
        if chance.random() < 0.01:
            target, served = "/docs", True
        acts.append(act(f"visitor{who}", second, target, 200 if served else 404))
    return acts


LISTED = ("/pma/index.php?lang=en", "/x?lang=en")
MARCH = ("/admin", "/test", "/owa/")


class Bench:
    def __init__(self) -> None:
        self.database = sqlite3.connect(":memory:")
        state.begin(self.database)

    def judge(self, acts: list[tuple[Any, ...]], *, everybody: bool = False) -> list[Suspect]:
        state.add(self.database, table(acts))
        visits.renew(self.database)
        looks.renew(self.database, everybody=everybody)
        return looks.suspects(self.database)

    def settle(self, acts: list[tuple[Any, ...]]) -> Mapping[str, Suspect]:
        state.add(self.database, table(acts))
        visits.renew(self.database)
        looks.renew(self.database)
        return listed.renew(self.database, T0 // DAY, Rules(None, Allowed(())), whole=False)

    def kept(self) -> list[list[Any]]:
        return [self.database.execute(f"select * from {table}").fetchall() for table in KEPT]


@pytest.mark.parametrize("seed", range(12))
def test_many_batches_say_after_each_what_one_says_of_all_so_far(seed: int) -> None:
    chance = random.Random(seed)
    acts, bench, begin, by_look = (crowds if seed % 2 else history)(chance, 500), Bench(), 0, set[int]()
    while begin < len(acts):
        size = chance.choice((1, 5, 40, 200))
        found = bench.judge(acts[begin : begin + size])
        by_look |= {look for (look,) in bench.database.execute("select look from found")}
        begin += size
        whole = Bench()
        assert found == whole.judge(acts[:begin])
        assert bench.kept() == whole.kept()
    assert len(by_look) >= (4 if seed % 2 else 1)


def test_what_a_batch_costs_does_not_grow_with_the_suspects_behind_it() -> None:
    def cost(visitors: int) -> int:
        """Instructions of SQLite, in hundreds."""
        bench, steps = Bench(), 0

        def count() -> None:
            nonlocal steps
            steps += 1

        many = range(visitors)
        bench.settle([act(f"suspect{n}", n, target, 404) for n in many for target in ("/.env", "/.git/config")])
        bench.settle([act(f"passes{n}", n, "/wp-login.php", 404) for n in many])
        bench.settle([act(f"in step{n}", n, target, 404) for n in many for target in MARCH])
        bench.settle([act(f"reads{n}", n, target, 200) for n in many for target in ("/", "/docs", "/about")])
        assert {one.address.rstrip("0123456789") for one in listed.suspects(bench.database)} == {"passes", "suspect", "in step"}
        bench.database.set_progress_handler(count, 100)
        news = bench.settle([act("passes", 0, "/wp-login.php", 404), act("suspect0", 1e4, "/.env", 404)])
        assert sorted(news) == ["passes", "suspect0"]
        return steps

    few, many = cost(100), cost(2000)
    assert many < 1.2 * few


def test_a_page_that_is_found_to_exist_clears_those_who_looked_for_it() -> None:
    bench = Bench()
    assert [one.address for one in bench.judge([act(who, 0, "/wp-login.php", 404) for who in ("a", "b")])] == ["a", "b"]
    assert bench.judge([act("c", 9, "/wp-login.php", 200)]) == []


def test_places_that_another_misses_too_are_no_search_any_more() -> None:
    bench = Bench()
    assert [one.address for one in bench.judge([act("a", n / 4, f"/w{n}", 404) for n in range(100)])] == ["a"]
    assert bench.judge([act("b", 3600 + n, f"/w{n}", 404) for n in range(15)]) == []


@pytest.mark.parametrize("seed", range(6))
def test_what_goes_with_the_days_leaves_what_the_rest_alone_would_be(seed: int) -> None:
    chance = random.Random(seed)
    acts = history(chance, 600)
    bench, rest = Bench(), Bench()
    old = [old_one(one, f"{one[0]}, long ago" if chance.random() < 0.8 else one[0]) for one in history(chance, 600)]
    mixed = [*acts, *old]
    chance.shuffle(mixed)
    bench.judge(mixed)
    today = T0 // DAY
    assert state.evict(bench.database, today - 14)
    assert not state.evict(bench.database, today - 14)
    assert bench.judge([], everybody=True) == rest.judge(acts)
    assert bench.kept() == rest.kept()


def old_one(one: tuple[Any, ...], address: str) -> tuple[Any, ...]:
    return (address, one[1], one[2] - 20 * DAY, *one[3:])


def test_only_those_are_judged_anew_whom_it_concerns_that_others_go() -> None:
    bench = Bench()
    acts = [act(who, n, f"/{who}/{n}", 404) for who in ("stays", "lost some", "shared", "knocked") for n in range(3)]
    acts += [old_one(act("gone", 0, path, 404), "gone") for path in ("/shared/1", "/elsewhere")]
    acts += [old_one(act("lost some", 0, "/", 200), "lost some"), act("knocked", 0, "/pma/", 404)]
    acts += [old_one(act("gone", 0, "/pma/", 200), "gone")]
    bench.judge(acts)
    state.evict(bench.database, T0 // DAY - 14)
    changed = [address for (address,) in bench.database.execute("select address from changed order by address")]
    assert changed == ["gone", "knocked", "lost some", "shared"]


def test_who_comes_by_ipv4_to_a_socket_of_ipv6_is_allowed_by_either_way_to_write_it() -> None:
    for name in ("192.0.2.0/24", "192.0.2.7", "::ffff:192.0.2.7", "::ffff:192.0.2.0/120"):
        allowed = Allowed([name])
        assert "::ffff:192.0.2.7" in allowed
        assert "::FFFF:c000:207" in allowed
        assert "192.0.2.7" in allowed
        assert "::ffff:192.0.3.7" not in allowed


def test_who_is_allowed() -> None:
    allowed = Allowed(["192.0.2.0/24", "2001:DB8::/32", "10.0.0.1", "Monitor.example"])
    assert all(name in allowed for name in ("192.0.2.7", "2001:db8::1", "10.0.0.1", "monitor.example"))
    assert not any(name in allowed for name in ("192.0.3.7", "10.0.0.2", "example", ""))
    with pytest.raises(WrongUse, match=r"--allow 192.0.2.1/24: 192.0.2.1/24 has host bits set; say an address"):
        Allowed(["192.0.2.1/24"])


@pytest.mark.parametrize(
    "name",
    ["1.2.3", "1.2.3.4.5", "192.0.2.*", "192.0.2.0-9", "300.1.1.1", "192.0.2.1:80", "*.example", "", "a..b", "7", "a b", "x.7"],
)
def test_what_no_line_can_have_is_not_allowed(name: str) -> None:
    """It would match nothing, and who meant a network would wait for its effect."""
    with pytest.raises(WrongUse, match=r"is no address and no name of a host: say an address, a network as 192\.0\.2\.0/24"):
        Allowed([name])

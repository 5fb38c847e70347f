"""A line is a request with all its fields, or it is rejected with a reason; nothing else, whatever the bytes."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import LONG_RUNS
from workers.api_requests.stream import parse as p

pytestmark = [pytest.mark.spark, pytest.mark.slow]

T = "[12/May/2024:06:07:08 +0000]"

GOOD: dict[str, tuple[bytes, dict[str, Any]]] = {
    "common format": (
        f'10.0.0.1 - frank {T} "GET /a?x=1&y=2 HTTP/1.0" 200 2326'.encode(),
        {"address": "10.0.0.1", "identd": None, "user": "frank", "method": "GET", "path": "/a", "query": "x=1&y=2",
         "protocol": "HTTP/1.0", "status": 200, "bytes": 2326, "referer": None, "agent": None},
    ),
    "combined format": (
        f'10.0.0.1 - - {T} "POST / HTTP/1.1" 304 0 "http://a/b" "Mozilla/5.0 (X11)"'.encode(),
        {"user": None, "method": "POST", "referer": "http://a/b", "agent": "Mozilla/5.0 (X11)", "query": ""},
    ),
    "IPv6": (f'2001:db8::1 - - {T} "GET / HTTP/2.0" 200 1'.encode(), {"address": "2001:db8::1", "protocol": "HTTP/2.0"}),
    "HTTP/3": (f'10.0.0.1 - - {T} "GET / HTTP/3" 200 1'.encode(), {"protocol": "HTTP/3"}),
    "a host name": (f'pc-7.isp.example - - {T} "GET / HTTP/1.0" 200 1'.encode(), {"address": "pc-7.isp.example"}),
    "no size": (f'h - - {T} "HEAD / HTTP/1.0" 204 -'.encode(), {"bytes": None, "status": 204}),
    "an identity": (f'h ident user {T} "GET / HTTP/1.0" 200 1'.encode(), {"identd": "ident", "user": "user"}),
    "a user with spaces": (f'h - John Smith {T} "GET / HTTP/1.0" 200 1'.encode(), {"user": "John Smith"}),
    "an empty user": (f'h - "" {T} "GET / HTTP/1.0" 401 1'.encode(), {"user": None}),
    "another time zone": (
        b'h - - [10/Oct/2000:13:55:36 -0730] "GET / HTTP/1.0" 200 1',
        {"time": datetime(2000, 10, 10, 21, 25, 36, tzinfo=UTC)},
    ),
    "a fraction of a second": (
        b'h - - [10/Oct/2000:13:55:36.123 +0000] "GET / HTTP/1.0" 200 1',
        {"time": datetime(2000, 10, 10, 13, 55, 36, tzinfo=UTC)},
    ),
    "HTTP/0.9": (f'h - - {T} "GET /old" 200 1'.encode(), {"method": "GET", "path": "/old", "protocol": ""}),
    "Apache's escaped quotes": (
        rf'h - - {T} "GET /a\"b HTTP/1.1" 200 1 "-" "say \"hi\" \\"'.encode(),
        {"path": r"/a\"b", "agent": r"say \"hi\" \\"},
    ),
    "nginx's escaped quotes": (rf'h - - {T} "GET /a\x22b HTTP/1.1" 200 1 "-" "x\x22"'.encode(), {"path": r"/a\x22b"}),
    "quotes that were not escaped": (
        f'h - - {T} "GET /a"b HTTP/1.1" 200 1 "-" "say "hi""'.encode(),
        {"path": '/a"b', "agent": 'say "hi"'},
    ),
    "a request that ends in a backslash": (f'h - - {T} "GET /a\\" 404 1'.encode(), {"path": "/a\\", "status": 404}),
    "no request at all": (f'h - - {T} "-" 400 0 "-" "-"'.encode(), {"method": "", "path": "", "protocol": "", "status": 400}),
    "an empty request": (f'h - - {T} "" 400 0'.encode(), {"method": "", "path": ""}),
    "TLS on a plain port": (rf'h - - {T} "\x16\x03\x01\x02\x00" 400 150 "-" "-"'.encode(), {"method": "", "status": 400}),
    "a path with spaces": (f'h - - {T} "GET /a b c HTTP/1.1" 200 1'.encode(), {"path": "/a b c"}),
    "a protocol within a path": (f'h - - {T} "GET /a HTTP/1.1 b?c d HTTP/x y HTTP/1.1" 200 1'.encode(),
                                 {"path": "/a HTTP/1.1 b", "query": "c d HTTP/x y", "protocol": "HTTP/1.1"}),
    "a query alone": (f'h - - {T} "GET ?a HTTP/1.1" 200 1'.encode(), {"path": "", "query": "a"}),
    "a full URL": (f'h - - {T} "GET http://a.example/x?y HTTP/1.1" 200 1'.encode(), {"path": "http://a.example/x", "query": "y"}),
    "CONNECT": (f'h - - {T} "CONNECT a.example:443 HTTP/1.1" 405 1'.encode(), {"method": "CONNECT", "path": "a.example:443"}),
    "two question marks": (f'h - - {T} "GET /a?b?c HTTP/1.1" 200 1'.encode(), {"path": "/a", "query": "b?c"}),
    "nginx with times": (f'h - - {T} "GET / HTTP/1.1" 200 1 "-" "A" 0.003 0.001 .'.encode(), {"agent": "A"}),
    "nginx with a forwarded address": (f'h - - {T} "GET / HTTP/1.1" 200 1 "-" "A" "1.2.3.4"'.encode(), {"address": "h"}),
    "Apache with a virtual host": (
        f'www.a.example:443 10.0.0.1 - - {T} "GET / HTTP/1.1" 200 1 "-" "A"'.encode(), {"address": "10.0.0.1", "user": None},
    ),
    "a virtual host and a name": (f'www.a.example:80 pc.isp.example - - {T} "GET / HTTP/1.1" 200 1'.encode(),
                                  {"address": "pc.isp.example"}),
    "a chain of proxies": (f'1.1.1.1, 2.2.2.2 - - {T} "GET / HTTP/1.1" 200 1'.encode(), {"address": "1.1.1.1"}),
    "bytes that are not UTF-8": (f'h - - {T} "GET /'.encode() + b'\xe9 HTTP/1.1" 200 1', {"path": "/\ufffd"}),
    "UTF-8": (f'h - - {T} "GET /é HTTP/1.1" 200 1'.encode(), {"path": "/é"}),
    "Windows' line end": (f'h - - {T} "GET / HTTP/1.1" 200 17\r'.encode(), {"bytes": 17}),
    "the parser's own separator": (f'h - - {T} "GET /'.encode() + b'\x1f/x HTTP/1.1" 200 1', {"path": "/\ufffd/x"}),
    "an address with its port": (f'10.0.0.1:51234 - - {T} "GET / HTTP/1.1" 200 1'.encode(), {"address": "10.0.0.1"}),
    "a byte order mark": (f'\ufeff10.0.0.1 - - {T} "GET / HTTP/1.1" 200 1'.encode(), {"address": "10.0.0.1"}),
    "spaces before and after": (f'  h - - {T} "GET / HTTP/1.1" 200 1  '.encode(), {"address": "h", "bytes": 1}),
    "a leap second": (b'h - - [30/Jun/2015:23:59:60 +0000] "GET / HTTP/1.0" 200 1',
                      {"time": datetime(2015, 6, 30, 23, 59, 59, tzinfo=UTC)}),
    "a colon in the time zone": (b'h - - [10/Oct/2000:05:30:00 +05:30] "GET / HTTP/1.0" 200 1',
                                 {"time": datetime(2000, 10, 10, tzinfo=UTC)}),
    "a clock that is a day ahead": (b'h - - [02/Jun/2024:00:00:00 +0000] "GET / HTTP/1.0" 200 1',
                                    {"time": datetime(2024, 6, 2, tzinfo=UTC)}),
    "the year 1995": (b'h - - [01/Jul/1995:00:00:01 -0400] "GET /history/apollo/ HTTP/1.0" 200 6245',
                      {"time": datetime(1995, 7, 1, 4, 0, 1, tzinfo=UTC)}),
    "a protocol of its own": (f'h - - {T} "GET /a HTTP/V1.0" 200 1'.encode(), {"path": "/a", "protocol": "HTTP/V1.0"}),
    "a space after the protocol": (f'h - - {T} "GET /a HTTP/1.0 " 200 1'.encode(), {"path": "/a", "protocol": "HTTP/1.0"}),
    "a megabyte of results": (f'h - - {T} "GET /'.encode() + b'" 200 5 "-" "' * 80_000, {"path": "/", "bytes": 5}),
    "a megabyte of spaces": (f'h - - {T} "GET /'.encode() + b" x" * 250_000 + b"? y" * 250_000 + b' HTTP/1.1" 200 1',
                             {"path": "/" + " x" * 250_000, "query": " y" + "? y" * 249_999, "protocol": "HTTP/1.1"}),
    "a megabyte of quotes": (f'h - - {T} "GET /'.encode() + b'\\"' * 500_000 + b' HTTP/1.1" 200 1', {"method": "GET"}),
}  # fmt: skip

BAD: dict[str, tuple[bytes, str]] = {
    "white space": (b"  \t", p.BLANK),
    "a word": (b"hello", p.NO_ADDRESS),
    "the end of another line": (b' "curl/7.54.0"', p.NO_ADDRESS),
    "no client": (f'- - - {T} "GET / HTTP/1.1" 200 1'.encode(), p.NO_ADDRESS),
    "bytes": (b"\xff\xfe\x00", p.NO_ADDRESS),
    "JSON": (b'{"address": "10.0.0.1"}', p.NO_ADDRESS),
    "a megabyte of one quote": (b'"' * 1_000_000, p.NO_ADDRESS),
    "no brackets": (b'h - - 12/May/2024:06:07:08 "GET / HTTP/1.1" 200 1', p.NO_TIME),
    "an open bracket": (b"h - - [12/May/2024", p.NO_TIME),
    "a day that is none": (b'h - - [30/Feb/2024:06:07:08 +0000] "GET / HTTP/1.1" 200 1', p.BAD_TIME),
    "an hour that is none": (b'h - - [12/May/2024:25:07:08 +0000] "GET / HTTP/1.1" 200 1', p.BAD_TIME),
    "words for a time": (b'h - - [yesterday] "GET / HTTP/1.1" 200 1', p.BAD_TIME),
    "a year for a time": (b'h - - [2024] "GET / HTTP/1.1" 200 1', p.BAD_TIME),
    "nothing after the time": (f"h - - {T}".encode(), p.NO_REQUEST),
    "no quotes": (f"h - - {T} GET / HTTP/1.1 200 1".encode(), p.NO_REQUEST),
    "cut in the request": (f'h - - {T} "GET / HT'.encode(), p.CUT_REQUEST),
    "cut after the request": (f'h - - {T} "GET / HTTP/1.1"'.encode(), p.CUT_REQUEST),
    "a short status": (f'h - - {T} "GET / HTTP/1.1" 20 1'.encode(), p.BAD_STATUS),
    "a word for a status": (f'h - - {T} "GET / HTTP/1.1" OK 1'.encode(), p.BAD_STATUS),
    "no size": (f'h - - {T} "GET / HTTP/1.1" 200'.encode(), p.BAD_SIZE),
    "a word for a size": (f'h - - {T} "GET / HTTP/1.1" 200 many'.encode(), p.BAD_SIZE),
    "a negative size": (f'h - - {T} "GET / HTTP/1.1" 200 -5'.encode(), p.BAD_SIZE),
    "cut in the referer": (f'h - - {T} "GET / HTTP/1.1" 200 1 "http:'.encode(), p.CUT_TAIL),
    "cut after the referer": (f'h - - {T} "GET / HTTP/1.1" 200 1 "-"'.encode(), p.CUT_TAIL),
    "the year 2999": (b'h - - [12/May/2999:06:07:08 +0000] "GET / HTTP/1.1" 200 1', p.FUTURE),
    "a clock that is a day and a second ahead": (b'h - - [02/Jun/2024:00:00:01 +0000] "GET / HTTP/1.1" 200 1', p.FUTURE),
    "cut in the user agent": (f'h - - {T} "GET / HTTP/1.1" 200 1 "-" "Mozi'.encode(), p.CUT_TAIL),
}


@pytest.fixture(scope="module")
def parsed(as_lines: Any) -> dict[str, Any]:
    """All the lines above, parsed together."""
    named = {
        **{f"good: {name}": line for name, (line, _) in GOOD.items()},
        **{f"bad: {name}": line for name, (line, _) in BAD.items()},
    }
    rows = p.parse(as_lines(named.values())).collect()
    return dict(zip(named, rows, strict=True))


@pytest.mark.parametrize("name", GOOD)
def test_a_request_with(parsed: dict[str, Any], name: str) -> None:
    line, expected = GOOD[name]
    row = parsed[f"good: {name}"]
    assert row.reason is None
    found = {column: row[column] for column in expected}
    if "time" in found:
        found["time"] = row.time.astimezone(UTC)
    assert found == expected
    assert bytes(row.raw) == line


@pytest.mark.parametrize("name", BAD)
def test_rejected_for(parsed: dict[str, Any], name: str) -> None:
    line, reason = BAD[name]
    row = parsed[f"bad: {name}"]
    assert row.reason == reason
    assert bytes(row.raw) == line


def test_who_only_counts_what_is_rejected_has_no_reasons_looked_for(as_lines: Any, parsed: dict[str, Any]) -> None:
    lines = as_lines([line for line, _ in [*GOOD.values(), *BAD.values()]])
    found = p.parse(lines, why=False)
    assert [row.reason for row in found.collect()] == [row.reason and p.REJECTED for row in parsed.values()]
    plans = [p.observed(p.parse(lines, **how), "time")[1]._jdf.queryExecution().toString() for how in ({}, {"why": False})]
    assert [p.NO_ADDRESS in plan for plan in plans] == [True, False]


def test_every_reason_has_a_line_here() -> None:
    assert {reason for _, reason in BAD.values()} == set(p.REASONS)


_PIECES = st.sampled_from([b"10.0.0.1", b" - - ", b" ", b"[", b"]", T.encode(), b"\"", b"\\", b"GET / HTTP/1.1", b" 200 ", b"-",
                           b"1", b"\x1f", b"\x00", b"\xff", b"\r", b"\n", b"::1", b":", b",", b"\"-\" \"A\""])  # fmt: skip
_LINES = st.one_of(st.binary(min_size=1, max_size=60), st.lists(_PIECES, min_size=1, max_size=14).map(b"".join))


@settings(max_examples=12 if LONG_RUNS else 2, deadline=None, suppress_health_check=list(HealthCheck))
@given(lines=st.lists(_LINES, min_size=50, max_size=200))
def test_any_bytes_are_a_request_or_rejected_and_never_both(as_lines: Any, lines: list[bytes]) -> None:
    parsed = p.parse(as_lines(lines)).localCheckpoint()
    good, bad = p.requests(parsed).collect(), p.rejects(parsed).collect()
    assert Counter(bytes(row.raw) for row in [*good, *bad]) == Counter(lines)
    assert all(row.address and row.time and row.status is not None and None not in (row.method, row.path) for row in good)
    assert {row.reason for row in bad} <= set(p.REASONS)
    plain = Counter(row.reason for row in p.parse(as_lines(lines), why=False).select("reason").collect())
    assert plain == Counter({None: len(good), p.REJECTED: len(bad)}) + Counter()


def test_the_shipped_log(shipped: Any) -> None:
    counts = Counter({row.reason: row["count"] for row in shipped.groupBy("reason").count().collect()})
    assert counts == {None: 10_479, p.NO_ADDRESS: 5_796}
    statuses = {row.status: row["count"] for row in p.requests(shipped).groupBy("status").count().collect()}
    assert statuses == {200: 9_472, 404: 758, 499: 120, 301: 76, 302: 29, 400: 24}
    methods = {row.method: row["count"] for row in p.requests(shipped).groupBy("method").count().collect()}
    assert methods == {"GET": 10_436, "POST": 36, "HEAD": 7}

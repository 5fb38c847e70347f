"""Flags, numbers, strings, JSON and queries as Go has them; whose requests are served; bodies cut into messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from framework.nsqd import golang, payloads
from framework.nsqd.cross_site import CrossSite
from framework.nsqd.goflags import COMMON, BadFlag, CommonOptions, Flag, boolean, level, parse, usage
from framework.nsqd.httpd import LOOPBACK
from framework.nsqd.payloads import TooLong, cut, lines
from framework.nsqd.pertopic import PerTopic, setting
from framework.nsqd.status import Status
from framework.nsqd.store import record
from tests.nsqd.storing import payload

FLAGS = {**COMMON, "worker-id": Flag(str, None, "old"), "statsd-address": Flag(str, None, "no statsd here"),
         "gzip": Flag(str, "log_prefix", "may stand alone", bare=True)}  # fmt: skip


def parsed(*arguments: str) -> CommonOptions:
    options = CommonOptions()
    parse(arguments, FLAGS, options)
    return options


def test_flags_are_read_with_one_dash_or_two_and_the_last_one_wins() -> None:
    options = parsed(
        "-log-prefix", "a", "--log-prefix=b=c", "-max-tcp-connections=7", "--http-allow-host", "x", "-http-allow-host=y"
    )
    assert (options.log_prefix, options.max_tcp_connections, options.http_allow_hosts) == ("b=c", 7, ["x", "y"])
    assert parsed("-log-prefix=").log_prefix == ""
    assert parsed("--version").version
    assert not parsed("--version", "--version=false").version
    assert parsed("-gzip", "-log-level=warn") == CommonOptions(log_prefix="true", log_level="WARNING")
    assert not parsed("--", "--version").version
    assert not parsed("word", "--version").version
    assert not parsed("-", "--version").version
    helped = parsed("--log-prefix=a", "-h", "--version", "--nonsense")
    assert (helped.help, helped.log_prefix, helped.version) == (True, "a", False)
    assert parsed("--help").help


def test_what_has_no_effect_here_is_said_unless_it_has_none_anywhere() -> None:
    assert parsed("--verbose", "--worker-id=1", "--statsd-address=").warnings == []
    assert parsed("--statsd-address=x").warnings == ["-statsd-address has no effect here"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nonsense"], "flag provided but not defined: -nonsense"),
        (["---version"], "flag provided but not defined: --version"),
        (["--log-prefix"], "flag needs an argument: -log-prefix"),
        (["--version=yes"], "invalid value \"yes\" for flag -version: 'yes' is not true or false"),
        (["--max-tcp-connections=0"], "it must be at least 1"),
        (["--log-level=loud"], "'loud' is not one of debug"),
    ],
)
def test_wrong_flags_are_refused_in_gos_words(arguments: list[str], words: str) -> None:
    with pytest.raises(BadFlag) as raised:
        parsed(*arguments)
    assert words in str(raised.value)


def test_values_of_flags() -> None:
    assert [boolean(text) for text in ("1", "t", "T", "true", "TRUE", "True")] == [True] * 6
    assert [boolean(text) for text in ("0", "f", "F", "false", "FALSE", "False")] == [False] * 6
    assert [level(text) for text in ("debug", "Warn", "WARNING", "fatal")] == ["DEBUG", "WARNING", "WARNING", "FATAL"]
    assert parsed("--max-http-connections=1").max_http_connections == 1
    assert usage("nsqd", {"b": FLAGS["gzip"], "a": FLAGS["worker-id"]}) == (
        "Usage of nsqd:\n  -a\n    \told\n  -b\n    \tmay stand alone"
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0.0), ("-0", 0.0), ("250ms", 0.25), ("1h2m3.5s", 3723.5), ("+.5s", 0.5), ("-1m", -60.0), ("1.s", 1.0), ("3us", 3e-6),
     ("3µs", 3e-6), ("5ns", 5e-9)],
)  # fmt: skip
def test_durations(text: str, seconds: float) -> None:
    assert golang.duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "1", "s", "1 s", "1s2", "x1s", "--1s", "1d"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        golang.duration(text)


def test_numbers() -> None:
    assert golang.whole("-12") == -12
    with pytest.raises(ValueError, match="'1k' is not a whole number of messages: write digits"):
        golang.whole("1k", "messages")
    with pytest.raises(ValueError, match="'1k' is not a whole number: write digits"):
        golang.whole("1k")
    assert [golang.base10(digits) for digits in (b"", b"0012", b"18446744073709551617", b"-1", b"1.0", b" 1", b"\xb2")] == [
        0, 12, 1, None, None, None, None,
    ]  # fmt: skip
    assert golang.base10(b"0" * 3999) == 0
    assert golang.base10(b"0" * 4000) is None
    top = 1 << 63
    assert [golang.signed(number) for number in (0, top - 1, top, 2 * top - 1)] == [0, top - 1, -top, -1]


def test_strings_are_quoted_as_go_does() -> None:
    assert golang.quote(b'a"b\\\n\t\r\x07\x08\x0b\x0c') == r'"a\"b\\\n\t\r\a\b\v\f"'
    assert golang.quote("é\u200b\x00\x7f\x85\U0001f600\U000e0001".encode()) == '"é\\u200b\\x00\\x7f\\u0085\U0001f600\\U000e0001"'
    assert golang.quote(b"\xff\x80") == r'"\xff\x80"'
    assert golang.quote("\x7f\x80\uffff\U000f0000".encode()) == r'"\x7f\u0080\uffff\U000f0000"'


def test_queries() -> None:
    assert golang.query("a=1&b=x+y%20z&a=2&c&&=d&e=f=g") == {"a": ["1", "2"], "b": ["x y z"], "c": [""], "": ["d"], "e": ["f=g"]}
    for wrong in ("a;b", "a=%", "a=%2", "a=%zz"):
        with pytest.raises(ValueError, match="is no query"):
            golang.query(wrong)
    assert golang.query("a=%2F%ff")["a"] == ["/\udcff"]


@dataclass
class Settings:
    name: str = ""
    count: int = 5
    small: int = 0
    flag: bool = False


def test_json_sets_fields_as_go_does() -> None:
    limits = {"small": (-2, 2)}
    assert golang.unmarshal(b"null", Settings()) == Settings()
    body = b'{"NAME": "x", "Count": null, "unknown": [1], "small": 2, "flag": true}'
    assert golang.unmarshal(body, Settings(), limits) == Settings("x", 5, 2, True)
    assert golang.unmarshal(b'{"small": -2, "count": -9223372036854775808}', Settings(), limits).small == -2
    top = b"9223372036854775808"
    wrong = [b"[]", b"", b'{"name": 1}', b'{"flag": 1}', b'{"count": true}', b'{"count": 1.5}', b'{"count": NaN}']
    for body in (*wrong, b'{"small": 3}', b'{"small": -3}', b'{"count": %b}' % top):
        with pytest.raises(ValueError):
            golang.unmarshal(body, Settings(), limits)


def test_limits_of_topics_by_name() -> None:
    read = setting(int)
    assert [read("orders=5"), read("*=7"), read("orders=6")] == [("orders", 5), ("*", 7), ("orders", 6)]
    for wrong in ("orders", "a b=5", "=5"):
        with pytest.raises(ValueError, match="TOPIC=LIMIT"):
            read(wrong)
    with pytest.raises(ValueError, match="invalid literal"):
        read("orders=")
    limits = PerTopic([read(text) for text in ("orders=5", "*=7", "orders=6")])
    assert (limits.of("orders"), limits.of("others")) == (6, 7)
    assert PerTopic([("orders", 5)]).of("others") is None
    assert not PerTopic([])


# --- whose requests are served


def served(method: str = "POST", *, loopback: bool = True, names: tuple[str, ...] = (), **headers: str) -> str:
    """What is said; empty when it is served."""
    environ: dict[str, Any] = {f"HTTP_{name.upper()}": value for name, value in headers.items()}
    try:
        CrossSite(names, "Broadcast.example").check({"REQUEST_METHOD": method, LOOPBACK: loopback, **environ})
    except Status as error:
        return str(error.args[-1])
    return ""


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:4151",
        "127.0.0.1:4151",
        "[::1]:4151",
        "[::1]",
        "a.localhost",
        "localhost.",
        "broadcast.example",
        "",
    ],
)
def test_a_loopback_address_is_called_by_names_that_no_other_site_can_have(host: str) -> None:
    assert served(host=host) == ""
    assert served() == ""


def test_a_name_that_another_site_pointed_to_loopback_is_refused() -> None:
    for method in ("GET", "POST"):
        assert "FORBIDDEN_HOST" in served(method, host="evil.example:4151")
    assert served(host="evil.example", loopback=False) == ""
    assert served(host="evil.example", names=("Evil.Example",)) == ""
    assert served(host="evil.example", names=("*",)) == ""
    assert "FORBIDDEN_HOST" in served(host="localhost.evil.example")


@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        ({}, False),
        ({"origin": "http://localhost:4151"}, False),
        ({"origin": "http://LOCALHOST:4151"}, False),
        ({"origin": "http://localhost:80"}, True),
        ({"origin": "http://evil.example"}, True),
        ({"origin": "null"}, True),
        ({"origin": "http://friend.example:99"}, False),
        ({"origin": "http://friend.example", "sec_fetch_site": "cross-site"}, False),
        ({"origin": "http://evil.example", "sec_fetch_site": "same-origin"}, False),
        ({"sec_fetch_site": "none"}, False),
        ({"sec_fetch_site": "same-site"}, True),
        ({"origin": "http://localhost:4151", "sec_fetch_site": "cross-site"}, True),
    ],
)
def test_pages_of_other_sites_change_nothing_unless_they_are_named(headers: dict[str, str], refused: bool) -> None:
    common: dict[str, Any] = {"host": "localhost:4151", "names": ("friend.example",), **headers}
    assert ("FORBIDDEN_ORIGIN" in served(**common)) is refused
    for method in ("GET", "HEAD", "OPTIONS"):
        assert served(method, **common) == ""
    for method in ("PUT", "DELETE"):
        assert bool(served(method, **common)) is refused


# --- bodies


def test_each_line_that_is_not_empty_is_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lines(b"", 5) == []
    assert lines(b"\n\n", 5) == []
    assert lines(b"a\n\nbc\n", 5) == [(payload(b"a", b"bc"), 2)]
    assert lines(b"a\r\nb", 5) == [(payload(b"a\r", b"b"), 2)]
    assert lines(b"12345", 5) == [(payload(b"12345"), 1)]
    with pytest.raises(TooLong):
        lines(b"a\n123456\nb", 5)
    monkeypatch.setattr(payloads, "_LINES_BYTES", 4)
    assert lines(b"a\nb\nc\nd\ne\n", 5) == [(payload(b"a", b"b", b"c"), 3), (payload(b"d", b"e"), 2)]
    assert lines(b"a\nb\n", 5) == [(payload(b"a", b"b"), 2)]


def test_many_messages_are_cut_into_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "MAX_RECORD_MESSAGES", 2)
    assert cut(payload(b"a", b"b", b"c"), 3) == [(payload(b"a", b"b"), 2), (payload(b"c"), 1)]
    assert lines(b"a\nb\nc", 5) == [(payload(b"a", b"b"), 2), (payload(b"c"), 1)]

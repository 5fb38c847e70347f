"""The command line of an nsqd: which values are taken, just inside and just outside of what can be, and what follows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from framework.nsqd import goflags, options
from framework.nsqd.goflags import BadFlag
from framework.nsqd.options import TLS_NOT_REQUIRED, TLS_REQUIRED, TLS_REQUIRED_EXCEPT_HTTP, parse


@pytest.mark.parametrize(("flags", "attribute", "value"), [
    ("--drain-to=there:4150", "drain_to", "nsq://there:4150"), ("--drain-to=nsq://there:1", "drain_to", "nsq://there:1"),
    ("--drain-to=nsq+tls://there:4150", "drain_to", "nsq+tls://there:4150"),
    ("--drain-to=nsq+unix:///there", "drain_to", "nsq+unix:///there"),
    ("--lookupd-tcp-address=a:1 --lookupd-tcp-address=[::1]:65535", "lookupd_tcp_addresses", ["a:1", "[::1]:65535"]),
    ("--node-id=0", "node_id", 0), ("--node-id=1023", "node_id", 1023),
    ("--max-deflate-level=1", "max_deflate_level", 1), ("--max-deflate-level=9", "max_deflate_level", 9),
    ("--msg-timeout=1ms", "msg_timeout", 0.001), ("--max-req-timeout=0s", "max_req_timeout", 0.0),
    ("--mem-queue-size=0", "mem_queue_size", 0), ("--max-rdy-count=1", "max_rdy_count", 1),
    ("--max-body-memory=1", "max_body_memory", 1), ("--max-tcp-connections=1", "max_tcp_connections", 1),
    ("--tls-required", "tls_required", TLS_REQUIRED), ("--tls-required=TRUE", "tls_required", TLS_REQUIRED),
    ("--tls-required=false", "tls_required", TLS_NOT_REQUIRED),
    ("--tls-required=TCP-HTTPS", "tls_required", TLS_REQUIRED_EXCEPT_HTTP),
    ("--tls-client-auth-policy=require", "tls_required", TLS_REQUIRED), ("", "tls_required", TLS_NOT_REQUIRED),
    ("--tls-client-auth-policy=require --tls-required=tcp-https", "tls_required", TLS_REQUIRED_EXCEPT_HTTP),
    ("--tls-client-auth-policy=Require-Verify", "tls_client_auth_policy", "require-verify"),
    ("--tls-min-version=TLS1.2", "tls_min_version", "tls1.2"), ("--snappy=false", "snappy", False), ("--snappy", "snappy", True),
    ("--sync-every=1", "sync_timeout", 2.0), ("--sync-timeout=1s", "sync_every", 2500), ("", "sync_every", 0),
    ("--sync-every=7 --sync-timeout=3s", "sync_every", 7), ("--sync-every=7 --sync-timeout=3s", "sync_timeout", 3.0),
    ("--log-level=warn", "log_level", "WARNING"), ("--log-level=WARNING", "log_level", "WARNING"),
    ("--deflate=f", "deflate", False), ("-deflate=0 -deflate=T", "deflate", True), ("--inspect --json", "json", True),
    ("--drain-to=a:1 --drain-all-channels", "drain_all_channels", True), ("--msg-timeout 5s", "msg_timeout", 5.0),
    ("--help --no-such-flag", "help", True), ("-h", "help", True),
    ("-- --no-such-flag", "help", False), ("word --nor-this", "help", False),
])  # fmt: skip
def test_what_can_be_is_taken(flags: str, attribute: str, value: Any) -> None:
    assert getattr(parse(flags.split()), attribute) == value


@pytest.mark.parametrize(("flags", "words"), [
    ("--drain-to=there", "it is not <host>:<port>"),
    ("--drain-to=http://there:1", "it is not <host>:<port>, nor the URL of an nsqd"),
    ("--drain-to=nsq://a:1,b:2", "it names more than one nsqd"), ("--drain-to=nsq+lookupd://a:1", "nor the URL of an nsqd"),
    ("--lookupd-tcp-address=a:0", "it is not <host>:<port>"), ("--lookupd-tcp-address=a:65536", "it is not <host>:<port>"),
    ("--lookupd-tcp-address=:1", "it is not <host>:<port>"), ("--lookupd-tcp-address=a", "it is not <host>:<port>"),
    ("--lookupd-tcp-address=a:x", "it is not <host>:<port>"), ("--lookupd-tcp-address=a:²", "it is not <host>:<port>"),
    ("--node-id=1024", "out of range: use 0 to 1023"), ("--node-id=-1", "out of range: use 0 to 1023"),
    ("--max-deflate-level=0", "out of range: use 1 to 9"), ("--max-deflate-level=10", "out of range: use 1 to 9"),
    ("--msg-timeout=999us", "at least 0.001s"), ("--max-req-timeout=-1ns", "at least 0s"), ("--mem-queue-size=-1", "at least 0"),
    ("--max-rdy-count=0", "at least 1"), ("--max-body-memory=0", "at least 1"), ("--max-http-connections=0", "at least 1"),
    ("--drain-all-channels", "add --drain-to"), ("--json", "add --inspect"), ("--verify --inspect", "give one of them"),
    ("--verify --backup=/there", "give one of them"), ("--drain-to=a:1 --inspect", "give one of them"),
    ("--tls-required=perhaps", "is not true or false"), ("--tls-min-version=ssl3", "is not one of"),
    ("--log-level=loud", "is not one of"),
    ("--no-such-flag", "flag provided but not defined: -no-such-flag"), ("--msg-timeout", "flag needs an argument: -msg-timeout"),
])  # fmt: skip
def test_what_cannot_be_is_refused_in_a_sentence(flags: str, words: str) -> None:
    with pytest.raises(BadFlag) as raised:
        parse(flags.split())
    assert words in str(raised.value)


@pytest.mark.parametrize(("asked", "refused"), [("true", True), ("false", False)])
def test_snappy_is_for_who_has_it(monkeypatch: pytest.MonkeyPatch, asked: str, refused: bool) -> None:
    monkeypatch.setattr(options, "find_spec", lambda name: None)
    assert parse([]).snappy is False
    if refused:
        with pytest.raises(BadFlag, match="python-snappy is not installed"):
            parse([f"--snappy={asked}"])
    else:
        assert parse([f"--snappy={asked}"]).snappy is False


@pytest.mark.parametrize(("flags", "warnings"), [
    ("--statsd-address=a:1", 1), ("--worker-id=1", 0), ("--worker-id=5", None), ("--verbose", 0), ("--max-bytes-per-file=100", 1),
    ("--max-bytes-per-file=0", 0), ("--sync-every=1", 1), ("", 0),
])  # fmt: skip
def test_what_has_no_effect_here_is_said(flags: str, warnings: int | None) -> None:
    if warnings is None:
        with pytest.raises(BadFlag):
            parse(flags.split())
    else:
        assert len(parse(flags.split()).warnings) == warnings


@pytest.mark.parametrize(("value", "shown"), [
    (1.0, "1s"), (1.5, "1.5s"), (60.0, "60s"), (0.25, "250ms"), (0.0, "0s"), (True, "true"), (False, "false"), (7, "7"), (0, "0"),
    ("", "none"), (None, "none"), ([], "none"), ("a word", "a word"), (" spaces ", "spaces"),
])  # fmt: skip
def test_a_default_is_shown_as_it_would_be_given(value: Any, shown: str) -> None:
    flag = {"some-flag": goflags.Flag(str, "some", "what it does")}
    page = goflags.as_markdown(flag, SimpleNamespace(some=value), {})  # type: ignore[arg-type]
    assert page.splitlines()[0] == f"- `--some-flag` ({shown}): What it does."

"""The options of an nsqd that runs, as /config gives and takes them."""

from __future__ import annotations

from typing import Any

import pytest

from framework.nsqd import config
from framework.nsqd.options import parse
from framework.nsqd.status import Status


@pytest.mark.parametrize(("flag", "name", "told"), [
    ("--msg-timeout=90s", "msg_timeout", 90_000_000_000), ("--max-req-timeout=1h", "max_req_timeout", 3_600_000_000_000),
    ("--output-buffer-timeout=250ms", "output_buffer_timeout", 250_000_000), ("--max-rdy-count=7", "max_rdy_count", 7),
    ("--deflate=false", "deflate", False), ("--node-id=12", "id", 12), ("--data-path=/here", "data_path", "/here"),
    ("--lookupd-tcp-address=a:4160", "nsqlookupd_tcp_addresses", ["a:4160"]),
    ("--log-level=debug", "log_level", 1), ("--log-level=warn", "log_level", 3), ("--log-level=fatal", "log_level", 5),
])  # fmt: skip
def test_an_option_is_told_as_nsqd_tells_it(flag: str, name: str, told: Any) -> None:
    assert config.get(parse([flag]), name) == told


@pytest.mark.parametrize("name", ["", "none", "node_id", "lookupd_tcp_address", "verify", "drain_to", "max_body_memory"])
def test_what_nsqd_has_not_is_no_option(name: str) -> None:
    with pytest.raises(Status, match="INVALID_OPTION") as raised:
        config.get(parse([]), name)
    assert raised.value.code == 400


def test_what_is_put_is_in_force() -> None:
    options = parse(["--max-msg-size=10", "--lookupd-tcp-address=a:4160"])
    config.put(options, "log_level", b"WARN")
    assert options.log_level == "WARNING"
    config.put(options, "nsqlookupd_tcp_addresses", b'["b:416"]'.ljust(10))
    assert options.lookupd_tcp_addresses == ["b:416"]
    config.put(options, "nsqlookupd_tcp_addresses", b"null")
    assert options.lookupd_tcp_addresses == []


@pytest.mark.parametrize(("name", "body", "code", "words"), [
    ("log_level", b"", 413, "INVALID_VALUE"), ("log_level", b"x" * 11, 413, "INVALID_VALUE"),
    ("log_level", b"x" * 10, 400, "INVALID_VALUE"), ("log_level", b"\xff", 400, "INVALID_VALUE"),
    ("nsqlookupd_tcp_addresses", b"[1]", 400, "INVALID_VALUE"), ("nsqlookupd_tcp_addresses", b"{", 400, "INVALID_VALUE"),
    ("msg_timeout", b"1", 400, "INVALID_OPTION"), ("log_level ", b"info", 400, "INVALID_OPTION"),
])  # fmt: skip
def test_what_cannot_be_put_changes_nothing(name: str, body: bytes, code: int, words: str) -> None:
    options = parse(["--max-msg-size=10"])
    with pytest.raises(Status, match=words) as raised:
        config.put(options, name, body)
    assert raised.value.code == code
    assert options == parse(["--max-msg-size=10"])

"""Broker URLs of NSQ: what they mean, and the sentence for one that means nothing."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from framework.errors import BadSetting
from framework.transports import open_transports
from framework.transports.nsq import wire
from framework.transports.nsq.urls import Options, as_markdown, join_address, read, split_address


@pytest.mark.parametrize(
    ("urls", "nsqds", "lookupds"),
    [
        (["nsq://host"], ("host:4150",), ()),
        (["nsq://host:5000/"], ("host:5000",), ()),
        (["nsq://[::1]"], ("[::1]:4150",), ()),
        (["nsq://[fe80::1%eth0]:5000"], ("[fe80::1%eth0]:5000",), ()),
        (["nsq://a:1,b,[::1]:3"], ("a:1", "b:4150", "[::1]:3"), ()),
        (["nsq+lookupd://l1,l2:4171"], (), ("l1:4161", "l2:4171")),
        (["nsq+lookupd+https://l1,l2:4171"], (), ("https://l1:443", "https://l2:4171")),
        (["nsq+tls://a,[::1]"], ("a:4150", "[::1]:4150"), ()),
        (["nsq+unix:///run/nsqd.sock"], ("/run/nsqd.sock",), ()),
        (["nsq+unix:///run/with%20space?heartbeat=5s", "nsq://a"], ("/run/with space", "a:4150"), ()),
        (["nsq://a", "nsq+lookupd://l", "nsq://a:4150", "nsq://b?heartbeat=5s"], ("a:4150", "b:4150"), ("l:4161",)),
    ],
)
def test_addresses(urls, nsqds, lookupds):
    found = read(urls)
    assert (found.nsqds, found.lookupds) == (nsqds, lookupds)


def test_options():
    assert read(["nsq://a"]).options == Options()
    url = "nsq://a?heartbeat=1500ms&max_msg_size=10485760&max_body_size=20971520&http_port=4251"
    assert read([url]).options == Options(1.5, 10485760, 20971520, 4251)


def test_the_example_of_every_option_is_one():
    for row in fields(Options):
        beside = "&deflate=true" if row.name == "deflate_level" else "&tls_cert=c" if row.name == "tls_key" else ""
        scheme = "nsq+tls" if row.name.startswith("tls_") else "nsq"
        value = getattr(read([f"{scheme}://a?{row.name}={row.metadata['example']}{beside}"]).options, row.name)
        assert type(value) is type(row.default), row.name


def test_the_page_has_the_table():
    page = (Path(__file__).resolve().parents[3] / "docs" / "nsq.md").read_text()
    assert as_markdown() in page
    assert all(kind.__name__ in page for _, kind, _ in wire.ERRORS)


@pytest.mark.parametrize(
    ("url", "name", "value"),
    [
        ("nsq+tls://a", "tls", True),
        ("nsq://a?tls=1", "tls", True),
        ("nsq://a?tls=NO", "tls", False),
        ("nsq://a?output_buffer_size=off", "output_buffer_size", -1),
        ("nsq://a?output_buffer_timeout=250ms", "output_buffer_timeout", 0.25),
        ("nsq://a?msg_timeout=2m", "msg_timeout", 120.0),
        ("nsq://a?user_agent=shop/2.1", "user_agent", "shop/2.1"),
        ("nsq+lookupd+https://a?tls_ca=/ca", "tls_ca", "/ca"),
    ],
)
def test_what_options_mean(url, name, value):
    assert getattr(read([url]).options, name) == value


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nsq://user:hunter2@host", "leave out what is before the @"),
        ("nsq://host/orders", "topics are named by handlers"),
        ("nsq://host#x", r"nothing may follow the address but \?options"),
        ("nsq://host?heartbeet=1s", "did you mean heartbeat"),
        ("nsq://host?max_message_size=1", "did you mean max_msg_size"),
        ("nsq://host?zzz=1", "did you mean heartbeat, max_msg_size, max_body_size, http_port, client_id, "),
        ("nsq://host?heartbeat=500ms", "1s to 60s"),
        ("nsq://host?heartbeat=fast", "1s to 60s"),
        ("nsq://host?heartbeat=", "1s to 60s"),
        ("nsq://host?max_msg_size=1MB", "number of bytes"),
        ("nsq://host?heartbeat_interval=5s", "did you mean heartbeat"),
        ("nsq://host?tls=perhaps", "true or false, such as tls=true"),
        ("nsq://host?tls_verify=false", "no option 'tls_verify'; did you mean tls"),
        ("nsq+tls://host?tls=false", r"tls='false' beside nsq\+tls://"),
        ("nsq://host?tls_ca=/ca.pem", r"tls_ca in a broker URL without TLS: write nsq\+tls://"),
        ("nsq+tls://host?tls_key=/k", "tls_key in a broker URL without tls_cert"),
        ("nsq+tls://host?tls_ca=/c&tls_insecure_skip_verify=true", "nothing is verified"),
        ("nsq+tls://host?tls_min_version=1.1", "1.2 or 1.3"),
        ("nsq+tls://host?tls_ca=", "write what it shall be"),
        ("nsq://host?hostname=web%001", "write what it shall be, in printable characters"),
        ("nsq://host?hostname=web%0a1", "write what it shall be, in printable characters"),
        ("nsq+unix://host/run", r"nsq\+unix:///run/nsqd.sock"),
        ("nsq+unix:///", r"nsq\+unix:///run/nsqd.sock"),
        ("nsq+unix:///run/nsqd.sock?tls=true", "tls_server_name="),
        ("nsq://host?snappy=true&deflate=true", "leave one out"),
        ("nsq://host?deflate_level=6", "add deflate=true"),
        ("nsq://host?deflate=true&deflate_level=10", "a number from 1 to 9"),
        ("nsq://host?sample_rate=100", "a percentage from 1 to 99"),
        ("nsq://host?msg_timeout=0s", "1s up to its --max-msg-timeout"),
        ("nsq://host?output_buffer_size=10", "bytes from 64 up to .* such as output_buffer_size=16384"),
        ("nsq://host?output_buffer_timeout=off", "25ms to 30s"),
        ("nsq://host?user_agent=shop", "name/version"),
        ("nsq://host?auth_secret=hunter2", "auth_secret_file=/path/of/it"),
        ("nsq://host?http_port=0", "a port from 1 to 65535, such as http_port=4151"),
        ("nsq://", "is not an address; write host:4150"),
        ("nsq+lookupd://", "write host:4161"),
        ("nsq://a,,b", "'' is not an address"),
        ("nsq://nsqd..internal:4150", "'nsqd..internal:4150' is not an address"),
        ("nsq://" + "x" * 64, "is not an address"),
        ("nsq://a\udcff", "is not an address"),
        ("nsq://::1", "port from 1 to 65535|not an address"),
        ("nsq://[::1", "not an address"),
        ("nsq://host:0", "port from 1 to 65535"),
        ("nsq://host:70000", "port from 1 to 65535"),
        ("nsq://host:nsq", "port from 1 to 65535"),
        ("nsq://two words", "port from|not an address"),
        ("NSQ://host", "the scheme must be one of nsq://"),
        ("host:4150", "the scheme must be one of nsq://"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_by_one_sentence(url, words):
    with pytest.raises(BadSetting, match=words) as caught:
        open_transports([url])
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_two_urls_may_not_disagree():
    with pytest.raises(BadSetting, match="heartbeat is '1s' in another URL"):
        read(["nsq://a?heartbeat=1s", "nsq://b?heartbeat=2s"])


@pytest.mark.parametrize(("host", "port", "address"), [("h", 1, "h:1"), ("::1", 4150, "[::1]:4150")])
def test_addresses_of_hosts(host, port, address):
    assert join_address(host, port) == address
    assert split_address(address) == (host, port)


@pytest.mark.parametrize(("name", "least", "most", "below", "above"), [
    ("heartbeat", "1s", "60s", "999ms", "60001ms"), ("msg_timeout", "1s", "86400s", "999ms", "86401s"),
    ("max_req_timeout", "0s", "31622400s", None, "31622401s"), ("output_buffer_timeout", "1ms", "60s", "0ms", "60001ms"),
    ("http_port", "1", "65535", "0", "65536"), ("output_buffer_size", "64", "999999999", "63", "1000000000"),
    ("max_msg_size", "1", "9999999", "0", None),
])  # fmt: skip
def test_numbers_and_times_have_bounds(name: str, least: str, most: str, below: str | None, above: str | None) -> None:
    for text in (least, most):
        read([f"nsq://a?{name}={text}"])
    for text in (below, above):
        if text is not None:
            with pytest.raises(BadSetting, match=name):
                read([f"nsq://a?{name}={text}"])


def test_one_url_that_asks_for_tls_is_enough() -> None:
    assert read(["nsq://a", "nsq+tls://b"]).options.tls
    assert not read(["nsq://a", "nsq://b"]).options.tls
    assert read(["nsq+tls://a?tls=true"]).options.tls
    with pytest.raises(BadSetting, match="tls='false' beside nsq"):
        read(["nsq+tls://a?tls=false"])


@pytest.mark.parametrize("how", ["tls_server_name=nsqd.example", "tls_insecure_skip_verify=true"])
def test_tls_over_a_unix_socket_needs_a_name_or_nobody_who_looks_at_it(how: str) -> None:
    assert read([f"nsq+unix:///run/nsqd.sock?tls=true&{how}"]).options.tls
    assert read(["nsq+tls://a"]).options.tls
    with pytest.raises(BadSetting, match="say which name its certificate has, by tls_server_name="):
        read(["nsq+unix:///run/nsqd.sock?tls=true"])

"""What is asked of an nsqd and of an nsqlookupd by HTTP, word for word, and where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from framework.transports.nsq import wire
from framework.transports.nsq.http import Lookupd, Nsqd, _https_port
from framework.transports.nsq.urls import Options


class Written(Nsqd):
    """An nsqd that writes down what it is asked."""

    def __init__(self) -> None:
        super().__init__("a:4151")
        self.asked: list[tuple[Any, ...]] = []

    def _post(self, path: str, body: bytes = b"", **query: str) -> None:
        self.asked.append((path, body, query))


@pytest.mark.parametrize(("do", "asked"), [
    (lambda nsqd: nsqd.publish("t", b"x"), ("/pub", b"x", {"topic": "t"})),
    (lambda nsqd: nsqd.publish("t", b"x", delay=1.5), ("/pub", b"x", {"topic": "t", "defer": "1500"})),
    (lambda nsqd: nsqd.publish_many("t", [b"x", b"y"]),
     ("/mpub", wire.mpub_body([b"x", b"y"]), {"topic": "t", "binary": "true"})),
    (lambda nsqd: nsqd.empty_topic("t"), ("/topic/empty", b"", {"topic": "t"})),
    (lambda nsqd: nsqd.pause_topic("t"), ("/topic/pause", b"", {"topic": "t"})),
    (lambda nsqd: nsqd.pause_topic("t", paused=False), ("/topic/unpause", b"", {"topic": "t"})),
    (lambda nsqd: nsqd.empty_channel("t", "c"), ("/channel/empty", b"", {"topic": "t", "channel": "c"})),
    (lambda nsqd: nsqd.pause_channel("t", "c"), ("/channel/pause", b"", {"topic": "t", "channel": "c"})),
    (lambda nsqd: nsqd.pause_channel("t", "c", paused=False), ("/channel/unpause", b"", {"topic": "t", "channel": "c"})),
])  # fmt: skip
def test_what_an_nsqd_is_told(do: Callable[[Nsqd], None], asked: tuple[Any, ...]) -> None:
    nsqd = Written()
    do(nsqd)
    assert nsqd.asked == [asked]


@pytest.mark.parametrize(("node", "port", "address"), [
    ("a:4150", 0, "a:4151"), ("a:5000", 0, "a:5001"), ("a:4150", 99, "a:99"), ("[::1]:4150", 0, "[::1]:4151"),
    ("/run/nsqd.sock", 0, "127.0.0.1:4151"), ("/run/nsqd.sock", 99, "127.0.0.1:99"),
])  # fmt: skip
def test_an_nsqd_answers_http_at_the_port_after_its_own_unless_told_otherwise(node: str, port: int, address: str) -> None:
    assert Nsqd.of(node, Options(http_port=port)).address == address


def test_an_nsqlookupd_is_not_asked_for_the_name_that_the_nsqds_certificates_have() -> None:
    found = Lookupd.of("l:4161", Options(tls_server_name="nsqd.example"), timeout=3.0)
    assert (found.address, found.timeout, found._options.tls_server_name) == ("l:4161", 3.0, "")


@pytest.mark.parametrize(("answer", "port"), [
    (b'{"message":"TLS_REQUIRED","https_port":4152}', 4152), (b"{}", 0), (b"no json", 0), (b"\xff", 0),
])  # fmt: skip
def test_the_port_that_an_nsqd_refers_to(answer: bytes, port: int) -> None:
    assert _https_port(answer) == port

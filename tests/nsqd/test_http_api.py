"""nsqd's HTTP API on a broker, without a socket: what each request does, and at which bounds it is refused."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from framework.nsqd.broker import Broker
from framework.nsqd.http import NsqdApi
from framework.nsqd.journal import NotStored
from framework.nsqd.options import TLS_REQUIRED, TLS_REQUIRED_EXCEPT_HTTP, parse
from framework.nsqd.status import Status
from framework.nsqd.store import Store
from framework.nsqd.underway import Memory
from framework.nsqd.web import Request
from tests.nsqd.storing import payload

FLAGS = ("--max-msg-size=10", "--max-body-size=34", "--max-req-timeout=60s")


class Server:
    """The API and its broker."""

    def __init__(self, folder: Path) -> None:
        self.broker = Broker(Store(folder), parse([f"--data-path={folder}", *FLAGS]), lambda level, words: None)
        self.used: list[list[str]] = []
        self._memory = Memory(1 << 20)
        lookups: Any = SimpleNamespace(use=lambda addresses: self.used.append(list(addresses)))
        self.api = NsqdApi(self.broker, [], {"tcp_port": 4150}, self._memory, lookups)

    def __call__(self, method: str, target: str, body: bytes = b"", *, chunked: bool = False, scheme: str = "http") -> Any:
        """The answer; of a refusal, its code and words."""
        path, _, query = target.partition("?")
        environ = {
            "REQUEST_METHOD": method, "PATH_INFO": path, "QUERY_STRING": query, "wsgi.input": BytesIO(body),
            "CONTENT_LENGTH": "" if chunked else str(len(body)), "wsgi.url_scheme": scheme,
        }  # fmt: skip
        share = self._memory.share(lambda: None)
        try:
            response = self.api.respond(Request(environ, share))
        except Status as status:
            return status.code, status.words
        finally:
            share.end()
        return response.answer if response.code == 200 else (response.code, response.answer)

    def depth(self, topic: str = "t") -> int:
        return self.broker.topics[topic].depth


@pytest.fixture
def ask(folder: Path) -> Iterator[Server]:
    made = Server(folder)
    yield made
    made.broker.stop()


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(("size", "answer"), [(0, (400, "MSG_EMPTY")), (1, "OK"), (10, "OK"), (11, (413, "MSG_TOO_BIG"))])
def test_one_message_is_published_up_to_its_size(ask: Server, size: int, answer: object, chunked: bool) -> None:
    assert ask("POST", "/pub?topic=t", b"x" * size, chunked=chunked) == answer
    assert (ask.depth() == 1) if answer == "OK" else ("t" not in ask.broker.topics)
    if answer == "OK":
        topic = ask.broker.topics["t"]
        assert (topic.message_count, topic.message_bytes) == (1, size)


@pytest.mark.parametrize(
    ("text", "delay"), [("0", 0), ("+5000", 5000), ("60000", 60_000), ("60001", None), ("-1", None), ("--1", None)]
)
def test_a_message_is_deferred_for_as_long_as_is_asked_for(ask: Server, text: str, delay: int | None) -> None:
    ask("POST", "/topic/create?topic=t")
    ask("POST", "/channel/create?topic=t&channel=c")
    channel = ask.broker.topics["t"].channels["c"]
    before = ask.broker.clock.now()
    answer = ask("POST", f"/pub?topic=t&defer={text.replace('+', '%2B')}", b"x")
    assert answer == ((400, "INVALID_DEFER") if delay is None else "OK")
    assert (channel.depth, len(channel.deferred)) == ((0, 1) if delay else (0 if delay is None else 1, 0))
    if delay:
        (row,) = channel.snapshot().put.values()
        assert delay - 1 <= row.due - before <= delay + 10_000


def binary(*bodies: bytes, count: int | None = None) -> bytes:
    return struct.pack(">i", len(bodies) if count is None else count) + payload(*bodies)


@pytest.mark.parametrize(("query", "body", "answer", "count"), [
    ("", b"a\nb\n\nc", "OK", 3), ("", b"x" * 10, "OK", 1), ("", b"x" * 11, (413, "MSG_TOO_BIG"), 0), ("", b"x\n" * 17, "OK", 17),
    ("", b"x\n" * 17 + b"x", (413, "BODY_TOO_BIG"), 0), ("&binary=false", b"a\nb", "OK", 2), ("&binary=0", b"a\nb", "OK", 2),
    ("&binary=true", binary(b"a", b"b"), "OK", 2), ("&binary=1", binary(b"a"), "OK", 1), ("&binary=what", binary(b"a"), "OK", 1),
    ("&binary", binary(b"a"), "OK", 1), ("&binary=1", b"abc", (413, "BAD_BODY"), 0),
    ("&binary=1", binary(), (413, "BAD_BODY"), 0),
    ("&binary=1", binary(count=-1), (413, "BAD_BODY"), 0), ("&binary=1", binary(*[b"a"] * 6), "OK", 6),
    ("&binary=1", binary(b"a", count=7), (413, "BAD_BODY"), 0), ("&binary=1", binary(b"a", count=2), (413, "BAD_MESSAGE"), 0),
    ("&binary=1", binary(b"a") + b"\0\0\0", "OK", 1), ("&binary=1", binary(b"x" * 10), "OK", 1),
    ("&binary=1", binary(b"x" * 11), (413, "BAD_MESSAGE"), 0), ("&binary=1", binary(b""), (413, "BAD_MESSAGE"), 0),
    ("&binary=1", binary(b"ab")[:-1], (413, "BAD_MESSAGE"), 0),
])  # fmt: skip
def test_many_messages_are_published_or_none(ask: Server, query: str, body: bytes, answer: object, count: int) -> None:
    for chunked in (False, True):
        assert ask("POST", f"/mpub?topic=t{query}", body, chunked=chunked) == answer
    assert ("t" in ask.broker.topics) >= bool(count)
    if count:
        assert ask.depth() == 2 * count


NAMED = [
    ("POST", "/pub"), ("POST", "/mpub"), ("POST", "/topic/create"), ("POST", "/topic/delete"), ("POST", "/topic/empty"),
    ("POST", "/topic/pause"), ("POST", "/topic/unpause"), ("POST", "/channel/create"), ("POST", "/channel/delete"),
    ("POST", "/channel/empty"), ("POST", "/channel/pause"), ("POST", "/channel/unpause"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), NAMED)
def test_a_name_must_be_given_be_one_and_be_there(ask: Server, method: str, path: str) -> None:
    makes = path in ("/pub", "/mpub", "/topic/create")
    assert ask(method, path, b"x") == (400, "MISSING_ARG_TOPIC")
    if path.startswith("/channel"):
        assert ask(method, f"{path}?topic=t") == (400, "MISSING_ARG_CHANNEL")
        assert ask(method, f"{path}?topic=!&channel=c") == (400, "INVALID_ARG_TOPIC")
        assert ask(method, f"{path}?topic=t&channel=!") == (400, "INVALID_ARG_CHANNEL")
        assert ask(method, f"{path}?topic=t&channel=c") == (404, "TOPIC_NOT_FOUND")
        ask("POST", "/topic/create?topic=t")
        there = path == "/channel/create"
        assert ask(method, f"{path}?topic=t&channel=c") == (None if there else (404, "CHANNEL_NOT_FOUND"))
    elif makes:
        assert ask(method, f"{path}?topic=!", b"x") == (400, "INVALID_TOPIC")
    else:
        wrong = (400, "INVALID_TOPIC") if path == "/topic/empty" else (404, "TOPIC_NOT_FOUND")
        assert (ask(method, f"{path}?topic=!"), ask(method, f"{path}?topic=t")) == (wrong, (404, "TOPIC_NOT_FOUND"))
    assert ("t" in ask.broker.topics) == path.startswith("/channel")


def test_what_is_made_paused_emptied_and_deleted_is_so_in_the_log_when_it_is_answered(ask: Server) -> None:
    for request in ("/topic/create?topic=t", "/channel/create?topic=t&channel=c", "/topic/pause?topic=t"):
        assert ask("POST", request) is None
        assert ask.broker.topics["t"].declared.done.is_set()  # type: ignore[union-attr]
    topic = ask.broker.topics["t"]
    channel = topic.channels["c"]
    assert ask("POST", "/pub?topic=t", b"x") == "OK"
    assert (topic.paused, topic.depth, channel.depth) == (True, 1, 0)
    assert ask("POST", "/topic/empty?topic=t") is None
    assert (topic.depth, ask.broker.changed) == (0, [])
    assert ask("POST", "/topic/unpause?topic=t") is None
    assert ask("POST", "/channel/pause?topic=t&channel=c") is None
    assert (topic.paused, channel.paused, topic.declared.done.is_set()) == (False, True, True)  # type: ignore[union-attr]
    assert ask("POST", "/pub?topic=t", b"x") == "OK"
    assert channel.depth == 1
    assert ask("POST", "/channel/empty?topic=t&channel=c") is None
    assert (channel.depth, ask.broker.changed) == (0, [])
    assert ask("POST", "/channel/unpause?topic=t&channel=c") is None
    assert not channel.paused
    assert ask("POST", "/channel/delete?topic=t&channel=c") is None
    assert (topic.channels, topic.declared.done.is_set()) == ({}, True)  # type: ignore[union-attr]
    assert ask("POST", "/topic/delete?topic=t") is None
    assert (ask.broker.topics, topic.declared.done.is_set()) == ({}, True)  # type: ignore[union-attr]


def test_a_topic_that_is_made_is_answered_when_it_has_its_channels(ask: Server) -> None:
    ask.broker.topic("t").await_channels()
    asking = gevent.spawn(ask, "POST", "/topic/create?topic=t")
    gevent.sleep(0.05)
    assert not asking.dead
    ask.broker.topics["t"].release()
    assert asking.get(timeout=10) is None


def test_what_cannot_be_stored_is_no_error_of_the_servers(ask: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise NotStored("there is no room")

    monkeypatch.setattr(ask.broker, "publish", full)
    assert ask("POST", "/pub?topic=t", b"x") == (503, "NOT_STORED there is no room")


@pytest.mark.parametrize(("required", "scheme", "answer"), [
    (TLS_REQUIRED, "http", (403, {"message": "TLS_REQUIRED", "https_port": 4152})), (TLS_REQUIRED, "https", "OK"),
    (TLS_REQUIRED_EXCEPT_HTTP, "http", "OK"), (0, "http", "OK"),
])  # fmt: skip
def test_where_tls_is_required_the_port_is_named(ask: Server, required: int, scheme: str, answer: object) -> None:
    ask.broker.options.tls_required, ask.api.https_port = required, 4152
    assert ask("GET", "/ping", scheme=scheme) == answer


def test_a_disk_that_fails_is_told_who_asks_whether_all_is_well(ask: Server) -> None:
    ask.broker.health.fails("DISK: nothing was published", OSError("no room"))
    code, words = ask("GET", "/ping")
    assert (code, "DISK: nothing was published" in words) == (500, True)


def test_an_option_that_is_changed_is_in_force(ask: Server) -> None:
    assert ask("PUT", "/config/nsqlookupd_tcp_addresses", b'["a:1"]') == ["a:1"]
    assert ask.used == [["a:1"]]
    assert ask("GET", "/config/nsqlookupd_tcp_addresses") == ["a:1"]
    assert ask("PUT", "/config/log_level", b"x" * 11) == (413, "INVALID_VALUE")


def test_how_many_clients_there_are_is_in_the_metrics(ask: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr("framework.nsqd.metrics.text", lambda broker, clients: asked.append(clients) or "text")
    monkeypatch.setattr(ask.api, "_clients", [1, 2, 3])
    assert (ask("GET", "/metrics"), asked) == ("text", [3])

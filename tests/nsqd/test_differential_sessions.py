"""Whole sessions: what IDENTIFY grants, timeouts, attempts, two clients, pauses, as a real nsqd v1.3.0."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from framework.testing.servers import Server
from tests.nsqd.differential import (
    FIN,
    HALF,
    READY,
    SUB,
    Before,
    Count,
    Http,
    Other,
    Until,
    identify,
    mpub,
    negotiate,
    on,
    playing,
    pub,
    sized,
)

pytestmark = pytest.mark.real


PAUSE, UNPAUSE, EMPTY, DELETE = (
    Http(f"/channel/{verb}?topic={{t}}&channel=c") for verb in ("pause", "unpause", "empty", "delete")
)
SHORT = identify(msg_timeout=1000)
"""After this, what is not answered comes again in a second."""


def raw(text: str) -> bytes:
    return b"IDENTIFY\n" + sized(text.encode())


FIELDS: dict[str, list[Any]] = {
    f"IDENTIFY {name} {value}": [identify(**({"feature_negotiation": True} | {name: value}))]
    for name, values in {
        "heartbeat_interval": (1000, 1001, 60000, -3, 1, 2147483648, -9223372036854775808, 9223372036854775807),
        "output_buffer_size": (64, 65, 65536, -2, 1, 2147483648, 9223372036854775807),
        "output_buffer_timeout": (25, 26, 30000, -2, 1, 9223372036854775807),
        "msg_timeout": (1000, 1001, 900000, -2, 1, 9223372036854775807),
        "sample_rate": (1, 99, 0, -2, 101, 2147483647, 2147483648),
        "deflate_level": (0, 1, 6, 7, -1, 100),
        "feature_negotiation": (True, False, None, "true"),
        "tls_v1": (False, None, 1),
        "client_id": ("", "x" * 300, None, "\u00e9", ["x"]),
        "hostname": ("", None, False),
        "user_agent": ("a/1 b/2", None, {}),
        "topology_region": ("eu", None, 1),
        "topology_zone": ("eu-1", None, 1),
    }.items()
    for value in values
}
JSON: dict[str, list[Any]] = {
    "IDENTIFY an empty object": [raw("{}")],
    "IDENTIFY a key twice": [raw('{"feature_negotiation": true, "msg_timeout": 2000, "msg_timeout": 3000}')],
    "IDENTIFY space around": [raw(' \n{"feature_negotiation": true}\t ')],
    "IDENTIFY something behind": [raw('{"feature_negotiation": true} x')],
    "IDENTIFY two objects": [raw('{"feature_negotiation": true}{}')],
    "IDENTIFY an exponent": [raw('{"feature_negotiation": true, "msg_timeout": 2e3}')],
    "IDENTIFY minus zero": [raw('{"feature_negotiation": true, "msg_timeout": -0}')],
    "IDENTIFY a leading zero": [raw('{"feature_negotiation": true, "msg_timeout": 02000}')],
    "IDENTIFY a comma too many": [raw('{"feature_negotiation": true,}')],
    "IDENTIFY single quotes": [raw("{'feature_negotiation': true}")],
    "IDENTIFY a string": [raw('"feature_negotiation"')],
    "IDENTIFY a number": [raw("5")],
    "IDENTIFY true": [raw("true")],
    "IDENTIFY an escaped key": [raw('{"feature_\\u006eegotiation": true}')],
    "IDENTIFY a lone surrogate": [raw('{"feature_negotiation": true, "client_id": "\\ud800"}')],
    "IDENTIFY no UTF-8": [b"IDENTIFY\n" + sized(b'{"feature_negotiation": true, "client_id": "\xff"}')],
    "IDENTIFY a control character": [b"IDENTIFY\n" + sized(b'{"client_id": "\x01"}')],
    "IDENTIFY two that are wrong": [negotiate(heartbeat_interval=1, sample_rate=200)],
    "IDENTIFY three that are wrong": [negotiate(msg_timeout=1, output_buffer_size=1, output_buffer_timeout=1)],
    "IDENTIFY an unknown object": [raw('{"feature_negotiation": true, "x": {"y": [1, {"z": null}]}}')],
    "IDENTIFY deep": [raw('{"feature_negotiation": true, "x": ' + "[" * 500 + "]" * 500 + "}")],
}
ONE: list[Any] = [Before(identify(msg_timeout=2000) + READY + pub(b"a")), on(0, b"RDY 0\n")]
"""One delivery, and no more once it times out: RDY 0 must be there before that."""
TIMED_OUT: list[Any] = [*ONE, Count("timeout_count", 1)]
OTHERS_NOW: list[Any] = [*ONE, Other(READY), Until(6)]
TIMES: dict[str, list[Any]] = {
    "a timeout delivers again": [SHORT + READY + pub(b"a"), Until(5)],
    "attempts grow with each timeout": [SHORT + READY + pub(b"a"), Until(6)],
    "FIN after the timeout, when it has come again": [SHORT + READY + pub(b"a"), Until(5), on(0, FIN + FIN)],
    "FIN after the timeout": [*TIMED_OUT, on(0, FIN)],
    "REQ after the timeout": [*TIMED_OUT, on(0, b"REQ <id> 0\n")],
    "TOUCH after the timeout": [*TIMED_OUT, on(0, b"TOUCH <id>\n")],
    "RDY after the timeout": [*TIMED_OUT, b"RDY 1\n"],
    "CLS after the timeout": [*TIMED_OUT, b"CLS\n", on(0, FIN)],
    "FIN when another has it": [*OTHERS_NOW, on(0, FIN)],
    "REQ when another has it": [*OTHERS_NOW, on(0, b"REQ <id> 0\n")],
    "TOUCH when another has it": [*OTHERS_NOW, on(0, b"TOUCH <id>\n")],
    "REQ by the one who has it now": [*OTHERS_NOW, Other(on(0, b"REQ <id> 60000\n")), Count("requeue_count", 1), on(0, FIN)],
    "TOUCH keeps it": [SHORT + READY + pub(b"a"), *[on(0, b"TOUCH <id>\n")] * 12, on(0, FIN)],
    "REQ with a delay comes later": [READY + pub(b"a"), on(0, b"REQ <id> 300\n"), Until(4), on(0, FIN)],
    "REQ to the tail grows attempts": [READY + pub(b"a"), on(0, b"REQ <id> 0\n"), on(0, b"REQ <id> 0\n"), on(0, FIN)],
    "DPUB comes later": [READY + b"DPUB {t} 300\n" + sized(b"a"), Until(3), on(0, FIN)],
    "DPUB without a channel waits for one": [b"DPUB {t} 300\n" + sized(b"a"), READY, Until(3)],
    "a client without answers is heard of no more": [negotiate(heartbeat_interval=1000), Until(1), b"NOP\n"],
}  # fmt: skip
PAIRS: dict[str, list[Any]] = {
    "FIN of another's message": [READY + pub(b"a"), Other(SUB), Other(on(0, FIN)), on(0, FIN)],
    "REQ of another's message": [READY + pub(b"a"), Other(SUB), Other(on(0, b"REQ <id> 0\n")), on(0, FIN)],
    "TOUCH of another's message": [READY + pub(b"a"), Other(SUB), Other(on(0, b"TOUCH <id>\n")), on(0, FIN)],
    "FIN of another channel's message": [READY + pub(b"a"), Other(b"SUB {t} d\n"), Other(on(0, FIN))],
    "REQ reaches the other client": [READY + pub(b"a"), Other(READY), on(0, b"RDY 0\nREQ <id> 0\n"), Other(on(0, FIN))],
    "each channel has its own copy": [READY, Other(b"SUB {t} d\nRDY 10\n"), pub(b"a"), on(0, FIN), Other(on(0, FIN))],
    "the first channel gets what waits": [pub(b"a", b"b"), READY, Other(b"SUB {t} d\nRDY 10\n")],
    "what a client held stays held": [READY, Other(READY), b"RDY 0\n", Other(b"RDY 1\n"), pub(b"a"), Other(b"BYE\n")],
    "a timeout goes to the other client": [
        *ONE, Other(identify(msg_timeout=2000) + READY), Until(6), Other(on(0, FIN)), on(0, FIN),
    ],
    "half a connection": [READY + pub(b"a"), HALF],
}  # fmt: skip
ADMIN: dict[str, list[Any]] = {
    "a paused channel gives nothing": [READY, PAUSE, pub(b"a")],
    "unpaused it goes on": [READY, PAUSE, pub(b"a"), UNPAUSE],
    "a paused topic keeps its messages": [READY, Http("/topic/pause?topic={t}"), pub(b"a")],
    "an unpaused topic hands over": [READY, Http("/topic/pause?topic={t}"), pub(b"a"), Http("/topic/unpause?topic={t}")],
    "FIN on a paused channel": [READY + pub(b"a"), PAUSE, on(0, FIN)],
    "REQ on a paused channel": [READY + pub(b"a"), PAUSE, on(0, b"REQ <id> 0\n")],
    "an emptied channel forgets what is in flight": [READY + pub(b"a"), EMPTY, on(0, FIN)],
    "an emptied channel forgets what waits": [SUB + pub(b"a", b"b"), EMPTY, b"RDY 10\n"],
    "an emptied channel forgets what is deferred": [READY + b"DPUB {t} 60000\n" + sized(b"a"), EMPTY],
    "an emptied topic keeps its channels' messages": [SUB + pub(b"a"), Http("/topic/empty?topic={t}"), b"RDY 1\n"],
    "an emptied topic forgets what waits in it": [pub(b"a"), Http("/topic/empty?topic={t}"), READY],
    "a deleted channel closes its clients": [READY + pub(b"a"), DELETE],
    "a deleted topic closes its clients": [READY + pub(b"a"), Http("/topic/delete?topic={t}")],
    "a channel made over HTTP": [Http("/topic/create?topic={t}"), Http("/channel/create?topic={t}&channel=c"), pub(b"a"), READY],
    "a channel of no topic": [Http("/channel/create?topic={t}&channel=c"), PAUSE],
    "no such channel": [pub(b"a"), EMPTY, DELETE],
}  # fmt: skip
OTHERS: dict[str, list[Any]] = {
    "sample_rate 99 takes all": [identify(sample_rate=99) + READY + mpub(*[b"%d" % n for n in range(10)])],
    "output buffering off": [identify(output_buffer_size=-1) + SUB + b"RDY 100\n" + pub(b"a", b"b"), on(0, FIN), on(1, FIN)],
    "a small output buffer": [identify(output_buffer_size=64) + SUB + b"RDY 100\n" + pub(b"a" * 900, b"b" * 900)],
    "a large output buffer": [identify(output_buffer_size=65536) + SUB + b"RDY 100\n" + mpub(*[b"x" * 400] * 10)],
    "without a timed flush": [identify(output_buffer_timeout=-1) + SUB + b"RDY 100\n" + pub(b"a"), pub(b"b")],
    "no heartbeats": [identify(heartbeat_interval=-1) + pub(b"a")],
    "an ephemeral channel goes with its client": [b"SUB {t} c#ephemeral\nRDY 1\n" + pub(b"a")],
    "an ephemeral channel of two clients": [b"SUB {t} c#ephemeral\n", Other(b"SUB {t} c#ephemeral\nRDY 1\n"), pub(b"a")],
    "an ephemeral topic delivers": [b"SUB {t}#ephemeral c\nRDY 5\nPUB {t}#ephemeral\n" + sized(b"a"), on(0, FIN)],
    "REQ on an ephemeral channel": [b"SUB {t} c#ephemeral\nRDY 1\n" + pub(b"a"), on(0, b"REQ <id> 0\n"), on(0, FIN)],
    "five thousand bytes of MPUB": [READY + mpub(*[b"x" * 990] * 5)],
    "CLS lets what waits stay": [SUB + pub(b"a", b"b") + b"RDY 1\n", b"CLS\n", on(0, FIN)],
    "CLS then TOUCH": [READY + pub(b"a"), Until(3), b"CLS\n", on(0, b"TOUCH <id>\nFIN <id>\n")],
    "RDY up and down": [SUB + b"RDY 5\nRDY 0\nRDY 1\n" + pub(b"a", b"b")],
    "two hundred PUBs in one write": [READY + pub(*[b"x"] * 200)],
}  # fmt: skip
ROWS = FIELDS | JSON | TIMES | PAIRS | ADMIN | OTHERS


@pytest.fixture(scope="module")
def played(pair: tuple[Server, Server], request: pytest.FixtureRequest) -> Iterator[dict[str, Future[tuple[Any, Any]]]]:
    with playing(pair, ROWS, request) as answers:
        yield answers


@pytest.mark.parametrize("name", ROWS)
def test_answers_as_nsqd_does(played: dict[str, Future[tuple[Any, Any]]], name: str) -> None:
    theirs, ours = played[name].result()
    assert ours == theirs

"""AUTH: a real nsqd v1.3.0 and ours behind the same auth server let in the same, say the same, and ask the same."""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from framework.testing.certificates import Authority
from framework.testing.servers import Server
from tests.nsqd.layers import Servers, Session
from tests.nsqd.speaking import sized

pytestmark = pytest.mark.real


class Door:
    """An auth server: answers every request with ``answer``, and remembers what it was asked."""

    def __init__(self) -> None:
        self.answer: Any = {}
        self.status = 200
        self.asked: list[dict[str, list[str]]] = []
        door = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                door.asked.append(parse_qs(urlsplit(self.path).query, keep_blank_values=True))
                body = door.answer if isinstance(door.answer, bytes) else json.dumps(door.answer).encode()
                self.send_response(door.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    door = Door()
    yield door
    door.server.shutdown()
    door.server.server_close()


@pytest.fixture(scope="module")
def guarded(start: Servers, door: Door) -> tuple[Server, Server]:
    return start(f"--auth-http-address=127.0.0.1:{door.server.server_port}")


def may(topic: str, *permissions: str, channels: tuple[str, ...] = (".*",)) -> dict[str, Any]:
    return {"topic": topic, "channels": list(channels), "permissions": list(permissions)}


def answer(*authorizations: dict[str, Any], ttl: Any = 60) -> dict[str, Any]:
    return {"ttl": ttl, "identity": "me", "identity_url": "http://me", "authorizations": list(authorizations)}


AUTH = b"AUTH\n" + sized(b"secret")
PUB = b"PUB orders\n" + sized(b"x")
DPUB = b"DPUB orders 0\n" + sized(b"x")
MPUB = b"MPUB orders\n" + sized(struct.pack(">i", 1) + sized(b"x"))
ALL = answer(may("orders", "publish", "subscribe"))
ROWS: dict[str, tuple[Any, bytes]] = {
    "before AUTH": (ALL, PUB),
    "DPUB before AUTH": (ALL, DPUB),
    "MPUB before AUTH": (ALL, MPUB),
    "SUB before AUTH": (ALL, b"SUB orders c\n"),
    "all allowed": (ALL, AUTH + PUB + DPUB + MPUB + b"SUB orders c\n"),
    "another topic": (ALL, AUTH + b"PUB other\n" + sized(b"x")),
    "a pattern is found anywhere": (ALL, AUTH + b"PUB my-orders-2\n" + sized(b"x")),
    "an anchored pattern": (answer(may("^orders$", "publish")), AUTH + b"PUB my-orders\n" + sized(b"x")),
    "only publishing": (answer(may("orders", "publish")), AUTH + PUB + b"SUB orders c\n"),
    "only subscribing": (answer(may("orders", "subscribe")), AUTH + b"SUB orders c\n" + PUB),
    "MPUB is refused before its body": (answer(may("orders", "subscribe")), AUTH + b"MPUB orders\n"),
    "DPUB is refused": (answer(may("orders", "subscribe")), AUTH + DPUB),
    "another channel": (answer(may("orders", "subscribe", channels=("^a$",))), AUTH + b"SUB orders b\n"),
    "publishing where channels are named": (answer(may("orders", "publish", channels=("^a$",))), AUTH + PUB),
    "the second authorization": (answer(may("x", "publish"), may("orders", "publish")), AUTH + PUB),
    "AUTH twice": (ALL, AUTH + AUTH),
    "AUTH with a parameter": (ALL, b"AUTH x\n" + sized(b"x")),
    "AUTH after SUB": (ALL, AUTH + b"SUB orders c\n" + AUTH),
    "no authorizations": (answer(), AUTH),
    "authorizations null": ({"ttl": 5, "authorizations": None}, AUTH),
    "no TTL": (answer(may("orders", "publish"), ttl=0), AUTH),
    "a TTL of another type": (answer(may("orders", "publish"), ttl="5"), AUTH),
    "an unknown permission": (answer(may("orders", "fly")), AUTH),
    "a pattern that is none": (answer(may("(", "publish")), AUTH),
    "an answer that is no object": ([1], AUTH),
    "an answer that is no JSON": (b"<html>", AUTH),
    "an answer that goes deep": (b'{"x":' + b"[" * 50_000, AUTH),
}


@pytest.mark.parametrize("name", ROWS)
def test_lets_in_whom_nsqd_lets_in(guarded: tuple[Server, Server], door: Door, name: str) -> None:
    door.answer, commands = ROWS[name]
    said = []
    for server in guarded:
        door.asked.clear()
        with Session(server) as client:
            client.send(commands + b"THE END\n")
            said.append((client.end(), list(door.asked)))
    assert said[1] == said[0]


def test_the_answer_is_asked_for_again_when_it_is_old(guarded: tuple[Server, Server], door: Door) -> None:
    said = []
    for server in guarded:
        door.answer = answer(may("orders", "publish"), ttl=1)
        with Session(server) as client:
            client.send(AUTH + PUB)
            frames = [client.frame(), client.frame()]
            door.answer = answer(may("nothing", "publish"), ttl=1)
            time.sleep(1.1)  # the server's clock, not ours
            client.send(PUB)
            said.append(frames + client.end())
    assert said[1] == said[0]
    assert said[1][-1] == (1, b'E_UNAUTHORIZED AUTH failed for PUB on "orders" ""')


def test_an_auth_server_that_fails_lets_nobody_in(guarded: tuple[Server, Server], door: Door) -> None:
    door.answer, door.status = ALL, 500
    said = []
    for server in guarded:
        with Session(server) as client:
            client.send(AUTH)
            said.append(client.end())
    door.status = 200
    assert said[1] == said[0] == [(1, b"E_AUTH_FAILED AUTH failed")]


def test_stats_name_who_is_in_and_the_auth_server_learns_the_certificates_name(
    guarded: tuple[Server, Server], door: Door, authority: Authority
) -> None:
    door.answer, said = ALL, []
    for server in guarded:
        door.asked.clear()
        with Session(server) as client:
            granted = client.identify(tls_v1=True)
            assert isinstance(granted, dict)
            client.secure()
            client.frame()
            client.send(AUTH + b"SUB orders who\n")
            frames = [client.frame(), client.frame()]
            (shown,) = server.channel_stats("orders", "who")["clients"]
            names = ("authed", "auth_identity", "auth_identity_url", "tls")
            said.append((granted["auth_required"], frames, [shown[name] for name in names], list(door.asked)))
    assert said[1] == said[0]

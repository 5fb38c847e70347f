"""What takes the envelopes of Sentry's SDK in tests, and what a worker has sent there."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


class Endpoint:
    """``hangs``: it takes requests and does not answer."""

    def __init__(self) -> None:
        self.items: list[tuple[str, dict[str, Any]]] = []
        self.raw: list[bytes] = []
        self.hangs = threading.Event()
        self.gone = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        self.dsn = f"http://key:secret-of-dsn@127.0.0.1:{self.server.server_port}/42"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        mine = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if mine.hangs.is_set():
                    mine.gone.wait(60)
                    return
                mine.take(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: object) -> None: ...

        return Handler

    def take(self, envelope: bytes) -> None:
        self.raw.append(envelope)
        _, *lines = envelope.split(b"\n")
        while len(lines) > 1:
            head, body, *lines = lines
            self.items.append((json.loads(head)["type"], json.loads(body)))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [item for type_, item in list(self.items) if type_ == kind]

    @property
    def events(self) -> list[dict[str, Any]]:
        return self.of("event")

    @property
    def transactions(self) -> list[dict[str, Any]]:
        return self.of("transaction")

    def wait_for(self, kind: str, count: int) -> list[dict[str, Any]]:
        until = time.monotonic() + 20
        while len(self.of(kind)) < count and time.monotonic() < until:
            time.sleep(0.02)
        found = self.of(kind)
        assert len(found) >= count, f"{len(found)} of {count} {kind}s came: {found}"
        return found


@contextmanager
def serving() -> Iterator[Endpoint]:
    made = Endpoint()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.gone.set()
        made.server.shutdown()
        made.server.server_close()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with serving() as made:
        yield made

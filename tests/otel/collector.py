"""Collectors of OTLP over HTTP: one that takes it and counts, and some that are no good."""

from __future__ import annotations

import gzip
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    def __init__(self) -> None:
        self.spans: Counter[str] = Counter()
        self.metrics: dict[str, int] = {}
        """The count of the latest point of a histogram, by its name."""
        self.services: set[str] = set()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        mine = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                mine.take(self.path, gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        return Handler

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            found = ExportTraceServiceRequest.FromString(body).resource_spans
            self.spans.update(span.name for one in found for scope in one.scope_spans for span in scope.spans)
        else:
            found = ExportMetricsServiceRequest.FromString(body).resource_metrics
            for metric in [metric for one in found for scope in one.scope_metrics for metric in scope.metrics]:
                self.metrics[metric.name] = sum(point.count for point in metric.histogram.data_points)
        names = [pair for one in found for pair in one.resource.attributes if pair.key == "service.name"]
        self.services |= {pair.value.string_value for pair in names}


@contextmanager
def collecting() -> Iterator[Collector]:
    made = Collector()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        made.server.server_close()


ENDLESS = b"HTTP/1.1 400 No\r\nTransfer-Encoding: chunked\r\n\r\n"
DRIPS = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"
WHOLE = {
    "refuses": b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n",
    "redirects": b"HTTP/1.1 307 Elsewhere\r\nLocation: /again\r\nContent-Length: 0\r\n\r\n",
    "cuts": b"",
}


@contextmanager
def no_good(fault: str) -> Iterator[int]:
    """The port of a collector that ``hangs``, is ``down``, speaks no HTTP (``garbage``), or sends an answer without an end: fast
    (``endless``), or slowly (``drips``). Some ``refuses`` by 429, ``redirects`` for ever, or ``cuts`` the connection."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        port = listening.getsockname()[1]
        if fault == "down":
            listening.close()
        elif fault != "hangs":
            threading.Thread(target=_answer, args=(listening, fault), daemon=True).start()
        yield port


def _answer(listening: socket.socket, fault: str) -> None:
    with suppress(OSError):
        while True:
            threading.Thread(target=_go_on, args=(listening.accept()[0], fault), daemon=True).start()


def _go_on(connection: socket.socket, fault: str) -> None:
    fast = fault == "endless"
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    with suppress(OSError), connection:
        connection.recv(0x10000)
        if fault in WHOLE:
            connection.sendall(WHOLE[fault])
            return
        connection.sendall({"endless": ENDLESS, "drips": DRIPS}.get(fault, b"\x1b[2J\xff\0\r\n"))
        while True:
            connection.sendall(chunk if fast else b"x")
            time.sleep(0 if fast else 0.2)

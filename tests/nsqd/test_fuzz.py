"""Hard to kill: whatever comes to the ports, the process lives, grows by nothing, and serves a good client all along.

8,000 inputs by default; NSQD_FUZZ_INPUTS=1000000 asks for more, NSQD_FUZZ_SEED for others. Inputs are sent by 40 connections at
a time, from a hub of this thread; each ends as suddenly as it likes.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import quote

import gevent
import psutil
import pytest
from gevent import socket
from gevent.pool import Pool

from framework.testing import servers
from framework.testing.certificates import Authority
from framework.testing.servers import Server
from tests.conftest import missing
from tests.nsqd.conftest import Talk
from tests.nsqd.fuzzing import Fuzz

INPUTS = int(os.environ.get("NSQD_FUZZ_INPUTS", "8000"))
SEED = int(os.environ.get("NSQD_FUZZ_SEED", "1"))
TOGETHER = 40
PATIENCE = 30.0  # seconds in which a good client must be served on a machine that does much else
AT_LEAST = 10  # messages of a good client, however soon the bad ones are through
GROWTH = 64 << 20  # bytes: what 40 bombs of 4 MiB at once leave behind in the allocator; a million inputs get no more
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 s: close sends RST

Send = Callable[[Fuzz], None]


class Good(threading.Thread):
    """A client that publishes, consumes and finishes all the while, and notes how long each message took."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self.took: list[float] = []
        self.failure: BaseException | None = None
        self._client = Talk(("127.0.0.1", server.tcp_port))
        self._client.send(b"SUB good c\nRDY 1\n")
        self._over = threading.Event()

    def run(self) -> None:
        try:
            while not self._over.wait(0.01) or len(self.took) <= AT_LEAST:
                self._turn()
        except BaseException as error:
            self.failure = error

    def _turn(self) -> None:
        client, start = self._client, time.monotonic()
        client.forget()
        body = b"%d" % len(self.took)
        client.send(b"NOP\nPUB good\n" + struct.pack(">i", len(body)) + body)
        ((message_id, attempts, got),) = client.get(1, PATIENCE)
        assert (attempts, got) == (1, body)
        client.send(b"FIN " + message_id + b"\n")
        self.took.append(time.monotonic() - start)

    def end(self) -> None:
        """Raises what went wrong."""
        self._over.set()
        self.join(2 * PATIENCE)
        self._client.close()
        if self.failure:
            raise self.failure
        print(f"good client: {len(self.took)} messages, the slowest took {max(self.took) * 1000:.0f} ms")
        assert len(self.took) > AT_LEAST
        assert max(self.took) < PATIENCE


class Watch:
    """What a process has open and in memory."""

    def __init__(self, server: Server) -> None:
        assert server.process is not None
        self.server = server
        self._process = psutil.Process(server.process.pid)
        self._files, self._threads, self._memory = 0, 0, 0

    def begin(self) -> None:
        """From here on nothing may grow."""
        self._files, self._threads = self._process.num_fds(), self._process.num_threads()

    def warmed(self) -> None:
        """From here on memory may not grow."""
        self._memory = self._process.memory_info().rss

    def check(self) -> None:
        assert self.server.process is not None
        assert self.server.process.poll() is None, self.server.log[-20:]
        assert not [line for line in self.server.log if "Traceback" in line], self.server.log[-40:]
        assert self.server.http("/ping") == "OK"
        deadline = time.monotonic() + PATIENCE
        while self._process.num_fds() > self._files + 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert self._process.num_fds() <= self._files + 3
        assert self._process.num_threads() <= self._threads + 2
        grown = self._process.memory_info().rss - self._memory
        print(f"memory: {self._memory >> 20} MiB, then {grown / (1 << 20):+.1f} MiB")
        assert grown < GROWTH


def _connected(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _send(fuzz: Fuzz, port: int, data: bytes, *, first: bytes = b"") -> None:
    """Send it in pieces, perhaps read something, and leave in one of the ways that there are."""
    with _connected(port) as sock:
        try:
            if first:
                sock.sendall(first)
                sock.recv(4096)
            for piece in fuzz.pieces(data):
                sock.sendall(piece)
                if fuzz.random.random() < 0.2:
                    gevent.sleep(0)
            _leave(fuzz, sock)
        except TimeoutError:
            raise
        except OSError:
            pass  # it was shown the door


def _leave(fuzz: Fuzz, sock: socket.socket) -> None:
    way = fuzz.random.random()
    if way < 0.3:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    elif way < 0.6:
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(65536):
            pass
    elif way < 0.7:
        sock.settimeout(0.01)
        try:
            sock.recv(65536)
        except TimeoutError:
            pass


def _flood(seed: int, inputs: int, send: Send, watch: Watch, tidy: Callable[[], None] = lambda: None) -> None:
    """``inputs`` of them; memory is counted from the first half on, after ``tidy``."""
    pool, start = Pool(TOGETHER), time.monotonic()
    fuzzes = [Fuzz(seed * 1000 + at) for at in range(TOGETHER)]
    for share, then in ((inputs // 2, watch.warmed), (inputs - inputs // 2, watch.check)):
        for _ in pool.imap_unordered(send, (fuzzes[at % TOGETHER] for at in range(share)), maxsize=TOGETHER):
            pass
        tidy()
        then()
    print(f"{inputs} inputs in {time.monotonic() - start:.1f} s")


def _tidy(server: Server) -> None:
    """Names that were made of garbage are topics by right: they go before memory is counted."""
    for topic in server.http("/stats?format=json&include_clients=false")["topics"]:
        if topic["topic_name"] != "good":
            server.http(f"/topic/delete?topic={quote(topic['topic_name'])}", b"")


@contextmanager
def _served(server: Server) -> Iterator[Watch]:
    """A good client is served meanwhile."""
    good, watch = Good(server), Watch(server)
    watch.begin()
    good.start()
    try:
        yield watch
    finally:
        good.end()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Ours with every layer that can be asked for."""
    try:
        pair = Authority(tmp_path_factory.mktemp("tls")).sign("nsqd")
    except servers.ServerMissing as error:
        missing(str(error))
        raise
    https = servers.free_port()
    server = servers.own_nsqd(
        tmp_path_factory.mktemp("fuzzed"), f"--tls-cert={pair.cert}", f"--tls-key={pair.key}", "--log-level=warn",
        f"--https-address=127.0.0.1:{https}",
    )  # fmt: skip
    server.https_port = https  # type: ignore[attr-defined]
    with servers.running(server):
        yield server


def _session(server: Server) -> Send:
    def send(fuzz: Fuzz) -> None:
        if fuzz.random.random() < 0.1:
            first, data = fuzz.upgrade()
            _send(fuzz, server.tcp_port, data, first=first)
        else:
            _send(fuzz, server.tcp_port, fuzz.session())

    return send


@pytest.mark.slow
@pytest.mark.timeout(60 + INPUTS // 50)
def test_no_bytes_on_the_tcp_port_kill_it_or_hold_up_anybody(secured: Server) -> None:
    with _served(secured) as watch:
        _flood(SEED, INPUTS * 3 // 5, _session(secured), watch, lambda: _tidy(secured))


@pytest.mark.slow
@pytest.mark.timeout(60 + INPUTS // 50)
def test_no_bytes_on_the_http_port_kill_it_or_hold_up_anybody(secured: Server) -> None:
    ports = [secured.http_port] * 30 + [secured.https_port]  # type: ignore[attr-defined]
    with _served(secured) as watch:
        _flood(
            SEED, INPUTS // 5, lambda fuzz: _send(fuzz, fuzz.random.choice(ports), fuzz.request()), watch, lambda: _tidy(secured)
        )


@pytest.mark.slow
@pytest.mark.timeout(60 + INPUTS // 50)
def test_no_bytes_on_nsqlookupds_ports_kill_it() -> None:
    with servers.running(servers.own_nsqlookupd("--log-level=fatal")) as server:
        watch = Watch(server)
        watch.begin()

        def send(fuzz: Fuzz) -> None:
            over_http = fuzz.random.random() < 0.4
            data = fuzz.request() if over_http else fuzz.registration()
            _send(fuzz, server.http_port if over_http else server.tcp_port, data)

        _flood(SEED, INPUTS // 5, send, watch)

"""How much clients may take together: connections, open files, memory of bodies under way; nobody else stands still for it."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import gevent
import psutil
import pytest

from framework.nsqd import underway
from framework.nsqd.underway import FREE_BYTES, Memory
from framework.testing import servers
from framework.testing.servers import Server
from tests.nsqd.conftest import Talk, logged

MB = 1 << 20
LARGE = 5 * MB - 100
"""A body that --max-body-size still takes."""
DEADLINE = 60.0


def mpub(topic: bytes, size: int = LARGE) -> bytes:
    """An MPUB of messages of 1 MB, ``size`` bytes in all."""
    bodies = b"".join(struct.pack(">i", MB - 4) + b"x" * (MB - 4) for _ in range(size // MB))
    bodies += struct.pack(">i", size % MB - 12) + b"y" * (size % MB - 12)
    count = size // MB + 1
    return b"MPUB " + topic + b"\n" + struct.pack(">ii", 4 + len(bodies), count) + bodies


def request(size: int) -> bytes:
    return b"POST /mpub?topic=http HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % size


def connected(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), 20)
    sock.setblocking(False)
    return sock


def push(waiting: dict[socket.socket, memoryview], seconds: float) -> None:
    """Send to each what it takes, until nobody takes any more."""
    until = time.monotonic() + seconds
    while waiting and time.monotonic() < until:
        _, ready, _ = select.select([], list(waiting), [], 0.5)
        if not ready:
            return
        for sock in ready:
            try:
                waiting[sock] = waiting[sock][sock.send(waiting[sock][: 1 << 18]) :]
            except BlockingIOError:
                continue
            except OSError:
                waiting[sock] = waiting[sock][:0]
            if not waiting[sock]:
                del waiting[sock]


def published(server: Server, topic: bytes, data: bytes = b"") -> bool:
    """Whether somebody who comes now can publish."""
    client = Talk(("127.0.0.1", server.tcp_port))
    client.socket.settimeout(DEADLINE)
    client.send(data or b"PUB " + topic + b"\n" + struct.pack(">i", 5) + b"small")
    said = client.reply(1, DEADLINE)
    client.close()
    return said == [b"OK"]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """16 MB for bodies."""
    with servers.running(servers.own_nsqd(tmp_path_factory.mktemp("small"), f"--max-body-memory={16 * MB}")) as server:
        yield server


def resident(server: Server) -> int:
    assert server.process is not None
    return int(psutil.Process(server.process.pid).memory_info().rss)


def test_who_only_announces_bodies_takes_nothing(small: Server) -> None:
    before = resident(small)
    held = [connected(small.tcp_port) for _ in range(300)] + [connected(small.http_port) for _ in range(100)]
    for sock in held[:300]:
        sock.sendall(b"  V2" + mpub(b"never")[:60_000])
    for sock in held[300:]:
        sock.sendall(request(LARGE) + b"x" * 50_000)
    assert published(small, b"small")
    assert published(small, b"large", mpub(b"large"))
    small.http("/pub?topic=http", b"x" * 1_000_000)
    assert resident(small) - before < 100 * MB
    for sock in held:
        sock.close()


def test_who_sends_all_but_the_end_takes_no_more_than_there_is(small: Server) -> None:
    """80 of 5 MB over TCP and 40 over HTTP, 600 MB together: what has no room stays in the sockets."""
    before = resident(small)
    body = memoryview(b"  V2" + mpub(b"never"))[:-1]
    held = {connected(small.tcp_port): body for _ in range(80)}
    held |= {connected(small.http_port): memoryview(request(LARGE) + bytes(LARGE - 1)) for _ in range(40)}
    socks = list(held)
    push(held, 3.0)
    taken = resident(small) - before
    assert published(small, b"small"), "a small message waits for the large ones"
    assert small.http("/ping") == "OK"
    for sock in socks:
        sock.close()
    # The bound, one beyond it, a copy of each, and the first reads of 120 connections.
    assert taken < (2 * (16 + 5) + 120 * 0.33 + 40) * MB
    assert published(small, b"large", mpub(b"large"))


def test_large_bodies_that_come_at_once_wait_for_each_other_and_all_are_stored(small: Server) -> None:
    held = {connected(small.tcp_port): memoryview(b"  V2" + mpub(b"honest")) for _ in range(12)}
    socks, until = list(held), time.monotonic() + DEADLINE
    while held and time.monotonic() < until:
        push(held, 1.0)
    for sock in socks:
        sock.settimeout(DEADLINE)
        assert sock.recv(100).endswith(b"OK")
        sock.close()
    stats = small.http("/stats?format=json&topic=honest")
    assert stats["topics"][0]["message_count"] == 12 * 5


# --- what underway.py decides -----------------------------------------------------------------------------------------


def test_one_may_go_beyond_so_that_two_halves_do_not_wait_for_each_other() -> None:
    memory, ended = Memory(10 * FREE_BYTES), list[int]()

    def receive(number: int) -> None:
        share = memory.share(lambda: None)
        for size in range(0, 8 * FREE_BYTES + 1, FREE_BYTES):
            share.expect(size)
            gevent.sleep(0)
        share.end()
        ended.append(number)

    gevent.joinall([gevent.spawn(receive, number) for number in range(20)], timeout=20)
    assert sorted(ended) == list(range(20))


def test_what_a_body_has_already_is_not_counted_again_when_it_grows() -> None:
    """Else clients would wait for memory that is free."""
    memory = Memory(10 * FREE_BYTES)
    first, second = memory.share(lambda: None), memory.share(lambda: None)
    with gevent.Timeout(0.3):  # a wait is longer
        for tenths in (4, 4.5, 5):
            first.expect(int(tenths * FREE_BYTES))
            second.expect(int(tenths * FREE_BYTES))
        first.end()
        second.expect(10 * FREE_BYTES)


def test_who_holds_memory_and_sends_nothing_is_dropped_when_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(underway, "STALL_SECONDS", 0.05)
    monkeypatch.setattr(underway, "_LOOK_SECONDS", 0.02)
    memory = Memory(2 * FREE_BYTES)
    dropped: list[str] = []
    stalled = memory.share(lambda: (dropped.append("stalled"), stalled.end()))
    committing = memory.share(lambda: dropped.append("committing"))
    stalled.expect(2 * FREE_BYTES)
    committing.expect(2 * FREE_BYTES)
    committing.received()
    third = memory.share(lambda: None)
    asking = gevent.spawn(third.expect, 2 * FREE_BYTES)
    gevent.sleep(0.3)
    assert dropped == ["stalled"]
    assert not asking.ready(), "the memory of what is being stored was taken for free"
    committing.end()
    asking.join(5)
    assert asking.ready()


# --- connections and open files ---------------------------------------------------------------------------------------


def with_files(server: Server, files: int) -> Server:
    """The server, not started yet, where ``ulimit -n`` is ``files``."""
    server.command = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *server.command]
    return server


def spent(server: Server) -> float:
    assert server.process is not None
    times = psutil.Process(server.process.pid).cpu_times()
    return float(times.user + times.system)


@pytest.fixture(params=["nsqd", "nsqlookupd"])
def narrow(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """With 64 open files."""
    made = servers.own_nsqd(tmp_path) if request.param == "nsqd" else servers.own_nsqlookupd()
    with servers.running(with_files(made, 64)) as server:
        yield server


def test_with_few_open_files_it_waits_without_spinning_and_goes_on(narrow: Server) -> None:
    held = [connected(port) for port in (narrow.tcp_port, narrow.http_port) for _ in range(100)]
    assert logged(narrow, "others wait until one ends (-max-tcp-connections)")
    assert logged(narrow, "others wait until one ends (-max-http-connections)")
    assert narrow.process is not None
    before = spent(narrow)
    time.sleep(1.0)
    assert spent(narrow) - before < 0.5, "it spins"
    assert psutil.Process(narrow.process.pid).num_fds() <= 64 - 8, "too few files are left for what else it has to open"
    for sock in held:
        sock.close()
    assert narrow.http("/ping") == "OK"
    if "framework.nsqd" in narrow.command:
        assert published(narrow, b"orders")
    assert not any("Traceback" in line for line in narrow.log), narrow.log[-20:]
    assert sum("others wait" in line for line in narrow.log) == 2, "each connection has a line"


def test_clients_that_fill_tcp_leave_http_alone(tmp_path: Path) -> None:
    with servers.running(servers.own_nsqd(tmp_path, "--max-tcp-connections=5", "--max-http-connections=3")) as server:
        clients = [Talk(("127.0.0.1", server.tcp_port)) for _ in range(8)]
        for client in clients[:5]:
            client.send(b"PUB orders\n" + struct.pack(">i", 1) + b"x")
            assert client.reply(1) == [b"OK"]
        clients[5].send(b"PUB orders\n" + struct.pack(">i", 1) + b"x")
        assert not clients[5].until(lambda: bool(clients[5].replies), 0.3), "the sixth is served beside five"
        assert server.http("/ping") == "OK"
        clients[0].close()
        assert clients[5].reply(1) == [b"OK"]
        for client in clients:
            client.close()


@pytest.mark.parametrize(
    "flags",
    [["--max-tcp-connections=5000"], ["--max-tcp-connections=180", "--max-http-connections=180"]],
    ids=["of TCP alone", "of both together"],
)
def test_more_connections_than_open_files_are_said_at_start(tmp_path: Path, flags: list[str]) -> None:
    with servers.running(with_files(servers.own_nsqd(tmp_path, *flags), 256)) as server:
        assert logged(server, "raise `ulimit -n`, which is 256")


def test_an_accept_that_fails_is_no_traceback_and_is_tried_again(tmp_path: Path) -> None:
    """The limits are above what there is: what gevent would do with a traceback each time."""
    flags = ("--max-tcp-connections=500", "--max-http-connections=500")
    with servers.running(with_files(servers.own_nsqd(tmp_path, *flags), 64)) as server:
        held = [connected(server.tcp_port) for _ in range(100)]
        assert logged(server, "TCP: cannot accept connections now: Too many open files; raise `ulimit -n`")
        before = spent(server)
        time.sleep(1.0)
        assert spent(server) - before < 0.5, "it spins"
        for sock in held:
            sock.close()
        assert published(server, b"orders")
        assert not any("Traceback" in line for line in server.log), server.log[-20:]

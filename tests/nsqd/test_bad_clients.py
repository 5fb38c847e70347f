"""Clients that send or read too slowly, or are too many: each is dropped in time and costs little, and harms no other."""

from __future__ import annotations

import json
import resource
import signal
import socket
import ssl
import struct
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from framework.testing import servers
from framework.testing.certificates import Authority
from framework.testing.servers import Server
from tests.conftest import missing
from tests.nsqd.conftest import Talk

PATIENCE = 1.5
"""Seconds, in place of 60 that no test can wait for."""
DEADLINE = 20.0
_HASTY = f"""
import sys
from framework.nsqd import daemon, options
daemon.PATIENCE_SECONDS = {PATIENCE}
options.Options.__init__.__kwdefaults__["client_timeout"] = {PATIENCE}
from framework.{{program}}.server import main
sys.exit(main(sys.argv[1:]))
"""


def hasty(server: Server, program: str) -> Server:
    """The server, not started yet, with little patience."""
    server.command[1:3] = ["-c", _HASTY.format(program=program)]
    return server


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with servers.running(hasty(servers.own_nsqd(tmp_path_factory.mktemp("impatient")), "nsqd")) as server:
        yield server


@pytest.fixture(scope="module")
def lookupd() -> Iterator[Server]:
    with servers.running(hasty(servers.own_nsqlookupd("--inactive-producer-timeout=1s"), "nsqlookupd")) as server:
        yield server


def ended(sock: socket.socket, trickle: bytes = b"") -> float:
    """Seconds until the server ends the connection, into which a byte is sent now and then."""
    start = time.monotonic()
    sock.settimeout(0.1)
    while time.monotonic() - start < DEADLINE:
        try:
            if trickle:
                sock.sendall(trickle)
            if not sock.recv(65536):
                break
        except TimeoutError:
            pass
        except OSError:
            break
    sock.close()
    return time.monotonic() - start


def connected(port: int, hello: bytes = b"") -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), 10)
    sock.sendall(hello)
    return sock


def served(server: Server) -> None:
    """A good client is."""
    client = Talk(("127.0.0.1", server.tcp_port))
    client.send(b"SUB good c\nRDY 1\nPUB good\n" + struct.pack(">i", 4) + b"body")
    ((message_id, _, body),) = client.get(1, DEADLINE)
    assert body == b"body"
    client.send(b"FIN " + message_id + b"\nCLS\n")
    client.reply(3, DEADLINE)
    client.close()


def all_ended(port: int, ways: list[tuple[bytes, bytes]]) -> bool:
    """Whether each that begins and trickles so is dropped, all at once; and not before it had its time."""
    with ThreadPoolExecutor(len(ways)) as pool:
        took = list(pool.map(lambda way: ended(connected(port, way[0]), way[1]), ways))
    return all(PATIENCE - 0.1 < one < DEADLINE for one in took)


def test_who_never_says_hello_is_dropped(impatient: Server) -> None:
    assert all_ended(impatient.tcp_port, [(b"", b""), (b" ", b""), (b"  V", b"")])
    served(impatient)


def test_who_sends_a_command_byte_by_byte_is_dropped(impatient: Server) -> None:
    bodies = [
        b"PUB slow\n\x00\x00\x10\x00",
        b"MPUB slow\n\x00\x00\x10\x00\x00\x00\x00\x01\x00\x00\x0f\x00",
        b"IDENTIFY\n\x00\x00\x10\x00",
        b"P",
    ]
    assert all_ended(impatient.tcp_port, [(b"  V2" + body, b"x") for body in bodies])
    served(impatient)


SLOW_REQUESTS = [
    (b"", b""),
    (b"", b"G"),
    (b"GET /ping HTTP/1.1\r\nHost: localhost\r\nX: ", b"x"),
    (b"POST /pub?topic=slow HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\n", b"x"),
    (b"POST /pub?topic=slow HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    (b"GET /ping HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\n", b"x"),
    (b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n", b""),
]


def test_who_is_slow_over_http_is_dropped(impatient: Server) -> None:
    assert all_ended(impatient.http_port, SLOW_REQUESTS)
    served(impatient)


def test_who_is_slow_over_nsqlookupds_http_is_dropped(lookupd: Server) -> None:
    assert all_ended(lookupd.http_port, SLOW_REQUESTS)
    assert lookupd.http("/ping") == "OK"


def test_who_never_reads_an_answer_over_http_is_dropped(impatient: Server) -> None:
    for at in range(50):
        impatient.http(f"/topic/create?topic={'t' * 60}{at}", b"")
    assert impatient.process is not None
    process = psutil.Process(impatient.process.pid)
    before = process.num_fds(), process.memory_info().rss
    stuck = []
    for _ in range(20):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", impatient.http_port))
        sock.sendall(b"GET /stats?format=json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 400)
        stuck.append(sock)
    for sock in stuck:  # all of them were let in first: something waits for each that it does not take
        sock.settimeout(DEADLINE)
        assert sock.recv(1, socket.MSG_PEEK) == b"H"
    deadline = time.monotonic() + DEADLINE
    while process.num_fds() > before[0] + 3:
        assert time.monotonic() < deadline, process.num_fds()
        time.sleep(0.02)
    assert process.memory_info().rss - before[1] < 64 << 20
    for sock in stuck:
        sock.close()
    assert not any("Traceback" in line for line in impatient.log), impatient.log[-30:]


def test_who_is_slow_at_nsqlookupd_is_dropped(lookupd: Server) -> None:
    assert all_ended(lookupd.tcp_port, [(b"", b""), (b"  V1", b"x"), (b"  V1IDENTIFY\n\x00\x00\x10\x00", b"x")])


def test_an_nsqd_that_pings_stays(lookupd: Server) -> None:
    sock = connected(lookupd.tcp_port, b"  V1")
    for _ in range(4):
        sock.sendall(b"PING\n")
        assert sock.recv(100) == b"\x00\x00\x00\x02OK"
        time.sleep(PATIENCE / 3)
    sock.close()


def test_who_never_shakes_hands_is_dropped_and_says_nothing_in_the_log(tmp_path: Path) -> None:
    try:
        pair = Authority(tmp_path).sign("nsqd")
    except servers.ServerMissing as error:
        missing(str(error))
        raise
    https = servers.free_port()
    flags = (f"--tls-cert={pair.cert}", f"--tls-key={pair.key}", f"--https-address=127.0.0.1:{https}")
    with servers.running(hasty(servers.own_nsqd(tmp_path / "data", *flags), "nsqd")) as server:
        assert ended(connected(https)) < DEADLINE
        assert ended(connected(https, b"GET /ping HTTP/1.1\r\n\r\n")) < DEADLINE
        body = json.dumps({"feature_negotiation": True, "tls_v1": True}).encode()
        assert ended(connected(server.tcp_port, b"  V2IDENTIFY\n" + struct.pack(">i", len(body)) + body)) < DEADLINE
        trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trusting.load_verify_locations(tmp_path / "ca-tests.pem")
        idle = trusting.wrap_socket(connected(https), server_hostname="localhost")
        assert ended(idle) < DEADLINE
        served(server)
        assert not any("Traceback" in line for line in server.log), server.log[-30:]


def test_consumers_that_never_read_are_dropped_in_bounded_memory(ours: Server) -> None:
    assert ours.process is not None
    process = psutil.Process(ours.process.pid)
    ours.http("/topic/create?topic=big", b"")
    body = json.dumps({"heartbeat_interval": 1000}).encode()
    identify = b"  V2IDENTIFY\n" + struct.pack(">i", len(body)) + body
    stuck = [connected(ours.tcp_port, identify + b"SUB big c%d\nRDY 2500\n" % at) for at in range(30)]
    messages = struct.pack(">i", 100) + (struct.pack(">i", 20_000) + b"x" * 20_000) * 100
    before = process.memory_info().rss
    publisher = Talk(("127.0.0.1", ours.tcp_port))
    for at in range(25):
        publisher.send(b"MPUB big\n" + struct.pack(">i", len(messages)) + messages)
        publisher.reply(at + 1, 30)
    # 50 MB for each of the 30, of which each may have 1 MiB in its buffer; the newest 16 MiB are at hand besides
    assert process.memory_info().rss - before < 160 << 20
    deadline = time.monotonic() + DEADLINE
    while (left := _consumers(ours, "big")) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == 0
    served(ours)
    for sock in [*stuck, publisher.socket]:
        sock.close()


def test_who_takes_messages_and_leaves_costs_no_memory_while_they_are_in_flight(ours: Server) -> None:
    assert ours.process is not None
    process = psutil.Process(ours.process.pid)
    bodies = [b"%04d" % at + b"x" * 500_000 for at in range(160)]
    publisher = Talk(("127.0.0.1", ours.tcp_port))
    publisher.send(b"SUB taken c\n")
    publisher.reply(1)
    before = process.memory_info().rss
    for at, body in enumerate(bodies):
        publisher.send(b"PUB taken\n" + struct.pack(">i", len(body)) + body)
        publisher.reply(2 + at, 30)
    taker = Talk(("127.0.0.1", ours.tcp_port))
    taker.send(b"SUB taken c\nRDY 2500\n")
    assert len(taker.get(len(bodies), 60)) == len(bodies)
    taker.close()
    deadline = time.monotonic() + DEADLINE
    while process.memory_info().rss - before > 50 << 20 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert process.memory_info().rss - before < 50 << 20  # of which 16 MiB are the newest messages of all
    assert ours.channel_stats("taken", "c")["in_flight_count"] == len(bodies)


def _consumers(server: Server, topic: str) -> int:
    (found,) = server.http(f"/stats?format=json&topic={topic}")["topics"]
    return sum(one["client_count"] for one in found["channels"])


@pytest.fixture
def many_files() -> Iterator[None]:
    """Room in this process for the clients."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_a_thousand_consumers_share_a_channel(ours: Server) -> None:
    clients = [Talk(("127.0.0.1", ours.tcp_port)) for _ in range(1000)]
    for client in clients:
        client.send(b"SUB many c\nRDY 1\n")
    for client in clients:
        client.reply(1, 60)
    ours.http("/mpub?topic=many", b"\n".join(b"%d" % at for at in range(1000)))
    got = {int(client.get(1, 60)[0][2]) for client in clients}
    assert got == set(range(1000))
    for client in clients:
        client.send(b"FIN " + client.messages[0][0] + b"\n")
        client.close()
    served(ours)


def test_who_sends_many_requests_at_once_holds_up_nobody(ours: Server) -> None:
    """They take turns, as over TCP: who comes last has its answer long before all of theirs are given."""
    crowd, each = 30, 400
    ask = b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert ours.process is not None
    ours.process.send_signal(signal.SIGSTOP)
    hasty_ones = [connected(ours.http_port, ask * each) for _ in range(crowd)]
    good = connected(ours.http_port, ask)
    ours.process.send_signal(signal.SIGCONT)
    assert good.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")
    answered = 0
    for one in hasty_ones:
        one.setblocking(False)
        with suppress(BlockingIOError):
            answered += one.recv(1 << 20).count(b"HTTP/1.1 200 OK\r\n")
    assert answered < crowd * each / 2
    for one in [good, *hasty_ones]:
        one.close()
    served(ours)


def test_it_takes_as_many_connections_as_the_system_allows(tmp_path: Path) -> None:
    """Shells give 1,024 files, and more where one asks."""
    server = servers.own_nsqd(tmp_path / "data")
    server.command = ["bash", "-c", 'ulimit -Sn 64; exec "$@"', "-", *server.command]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with servers.running(server):
        assert server.process is not None
        assert psutil.Process(server.process.pid).rlimit(psutil.RLIMIT_NOFILE) == (hard, hard)


def test_it_comes_back_when_all_its_files_were_taken(tmp_path: Path) -> None:
    server = servers.own_nsqd(tmp_path / "data")
    server.command = ["bash", "-c", 'ulimit -n 64; exec "$@"', "-", *server.command]
    with servers.running(server):
        served(server)
        taken = [connected(server.tcp_port, b"  V2") for _ in range(120)]
        time.sleep(0.5)
        for sock in taken:
            sock.close()
        served(server)
        assert server.http("/ping") == "OK"


def _addresses(process: psutil.Process) -> set[str]:
    return {one.laddr.ip for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN}


@pytest.mark.parametrize("program", ["nsqd", "nsqlookupd"])
def test_only_the_loopback_is_listened_on_unless_told(tmp_path: Path, program: str) -> None:
    tcp, http = servers.free_port(), servers.free_port()
    flags = [f"--data-path={tmp_path / 'data'}"] if program == "nsqd" else []
    default = {"nsqd": "127.0.0.1:4150", "nsqlookupd": "127.0.0.1:4160"}[program]
    code = (
        f"import sys; from framework.{program} import options; kw = options.Options.__init__.__kwdefaults__; "
        f"assert kw['tcp_address'] == {default!r}; "
        f"kw['tcp_address'] = kw['tcp_address'].rsplit(':')[0] + ':{tcp}'; "
        f"kw['http_address'] = kw['http_address'].rsplit(':')[0] + ':{http}'; "
        f"from framework.{program}.server import main; sys.exit(main(sys.argv[1:]))"
    )  # fmt: skip
    server = Server([sys.executable, "-c", code, *flags], tcp_port=tcp, http_port=http, data=tmp_path)
    with servers.running(server):
        assert server.process is not None
        assert _addresses(psutil.Process(server.process.pid)) == {"127.0.0.1"}

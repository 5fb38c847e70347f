"""Servers that are none, or not the one that is meant: one sentence that names it, and nothing waits for long."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import gevent
import pytest

from framework.errors import (
    AccessDenied,
    BadSetting,
    BrokerError,
    BrokerUnreachable,
    FrameworkError,
    NegotiationRefused,
    ProtocolError,
    WrongUse,
)
from framework.testing.servers import free_port
from framework.transports import open_transports
from framework.transports.nats import urls
from framework.transports.nats.dial import dial, refusal
from framework.transports.nats.session import Session

INFO = b'INFO {"client_id":1,"version":"2.15.1","max_payload":1000} \r\n'


def speaks(*words: bytes):
    def script(sock) -> None:
        for word in words:
            sock.sendall(word)
        gevent.sleep(10)

    return script


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        ([b"HTTP/1.1 400 Bad Request\r\n\r\n"], ProtocolError, "not a nats-server's bytes"),
        ([b'INFO {"x":"' + b"x" * 70_000], ProtocolError, "a line of more than"),
        ([b"INFO {nonsense}\r\n"], ProtocolError, "JSON that cannot be read"),
        ([b"PING\r\n"], ProtocolError, "begins with INFO"),
        ([b'INFO {"server_id":"N","version":"2.15.1"} \r\n'], NegotiationRefused, "no port for clients"),
        ([INFO, b"-ERR 'maximum connections exceeded'\r\n"], BrokerError, "maximum connections exceeded"),
        ([INFO, b"MSG a 1 2\r\nhi\r\n"], ProtocolError, "before anything was subscribed to"),
    ],
)
def test_what_is_no_nats_server_or_does_not_let_us_in_is_one_sentence(listening, words, error, said):
    node = listening(speaks(*words))
    with pytest.raises(error, match=re.escape(said)) as raised, dial(node, timeout=2.0):
        pass
    assert "\n" not in str(raised.value)


ERRORS = {
    "Authorization Violation": AccessDenied, "User Authentication Expired": AccessDenied,
    "User Authentication Revoked": AccessDenied, "Account Authentication Expired": AccessDenied,
    "Secure Connection - TLS Required": NegotiationRefused, "TLS handshake error": NegotiationRefused,
    "Authentication Timeout": BrokerError, "Unknown Protocol Operation": BrokerError, "Parser Error": BrokerError,
    "Invalid Client Protocol": BrokerError, "Maximum Control Line Exceeded": BrokerError, "Stale Connection": BrokerError,
    "maximum connections exceeded": BrokerError, "maximum account active connections exceeded": BrokerError,
    "maximum subscriptions exceeded": BrokerError, "Maximum Payload Violation": BrokerError,
    "Attempted To Connect To Route Port": BrokerError, "message headers not supported": BrokerError, "Slow Consumer": BrokerError,
    "Connection Throttling Is Active": BrokerError, "Invalid Subject": BrokerError,
}  # fmt: skip
"""What a server says before it ends a connection -> the kind of error that it is: who may mend it."""


@pytest.mark.parametrize("said", ERRORS)
def test_each_error_by_which_a_server_does_not_let_us_in_is_one_sentence_with_its_words(listening, said):
    node = listening(speaks(INFO, b"-ERR '%b'\r\n" % said.encode()))
    with pytest.raises(BrokerError, match=re.escape(said)) as raised, dial(node):
        pass
    assert type(raised.value) is ERRORS[said]
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("said", ERRORS)
def test_a_limit_is_named_with_what_raises_it(said):
    fix = refusal(said).fix
    limits = {"maximum subscriptions exceeded": "raise max_subscriptions of the server, or subs of the account or the user: "}
    for connections in ("maximum connections exceeded", "maximum account active connections exceeded"):
        limits[connections] = "raise max_connections of the server, or conn of the account or the user"
    assert fix.startswith(limits[said]) if said in limits else "raise" not in fix


@pytest.mark.parametrize("said", ERRORS)
def test_each_error_in_the_middle_ends_the_session_with_the_servers_words_for_all_who_use_it(listening, said):
    def script(sock) -> None:
        sock.sendall(INFO + b"PONG\r\n")
        sock.recv(65536)
        gevent.sleep(0.02)
        sock.sendall(b"-ERR '%b'\r\n" % said.encode())
        gevent.sleep(10)

    with dial(listening(script)) as line:
        session = Session(line, 10.0)
    with pytest.raises(FrameworkError, match=re.escape(said)):
        session.ask(b"$JS.API.INFO", b"", 5.0)
    assert type(session.error) is ERRORS[said]


@pytest.mark.parametrize("words", [[], [INFO], [b"INFO {"]])
def test_a_server_that_answers_nothing_is_given_up_in_time(listening, words):
    """The time is what is left of a publish's, and is said as people write it."""
    node = listening(speaks(*words))
    began = time.monotonic()
    with pytest.raises(BrokerUnreachable, match=r"did not answer within 0\.3 s"), dial(node, timeout=0.29999):
        pass
    assert time.monotonic() - began < 3


def test_the_route_port_of_a_server_is_told_from_its_client_port(start_nats):
    port = free_port()
    start_nats(f'cluster {{ name: C, listen: "127.0.0.1:{port}" }}', jetstream=False)
    with pytest.raises(NegotiationRefused, match="no port for clients"), dial(f"127.0.0.1:{port}"):
        pass


def test_garbage_in_the_middle_ends_a_session_and_all_who_use_it_are_told(listening):
    def script(sock) -> None:
        sock.sendall(INFO + b"PONG\r\n")
        sock.recv(65536)
        gevent.sleep(0.1)
        sock.sendall(b"what is this\r\n")
        gevent.sleep(10)

    with dial(listening(script)) as line:
        session = Session(line, 10.0)
    with pytest.raises(BrokerUnreachable, match="not a nats-server's bytes"):
        session.ask(b"$JS.API.INFO", b"", 5.0)
    assert isinstance(session.error, FrameworkError)


def test_servers_of_a_url_are_one_cluster_and_the_one_that_answers_is_used(start_nats):
    server, away = start_nats(), f"127.0.0.1:{free_port()}"
    (transport,) = open_transports([f"nats://{away},{server.address}"])
    assert transport.discover("orders", "billing") == {away}
    assert [info.node for info in transport.probe()] == [away]
    producer = transport.producer()
    producer.publish("orders", [b"x"])
    producer.close()
    assert transport.backlog("orders", "billing") == {away: 1}


def test_a_hub_that_did_not_turn_for_long_does_not_take_a_quiet_server_for_a_dead_one(start_nats):
    with dial(start_nats().address) as line:
        session = Session(line, 0.2)
    time.sleep(1.0)
    assert session.ask(b"$JS.API.INFO", b"", 5.0).body
    assert session.error is None
    session.close()


def test_a_server_that_stands_still_is_given_up_after_two_intervals(start_nats):
    server = start_nats()
    with dial(server.address) as line:
        session = Session(line, 0.2)
    with server.frozen():
        began = time.monotonic()
        while session.error is None and time.monotonic() - began < 10:
            gevent.sleep(0.02)
    assert "was silent for 0.4 s" in str(session.error)


# --- URLs --------------------------------------------------------------------------------------------------


def test_a_url_says_servers_login_and_options():
    read = urls.read(["nats://me:se%40cret@a,b:4333?ack_wait=10s&max_payload=2000", "nats://tkn@c?ack_wait=10s"])
    assert list(read.clusters) == ["a:4222", "c:4222"]
    first, second = read.clusters.values()
    assert (first.servers, first.login) == (("a:4222", "b:4333"), urls.Login(user="me", password="se@cret"))
    assert second.login == urls.Login(token="tkn")
    assert (read.options.ack_wait, read.options.max_payload) == (10.0, 2000)


@pytest.mark.parametrize(
    "url",
    [
        "nats://host/orders", "nats://hush:@host", "nats://:hush@host", "nats://host?nope=1", "nats://hush@host?ack_wait=soon",
        "nats://host?ack_wait=0s", "nats://host?ack_wait=400ms", "nats://host?retention=interest", "nats://host?replicas=2",
        "nats://host:0", "nats://",
        "nats://hush@host:port", "nats://host?max_ack_pending=none",
    ],
)  # fmt: skip
def test_a_url_that_cannot_be_used_is_refused_by_a_sentence_without_its_secret(url):
    with pytest.raises(BadSetting) as refused:
        urls.read([url])
    assert "\n" not in str(refused.value)
    assert "hush" not in str(refused.value)


def test_names_are_mapped_where_jetstream_takes_no_dot_and_back():
    assert urls.mapped("orders.eu.billing.dead") == "orders~eu~billing~dead"
    assert urls.unmapped(urls.mapped("a.b-c_d")) == "a.b-c_d"


def test_two_channels_of_a_work_queue_would_share_its_messages_and_are_refused_at_start():
    (each_gets_all,) = open_transports(["nats://host"])
    each_gets_all.accept("orders", ["billing", "audit"])
    (one_gets_each,) = open_transports(["nats://host?retention=workqueue"])
    one_gets_each.accept("orders", ["billing", "billing"])
    with pytest.raises(WrongUse, match=r"the channels audit, billing, but a stream with retention=workqueue gives each message"):
        one_gets_each.accept("orders", ["billing", "audit"])


_FLOOD = """
import socket, sys, time
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
sock, _ = listener.accept()
sock.setblocking(False)
sock.send(sys.argv[1].encode())
until, answered, rest = time.monotonic() + 15, sys.argv[2] == "at once", b""
while time.monotonic() < until:
    try:
        if not answered and b"PING" in sock.recv(65536):
            answered = sock.send(b"PONG\\r\\n")
        if answered:
            rest = rest or b"PING\\r\\n" * 10_000
            rest = rest[sock.send(rest):]  # whole ones: the socket may take a part
            while sock.recv(65536):
                pass
    except BlockingIOError:
        pass
"""


@pytest.fixture
def flood():
    """``flood("at once")``: the address of a server in a process of its own that sends PINGs and nothing else, for 15 seconds."""
    started: list[subprocess.Popen[str]] = []

    def start(when: str, info: bytes = INFO) -> str:
        started.append(subprocess.Popen([sys.executable, "-c", _FLOOD, info.decode(), when], stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout is not None
        return f"127.0.0.1:{started[-1].stdout.readline().strip()}"

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_server_that_talks_without_an_end_is_given_up_in_time_and_keeps_the_hub_from_nobody(flood):
    turns: list[int] = []
    others = gevent.get_hub().loop.timer(0.05, 0.05)
    others.start(lambda: turns.append(1))
    with pytest.raises(BrokerUnreachable, match="did not answer within 2 s"), dial(flood("at once"), timeout=2.0):
        pass
    others.close()
    assert len(turns) > 3


def test_a_look_at_a_server_that_talks_without_an_end_has_one(flood):
    with dial(flood("later")) as line:
        session = Session(line, 30.0)
    time.sleep(0.3)  # so that there is something to read, and the flood goes on
    began = time.monotonic()
    session.poll()
    session.close()
    assert time.monotonic() - began < 7.0

"""What a route does with URLs that cannot be used, what is no server of NATS, and servers that send garbage or refuse."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from types import SimpleNamespace

import gevent
import pytest
from gevent import socket as gsocket

from framework.errors import AccessDenied, BadSetting, BrokerRefuses, BrokerUnreachable, PublishError
from framework.transports import open_transports
from framework.transports.nats_route import look
from tests.transports.nats_route.conftest import refusal

from .conftest import VERSIONS, peer_of, routed, until

pytestmark = pytest.mark.real


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nats-route://me:hush@host?listen=a,b", "listen="),
        ("nats-route://me@host", "user:password"),
        ("nats-route://:hush@host", "user:password"),
        ("nats-route://host?tls_cert=/a.pem", "tls_ca="),
        ("nats-route://host?tls_ca=/nowhere.pem&tls_cert=/nowhere.pem", "tls_ca, tls_cert or tls_key"),
        ("nats-route://host?cluster=", "cluster="),
        ("nats-route://host?account=a b", "account="),
        ("nats-route://host?backlog=0", "backlog="),
        ("nats-route://host?ping_interval=1ms", "ping_interval="),
        ("nats-route://host?clutser=C1", "did you mean cluster"),
        ("nats-route://host/orders", "nothing may follow the address"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_in_a_sentence_without_its_password(url, words):
    with pytest.raises(BadSetting) as refused:
        open_transports([url])
    assert words in str(refused.value)
    assert "hush" not in str(refused.value)


ERRORS = (
    "Authorization Violation", 'Rejecting connection, cluster name "C2" does not match "C1"', "Authentication Timeout",
    "Secure Connection - TLS Required", "Attempted To Connect To Client Port", "Unknown Protocol Operation",
    "Invalid route pool index: 5 - pool size is 3", "maximum connections exceeded", "Stale Connection", "Some Reason",
)  # fmt: skip


@pytest.mark.parametrize(
    ("says", "words"),
    [
        (b"", "closed the connection while it was being set up"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not a nats-server's bytes"),
        (b"INFO {\r\n", "JSON that cannot be read"),
        (b"INFO " + b"x" * 70_000, "more than 65536 bytes"),
        (b'INFO {"x":' + b"[" * 50_000 + b"\r\n", "JSON that cannot be read"),
        (b'INFO {"server_id":"X","port":"many"}\r\n', "JSON that cannot be read"),
        (b"PING\r\n", "a nats-server begins with INFO"),
        *[(b'INFO {"server_id":"X"}\r\n-ERR \'%b\'\r\n' % words.encode(), words) for words in ERRORS],
        (b'INFO {"server_id":"X"}\r\n', "closed the connection without a word"),
        (b'INFO {"server_id":"X"}\r\nRMSG $G orders 999999999\r\n', "a message of 999999999 bytes"),
    ],
)
def test_what_is_no_server_ends_in_one_sentence(listening, says, words):
    def answer(sock):
        sock.sendall(says)
        gevent.sleep(0.1)

    (transport,) = open_transports([f"nats-route://{listening(answer)}"])
    with pytest.raises((BrokerRefuses, BrokerUnreachable)) as refused:
        transport.probe()
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_publish_that_no_server_takes_in_time_has_the_servers_words():
    listener = socket.create_server(("127.0.0.1", 0))

    def refuse() -> None:
        with suppress(OSError):
            while True:
                with listener.accept()[0] as sock:
                    sock.sendall(b'INFO {"server_id":"X"}\r\n-ERR \'maximum connections exceeded\'\r\n')
                    sock.recv(65536)

    threading.Thread(target=refuse, daemon=True).start()
    (transport,) = open_transports([f"nats-route://127.0.0.1:{listener.getsockname()[1]}"])
    producer = transport.producer()
    with pytest.raises(PublishError, match="maximum connections exceeded"):
        producer.publish("orders", [b"x"], timeout=2.0)
    producer.close()
    transport.close()
    listener.close()


RENAMED = b'-ERR \'Rejecting connection, cluster name "A" does not match "B"\'\r\n'


@pytest.fixture
def second_time(listening):
    """``second_time(info, words)``: the address of a server that ends the first introduction with ``words``, and is of cluster B
    by the second."""

    def start(info, words):
        said = [(b"A", words), (b"B", b"PONG\r\n")]

        def serve(sock):
            name, answer = said.pop(0)
            sock.sendall(b'INFO {"server_id":"X","server_name":"x","cluster":"%b",%b} \r\n' % (name, info))
            while b"PING\r\n" not in sock.recv(65536):
                pass
            sock.sendall(answer)
            if answer.startswith(b"PONG"):
                sock.recv(65536)

        return listening(serve)

    return start


@pytest.mark.parametrize(
    ("info", "words"),
    [(b'"cluster_dynamic":true', RENAMED), (b'"cluster_dynamic":true,"auth_required":true', b"")],
    ids=["servers without a name for their cluster have met", "the server was stopped meanwhile"],
)
def test_what_may_be_over_by_now_refuses_nobody(make_cluster, second_time, info, words):
    """A made-up name changes when servers meet, and one that wants a password says nothing when it is stopped."""
    transport = make_cluster().open(url=f"nats-route://me:hush@{second_time(info, words)}")
    transport.start(None)
    peer_of(transport).reach(10.0)
    assert peer_of(transport)._mesh.cluster == "B"
    looking = make_cluster().open(url=f"nats-route://me:hush@{second_time(info, words)}")
    assert looking.probe()


def introduced(cluster):
    """A server that we have a route to and which knows what is wanted here: its end of the route, our transport, a connection."""
    listener = gsocket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()

    def serve():
        sock, _ = listener.accept()
        listener.close()
        sock.sendall(b'INFO {"server_id":"X","server_name":"x","cluster":"C1"} \r\n')
        while b"PING\r\n" not in sock.recv(65536):
            pass
        sock.sendall(b"PONG\r\n")
        while b"RS+ $G orders billing" not in sock.recv(65536):
            pass
        return sock

    serving = gevent.spawn(serve)
    transport = cluster.open(url=f"nats-route://127.0.0.1:{listener.getsockname()[1]}")
    held = cluster.hold(transport)
    return serving.get(timeout=10), transport, held


@pytest.mark.parametrize(
    "says",
    [
        b"what is this\r\n", b"INFO " + b"x" * 70_000, b"INFO {nonsense}\r\n", b'INFO {"x":' + b"[" * 50_000 + b"\r\n",
        b"RMSG $G orders | billing 99999999\r\n",
        b"HMSG $G orders | billing 9 5\r\nhello\r\n", b"RMSG $G orders | billing 1\r\nxyz\r\n", b"RS+ $G\r\n",
    ],
)  # fmt: skip
def test_garbage_on_a_route_ends_it_in_one_sentence_and_what_came_before_is_handled(make_cluster, says, caplog):
    caplog.set_level("DEBUG")
    sock, transport, held = introduced(make_cluster())
    sock.sendall(b"RMSG $G orders | billing 1\r\nx\r\n")
    until(lambda: held.bodies == [b"x"])
    sock.sendall(says)
    until(lambda: not routed(transport))
    held.connection.finish(held.taken[0])
    assert (held.tally.finished, held.tally.lost) == (1, 0)
    (words,) = [record.getMessage() for record in caplog.records if "not a nats-server's bytes" in record.getMessage()]
    assert "\n" not in words


def test_what_had_come_when_a_route_broke_is_handled_also_where_it_is_noticed_by_sending(make_cluster):
    sock, transport, held = introduced(make_cluster())
    (route,) = peer_of(transport).routes
    sock.sendall(b"RMSG $G orders | billing 1\r\nx\r\n" * 3)
    with socket.socket(fileno=sock.detach()) as bare:  # gevent's is closed in the next turn of the hub
        bare.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # by RST
    route.say(b"RS- $G nobody\r\n")
    route.flush()
    assert route.error is not None
    assert held.bodies == [b"x"] * 3


@pytest.mark.parametrize("version", VERSIONS)
def test_a_server_of_our_own_name_takes_no_route_and_is_named(make_cluster, monkeypatch, version):
    cluster = make_cluster(version)
    monkeypatch.setattr(look, "new_name", lambda: f"test-{cluster.servers[0].tcp_port}")
    words = refusal(cluster.open())
    assert f"is called test-{cluster.servers[0].tcp_port}, as we are, and takes nobody of its own name" in words


@pytest.mark.parametrize("version", VERSIONS)
def test_of_two_servers_of_one_name_the_first_keeps_its_route_and_both_are_named(make_cluster, caplog, version):
    cluster = make_cluster()
    for _ in range(2):
        cluster.add(version, config="server_name: twin")
    transport = cluster.open()
    cluster.hold(transport)
    until(lambda: "are both called twin: give one of them another server_name" in caplog.text)
    (route,) = peer_of(transport).routes
    gevent.sleep(0.5)
    assert list(peer_of(transport).routes) == [route]


@pytest.mark.parametrize(
    ("second", "raised", "words"),
    [(AccessDenied("no"), AccessDenied, ["no"]), (BrokerUnreachable("gone"), BrokerUnreachable, ["a:1", "no", "b:2", "gone"])],
    ids=["refused by all", "one is away"],
)
def test_of_servers_that_all_refuse_one_is_quoted_else_each_is_named(monkeypatch, second, raised, words):
    answers = {"a:1": AccessDenied("no"), "b:2": second}

    def look_at(server, *_):
        raise answers[server]

    monkeypatch.setattr(look, "_look_at", look_at)
    with pytest.raises(raised) as refused:
        look.look(SimpleNamespace(servers=tuple(answers)), None, None)
    assert all(word in str(refused.value) for word in words)

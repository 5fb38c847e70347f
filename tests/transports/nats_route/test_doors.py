"""Who is let in, on both sides: passwords, certificates, cluster names, and in which sentence somebody is not."""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import gevent
import pytest
from gevent import socket as gsocket

from framework.errors import AccessDenied, BadSetting, BrokerRefuses, BrokerUnreachable, PublishError
from framework.testing.certificates import Authority
from framework.testing.servers import ServerMissing
from framework.transports import open_transports
from framework.transports.nats_route import look
from tests.conftest import missing

from .conftest import VERSIONS, peer_of, routed, until

pytestmark = pytest.mark.real
PASSWORD = "authorization { user: ru, password: hush }"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    try:
        return Authority(tmp_path)
    except ServerMissing as error:
        missing(str(error))
        raise


def tls_of(authority: Authority, name: str) -> str:
    pair = authority.sign(name)
    return f'tls {{ cert_file: "{pair.cert}", key_file: "{pair.key}", ca_file: "{authority.cert}" }}'


def files(authority: Authority, name: str = "worker") -> str:
    pair = authority.sign(name)
    return f"?tls_ca={authority.cert}&tls_cert={pair.cert}&tls_key={pair.key}"


def refusal(transport, kind: type[Exception] = BrokerRefuses) -> str:
    with pytest.raises(kind) as refused:
        transport.probe()
    assert "\n" not in str(refused.value)
    assert "hush" not in str(refused.value)
    return str(refused.value)


def pair_of(cluster, version: str, block: str, login: str = "ru:hush@") -> None:
    """Two servers that know one another, both behind ``block``."""
    cluster.add(version, cluster=f"name: C1\n{block}")
    port = cluster.routes[0]
    cluster.add(version, cluster=f'name: C1\n{block}\nroutes: ["nats-route://{login}127.0.0.1:{port}"]', seeds=[port])


@pytest.mark.parametrize("version", VERSIONS)
def test_with_the_password_a_peer_is_let_in_and_lets_in_a_server_that_has_it(make_cluster, version):
    cluster = make_cluster()
    cluster.add(version, cluster=f"name: C1\n{PASSWORD}")
    transport = cluster.open(0, login="ru:hush@")
    held = cluster.hold(transport)
    port = cluster.routes[0]
    server = cluster._start(
        f'cluster {{ name: C1\n{PASSWORD}\nlisten: "127.0.0.1:-1"\nroutes: ["nats-route://ru:hush@127.0.0.1:{port}"] }}',
        version=version, jetstream=False,
    )  # fmt: skip
    cluster.servers.append(server)
    until(lambda: len(routed(transport)) == 2)
    cluster.client(1).publish("orders", b"x")
    until(lambda: held.bodies == [b"x"])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("login", ["", "ru:hushhush@"])
def test_without_the_password_or_with_another_the_sentence_says_so(make_cluster, version, login):
    cluster = make_cluster()
    cluster.add(version, cluster=f"name: C1\n{PASSWORD}")
    assert re.search(r"user.{1,5}password", refusal(cluster.open(login=login)))
    with pytest.raises(AccessDenied, match="user"):
        cluster.hold(cluster.open(login=login))
    began = time.monotonic()
    with pytest.raises(PublishError, match="no nats-server takes us"):
        cluster.producer(cluster.open(login=login)).publish("orders", [b"x"], timeout=20.0)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("said", [b'"user":"ru","pass":"wrong",', b'"user":"ru",', b""])
def test_whoever_dials_a_peer_without_its_password_is_turned_away(make_cluster, said):
    cluster = make_cluster()
    cluster.add(cluster=f"name: C1\n{PASSWORD}")
    transport = cluster.open(login="ru:hush@")
    cluster.hold(transport)
    before = routed(transport)
    with gsocket.create_connection(("127.0.0.1", peer_of(transport)._mesh.port)) as sock:
        info = sock.recv(4096)
        sock.sendall(b"CONNECT {" + said + b'"name":"X","cluster":"C1"}\r\nINFO {"server_id":"X","server_name":"x"}\r\n')
        assert sock.recv(4096).startswith(b"-ERR 'Authorization Violation'")
        assert sock.recv(4096) == b""
    assert b'"auth_required":true' in info
    assert b"hush" not in info
    assert routed(transport) == before


def test_a_server_that_dials_may_ask_for_a_sign_of_life_before_it_says_who_it_is(one):
    transport = one.open()
    one.hold(transport)
    with gsocket.create_connection(("127.0.0.1", peer_of(transport)._mesh.port)) as sock:
        assert sock.recv(4096).startswith(b"INFO {")
        sock.sendall(b'CONNECT {"cluster":"C1"}\r\nPING\r\n')
        assert sock.recv(4096) == b"PONG\r\n"
        sock.sendall(b'INFO {"server_id":"X","server_name":"x","cluster":"C1"}\r\n')
        assert sock.recv(4096).startswith(b"RS+ $G orders billing ")
        assert "x" in routed(transport)
        sock.sendall(b"RS+ $G bills mail 3\r\nRS+ OTHER bills mail 3\r\n")
        until(lambda: len(peer_of(transport).interests.wanted(b"bills").groups) == 1)
    until(lambda: not peer_of(transport).interests.wanted(b"bills"))
    assert "x" not in routed(transport)


@pytest.mark.parametrize(
    "says",
    [b'CONNECT {"cluster":"C1"}\r\nRMSG $G orders 100000\r\n', b"RS+ $G orders\r\n", b"\xff\x00", b'INFO {"server_id":"X"}\r\n'],
)
def test_a_stranger_that_does_not_introduce_itself_is_turned_away(one, says):
    transport = one.open()
    one.hold(transport)
    before = routed(transport)
    with gsocket.create_connection(("127.0.0.1", peer_of(transport)._mesh.port)) as sock:
        sock.recv(4096)
        sock.sendall(says)
        assert sock.recv(4096) == b""
    assert routed(transport) == before


def test_a_listener_is_on_the_loopback_interface_unless_told_otherwise(one):
    transport = one.open()
    one.hold(transport)
    port = peer_of(transport)._mesh.port
    with gsocket.create_connection(("127.0.0.1", port)):
        pass
    (address,) = {peer_of(transport)._mesh._listener.getsockname()[0]}
    assert address == "127.0.0.1"


def test_where_it_shall_listen_and_cannot_is_said(one):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        transport = one.open(options=f"?listen=127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(BadSetting, match=r"listen=127\.0\.0\.1:.* name another address or port"):
            one.hold(transport)


@pytest.mark.parametrize("version", VERSIONS)
def test_over_tls_both_sides_show_a_certificate_whoever_dials(make_cluster, authority, version):
    cluster = make_cluster()
    pair_of(cluster, version, tls_of(authority, "server"), login="")
    transport = cluster.open(0, options=files(authority))
    held = cluster.hold(transport)
    until(lambda: len(routed(transport)) == 2, 10)
    for number in (0, 1):
        cluster.client(number).publish("orders", b"x" * 300_000)
    until(lambda: held.bodies == [b"x" * 300_000] * 2)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_server_that_speaks_tls_and_one_that_does_not_are_told_apart(make_cluster, authority, version):
    cluster = make_cluster()
    cluster.add(version, cluster=f"name: C1\n{tls_of(authority, 'server')}")
    cluster.add(version, cluster="name: C2", seeds=[1])
    words = refusal(cluster.open(0), BrokerUnreachable)
    assert "waits without a word, as one does that speaks TLS: give tls_ca=, tls_cert=, tls_key=" in words
    assert "no TLS with nats-server" in refusal(cluster.open(1, options=files(authority)))


def test_a_server_whose_certificate_nobody_trusts_is_not_told_who_we_are(make_cluster, authority, tmp_path):
    (tmp_path / "other").mkdir()
    others = Authority(tmp_path / "other", "others")
    cluster = make_cluster()
    cluster.add(cluster=f"name: C1\n{tls_of(others, 'server')}")
    words = refusal(cluster.open(0, options=files(authority), login="ru:hush@"))
    assert re.search(r"certificate that is not trusted.*tls_ca= names a file to trust", words)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_cluster_of_another_name_is_named(make_cluster, version):
    cluster = make_cluster(version)
    words = refusal(cluster.open(options="?cluster=C2"))
    assert "is of cluster 'C1': leave cluster=C2 out of the broker URL, or name that" in words


@pytest.mark.parametrize("version", VERSIONS)
def test_the_port_of_clients_is_no_port_for_routes(make_cluster, version):
    cluster = make_cluster(version)
    words = refusal(cluster.open(url=f"nats-route://{cluster.servers[0].address}"))
    assert "is no port for routes: name that of the server's cluster {} block, 6222 as a rule" in words


@pytest.mark.parametrize("version", VERSIONS)
def test_permissions_are_shown_and_refuse_the_topics_that_they_keep_back(make_cluster, version):
    cluster = make_cluster()
    permissions = 'permissions { import: "bills.>", export: { allow: ["orders", "mail.*"], deny: "mail.secret" } }'
    cluster.add(version, cluster=f"name: C1\n{permissions}")
    transport = cluster.open()
    (node,) = transport.describe("orders", "billing")
    assert node.obstacles == ()
    assert any("permissions import only bills.>" in note for note in node.notes)
    assert any("permissions export only orders, mail.* but mail.secret" in note for note in node.notes)
    for topic in ("stock", "mail.secret", "mail.a.b"):
        (node,) = transport.describe(topic, "billing")
        assert f"no message of {topic} would come" in node.obstacles[0]
    (node,) = transport.describe("mail.a", "billing")
    assert node.obstacles == ()


def test_full_trust_and_an_open_listener_are_said(one):
    (node,) = one.open().describe("orders", "billing")
    assert [note for note in node.notes if "accepts whoever" in note] == []
    (node,) = one.open(options="?listen=0.0.0.0:16222").describe("orders", "billing")
    assert any("full trust" in note for note in node.notes)
    assert any("listen=0.0.0.0:16222 accepts whoever reaches it: give user:password@ and TLS" in note for note in node.notes)


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
        (b'INFO {"server_id":"X","port":"many"}\r\n', "JSON that cannot be read"),
        (b"PING\r\n", "a nats-server begins with INFO"),
        *[(b'INFO {"server_id":"X"}\r\n-ERR \'%b\'\r\n' % words.encode(), words) for words in ERRORS],
        (b'INFO {"server_id":"X"}\r\n', "closed the connection without a word"),
        (b'INFO {"server_id":"X"}\r\nRMSG $G orders 999999999\r\n', "a message of 999999999 bytes"),
    ],
)
def test_what_is_no_server_ends_in_one_sentence(says, words):
    listener = gsocket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()

    def answer() -> None:
        sock, _ = listener.accept()
        sock.sendall(says)
        gevent.sleep(0.1)
        sock.close()

    answering = gevent.spawn(answer)
    (transport,) = open_transports([f"nats-route://127.0.0.1:{listener.getsockname()[1]}"])
    with pytest.raises((BrokerRefuses, BrokerUnreachable)) as refused:
        transport.probe()
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    answering.get()
    listener.close()


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
        b"what is this\r\n", b"INFO " + b"x" * 70_000, b"INFO {nonsense}\r\n", b"RMSG $G orders | billing 99999999\r\n",
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

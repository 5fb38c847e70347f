"""Who is let in, on both sides: passwords, certificates, cluster names, and in which sentence somebody is not."""

from __future__ import annotations

import re
import socket
import time
from itertools import product
from pathlib import Path

import pytest
from gevent import socket as gsocket

from framework.errors import AccessDenied, BadSetting, BrokerUnreachable, PublishError
from framework.testing.certificates import Authority
from framework.testing.servers import ServerMissing
from tests.conftest import missing
from tests.transports.nats_route.conftest import refusal

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


def pair_of(cluster, versions: tuple[str, str], block: str) -> None:
    """Two servers that know one another, both behind ``block``."""
    for version in versions:
        cluster.add(version, cluster=f"name: C1\n{block}", login="ru:hush@")


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
    (address,) = {peer_of(transport)._mesh._place()[0]}
    assert address == "127.0.0.1"


def test_where_it_shall_listen_and_cannot_is_said(one):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        transport = one.open(options=f"?listen=127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(BadSetting, match=r"listen=127\.0\.0\.1:.* name another address or port"):
            one.hold(transport)


@pytest.mark.parametrize("versions", list(product(VERSIONS, VERSIONS)), ids="+".join)
def test_over_tls_and_with_the_password_both_sides_are_let_in_whoever_dials(make_cluster, authority, versions):
    cluster = make_cluster()
    pair_of(cluster, versions, f"{PASSWORD}\n{tls_of(authority, 'server')}")
    transport = cluster.open(0, options=files(authority), login="ru:hush@")
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

"""Which servers there are routes to: those of the URL, those that others tell of, those that dial us; each once."""

from __future__ import annotations

import logging
import signal
import time

import gevent
import pytest
from gevent import socket as gsocket

from framework import forked
from framework.errors import BrokerUnreachable
from framework.message import Message
from framework.testing.servers import free_port
from framework.transports.nats import wire
from framework.transports.nats_route import members, mesh
from framework.transports.nats_route.route import Route

from .conftest import VERSIONS, peer_of, routed, until
from .workers import Worker

pytestmark = pytest.mark.real
BOTH = pytest.mark.parametrize("versions", [("2.9", "2.9"), ("2.15", "2.15"), ("2.9", "2.15"), ("2.15", "2.9")], ids="+".join)


@BOTH
def test_a_peer_that_knows_one_server_is_found_by_the_others_and_hears_from_each(make_cluster, versions):
    cluster = make_cluster(*versions)
    transport = cluster.open(0)
    held = cluster.hold(transport)
    until(lambda: len(routed(transport)) == 2)
    for number in (0, 1):
        cluster.client(number).publish("orders", b"from %d" % number)
    until(lambda: sorted(held.bodies) == [b"from 0", b"from 1"])


@BOTH
def test_a_server_that_joins_later_is_found_within_two_seconds(make_cluster, versions):
    cluster = make_cluster(versions[0])
    transports = [cluster.open(0), cluster.open(0)]
    held = [cluster.hold(transport, channel=f"channel{number}") for number, transport in enumerate(transports)]
    cluster.add(versions[1])
    began = time.monotonic()
    until(lambda: all(len(routed(transport)) == 3 for transport in transports))  # both servers and the other peer
    assert time.monotonic() - began < 2
    cluster.client(1).publish("orders", b"from the late one")
    until(lambda: all(one.bodies == [b"from the late one"] for one in held))


@BOTH
def test_a_server_that_leaves_stops_nothing(make_cluster, versions):
    cluster = make_cluster(*versions)
    gate, seen = gevent.event.Event(), list[bytes]()

    def handle(message: Message) -> None:
        if message.body == b"from the one that leaves":
            gate.wait()
        seen.append(message.body)

    worker = Worker(transport := cluster.open(), handle)
    until(lambda: len(routed(transport)) == 2)
    gevent.sleep(0.2)  # the second one was told of the handler by now; it keeps nothing for one that it does not know
    cluster.client(1).publish("orders", b"from the one that leaves")
    until(lambda: worker.ledger.received == 1)
    cluster.servers[1].kill()
    until(lambda: len(routed(transport)) == 1)
    cluster.client(0).publish("orders", b"from the other")
    until(lambda: seen == [b"from the other"])
    gate.set()
    until(lambda: worker.ledger.finished == 2)
    assert worker.stop().lost == 0


def test_when_the_last_server_leaves_what_runs_is_finished_and_the_worker_comes_back_with_it(one):
    gate, seen = gevent.event.Event(), list[bytes]()

    def handle(message: Message) -> None:
        gate.wait()
        seen.append(message.body)

    worker = Worker(one.open(), handle, concurrency=1)
    one.client().publish("orders", *[b"%d" % number for number in range(20)])
    until(lambda: worker.ledger.received > 0)
    one.servers[0].kill()
    gevent.sleep(0.1)
    gate.set()
    until(lambda: worker.ledger.finished == 20)
    one.servers[0].start()
    client = one.client()

    def handled_again() -> bool:
        client.publish("orders", b"again")
        gevent.sleep(0.05)
        return b"again" in seen

    until(handled_again)
    assert worker.stop().lost == 0


def test_a_server_of_another_cluster_is_not_joined_beside_the_first(one, monkeypatch, caplog):
    """Two hosts of one URL; which of them is first nobody knows."""
    monkeypatch.setattr(mesh, "_FIRST_PAUSE", 0.001)
    one.add(cluster="name: C2", seeds=[free_port()])
    transport = one.open()
    held = one.hold(transport)
    until(lambda: "give each cluster a broker URL of its own" in caplog.text)
    (route,) = peer_of(transport).routes
    assert peer_of(transport)._mesh.cluster == route.info.cluster
    clients = [one.client(number) for number in (0, 1)]
    for _ in range(5):
        for client in clients:
            client.publish("orders", client.session.info.cluster.encode())
    until(lambda: len(held.bodies) == 5)
    assert set(held.bodies) == {route.info.cluster.encode()}


@pytest.mark.parametrize("version", VERSIONS)
def test_servers_that_load_another_name_of_their_cluster_keep_their_routes_and_are_joined_by_new_ones(make_cluster, version):
    cluster = make_cluster(version, version)
    transport = cluster.open()
    held = cluster.hold(transport)
    for server in cluster.servers:
        config = server.data / "nats.conf"
        config.write_text(config.read_text().replace("name: C1", "name: C2"))
        server.process.send_signal(signal.SIGHUP)
        until(lambda server=server: any("Reloaded server configuration" in line for line in server.log))
    cluster.add(version, cluster="name: C2")
    until(lambda: len(routed(transport)) == 3)
    cluster.client(2).publish("orders", b"from the new one")
    until(lambda: held.bodies == [b"from the new one"])


def test_a_cluster_that_is_started_again_under_another_name_is_joined_by_peers_that_kept_one_another(one):
    transports = [one.open(), one.open()]
    held = [one.hold(transport, channel=f"channel{number}") for number, transport in enumerate(transports)]
    until(lambda: [len(routed(transport)) for transport in transports] == [2, 2])
    (server,) = one.servers
    server.kill()
    until(lambda: [len(routed(transport)) for transport in transports] == [1, 1])
    config = server.data / "nats.conf"
    config.write_text(config.read_text().replace("name: C1", "name: C2"))
    server.start()
    until(lambda: [len(routed(transport)) for transport in transports] == [2, 2])
    client = one.client()
    until(lambda: (client.publish("orders", b"x"), gevent.sleep(0.2), all(both.bodies for both in held))[-1])


@pytest.mark.parametrize("version", VERSIONS)
def test_peers_that_joined_different_servers_find_one_another_when_these_meet(make_cluster, version):
    cluster = make_cluster()
    for _ in range(2):
        cluster.add(version, seeds=[free_port()])
    transports = [cluster.open(number) for number in (0, 1)]
    for number, transport in enumerate(transports):
        cluster.hold(transport, channel=f"channel{number}")
    cluster.add(version)
    until(lambda: [len(routed(transport)) for transport in transports] == [4, 4])


def test_of_a_worker_that_has_left_nobody_is_warned(one, monkeypatch, caplog):
    monkeypatch.setattr(mesh, "_FIRST_PAUSE", 0.001)
    stays, leaves = one.open(), one.open()
    one.hold(stays)
    held = one.hold(leaves)
    until(lambda: len(routed(stays)) == len(routed(leaves)) == 2)
    held.connection.close()
    leaves.close()
    until(lambda: len(routed(stays)) == 1)
    until(lambda: len(peer_of(stays)._mesh._keepers) == 1)  # it was dialled as often as one is that others told of
    assert not peer_of(stays)._mesh._tried, "what is not dialled any more is forgotten"
    assert "no route to" not in caplog.text


def test_peers_that_dial_one_another_at_once_keep_one_route(make_cluster):
    cluster = make_cluster()
    ports = [free_port(), free_port()]
    urls = [f"nats-route://127.0.0.1:{ports[1 - number]}?cluster=C1&listen=127.0.0.1:{port}" for number, port in enumerate(ports)]
    transports = [cluster.open(url=url) for url in urls]
    for transport in transports:
        transport.start(None)
    peers = [peer_of(transport) for transport in transports]
    gevent.joinall([gevent.spawn(peer.reach) for peer in peers], raise_error=True)
    gevent.sleep(0.5)
    until(lambda: [len(peer.routes) for peer in peers] == [1, 1])

    def ends() -> list[Route]:
        return [one for one in forked.living() if isinstance(one, Route) and one._owner in peers and one.error is None]

    until(lambda: sorted(one.dialled for one in ends()) == [False, True])  # both of one route
    held = cluster.hold(transports[0])
    cluster.producer(transports[1]).publish("orders", [b"once"])
    until(lambda: held.bodies == [b"once"])


def test_a_server_that_dials_although_there_is_a_route_is_turned_away(one):
    transport = one.open()
    held = one.hold(transport)
    (route,) = peer_of(transport).routes
    with gsocket.create_connection(("127.0.0.1", peer_of(transport)._mesh.port)) as sock:
        sock.recv(4096)
        info = f'{{"server_id":"{route.info.server_id}","server_name":"{route.info.server_name}","cluster":"C1"}}'
        sock.sendall(f'CONNECT {{"cluster":"C1"}}\r\nINFO {info}\r\n'.encode())
        assert sock.recv(4096) == b""
    assert list(peer_of(transport).routes) == [route]
    one.client().publish("orders", b"x")
    until(lambda: held.bodies == [b"x"])


def test_a_server_of_the_url_that_misses_its_route_waits_for_our_dial(one):
    """On a route that it dialled itself it tells the others nothing of us, and us nothing of them."""
    transport = one.open()
    transport.start(None)
    peer_of(transport).reach()
    (route,) = peer_of(transport).routes
    with one.servers[0].frozen():  # our own dial is not answered meanwhile
        route.end(BrokerUnreachable("it was silent"))
        until(lambda: not routed(transport))
        with gsocket.create_connection(("127.0.0.1", peer_of(transport)._mesh.port)) as sock:
            sock.recv(4096)
            info = f'{{"server_id":"{route.info.server_id}","server_name":"{route.info.server_name}","cluster":"C1"}}'
            sock.sendall(f'CONNECT {{"cluster":"C1"}}\r\nINFO {info}\r\n'.encode())
            assert sock.recv(4096) == b""
        assert not routed(transport)
    until(lambda: len(routed(transport)) == 1)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_server_of_the_url_that_dials_us_first_does_not_take_our_own_dial_for_a_second_one(
    make_cluster, start_proxy, caplog, version
):  # fmt: skip
    """It would close ours, and dial again as soon as its own is turned away: 20 times a second, and no route came of any."""
    caplog.set_level(logging.DEBUG, logger=mesh.__name__)
    cluster = make_cluster(version, version)
    (way_there := start_proxy(f"127.0.0.1:{cluster.routes[1]}")).delay(0.2)
    (way_here := start_proxy(f"127.0.0.1:{(port := free_port())}")).delay(0.3)
    url = f"nats-route://127.0.0.1:{cluster.routes[0]},{way_there.address}"
    transport = cluster.open(url=f"{url}?listen=127.0.0.1:{port}&advertise={way_here.address}")
    transport.start(None)
    peer_of(transport).reach()
    until(lambda: len(routed(transport)) == 2, 4.0)
    gevent.sleep(0.5)
    assert len(routed(transport)) == 2
    assert "no route to nats-server" not in caplog.text


def test_a_third_peer_is_told_of_by_a_peer_as_by_a_server(make_cluster):
    cluster = make_cluster()
    port = free_port()
    first = cluster.open(url=f"nats-route://127.0.0.1:1?cluster=C1&listen=127.0.0.1:{port}")
    first.start(None)
    with pytest.raises(BrokerUnreachable):
        peer_of(first).reach(1.0)
    others = [cluster.open(url=f"nats-route://127.0.0.1:{port}?cluster=C1") for _ in range(2)]
    held = [cluster.hold(other, channel=f"channel{number}") for number, other in enumerate(others)]
    until(lambda: [len(routed(one)) for one in (first, *others)] == [2, 2, 2])
    cluster.producer(others[0]).publish("orders", [b"to both"])
    until(lambda: [one.bodies for one in held] == [[b"to both"], [b"to both"]])


def test_a_cluster_without_a_name_is_joined_under_the_one_that_its_servers_made_up(make_cluster):
    cluster = make_cluster()
    for version in ("2.15", "2.9"):
        cluster.add(version, cluster="")
    transport = cluster.open(0)
    held = cluster.hold(transport)
    until(lambda: len(routed(transport)) == 2)
    client = cluster.client(1)
    until(lambda: (client.publish("orders", b"x"), gevent.sleep(0.2), held.bodies)[-1])  # its server hears of us in its own time


@pytest.mark.parametrize("version", VERSIONS)
def test_a_server_that_dials_takes_no_made_up_name_of_a_peer(make_cluster, listening, version):
    """It would leave the cluster whose name it has, where that comes earlier in the alphabet."""

    def serve(sock):
        sock.sendall(b'INFO {"server_id":"X","server_name":"x","cluster":"zz","cluster_dynamic":true} \r\n')
        while b"PING\r\n" not in sock.recv(65536):
            pass
        sock.sendall(b"PONG\r\n")
        while sock.recv(65536):
            pass

    cluster = make_cluster()
    transport = cluster.open(url=f"nats-route://{listening(serve)}")
    held = cluster.hold(transport)
    cluster.add(version, cluster="name: '#1'", seeds=[free_port()])
    dials = cluster.add(version, cluster="", seeds=[cluster.routes[0], peer_of(transport)._mesh.port])
    client = cluster.client(1)
    until(lambda: (client.publish("orders", b"x"), gevent.sleep(0.2), held.bodies)[-1])
    until(lambda: peer_of(transport)._mesh.cluster == "#1")
    assert "zz" not in [line.rpartition(" ")[2] for line in dials.log if "Cluster name updated to" in line]


def test_where_its_id_is_taken_a_peer_comes_with_another(one):
    """As after a break that the server has not noticed."""
    first, second = one.open(), one.open()
    for transport in (first, second):
        transport.start(None)
    peer_of(first).reach()
    peer_of(second)._mesh._id = taken = peer_of(first)._mesh._id
    peer_of(second).reach()
    assert peer_of(second)._mesh._id != taken
    assert len(routed(second)) >= 1


def test_of_its_ids_it_remembers_the_last(one):
    transport = one.open()
    transport.start(None)
    found = peer_of(transport)._mesh
    for _ in range(1000):
        found._renew()
    assert found._id in found._ids
    assert len(found._ids) == 100


def test_a_server_that_takes_a_route_only_to_end_it_is_dialled_ever_later(make_cluster, listening, monkeypatch):
    pauses = list[int]()
    monkeypatch.setattr(mesh, "_pause", lambda failures: pauses.append(failures) or 0.0)

    def serve(sock):
        sock.sendall(b'INFO {"server_id":"X","server_name":"x","cluster":"C1"} \r\n')
        while b"PING\r\n" not in sock.recv(65536):
            pass
        sock.sendall(b"PONG\r\n")

    transport = make_cluster().open(url=f"nats-route://{listening(serve)}")
    transport.start(None)
    peer_of(transport).reach()
    until(lambda: pauses[:3] == [2, 3, 4])


def test_after_a_silence_it_is_taken_again_though_the_server_has_not_noticed(one, start_proxy):
    proxy = start_proxy(f"127.0.0.1:{one.routes[0]}")
    transport = one.open(url=f"nats-route://{proxy.address}?ping_interval=200ms")
    worker = Worker(transport, lambda message: None)
    proxy.swallow()
    until(lambda: not routed(transport))
    proxy.restore()
    client = one.client()

    def handled() -> bool:
        client.publish("orders", b"x")
        gevent.sleep(0.02)
        return worker.ledger.finished > 0

    until(handled)
    worker.stop()


def test_a_server_that_stands_still_is_given_up_and_others_get_its_share(make_cluster):
    cluster = make_cluster("2.15", "2.15")
    transport = cluster.open(options="?ping_interval=200ms")
    stuck, fine = cluster.client(0), cluster.client(1)
    stuck.subscribe("orders", "billing")
    fine.subscribe("orders", "billing")
    producer = cluster.producer(transport)
    transport.start(None)
    peer_of(transport).reach()
    until(lambda: len(peer_of(transport).interests.wanted(b"orders").groups.get(b"billing", ())) == 2)
    with cluster.servers[0].frozen():
        until(lambda: len(routed(transport)) == 1)
        producer.publish("orders", [b"%d" % number for number in range(20)])
        until(lambda: len(fine.bodies) == 20)


@pytest.mark.parametrize(
    ("told", "address"),
    [
        ("nats-route://10.0.0.7:6222/", "10.0.0.7:6222"), ("nats-route://me:secret@there:6222", "there:6222"),
        ("nats-route://:6222/", ""), ("nats-route://there", ""), ("nats-route://there:0", ""), ("there:65536", ""),
        ("there:\u00b2", ""), ("there:1111111111", ""),
    ],
)  # fmt: skip
def test_of_what_others_tell_only_an_address_is_dialled(told, address):
    assert mesh._dialable(told) == address


def test_a_server_that_was_started_again_is_known_by_its_name_and_its_new_id():
    before, after = wire.Info(server_id="NA", server_name="one"), wire.Info(server_id="NB", server_name="one")
    assert members.same_server(before, after)
    assert not members.same_server(before, before), "a second route to it, which the server itself ends"
    assert not members.same_server(before, wire.Info(server_id="NB", server_name="two"))
    assert not members.same_server(wire.Info(server_id="NA"), wire.Info(server_id="NB")), "both are nameless"

"""A peer of one real server: it is accepted, gets what clients publish, and what it publishes comes to the right ones."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress

import gevent
import pytest

from framework.errors import AlreadySettled, BadMessage, BadName, PublishError
from framework.headers import NONE
from framework.testing.servers import await_port
from framework.transports.nats import headers

from .conftest import peer_of, routed, until

pytestmark = pytest.mark.real


def test_what_a_client_publishes_comes_to_a_handlers_queue_group(one):
    held = one.hold(one.open())
    one.client().publish("orders", b"one", b"", b"\r\nRMSG $G x 1\r\n")
    until(lambda: held.bodies == [b"one", b"", b"\r\nRMSG $G x 1\r\n"])
    for message in held.taken:
        held.connection.finish(message)
    assert (held.tally.finished, held.tally.lost) == (3, 0)
    assert len({message.id for message in held.taken}) == 3


def test_what_a_client_publishes_once_a_handler_has_connected_is_not_dropped(one, start_proxy):
    (way := start_proxy(f"127.0.0.1:{one.routes[0]}")).to_server.delay(0.1)
    held = one.hold(one.open(url=f"nats-route://{way.address}?advertise=127.0.0.1:1"))
    one.client().publish("orders", b"at once")
    until(lambda: held.bodies == [b"at once"])


def test_a_server_that_stands_still_is_waited_for_by_one_handler_and_not_by_each(make_cluster):
    cluster = make_cluster("2.15", "2.15")
    transport = cluster.open(options="?ping_interval=60s")
    cluster.hold(transport)
    until(lambda: len(routed(transport)) == 2)
    cluster.servers[1].freeze()
    began = time.monotonic()
    held = [cluster.hold(transport, channel=f"channel{number}") for number in range(30)]
    assert time.monotonic() - began < 20  # two seconds for each would be a minute
    cluster.client().publish("orders", b"from the other")
    until(lambda: all(one.bodies == [b"from the other"] for one in held))
    cluster.servers[1].thaw()


def test_a_connect_that_is_given_up_while_a_server_reads_leaves_no_subscription(one, start_proxy):
    way = start_proxy(f"127.0.0.1:{one.routes[0]}")
    transport = one.open(url=f"nats-route://{way.address}?advertise=127.0.0.1:1")
    one.hold(transport, channel="stays")
    way.to_client.hold()
    connecting = gevent.spawn(one.hold, transport, channel="goes")
    until(lambda: (b"orders", b"goes") in peer_of(transport).mine())
    connecting.kill()
    assert peer_of(transport).mine() == {(b"orders", b"stays")}
    way.restore()


def test_what_a_peer_publishes_comes_to_clients_with_its_headers(one):
    plain, group = one.client(), one.client()
    plain.subscribe("ord*")
    plain.subscribe("orders")
    group.subscribe("orders", "billing")
    producer = one.producer(one.open())
    producer.publish("orders", [b"one"], headers={"who": "Zoë"})
    until(lambda: plain.bodies == [b"one"] and group.bodies == [b"one"])
    assert headers.for_handlers(group.messages[0].headers) == {"who": "Zoë"}


def test_of_each_queue_group_one_member_gets_a_message_wherever_it_is(one):
    transport = one.open()
    here, other = one.hold(transport, grant=1000), one.hold(transport, channel="mail", grant=1000)
    client = one.client()
    client.subscribe("orders", "billing")
    until(lambda: len(peer_of(transport).interests) > 0)
    producer = one.producer(transport)
    bodies = [b"%d" % number for number in range(200)]
    producer.publish("orders", bodies)
    until(lambda: len(here.taken) + len(client.bodies) == 200 and len(other.taken) == 200)
    assert sorted(here.bodies + client.bodies) == sorted(bodies)
    assert sorted(other.bodies) == sorted(bodies)


def test_each_queue_group_is_served_by_the_server_that_has_it_and_so_is_whoever_subscribes_plainly(make_cluster):
    cluster = make_cluster("2.9", "2.15")
    transport = cluster.open()
    here = cluster.hold(transport, channel="here", grant=100)
    first, second, both = cluster.client(0), cluster.client(1), [cluster.client(0), cluster.client(1)]
    first.subscribe("orders", "first")
    second.subscribe("orders", "second")
    second.subscribe("orders")
    for client in both:
        client.subscribe("orders", "both")
    until(lambda: len(routed(transport)) == 2 and len(peer_of(transport).interests) == 5)
    bodies = [b"%d" % number for number in range(50)]
    cluster.producer(transport).publish("orders", bodies)
    until(lambda: len(here.taken) == len(first.bodies) == 50 and len(second.bodies) == 100)
    until(lambda: sum(len(client.bodies) for client in both) == 50)
    gevent.sleep(0.1)
    assert sorted(second.bodies) == sorted(2 * bodies)
    assert [sorted(first.bodies), sorted(here.bodies)] == [sorted(bodies)] * 2
    assert sorted(both[0].bodies + both[1].bodies) == sorted(bodies)
    first.subscribe("news", "first")
    second.subscribe("news")  # and no queue group there
    until(lambda: len(peer_of(transport).interests) == 7)
    cluster.producer(transport).publish("news", [b"all"])
    until(lambda: first.bodies[-1] == b"all" and second.bodies[-1] == b"all")


def test_what_is_said_while_a_lone_message_is_handled_leaves_at_once(one, monkeypatch):
    transport, prompt = one.open(), list[bytes]()
    held = one.hold(transport)
    deliver = held.receiver.deliver
    with socket.create_connection(("127.0.0.1", one.servers[0].tcp_port)) as client:
        client.sendall(b'CONNECT {"verbose":false}\r\nSUB answers 1\r\n')
        client.settimeout(1.0)

        def answer(connection, batch) -> None:
            for message in batch:
                peer_of(transport).send(b"answers", b"", message.body)
                with suppress(TimeoutError):  # the hub turns only when this has ended; INFO comes first
                    while message.body not in client.recv(4096):
                        pass
                    prompt.append(message.body)
            deliver(connection, batch)

        monkeypatch.setattr(held.receiver, "deliver", answer)
        until(lambda: peer_of(transport).wants(b"answers"))
        for number in range(3):  # one may come together with what the server says itself
            one.client().publish("orders", b"body %d" % number)
        until(lambda: len(held.taken) == 3)
    assert prompt


def test_what_one_peer_publishes_comes_to_another(one):
    held = one.hold(one.open())
    one.producer(one.open()).publish("orders", [b"one", b"two"], headers={"a": "1"})
    until(lambda: held.bodies == [b"one", b"two"])
    assert [dict(message.headers) for message in held.taken] == [{"a": "1"}, {"a": "1"}]


def test_a_publish_waits_for_a_subscriber_and_says_so_when_none_comes(one):
    transport = one.open()
    producer = one.producer(transport)
    with pytest.raises(PublishError, match="nobody has subscribed to orders") as refused:
        producer.publish("orders", [b"too early"], timeout=0.4)
    assert refused.value.stored is False
    waiting = gevent.spawn(producer.publish, "orders", [b"in time"], timeout=10.0)
    gevent.sleep(0.1)
    held = one.hold(one.open())
    waiting.get(timeout=10)
    until(lambda: held.bodies == [b"in time"])


def test_a_publish_that_waits_ends_when_its_transport_is_closed(one):
    held, transport = one.hold(one.open(), topic="other"), one.open()
    waiting = gevent.spawn(one.producer(transport).publish, "orders", [b"x"], timeout=30.0)
    until(lambda: transport._homes.there() and routed(transport))
    gevent.sleep(0.3)
    transport.close()
    with pytest.raises(PublishError, match="closed") as refused:
        waiting.get(timeout=5)
    assert refused.value.stored is False
    assert held.taken == []


def test_more_than_the_servers_take_is_refused_before_anything_is_sent(make_cluster):
    cluster = make_cluster()
    cluster.add(config="max_payload: 1000")
    transport = cluster.open()
    held = cluster.hold(transport)
    producer = cluster.producer(transport)
    with pytest.raises(BadMessage, match="1001 bytes; the servers take up to 1000"):
        producer.publish("orders", [b"fits", b"x" * 1001])
    producer.publish("orders", [b"x" * 1000])
    until(lambda: held.taken)
    assert held.bodies == [b"x" * 1000]
    assert held.taken[0].headers is NONE


def test_how_much_servers_take_is_known_before_the_first_publish(make_cluster):
    cluster = make_cluster()
    cluster.add(config="max_payload: 4000000")
    held = cluster.hold(cluster.open())
    producer = cluster.producer(cluster.open())
    with pytest.raises(BadMessage, match="take up to 4000000"):
        producer.publish("orders", [b"x" * 4_000_001])
    producer.publish("orders", [b"x" * 4_000_000])
    until(lambda: held.bodies == [b"x" * 4_000_000])


def test_no_body_is_refused_by_a_limit_that_is_not_known_yet(make_cluster):
    """The server comes up after the publish has begun."""
    cluster = make_cluster()
    server = cluster.add(config="max_payload: 4000000")
    server.kill()
    producer = cluster.producer(cluster.open())
    publishing = gevent.spawn(producer.publish, "orders", [b"x" * 4_000_000], timeout=20.0)
    gevent.sleep(0.3)
    server.start()
    await_port(cluster.routes[0])
    held = cluster.hold(cluster.open())
    publishing.get(timeout=20.0)
    until(lambda: held.bodies == [b"x" * 4_000_000])


def test_a_name_that_is_wrong_waits_for_no_server(make_cluster):
    cluster = make_cluster()
    cluster.add().kill()
    producer = cluster.producer(cluster.open())
    began = time.monotonic()
    for topic in ("or ders", "orders.*", ">", "orders.>", "orders..new", ".orders", "orders.", "_INBOX.me", "or\tders", ""):
        with pytest.raises(BadName):
            producer.publish(topic, [b"x"], timeout=20.0)
    for bodies in ([b""], ["x"], [b"fits", b""]):
        with pytest.raises(BadMessage):
            producer.publish("orders", bodies, timeout=20.0)
    assert time.monotonic() - began < 5.0


def test_a_forked_child_publishes_as_a_peer_of_its_own(one):
    held = one.hold(one.open())
    transport = one.open()
    producer = one.producer(transport)
    producer.publish("orders", [b"parent"])
    if (child := os.fork()) == 0:
        try:
            producer.publish("orders", [b"child"], timeout=10.0)
        finally:
            os._exit(0)
    until(lambda: sorted(held.bodies) == [b"child", b"parent"])
    os.waitpid(child, 0)
    producer.publish("orders", [b"parent again"])
    until(lambda: len(held.bodies) == 3)


def test_what_is_not_granted_waits_here_and_comes_in_order(one):
    held = one.hold(one.open(), grant=0)
    client = one.client()
    client.publish("orders", *[b"%d" % number for number in range(10)])
    gevent.sleep(0.1)
    assert held.taken == []
    held.grant(3)
    until(lambda: len(held.taken) == 3)
    gevent.sleep(0.05)
    assert len(held.taken) == 3
    held.connection.finish(held.taken[0])
    until(lambda: len(held.taken) == 4)
    assert held.bodies == [b"0", b"1", b"2", b"3"]


def test_what_does_not_fit_in_the_backlog_is_counted_as_lost(one):
    held = one.hold(one.open(options="?backlog=5"), grant=0)
    one.client().publish("orders", *[b"%d" % number for number in range(9)])
    until(lambda: held.tally.lost == 4)
    assert held.tally.received == 4
    held.receiver.tally.received = held.receiver.tally.lost = 0  # the strict receiver counts what it was given
    held.grant(5)
    until(lambda: len(held.taken) == 5)


def test_requeued_is_lost_and_what_is_settled_cannot_be_settled_again(one):
    held = one.hold(one.open())
    one.client().publish("orders", b"once")
    until(lambda: held.taken)
    held.connection.requeue(held.taken[0], 5.0)
    assert (held.tally.requeued, held.tally.lost) == (0, 1)
    with pytest.raises(AlreadySettled):
        held.connection.hand_on(held.taken[0])


def test_another_account_is_another_world(make_cluster):
    cluster = make_cluster()
    accounts = (
        "accounts { A { users: [ { user: a, password: a } ] }, B { users: [ { user: b, password: b } ] } }\nno_auth_user: a"
    )
    cluster.add(config=accounts)
    mine, others = cluster.hold(cluster.open(options="?account=A")), cluster.hold(cluster.open(options="?account=B"))
    cluster.client().publish("orders", b"of A")
    until(lambda: mine.bodies == [b"of A"])
    gevent.sleep(0.05)
    assert others.taken == []


def test_after_drained_nothing_comes_and_a_neighbour_gets_what_waited(one):
    first, second = one.hold(transport := one.open(), grant=0), one.hold(one.open(), grant=0, capacity=0)
    until(lambda: peer_of(transport).interests.wanted(b"orders").groups)  # or it would keep what nobody else takes
    client = one.client()
    bodies = [b"%d" % number for number in range(50)]
    client.publish("orders", *bodies)
    second.grant(1000)
    first.connection.drain()
    until(lambda: first.receiver.drains)
    client.publish("orders", b"later")
    until(lambda: len(second.taken) == 51)
    assert sorted(second.bodies) == sorted([*bodies, b"later"])
    assert first.taken == []

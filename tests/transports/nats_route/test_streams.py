"""JetStream by routes: handlers that count attempts are taken, and what is said follows the server that leads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any

import gevent
import pytest

from framework.engine.refusals import refusals
from framework.errors import AlreadySettled, BadSetting, BrokerRefuses, BrokerUnreachable
from framework.handler import make_spec
from framework.message import Message
from framework.testing import servers
from framework.transports import open_transports
from framework.transports.nats import changes, wire
from framework.transports.nats.route_wire import Routed
from framework.transports.nats.streams import Api
from framework.transports.nats_route import judgement

from .conftest import peer_of, until
from .streams import Streams, asked, changed, end, step_down

pytestmark = pytest.mark.real
BOTH = pytest.mark.parametrize("version", [pytest.param("2.9", marks=pytest.mark.slow), "2.15"])


def test_handlers_that_need_a_second_delivery_are_taken_with_streams_and_refused_without():
    def bill(message: Message) -> None: ...

    spec = make_spec(bill, "orders", "billing", {"max_attempts": 5})
    once = make_spec(bill, "orders", "billing", {"max_attempts": 5, "at_most_once": True})
    (streams,) = open_transports(["nats-route://127.0.0.1?jetstream=true"])
    (core,) = open_transports(["nats-route://127.0.0.1"])
    assert refusals([spec], streams) == refusals([once], streams) == refusals([once], core) == []
    assert "max_attempts=5 cannot be kept" in refusals([spec], core)[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("?replicas=3", "replicas= in a broker URL is for streams: add jetstream=true"),
        ("?system_account=SYS", "system_account= in a broker URL is for streams: add jetstream=true"),
        ("?jetstream=true&backlog=5", "backlog= in a broker URL is for messages that no stream keeps"),
        ("?jetstream=yes", "write true or false"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: str, words: str):
    with pytest.raises(BadSetting, match=words):
        open_transports([f"nats-route://127.0.0.1{options}"])


def test_what_a_peer_stores_a_client_sees_and_what_a_client_stores_a_peer_handles(streams: Streams):
    transport, client = streams.open(), streams.client()
    transport.producer().publish("mixed", [b"ours"], headers={"who": "Zoë"})
    api = Api(client)
    assert api.stream_of("mixed") == "mixed"
    answer = client.ask(b"mixed", b"theirs", 5.0)
    assert b'"seq":2' in answer.body
    held = streams.hold(transport, "mixed")
    until(lambda: held.bodies == [b"ours", b"theirs"])
    assert [dict(message.headers) for message in held.taken] == [{"who": "Zoë"}, {}]
    for message in held.taken:
        held.connection.finish(message)
    until(lambda: api.consumer("mixed", "billing").num_ack_pending == 0)  # type: ignore[union-attr]
    assert held.tally.finished == 2
    end(held)


def test_a_connection_follows_its_consumer_to_the_server_that_leads_it_next(streams: Streams):
    transport, client = streams.open(), streams.client()
    producer = transport.producer()
    transport.ensure("moving", ["billing"])
    held = streams.hold(transport, "moving", grant=100)
    for number in range(3):
        producer.publish("moving", [b"%d before" % number])
        until(lambda number=number: b"%d before" % number in held.bodies)
        step_down(client, "moving", "billing")
        for message in list(held.connection.in_flight):
            held.connection.finish(message)
        producer.publish("moving", [b"%d after" % number])
        until(lambda number=number: b"%d after" % number in held.bodies)
    assert not held.receiver.closings
    assert len(held.bodies) == 6, "each was acknowledged to a server that knew of it"
    end(held)


def test_a_publisher_follows_a_stream_to_the_server_that_leads_it_next(streams: Streams):
    transport, client = streams.open(), streams.client()
    producer = transport.producer()
    producer.publish("store", [b"first"])
    publishing = gevent.spawn(lambda: [producer.publish("store", [b"%d" % number], timeout=20.0) for number in range(200)])
    step_down(client, "store")
    publishing.get(timeout=20.0)
    stream = Api(client).stream("store")
    assert stream is not None
    assert stream.state.messages == 201


def test_a_pull_that_is_taken_back_brings_nothing_any_more(streams: Streams):
    transport = streams.open()
    transport.ensure("paused", ["billing"])
    held = streams.hold(transport, "paused", grant=10)
    until(lambda: held.connection.exposed == 10)
    held.grant(0)
    until(lambda: held.connection.exposed == 0)
    transport.producer().publish("paused", [b"x"])
    gevent.sleep(0.1)
    assert held.taken == []
    held.grant(1)
    until(lambda: held.taken)
    end(held)


def test_a_settlement_waits_for_a_server_that_leads_and_is_counted_when_that_has_read_it(streams: Streams, monkeypatch):
    transport = streams.open()
    transport.producer().publish("waiting", [b"x"])
    held = streams.hold(transport, "waiting")
    until(lambda: held.taken)
    sessions = peer_of(transport).sessions
    monkeypatch.setattr(type(sessions), "leader", lambda *_: None)
    sessions.changed(b"$JS.API.CONSUMER.MSG.NEXT.waiting.billing")
    held.connection.finish(held.taken[0])
    gevent.sleep(0.1)
    assert (held.tally.finished, held.connection.unsent() > 0) == (0, True)
    monkeypatch.undo()
    sessions.changed(b"$JS.API.CONSUMER.MSG.NEXT.waiting.billing")
    until(lambda: held.tally.finished == 1 and held.connection.unsent() == 0)
    end(held)


def test_what_others_publish_to_our_inbox_is_passed_over_and_ends_no_route(streams: Streams, caplog):
    transport = streams.open()
    transport.ensure("inbox", ["billing"])
    held = streams.hold(transport, "inbox")
    session: Any = held.connection._session
    until(lambda: session._leader is not None and held.connection.exposed == 10)
    routes = peer_of(transport).routes
    before, sid = list(routes), max(session._owners)
    to = [b"%b.%b" % (session.inbox, word) for word in (b"%d" % sid, b"abc", b"-1", b"")]
    session._leader._take([Routed(b"$G", subject, b"not.an.ack", (), b"", b"x") for subject in to], monotonic())
    transport.producer().publish("inbox", [b"ours"])
    until(lambda: held.bodies == [b"ours"])
    assert set(before) <= set(routes)  # another may have come meanwhile
    assert caplog.text.count("it is to be acknowledged at b'not.an.ack'") == 1
    end(held)


@pytest.mark.parametrize("busy", [True, False], ids=["busy", "with room"])
def test_what_runs_is_not_settled_at_a_stream_that_was_made_anew(streams: Streams, busy: bool):
    """Its sequences begin at 1 again: an old ACK would settle a new message that somebody else handles."""
    transport, client, topic = streams.open(), streams.client(), "anew" if busy else "idle"
    transport.producer().publish(topic, [b"old"] * 3)
    held = streams.hold(transport, topic, grant=3 if busy else 10)
    until(lambda: len(held.taken) == 3)
    asked(client, f"STREAM.DELETE.{topic}")
    rival = streams.hold(other := streams.open(), topic, grant=3)
    other.producer().publish(topic, [b"new"] * 3)
    until(lambda: len(rival.taken) == 3)
    for message in held.taken[:3]:
        with suppress(AlreadySettled):
            held.connection.finish(message)
    until(lambda: held.receiver.closings)
    assert held.tally.finished == 0
    assert held.tally.lease_lost >= 3
    assert asked(client, f"CONSUMER.INFO.{topic}.billing")["num_ack_pending"] == 3
    end(rival)


def test_what_was_settled_while_nobody_leads_is_not_said_after_its_lease(streams: Streams, monkeypatch):
    transport = streams.open("&ack_wait=1s")
    transport.producer().publish("nobody", [b"x", b"y"])
    held = streams.hold(transport, "nobody")
    until(lambda: len(held.taken) == 2)
    sessions = peer_of(transport).sessions
    monkeypatch.setattr(type(sessions), "leader", lambda *_: None)
    sessions.changed(b"$JS.API.CONSUMER.MSG.NEXT.nobody.billing")
    assert "leads" in held.connection.away
    held.connection.finish(held.taken[0])
    until(lambda: held.receiver.closings, 5.0)
    assert (held.tally.finished, held.tally.lease_lost) == (0, 2)


def test_a_lease_that_is_changed_while_calls_run_is_gone_by(streams: Streams, monkeypatch):
    monkeypatch.setattr(changes, "REGULARLY", 0.5)
    transport, client = streams.open(), streams.client()
    transport.producer().publish("shorter", [b"x"])
    held = streams.hold(transport, "shorter", grant=1)  # else it comes again just before, and is held anew
    until(lambda: held.taken)
    changed(client, "shorter", ack_wait=2 * 10**9)
    until(lambda: held.connection.limits.lease == 2.0)
    until(lambda: held.receiver.lost_messages)  # it was not touched
    changed(client, "shorter", ack_wait=20 * 10**9)
    until(lambda: held.connection.limits.lease == 20.0)
    end(held)


def test_as_many_come_as_a_consumer_allows_that_is_changed_while_calls_run(streams: Streams):
    transport, client = streams.open(), streams.client()
    held = streams.hold(transport, "fewer", grant=10)
    changed(client, "fewer", max_ack_pending=2)
    transport.producer().publish("fewer", [b"%d" % number for number in range(6)])
    until(lambda: len(held.taken) == 2)
    held.connection.finish(held.taken[0])
    until(lambda: len(held.taken) == 3)
    gevent.sleep(0.2)
    assert len(held.taken) == 3
    changed(client, "fewer", max_ack_pending=10)
    until(lambda: len(held.taken) == 6)
    for message in list(held.connection.in_flight):
        held.connection.finish(message)
    until(lambda: held.tally.finished == 6)
    end(held)


@pytest.mark.slow
@pytest.mark.at_length
def test_a_server_without_streams_is_told_from_one_that_has_them(make_cluster: Callable[..., Any]):
    plain = make_cluster("2.15")
    transport = plain.open(options="?jetstream=true")
    with pytest.raises(Exception, match=r"gave no answer to .JS\.API\.STREAM\.NAMES"):
        transport.probe()


def test_what_check_says_has_the_streams_as_well_as_the_trust(streams: Streams):
    transport = streams.open()
    transport.ensure("checked", ["billing"])
    (info,) = transport.describe("checked", "billing")
    assert info.server.startswith("nats-server 2.15")
    assert info.obstacles == ()
    assert any("full trust" in note for note in info.notes)
    assert any("keeps what was handled for ever" in note for note in info.notes)


@BOTH
def test_servers_whose_system_account_has_a_name_of_its_own_are_asked_there(start_nats: Callable[..., Any], version: str):
    """As most have it that have accounts at all."""
    app = "APP { jetstream: enabled, users: [ { user: app, password: app } ] }"
    accounts = f"accounts {{ {app}, ADMIN {{ users: [ {{ user: admin, password: a }} ] }} }}\nsystem_account: ADMIN"
    ports = [servers.free_port() for _ in range(2)]
    routes = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in ports)
    for port in ports:
        start_nats(f'cluster {{ name: C1, listen: "127.0.0.1:{port}", routes: [{routes}] }}\n{accounts}', version=version)
    url = f"nats-route://127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}?account=APP&jetstream=true"
    for options, words in (("", r"is not \$SYS: say system_account=ADMIN in the broker URL"), ("&system_account=ADMIN", "")):
        (transport,) = open_transports([url + options])
        try:
            if words:
                with pytest.raises(BrokerUnreachable, match=words):
                    transport.probe()
            else:
                transport.producer().publish("orders", [b"x"], timeout=20.0)
                assert transport.backlog("orders", "billing") == {transport.discover("orders", "billing").pop(): 1}
        finally:
            transport.close()


@contextmanager
def restricted(folder: Path, version: str, permissions: str) -> Iterator[str]:
    """The URL of two servers that keep streams, with ``permissions`` on all of their routes."""
    ports = [servers.free_port() for _ in range(2)]
    routes = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in ports)
    with ExitStack() as stack:
        for port in ports:
            (data := folder / f"member-{port}").mkdir()
            block = f'cluster {{ name: C1, listen: "127.0.0.1:{port}", routes: [{routes}]\n permissions {{ {permissions} }} }}'
            stack.enter_context(servers.running(servers.real_nats(data, block, version=version)))
        yield f"nats-route://{','.join(f'127.0.0.1:{port}' for port in ports)}?jetstream=true"


VERSIONS = [pytest.param("2.9", marks=[pytest.mark.slow, pytest.mark.at_length]), "2.15"]


@pytest.mark.parametrize("version", VERSIONS)
def test_what_permissions_keep_from_streams_is_named(tmp_path: Path, version: str):
    with restricted(tmp_path, version, 'import: { deny: ["hidden", "$JS.ACK.>"] }') as url:
        (transport,) = open_transports([url])
        (info,) = until(lambda: transport.describe("hidden", "billing"))  # nothing while nobody leads
        transport.close()
    assert any("permissions import all but hidden, $JS.ACK.>" in note for note in info.notes)
    topic, acks = info.obstacles
    assert "would not hear of hidden: add it to cluster { permissions { import } }" in topic
    assert "would not hear of $JS.ACK.hidden.billing.>: add it" in acks


@pytest.mark.parametrize("version", VERSIONS)
def test_permissions_that_keep_every_answer_back_are_named_at_once(tmp_path: Path, version: str):
    with restricted(tmp_path, version, 'export: { deny: "_INBOX.>" }') as url:
        (transport,) = open_transports([url])
        with pytest.raises(BrokerRefuses, match=r"no answer of JetStream would come: add _INBOX\.> to cluster"):
            transport.probe()
        transport.close()


def test_permissions_that_leave_streams_alone_are_no_obstacles():
    allowed = ["orders", "$JS.API.CONSUMER.MSG.NEXT.ORDERS.billing", "$JS.ACK.ORDERS.>"]
    info = wire.Info(imports=wire.Permissions(allow=allowed), exports=wire.Permissions(allow=["_INBOX.>"]))
    assert list(judgement.stream_obstacles(info, "orders", "ORDERS", "billing")) == []
    assert len(list(judgement.stream_obstacles(info, "orders", "OTHERS", "billing"))) == 2
    assert (judgement.unheard(info), judgement.unheard(wire.Info())) == ("", "")

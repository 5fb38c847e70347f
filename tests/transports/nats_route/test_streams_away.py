"""JetStream by routes while servers are away: what is asked waits for a leader, and what runs keeps its lease."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from time import monotonic

import pytest

from framework.errors import BrokerUnreachable, TryLater
from framework.testing import servers
from framework.transports.nats.route_wire import Routed
from framework.transports.nats.streams import Api
from framework.transports.nats_route.session import RouteSession

from .conftest import peer_of, until
from .streams import Streams, end

pytestmark = pytest.mark.real


def no_leader(session: RouteSession, sid: int) -> None:
    """What a server says at once that is cut off from the others."""
    body = b'{"error":{"code":503,"err_code":10008,"description":"JetStream system temporarily unavailable"}}'
    session.heard([Routed(b"$SYS", b"%b.%d" % (session.inbox, sid), b"", (), b"", body)], monotonic())


def test_a_server_that_is_cut_off_does_not_answer_for_the_one_that_leads(streams: Streams, monkeypatch):
    (transport := streams.open()).start(None)  # on this hub
    transport.probe()
    session = RouteSession(peer_of(transport).sessions)
    ask = session.request
    monkeypatch.setattr(session, "request", lambda sid, to, body: (no_leader(session, sid), ask(sid, to, body)))
    assert Api(session).stream_of("nowhere") == ""
    monkeypatch.setattr(session, "request", lambda sid, to, body: no_leader(session, sid))
    with pytest.raises(TryLater, match="10008 JetStream system temporarily unavailable"):
        Api(session, 0.2).stream_of("nowhere")
    session.close()


@pytest.mark.slow
def test_what_is_asked_while_all_servers_start_again_is_answered_when_they_have_a_leader(tmp_path: Path):
    made = Streams(tmp_path)
    with ExitStack() as stack:
        for server in made.servers:
            stack.enter_context(servers.running(server))
        stack.callback(made.close)
        transport = made.open()
        until(lambda: transport.describe("any", "billing"))  # a new cluster has its first leader
        for server in made.servers:
            server.kill()
        for server in made.servers:
            server.start()
        assert transport.probe()


def test_what_runs_while_all_routes_are_gone_is_settled_by_the_next(streams: Streams):
    transport = streams.open()
    transport.producer().publish("gone", [b"x", b"y"])
    held = streams.hold(transport, "gone")
    until(lambda: len(held.taken) == 2)
    for route in list(peer_of(transport).routes):
        route.end(BrokerUnreachable("it was cut"))
    assert "it was cut" in held.connection.away
    held.connection.finish(held.taken[0])
    until(lambda: held.tally.finished == 1)
    held.connection.finish(held.taken[1])
    until(lambda: held.tally.finished == 2)
    until(lambda: transport.backlog("gone", "billing") == {held.connection.node: 0})
    assert (held.tally.lease_lost, held.receiver.closings, len(held.taken)) == (0, 0, 2)
    end(held)


def test_what_was_settled_without_a_route_waits_until_its_consumer_is_found_again_and_a_stop_is_told_so(
    streams: Streams, monkeypatch
):  # fmt: skip
    """A worker that stops waits for what is away, and left 2 s after the leader was there."""
    transport = streams.open()
    transport.producer().publish("sought", [b"x"])
    held = streams.hold(transport, "sought")
    until(lambda: held.taken)
    monkeypatch.setattr(Api, "consumer", nobody_answers)
    for route in list(peer_of(transport).routes):
        route.end(BrokerUnreachable("it was cut"))
    held.connection.finish(held.taken[0])
    until(lambda: "consumer billing of stream sought" in held.connection.away)
    assert held.connection.unsent() > 0
    monkeypatch.undo()
    until(lambda: held.tally.finished == 1)
    assert held.connection.away == ""
    end(held)


def nobody_answers(*_: object) -> None:
    raise BrokerUnreachable("nobody answers")

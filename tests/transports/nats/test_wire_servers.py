"""The bytes of real servers, 2.9 and 2.15: what they say to a client and to a peer is read, and what we write they understand."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

from framework.testing.servers import Server, await_port, free_port
from framework.transports.nats import headers, route_wire, wire
from framework.transports.nats.route_wire import Interest, Routed, RouteDecoder
from framework.transports.nats.wire import ClientDecoder, Err, Info, Msg, Word

pytestmark = [pytest.mark.real, pytest.mark.parametrize("version", ["2.9", "2.15"])]


class Wire:
    """A socket and a decoder, for a test that speaks itself."""

    def __init__(self, port: int, decoder: Any) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.decoder = decoder
        self.events: list[Any] = []

    def say(self, *commands: bytes) -> None:
        self.sock.sendall(b"".join(commands))

    def hear(self, what: Callable[[Any], bool]) -> Any:
        """The first event that is ``what``, those before it being passed over."""
        while True:
            while self.events:
                if what(event := self.events.pop(0)):
                    return event
                if event is Word.PING:
                    self.say(wire.PONG)
            data = self.sock.recv(65536)
            assert data, "it closed the connection"
            self.events += self.decoder.feed(data)

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()


@pytest.fixture
def server(version: str, start_nats: Callable[..., Server]) -> Server:
    return start_nats(version=version, jetstream=False)


def test_a_client_is_let_in_and_hears_what_it_publishes(server):
    with Wire(server.tcp_port, ClientDecoder()) as client:
        info = client.hear(lambda event: isinstance(event, Info))
        assert (info.headers, info.max_payload, info.port) == (True, 1048576, server.tcp_port)
        assert info.client_id
        client.say(wire.connect({"verbose": True, "headers": True, "no_responders": True, "protocol": 1}), wire.PING)
        assert client.hear(lambda event: isinstance(event, Word)) is Word.OK
        block = headers.encode([("Name", "Zoë 話")])
        client.say(
            wire.sub(b"a.*", 7), wire.pub(b"a.b", b"hi"), wire.pub(b"a.b", b"\r\nPING\r\n", b"r.1"),
            wire.pub(b"a.c", b"", headers=block),
            wire.pub(b"a.c", b"body", b"r.2", headers=block), wire.sub(b"none", 8), wire.pub(b"nobody", b"?", b"none"),
            wire.unsub(7), wire.pub(b"a.b", b"unheard"), wire.PING,
        )  # fmt: skip
        heard = [client.hear(lambda event: isinstance(event, Msg)) for _ in range(5)]
        assert heard == [
            Msg(b"a.b", 7, b"", b"", b"hi"), Msg(b"a.b", 7, b"r.1", b"", b"\r\nPING\r\n"), Msg(b"a.c", 7, b"", block, b""),
            Msg(b"a.c", 7, b"r.2", block, b"body"), Msg(b"none", 8, b"", heard[4].headers, b""),
        ]  # fmt: skip
        assert headers.decode(heard[2].headers) == [("Name", "Zoë 話")]
        assert headers.status(heard[4].headers)[0] == 503
        client.hear(lambda event: event is Word.PONG)
        assert [event for event in client.events if isinstance(event, Msg)] == []


def test_an_error_is_read_in_the_servers_own_words(server):
    with Wire(server.tcp_port, ClientDecoder()) as client:
        client.say(wire.connect({"verbose": False}), wire.pub(b"a", b"x" * (1048576 + 1)))
        assert client.hear(lambda event: isinstance(event, Err)) == Err("Maximum Payload Violation")


def test_a_peer_is_accepted_as_a_route_and_takes_and_brings_messages(version, start_nats):
    port = free_port()
    server = start_nats(f'cluster {{ name: C1, listen: "127.0.0.1:{port}" }}', version=version, jetstream=False)
    await_port(port)  # the one for clients is open before
    me: dict[str, object] = {"server_id": "N" + "A" * 55, "server_name": "peer", "cluster": "C1", "headers": True, "proto": 1}
    with Wire(port, RouteDecoder()) as peer, Wire(server.tcp_port, ClientDecoder()) as client:
        assert peer.hear(lambda event: isinstance(event, Info)).cluster == "C1"
        work = route_wire.interest(Interest(b"$G", b"work", b"workers", 3))
        peer.say(wire.connect({"name": me["server_id"], "cluster": "C1", "headers": True}), wire.info(me), work, work)
        peer.hear(lambda event: event is Word.PING)
        peer.say(wire.PONG)
        client.say(wire.connect({"verbose": False, "headers": True}), wire.sub(b"back", 1), wire.sub(b"back", 2, b"q"), wire.PING)
        client.hear(lambda event: event is Word.PONG)
        assert peer.hear(lambda event: event == Interest(b"$G", b"back", b"q", 1))
        block = headers.encode([("A", "1")])
        client.say(
            wire.pub(b"work", b"plain"), wire.pub(b"work", b"asked", b"reply"), wire.pub(b"work", b"headed", headers=block)
        )
        heard = [peer.hear(lambda event: isinstance(event, Routed)) for _ in range(3)]
        assert heard == [
            Routed(b"$G", b"work", b"", (b"workers",), b"", b"plain"),
            Routed(b"$G", b"work", b"reply", (b"workers",), b"", b"asked"),
            Routed(b"$G", b"work", b"", (b"workers",), block, b"headed"),
        ]  # fmt: skip
        peer.say(
            route_wire.routed(Routed(b"$G", b"back", b"", (), b"", b"to plain ones")),
            route_wire.routed(Routed(b"$G", b"back", b"r", (b"q",), block, b"to one of q as well")),
        )
        came = sorted((each.sid, each.body, each.reply) for each in [client.hear(lambda e: isinstance(e, Msg)) for _ in range(3)])
        assert came == [(1, b"to one of q as well", b"r"), (1, b"to plain ones", b""), (2, b"to one of q as well", b"r")]

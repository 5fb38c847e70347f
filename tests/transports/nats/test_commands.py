"""What clients and peers say to JetStream: each in its own protocol, and the same."""

from __future__ import annotations

import pytest

from framework.transports.nats import settling
from framework.transports.nats.commands import OF_CLIENTS, OfPeers
from framework.transports.nats.route_wire import Routed, RouteDecoder, routed

PEERS = OfPeers(b"$G")
BLOCK = b"NATS/1.0\r\nA: 1\r\n\r\n"


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (OF_CLIENTS.pub(b"a", b"hi"), b"PUB a 2\r\nhi\r\n"),
        (OF_CLIENTS.pub(b"a", b"hi", b"r", headers=BLOCK), b"HPUB a r 18 20\r\n" + BLOCK + b"hi\r\n"),
        (OF_CLIENTS.sub(b"inbox.7", 7), b"SUB inbox.7 7\r\n"),
        (OF_CLIENTS.unsub(b"inbox.7", 7), b"UNSUB 7\r\n"),
        (PEERS.pub(b"a", b"hi"), b"RMSG $G a 2\r\nhi\r\n"),
        (PEERS.pub(b"a", b"hi", b"r", headers=BLOCK), b"HMSG $G a r 18 20\r\n" + BLOCK + b"hi\r\n"),
        (PEERS.sub(b"inbox.7", 7), b"RS+ $G inbox.7\r\n"),
        (PEERS.unsub(b"inbox.7", 7), b"RS- $G inbox.7\r\n"),
        (settling.ack([b"x", b"y"], PEERS), b"RMSG $G x 4\r\n+ACK\r\nRMSG $G y 4\r\n+ACK\r\n"),
        (settling.touch([b"x"], PEERS), b"RMSG $G x 4\r\n+WPI\r\n"),
        (settling.nak(b"x", 0.5, PEERS), b'RMSG $G x 24\r\n-NAK {"delay":500000000}\r\n'),
        (settling.term(b"x", PEERS), b"RMSG $G x 5\r\n+TERM\r\n"),
        (settling.ack([], PEERS), b""),
    ],
)
def test_a_command_is_written_as_its_protocol_has_it(said: bytes, line: bytes):
    assert said == line


@pytest.mark.parametrize("block", [b"", BLOCK])
def test_what_comes_of_a_stream_is_read_as_any_other_message_wherever_it_is_cut(block: bytes):
    one = Routed(b"$G", b"_INBOX.a.1.2", b"$JS.ACK.o.b.1.2.3.4.5@orders", (), block, b"\r\nRMSG $G x r 1\r\n")
    for cut in range(len(routed(one)) + 1):
        decoder = RouteDecoder()
        assert decoder.feed(routed(one)[:cut]) + decoder.feed(routed(one)[cut:]) == [one]

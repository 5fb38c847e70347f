"""The connection under a client, over a pair of sockets: when it ends, and what comes between."""

from __future__ import annotations

import math
import ssl
from collections.abc import Iterator
from types import SimpleNamespace
from typing import NamedTuple

import gevent
import gevent.ssl
import pytest
from gevent import socket

from framework.nsqd import client_connection
from framework.nsqd.client_connection import ClientConnection
from framework.nsqd.streams import EndOfStream
from framework.nsqd.underway import Memory
from framework.testing.certificates import Authority
from framework.transports.nsq.stream import Snappy


class Pair(NamedTuple):
    """Both ends."""

    connection: ClientConnection
    client: socket.socket
    said: list[str]
    """What was logged."""


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    said: list[str] = []
    memory = Memory(1 << 20)
    connection = ClientConnection(
        ours, "here:1", lambda level, words: said.append(f"{level} {words}"), lambda: None, lambda: None, memory=memory
    )
    yield Pair(connection, theirs, said)
    connection.end()
    theirs.close()


def ended(client: socket.socket) -> bool:
    """Whether the server closes the connection: what it says before is read."""
    client.settimeout(10)
    while client.recv(1000):
        pass
    return True


def test_who_does_not_say_what_it_speaks_is_dropped(pair: Pair) -> None:
    pair.connection.await_hello(0.01)
    assert ended(pair.client)
    assert pair.said == ["INFO TCP: closing client(here:1): it is silent"]


def test_its_limits_are_counted_from_now(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=lambda: 1000.0)
    monkeypatch.setattr(client_connection, "time", clock)
    at = pair.connection
    at.await_hello(60.0)
    assert at._silence.when == 1060.0
    at.start_heartbeat(20.0)
    assert (at._beat.when, at._silence.when, at.outgoing.patience) == (1020.0, 1040.0, 20.0)
    at.armed = 1010.0
    clock.monotonic = lambda: 1040.0
    at._silence.cancel()
    at._check_silence()
    assert (at._silence.when, pair.said) == (1050.0, [])
    clock.monotonic = lambda: 1050.0
    at._check_silence()
    assert len(pair.said) == 1
    at.start_heartbeat(0.0)
    assert (at._beat.when, at._silence.when, at.outgoing.patience) == (math.inf, math.inf, None)


@pytest.mark.parametrize("interval", [0.0, 60.0])
def test_who_has_said_it_has_other_limits(pair: Pair, interval: float) -> None:
    pair.connection.await_hello(0.02)
    pair.connection.start_heartbeat(interval)
    gevent.sleep(0.05)
    assert not pair.said


def test_who_is_silent_for_two_intervals_is_dropped(pair: Pair) -> None:
    """Counted from when a command began to be waited for."""
    pair.connection.start_heartbeat(0.02)
    for _ in range(10):
        pair.connection.armed = client_connection.time.monotonic()
        gevent.sleep(0.01)
    assert not pair.said
    assert ended(pair.client)
    assert len(pair.said) == 1


def test_a_connection_that_has_ended_is_not_silent(pair: Pair) -> None:
    pair.connection.await_hello(0.03)
    pair.connection.end()
    gevent.sleep(0.06)
    assert not pair.said


def test_one_that_has_ended_may_be_closed_from_elsewhere(pair: Pair) -> None:
    pair.connection.end()
    pair.connection.close("its topic is gone")
    assert pair.said == ["INFO TCP: closing client(here:1): its topic is gone"]


def test_what_is_still_to_be_said_at_the_end_has_no_heartbeats_behind_it(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_connection, "_LINGER_SECONDS", 10.0)
    pair.connection.start_heartbeat(0.02)
    pair.connection.outgoing.patience = None
    pair.connection.outgoing.write([b"x" * (4 << 20)])
    ending = gevent.spawn(pair.connection.end)
    gevent.sleep(0.1)
    read = b""
    pair.client.settimeout(10)
    while more := pair.client.recv(1 << 20):
        read += more
    ending.join(10)
    assert (len(read), read.strip(b"x")) == (4 << 20, b"")
    assert not pair.said


@pytest.mark.parametrize("unread", [1, 500_000])
def test_an_end_is_no_reset_where_the_client_has_said_more(pair: Pair, unread: int) -> None:
    """A reset can overtake the last frame."""
    pair.client.setblocking(False)
    pair.client.send(bytes(unread))
    pair.connection.fail("E_BAD last words")
    pair.connection.end()
    pair.client.setblocking(True)
    assert pair.client.recv(100)[8:] == b"E_BAD last words"
    assert pair.client.recv(100) == b""


def test_who_does_not_wait_for_the_answer_before_it_compresses_is_dropped(pair: Pair) -> None:
    pair.connection.incoming.buffer += b"early"
    with pytest.raises(EndOfStream, match="did not wait"):
        pair.connection.compress(Snappy())


@pytest.mark.parametrize("layer", ["compression", "TLS"])
def test_who_does_not_take_what_was_said_before_a_layer_is_dropped(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, layer: str
) -> None:
    monkeypatch.setattr(client_connection, "HANDSHAKE_SECONDS", 0.02)
    pair.connection.outgoing.write([b"x" * (4 << 20)])
    with pytest.raises(EndOfStream):
        if layer == "TLS":
            pair.connection.secure(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        else:
            pair.connection.compress(Snappy())
    assert not pair.connection.outgoing.between_layers


def test_between_two_layers_nothing_is_said_and_behind_them_all_of_it(pair: Pair) -> None:
    """A heartbeat would be taken for the layer's beginning."""
    pair.connection.respond(b"before")
    layers: list[bool] = []
    through = pair.connection.outgoing.through

    def watched(stream: object) -> None:
        pair.connection.respond(b"between")
        pair.connection.outgoing.flush()
        layers.append(pair.connection.outgoing.size > 0)
        through(stream)  # type: ignore[arg-type]

    pair.connection.outgoing.through = watched  # type: ignore[method-assign]
    pair.connection.compress(Snappy())
    assert layers == [True]
    pair.client.settimeout(10)
    clear = pair.client.recv(14)
    assert clear[8:] == b"before"
    assert b"between" not in clear
    assert pair.connection.outgoing.size == 0
    assert b"between" in pair.client.recv(1000)


def test_it_beats_again_and_again(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=lambda: 1000.0)
    monkeypatch.setattr(client_connection, "time", clock)
    pair.connection.start_heartbeat(20.0)
    clock.monotonic = lambda: 1020.0
    pair.connection._beat.cancel()
    pair.connection._send_heartbeat()
    assert pair.connection._beat.when == 1040.0
    pair.client.settimeout(10)
    assert pair.client.recv(100)[8:] == b"_heartbeat_"


class Handshake:
    """A client that shakes hands, at the other end of the pair."""

    def __init__(self, pair: Pair, authority: Authority) -> None:
        made = authority.sign("nsqd")
        self.server = gevent.ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.server.load_cert_chain(made.cert, made.key)
        self.context = gevent.ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.context.load_verify_locations(authority.pair.cert)
        self.pair = pair
        pair.client.settimeout(10)

    def shaken(self) -> gevent.ssl.SSLSocket:
        return self.context.wrap_socket(self.pair.client, server_hostname="localhost", do_handshake_on_connect=True)


@pytest.fixture
def shaking(pair: Pair, authority: Authority) -> Handshake:
    return Handshake(pair, authority)


@pytest.mark.parametrize("early", [0, 1, 100])
def test_a_client_shakes_hands_and_talks_through_the_layer(pair: Pair, shaking: Handshake, early: int) -> None:
    """The beginning of its hello may have come with the command before."""
    client = gevent.spawn(shaking.shaken)
    while len(hello := pair.connection._sock.recv(5000, socket.MSG_PEEK)) < 100:
        gevent.sleep(0.001)
    pair.connection.incoming.buffer += pair.connection._sock.recv(early) if early else b""
    pair.connection.secure(shaking.server)
    assert pair.connection.tls is not None
    assert len(hello) >= 100
    talking = client.get(timeout=10)
    pair.connection.respond(b"from the server")
    pair.connection.outgoing.flush()
    assert talking.recv(100)[8:] == b"from the server"
    talking.sendall(b"NOP\n")
    with gevent.Timeout(10):
        assert pair.connection.incoming.line() == b"NOP"
    assert not pair.connection.outgoing.between_layers


def test_who_speaks_no_version_that_is_spoken_here_is_told_so_and_dropped(pair: Pair, shaking: Handshake) -> None:
    shaking.server.minimum_version = ssl.TLSVersion.TLSv1_3
    shaking.context.maximum_version = ssl.TLSVersion.TLSv1_2
    client = gevent.spawn(shaking.shaken)
    with pytest.raises(ssl.SSLError):
        pair.connection.secure(shaking.server)
    with pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
        client.get(timeout=10)
    assert pair.connection.tls is None


def test_who_leaves_instead_of_shaking_hands_has_left(pair: Pair, shaking: Handshake) -> None:
    pair.client.close()
    with pytest.raises(EndOfStream):
        pair.connection.secure(shaking.server)


def test_who_takes_too_long_to_shake_hands_is_dropped(pair: Pair, shaking: Handshake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_connection, "HANDSHAKE_SECONDS", 0.02)
    with pytest.raises(TimeoutError, match="the TLS handshake took too long"):
        pair.connection.secure(shaking.server)

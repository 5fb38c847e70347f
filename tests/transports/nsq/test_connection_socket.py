"""One subscription by itself, on a socket that takes what the test says: what it is exposed to, and how it ends."""

from __future__ import annotations

import _socket
import math
import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from gevent import socket as gsocket

from framework.transports.nsq import dial, wire
from framework.transports.nsq.connection import NsqConnection
from framework.transports.nsq.dial import Identity, Line
from tests.transports.nsq.bad_peer import IDS
from tests.transports.nsq.links import Peer
from tests.transports.ruled import Narrow, soon

pytestmark = pytest.mark.real


@pytest.fixture
def ends(tools: Any) -> Iterator[Any]:
    """A subscription, its receiver, the socket that it has, and its nsqd."""
    ours, theirs = gsocket.socketpair()
    bare = _socket.socket(fileno=ours.detach())
    bare.setblocking(False)
    line = Line("n:4150", bare)
    line._stream = narrow = Narrow(bare)
    line.identity = Identity("1.3.0", 2500, 60_000, 900_000)
    receiver, peer = tools.Recorder(), Peer(theirs)
    connection = NsqConnection(line, "orders", "billing", receiver, 30.0)
    gevent.sleep(0)
    yield SimpleNamespace(connection=connection, receiver=receiver, socket=narrow, peer=peer)
    connection.close()
    gevent.sleep(0)
    peer.close()


def deliver(ends: Any, *ids: bytes) -> list[Any]:
    ends.peer.sock.sendall(b"".join(wire.encode_message(1, 1, one, b"body") for one in ids))
    soon(lambda: len(ends.connection.in_flight) == len(ids))
    found: list[Any] = ends.receiver.messages
    return found


def test_it_is_exposed_to_what_it_has_been_granted_or_still_holds(ends: Any) -> None:
    ends.connection.grant(5)
    ends.peer.read(wire.rdy(5))
    messages = deliver(ends, *IDS[:2])
    assert ends.connection.exposed == 5
    ends.connection.grant(0)
    assert ends.connection.exposed == 2
    for message in messages:
        ends.connection.finish(message)
    assert ends.connection.exposed == 0


@pytest.mark.parametrize("what", ["finish", "requeue"])
def test_closed_it_ends_when_the_socket_has_taken_what_was_settled(ends: Any, what: str) -> None:
    ends.connection.grant(1)
    ends.peer.read(wire.rdy(1))
    [message] = deliver(ends, IDS[0])
    ends.socket.room = 0
    getattr(ends.connection, what)(message, *[1.5] * (what == "requeue"))
    ends.connection.close()
    gevent.sleep(0.01)
    assert (ends.receiver.ends, ends.connection.granted) == ([], 0)
    ends.socket.room = 1 << 30
    ends.peer.read(wire.rdy(0) + (wire.fin([IDS[0]]) if what == "finish" else wire.req(IDS[0], 1.5)))
    soon(lambda: ends.receiver.ends)
    assert ends.receiver.ends == [None]
    tally = ends.receiver.tally
    assert (tally.finished, tally.requeued, tally.lease_lost) == (what == "finish", what == "requeue", 0)


def test_what_was_given_back_in_the_hubs_place_is_given_back_once(ends: Any) -> None:
    ends.connection.grant(2)
    ends.peer.read(wire.rdy(2))
    first, second = deliver(ends, *IDS[:2])
    ends.connection.rescuable.release(())
    ends.peer.read(wire.rdy(0) + wire.CLS)
    assert (ends.connection.draining, ends.connection.granted) == (True, 0)
    ends.connection.drain()
    ends.connection.rescuable.release((second,))
    ends.peer.read(wire.req(IDS[0], 0))
    ends.connection.requeue(first, 0)
    ends.connection.finish(second)
    ends.peer.read(wire.fin([IDS[1]]))
    ends.connection.rescuable.rescued()
    gevent.sleep(0)
    tally = ends.receiver.tally
    assert (tally.received, tally.finished, tally.requeued, tally.lease_lost) == (2, 1, 1, 0)
    assert ends.socket.sends[1:] == [wire.rdy(0) + wire.CLS, wire.req(IDS[0], 0), wire.fin([IDS[1]])]


def test_each_command_goes_at_once_and_the_quickest_answer_tells_how_far_nsqd_is(fake_nsqd: Callable[..., str]) -> None:
    node = fake_nsqd(lambda sock, file: file.read())
    with dial.dial(node) as line:
        assert 0 < line.quickest < math.inf
        sock: Any = line.release()
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        sock.close()

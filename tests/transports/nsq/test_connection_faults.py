"""A subscription whose peer misbehaves: garbage, silence, half a frame, refusals; it always ends, once, and counted."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import gevent
import pytest
from gevent import socket
from gevent.server import StreamServer

from framework.errors import BrokerError, BrokerUnreachable, ProtocolError
from framework.transports.nsq import wire

IDENTITY = {"version": "1.3.0", "max_rdy_count": 2500, "msg_timeout": 60000, "max_msg_timeout": 900000}
IDS = [b"%016d" % i for i in range(100)]


class Peer:
    """One accepted connection, after IDENTIFY and SUB were answered."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.file = sock.makefile("rb")
        self.granted = False

    def greet(self, identity: bytes | None = None, sub: bytes = wire.OK) -> None:
        assert self.file.read(4) == wire.MAGIC
        assert self.file.readline() == b"IDENTIFY\n"
        self.file.read(int.from_bytes(self.file.read(4)))
        self.respond(json.dumps(IDENTITY).encode() if identity is None else identity)
        if self.file.readline().startswith(b"SUB "):
            self.respond(sub)

    def respond(self, data: bytes) -> None:
        self.sock.sendall(wire.encode_frame(wire.FRAME_RESPONSE, data))

    def refuse(self, data: bytes) -> None:
        self.sock.sendall(wire.encode_frame(wire.FRAME_ERROR, data))

    def messages(self, *ids: bytes) -> None:
        """Deliver, after the first RDY has come."""
        self.granted = self.granted or bool(self.line())
        self.sock.sendall(b"".join(wire.encode_message(1, 1, i, b"body") for i in ids))

    def line(self) -> bytes:
        return self.file.readline()


@pytest.fixture
def fake() -> Iterator[Callable[[Callable[[Peer], None]], SimpleNamespace]]:
    """``fake(script)`` serves every connection by ``script(peer)`` and then closes it."""
    servers: list[StreamServer] = []

    def start(script: Callable[[Peer], None]) -> str:
        def serve(sock: socket.socket, _address: object) -> None:
            try:
                script(Peer(sock))
            except OSError:
                pass

        servers.append(StreamServer(("127.0.0.1", 0), serve))
        servers[-1].start()
        return f"127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.stop(0)


def greeted(then: Callable[[Peer], object]) -> Callable[[Peer], None]:
    def script(peer: Peer) -> None:
        peer.greet()
        then(peer)

    return script


def stay(peer: Peer) -> None:
    while peer.line():
        pass


# --- setting up --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [b"OK", b"{}", b"[1]", b"\xff", json.dumps({**IDENTITY, "max_rdy_count": "many"}).encode()])
def test_an_answer_to_identify_that_says_nothing_is_a_protocol_error(fake, subscribe, tools, answer):
    node = fake(lambda peer: peer.greet(answer))
    with pytest.raises(ProtocolError, match="answered IDENTIFY with"):
        subscribe(node, tools.Recorder())


def test_every_field_of_identify_is_sent_in_its_unit(fake, subscribe, tools):
    seen = []

    def script(peer: Peer) -> None:
        peer.file.read(4)
        peer.line()
        seen.append(json.loads(peer.file.read(int.from_bytes(peer.file.read(4)))))
        peer.respond(json.dumps(IDENTITY | {"deflate": True}).encode())

    said = {
        "client_id": "c",
        "hostname": "h",
        "user_agent": "a/1",
        "topology_region": "r",
        "topology_zone": "z",
        "sample_rate": 5,
    }
    times = {"heartbeat": 5.0, "msg_timeout": 2.5, "output_buffer_timeout": 0.05}
    with pytest.raises(BrokerUnreachable):
        subscribe(fake(script), tools.Recorder(), **said, **times, output_buffer_size=64, deflate=True, deflate_level=3)
    assert seen == [
        said
        | {"feature_negotiation": True, "heartbeat_interval": 5000, "msg_timeout": 2500, "output_buffer_timeout": 50}
        | {"output_buffer_size": 64, "tls_v1": False, "snappy": False, "deflate": True, "deflate_level": 3}
    ]


def test_a_peer_that_speaks_http_is_named(fake, subscribe, tools):
    node = fake(lambda peer: peer.sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
    with pytest.raises(ProtocolError, match=r"answers HTTP: name nsqd's TCP port"):
        subscribe(node, tools.Recorder())


def test_a_peer_that_closes_at_once_is_unreachable(fake, subscribe, tools):
    node = fake(lambda peer: peer.file.read(4))
    with pytest.raises(BrokerUnreachable, match=node):
        subscribe(node, tools.Recorder())


def test_a_peer_that_never_answers_is_unreachable_after_the_timeout(fake):
    from framework.transports.nsq.dial import dial

    node = fake(stay)
    with pytest.raises(BrokerUnreachable, match=r"did not answer within 0\.1 s"), dial(node, timeout=0.1):
        pass


def test_a_refused_subscription_is_nsqds_own_error(fake, subscribe, tools):
    def script(peer: Peer) -> None:
        peer.file.read(4)
        peer.line()
        peer.file.read(int.from_bytes(peer.file.read(4)))
        peer.respond(json.dumps(IDENTITY).encode())
        peer.line()
        peer.respond(wire.HEARTBEAT)
        assert peer.line() == wire.NOP
        peer.refuse(b"E_SUB_FAILED SUB failed exiting")

    with pytest.raises(BrokerError, match="E_SUB_FAILED SUB failed exiting"):
        subscribe(fake(script), tools.Recorder())


# --- running -----------------------------------------------------------------------------------------------


def broken(fake, subscribe, tools, then, *, grant=10, heartbeat=30.0):
    """Subscribe to a peer that does ``then``; the receiver, after the connection has ended."""
    receiver = tools.Recorder()
    connection = subscribe(fake(greeted(then)), receiver, heartbeat=heartbeat)
    connection.grant(grant)
    tools.until(lambda: receiver.ends)
    gevent.sleep(0.01)
    assert len(receiver.ends) == 1
    assert receiver.adds_up
    return receiver


def test_garbage_ends_the_connection_with_the_bytes_named(fake, subscribe, tools):
    def garbage(peer: Peer) -> None:
        peer.messages(*IDS[:3])
        peer.sock.sendall(b"GET / HTTP/1.1\r\n")
        stay(peer)

    receiver = broken(fake, subscribe, tools, garbage)
    assert isinstance(receiver.ends[0], ProtocolError)
    assert "GET / HTTP/1.1" in str(receiver.ends[0])
    assert receiver.tally.lease_lost == 3


def test_a_stream_cut_in_the_middle_of_a_frame_loses_only_that_frame(fake, subscribe, tools):
    def cut(peer: Peer) -> None:
        peer.messages(IDS[0])
        peer.sock.sendall(b"\0\0\0\x20\0\0")

    receiver = broken(fake, subscribe, tools, cut)
    assert isinstance(receiver.ends[0], BrokerUnreachable)
    assert [m.id for m in receiver.messages] == [IDS[0]]
    assert receiver.tally.lease_lost == 1


def test_a_fatal_error_is_what_the_connection_ends_with(fake, subscribe, tools):
    receiver = broken(fake, subscribe, tools, lambda peer: peer.refuse(b"E_INVALID cannot RDY in current state"))
    assert isinstance(receiver.ends[0], BrokerError)
    assert receiver.ends[0].words == "cannot RDY in current state"


def test_a_fatal_error_is_read_though_sending_fails_first(fake, subscribe, tools):
    receiver = tools.Recorder()
    connection = subscribe(fake(greeted(lambda peer: (peer.messages(IDS[0]), stay(peer)))), receiver)
    connection.grant(1)
    tools.until(lambda: receiver.messages)
    connection._reader.stop()  # so that nothing is read before the send
    ours, theirs = connection.sock, None
    import _socket

    theirs, connection.sock = _socket.socketpair()
    connection.sock.setblocking(False)
    theirs.sendall(wire.encode_frame(wire.FRAME_ERROR, b"E_INVALID because"))
    theirs.close()
    connection.finish(receiver.messages[0])
    tools.until(lambda: receiver.ends)
    ours.close()
    assert str(receiver.ends[0]) == "E_INVALID because"
    assert (receiver.tally.finished, receiver.tally.lease_lost) == (0, 1)


def test_an_error_about_a_message_that_is_not_ours_changes_nothing_else(fake, subscribe, tools):
    def wrong(peer: Peer) -> None:
        peer.messages(*IDS[:2])
        peer.refuse(b"E_TOUCH_FAILED TOUCH ffffffffffffffff failed ID not in flight")
        stay(peer)

    receiver = tools.Recorder()
    connection = subscribe(fake(greeted(wrong)), receiver)
    connection.grant(2)
    tools.until(lambda: len(receiver.messages) == 2)
    gevent.sleep(0.02)
    assert (receiver.losses, receiver.ends, len(connection.in_flight)) == ([], [], 2)


def test_a_refused_finish_is_taken_back(fake, subscribe, tools):
    def refuse_one(peer: Peer) -> None:
        peer.messages(*IDS[:3])
        fins = [peer.line() for _ in range(3)]
        peer.refuse(b"E_FIN_FAILED FIN " + fins[1].split()[1] + b" failed ID not in flight")
        stay(peer)

    receiver = tools.Recorder(tools.finish_all)
    subscribe(fake(greeted(refuse_one)), receiver).grant(3)
    tools.until(lambda: receiver.losses)
    assert (receiver.tally.received, receiver.tally.finished, receiver.tally.lease_lost) == (3, 2, 1)
    assert receiver.ends == []


def test_a_silent_peer_is_dead_after_two_heartbeats(fake, subscribe, tools):
    started = time.monotonic()
    receiver = broken(fake, subscribe, tools, stay, heartbeat=0.1)
    assert 0.2 <= time.monotonic() - started < 1
    assert "was silent for 0.2 s" in str(receiver.ends[0])


def test_a_hub_that_was_blocked_does_not_take_its_peer_for_dead(fake, subscribe, tools):
    def beat(peer: Peer) -> None:
        peer.line()
        peer.respond(wire.HEARTBEAT)
        time.sleep(0.5)  # blocks the hub, with the heartbeat in the socket
        peer.messages(IDS[0])  # after the NOP
        stay(peer)

    receiver = tools.Recorder(tools.finish_all)
    subscribe(fake(greeted(beat)), receiver, heartbeat=0.1).grant(1)
    tools.until(lambda: receiver.messages)


def test_a_receiver_that_raises_does_not_leave_the_connection_standing_still(fake, subscribe, tools):
    receiver = tools.Recorder(lambda connection, batch: 1 / 0)
    subscribe(fake(greeted(lambda peer: (peer.messages(IDS[0]), stay(peer)))), receiver).grant(1)
    tools.until(lambda: receiver.ends)
    assert isinstance(receiver.ends[0], ZeroDivisionError)
    assert receiver.adds_up


def test_a_close_after_cls_counts_as_the_confirmation(fake, subscribe, tools):
    def cls_then_eof(peer: Peer) -> None:
        while peer.line() != wire.CLS:
            pass

    receiver = tools.Recorder()
    subscribe(fake(greeted(cls_then_eof)), receiver).drain()
    tools.until(lambda: receiver.ends)
    assert (receiver.drained_calls, receiver.ends) == (1, [None])


def test_a_message_after_close_wait_is_given_back(fake, subscribe, tools):
    lines: list[bytes] = []

    def late(peer: Peer) -> None:
        while peer.line() != wire.CLS:
            pass
        peer.respond(wire.CLOSE_WAIT)
        tools.until(lambda: receiver.drained_calls)
        peer.granted = True
        peer.messages(IDS[7])
        lines.append(peer.line())
        stay(peer)

    receiver = tools.Recorder()
    subscribe(fake(greeted(late)), receiver).drain()
    tools.until(lambda: lines)
    assert lines == [b"REQ " + IDS[7] + b" 0\n"]
    assert receiver.messages == []
    assert (receiver.tally.received, receiver.tally.requeued) == (1, 1)


@pytest.mark.parametrize("pieces", [1, 2])
def test_a_message_that_comes_while_the_connection_ends_is_given_back(fake, subscribe, tools, pieces):
    """Behind CLOSE_WAIT, and before the end of what is sent: nobody reads it in a turn of its own. A large one is not whole."""
    lines: list[list[bytes]] = []
    peers: list[Peer] = []

    def cls_then_lines(peer: Peer) -> None:
        peers.append(peer)
        peer.messages(IDS[1])
        while peer.line() != wire.CLS:
            pass
        peer.respond(wire.CLOSE_WAIT)
        lines.append(list(iter(peer.line, b"")))

    def late(connection) -> None:
        said = wire.encode_message(1, 1, IDS[7], b"body")
        size = len(said) // pieces
        peers[0].sock.sendall(said[:size])
        gevent.spawn_later(0.05, peers[0].sock.sendall, said[size:])
        for message in list(connection.in_flight):
            connection.requeue(message, 0)
        connection.close()

    receiver = tools.Recorder(lambda connection, _: connection.drain())
    receiver.drained = late
    subscribe(fake(greeted(cls_then_lines)), receiver).grant(1)
    tools.until(lambda: receiver.ends and lines)
    assert lines == [[b"REQ " + IDS[1] + b" 0\n", b"REQ " + IDS[7] + b" 0\n"]]
    assert receiver.ends == [None]
    assert (receiver.tally.received, receiver.tally.requeued, receiver.tally.lease_lost) == (2, 2, 0)


def test_a_refusal_that_comes_while_the_connection_ends_is_counted(fake, subscribe, tools):
    peers: list[Peer] = []

    def cls_then_lines(peer: Peer) -> None:
        peers.append(peer)
        peer.messages(IDS[1])
        while peer.line() != wire.CLS:
            pass
        peer.respond(wire.CLOSE_WAIT)
        stay(peer)

    def late(connection) -> None:
        (message,) = connection.in_flight
        connection.finish(message)
        peers[0].sock.sendall(wire.encode_frame(1, b"E_FIN_FAILED FIN " + IDS[1] + b" failed ID not in flight"))
        connection.close()

    receiver = tools.Recorder(lambda connection, _: connection.drain())
    receiver.drained = late
    subscribe(fake(greeted(cls_then_lines)), receiver).grant(1)
    tools.until(lambda: receiver.ends)
    assert receiver.ends == [None]
    assert (receiver.tally.finished, receiver.tally.lease_lost) == (0, 1)


# --- a peer that does not read -----------------------------------------------------------------------------


def stuffed(fake, subscribe, tools, resume):
    """A connection with far more to send than its peer takes, until ``resume`` is set."""

    def script(peer: Peer) -> None:
        peer.greet()
        peer.messages(*IDS)
        resume.wait()
        stay(peer)

    return stuffed_by(script, fake, subscribe, tools)


def stuffed_by(script, fake, subscribe, tools):
    receiver = tools.Recorder()
    connection = subscribe(fake(script), receiver)
    connection.grant(len(IDS))
    tools.until(lambda: len(receiver.messages) == len(IDS))
    while connection.unsent() < 1_000_000:
        for message in receiver.messages * 10:
            connection.touch(message)
        gevent.sleep(0)
    return connection, receiver


def test_what_the_socket_refuses_waits_and_leaves_when_it_can(fake, subscribe, tools):
    resume = gevent.event.Event()
    connection, receiver = stuffed(fake, subscribe, tools, resume)
    tools.finish_all(connection, receiver.messages)
    gevent.sleep(0.01)
    assert receiver.tally.finished == 0  # nothing of it was handed to the socket
    resume.set()
    tools.until(lambda: connection.unsent() == 0)
    assert receiver.tally.finished == len(IDS)


def test_closing_does_not_wait_for_ever_for_a_peer_that_does_not_read(fake, subscribe, tools):
    connection, receiver = stuffed(fake, subscribe, tools, gevent.event.Event())
    tools.finish_all(connection, receiver.messages)
    connection.close()
    started = time.monotonic()
    tools.until(lambda: receiver.ends)
    assert 0.8 < time.monotonic() - started < 2
    assert (receiver.tally.finished, receiver.tally.lease_lost) == (0, len(IDS))


def test_a_message_that_comes_while_the_last_is_sent_is_given_back(fake, subscribe, tools):
    resume, read = gevent.event.Event(), []

    def script(peer: Peer) -> None:
        peer.greet()
        peer.messages(*IDS)
        resume.wait()
        peer.messages(b"f" * 16)
        read.append(list(iter(peer.line, b"")))

    connection, receiver = stuffed_by(script, fake, subscribe, tools)
    connection.close()
    resume.set()
    tools.until(lambda: receiver.ends and read)
    assert read[0][-1] == b"REQ " + b"f" * 16 + b" 0\n"
    assert (receiver.tally.requeued, receiver.tally.lease_lost) == (1, len(IDS))


@pytest.mark.parametrize("sent", [0, 10, 20, 21, 22, 41, 42, 62, 63])
def test_a_settlement_that_was_sent_in_part_is_lost(fake, subscribe, tools, sent):
    receiver = tools.Recorder()
    connection = subscribe(fake(greeted(lambda peer: (peer.messages(*IDS[:3]), stay(peer)))), receiver)
    connection.grant(3)
    tools.until(lambda: len(receiver.messages) == 3)

    class Miser:
        def send(self, data: bytes) -> int:
            self.left = getattr(self, "left", sent)
            took = min(self.left, len(data))
            self.left -= took
            if not took and len(data):
                raise BlockingIOError
            return took

        def close(self) -> None:
            real.close()

    real, connection.sock = connection.sock, Miser()
    connection.finish(receiver.messages[0])
    connection.requeue(receiver.messages[2], 0)
    connection.finish(receiver.messages[1])
    gevent.sleep(0)
    connection._end(None)
    lines = (sent // 21, (sent - 42) // 23 if sent > 42 else 0)  # two FINs of 21 bytes, then a REQ of 23
    assert (receiver.tally.finished, receiver.tally.requeued) == (min(lines[0], 2), lines[1])
    assert receiver.adds_up

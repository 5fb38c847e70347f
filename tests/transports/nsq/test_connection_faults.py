"""A subscription whose peer misbehaves: garbage, silence, half a frame, refusals; it always ends, once, and counted."""

from __future__ import annotations

import json
import time

import gevent
import pytest

from framework.errors import BrokerError, BrokerUnreachable, ProtocolError
from framework.transports.nsq import wire
from tests.transports.nsq.bad_peer import IDENTITY, IDS, Peer, broken, fake, greeted, stay

__all__ = ["fake"]


# --- setting up --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [
    b"OK", b"{}", b"[1]", b"\xff", json.dumps({**IDENTITY, "max_rdy_count": "many"}).encode(),
    pytest.param(b'{"x":' + b"[" * 50_000, id="deep"),
])  # fmt: skip
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

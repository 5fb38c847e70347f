"""What another thread does for a subscription while the hub is blocked; on a real nsqd, the hub turning only when told to."""

from __future__ import annotations

import socket
import struct
import threading
import time
from types import SimpleNamespace

import pytest

from framework.errors import ProtocolError
from framework.transports.nsq import wire

pytestmark = pytest.mark.real


@pytest.fixture
def held(nsqd, kit):
    """A subscription with three messages in flight, on which a lease is 1 s and a heartbeat comes each second."""
    nsqd.http("/topic/create?topic=orders", b"")
    receiver = kit.Recorder()
    connection = kit.subscribe(nsqd.address, receiver, lease=1.0, heartbeat=1.0)
    connection.grant(10)
    nsqd.http("/mpub?topic=orders", b"1\n2\n3")
    kit.until(lambda: len(receiver.messages) == 3)
    return connection, receiver


def stats(nsqd):
    return nsqd.channel_stats("orders", "billing")


def blocked(seconds, connection, *, expired=()):
    """As the guardian does."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        connection.rescuable.rescue(time.monotonic(), expired)
        time.sleep(0.1)  # pytest is not patched


def close(connection, receiver, kit):
    connection.close()
    kit.until(lambda: receiver.ends)
    assert receiver.adds_up, receiver.tally


def test_heartbeats_are_answered_leases_kept_and_settlements_sent(nsqd, kit, held):
    connection, receiver = held
    connected = stats(nsqd)["clients"][0]["connect_ts"]
    connection.finish(receiver.messages[0])
    touched = dict(connection.in_flight)
    blocked(2.5, connection)  # nsqd gives up a client after two heartbeats without an answer
    nsqd.http("/pub?topic=orders", b"4")
    blocked(0.3, connection)
    seen = stats(nsqd)
    assert [(c["connect_ts"], c["finish_count"], c["in_flight_count"]) for c in seen["clients"]] == [(connected, 1, 3)]
    assert (receiver.tally.finished, receiver.tally.received, len(receiver.messages)) == (0, 3, 3), "all of this is the hub's"
    connection.rescuable.rescued()
    assert [message.body for message in receiver.messages] == [b"1", b"2", b"3", b"4"]
    assert (receiver.tally.finished, receiver.tally.received) == (1, 4)
    assert all(connection.in_flight[message] > at for message, at in touched.items()), "the hub knows that they were touched"
    assert list(connection.in_flight.values()) == sorted(connection.in_flight.values())
    kit.finish_all(connection, receiver.messages[1:])
    kit.until(lambda: stats(nsqd)["clients"][0]["finish_count"] == 4)
    assert stats(nsqd)["timeout_count"] == 0
    close(connection, receiver, kit)


def test_what_a_handler_may_not_keep_any_longer_is_not_touched(held, kit):
    connection, receiver = held
    late, *others = receiver.messages
    before = dict(connection.in_flight)
    blocked(0.6, connection, expired=[late])
    connection.rescuable.rescued()
    assert connection.in_flight[late] == before[late]
    assert all(connection.in_flight[message] > before[message] for message in others)
    close(connection, receiver, kit)


def test_what_the_hub_has_settled_meanwhile_stays_settled(held, kit, nsqd):
    connection, receiver = held
    blocked(0.6, connection)
    connection.finish(receiver.messages[0])
    connection.rescuable.rescued()
    assert receiver.messages[0] not in connection.in_flight
    close(connection, receiver, kit)
    assert (receiver.tally.finished, receiver.tally.lease_lost) == (1, 2)


def test_a_stop_takes_no_more_and_gives_back_what_is_not_kept(nsqd, kit, held):
    connection, receiver = held
    kept, settled, _ = receiver.messages
    connection.finish(settled)
    connection.release([kept])
    # Only then: what nsqd reads on another socket before it would be delivered.
    without_the_hub(lambda: (stats(nsqd)["clients"][0]["ready_count"], stats(nsqd)["in_flight_count"]) == (0, 2))
    nsqd.http("/pub?topic=orders", b"4")
    without_the_hub(lambda: (stats(nsqd)["depth"], stats(nsqd)["in_flight_count"]) == (1, 2))
    assert stats(nsqd)["requeue_count"] == 0, "nothing is given back before nsqd knows that no more is wanted"
    connection.release([kept])
    without_the_hub(lambda: (stats(nsqd)["in_flight_count"], stats(nsqd)["depth"], stats(nsqd)["requeue_count"]) == (1, 2, 1))
    connection.release([kept])
    assert stats(nsqd)["requeue_count"] == 1, "nothing is given back twice"
    assert (receiver.tally.requeued, len(connection.in_flight)) == (0, 2), "all of this is the hub's"
    connection.drain()  # the hub turns again, and stops as well
    connection.rescuable.rescued()
    assert list(connection.in_flight) == [kept]
    connection.finish(kept)
    kit.until(lambda: receiver.drained_calls)
    kit.until(lambda: stats(nsqd)["clients"][0]["finish_count"] == 2)
    close(connection, receiver, kit)
    assert vars(receiver.tally) == {"received": 3, "finished": 2, "requeued": 1, "lease_lost": 0}
    assert receiver.losses == []


def test_what_came_while_the_hub_was_blocked_is_given_back_unseen(nsqd, kit, held):
    connection, receiver = held
    nsqd.http("/pub?topic=orders", b"4")
    blocked(0.3, connection)
    for _ in range(2):
        connection.release(receiver.messages)
    without_the_hub(lambda: stats(nsqd)["requeue_count"] == 1)
    connection.rescuable.rescued()
    assert len(receiver.messages) == len(connection.in_flight) == 3
    close(connection, receiver, kit)
    assert vars(receiver.tally) == {"received": 4, "finished": 0, "requeued": 1, "lease_lost": 3}


def test_what_ended_and_what_is_left_is_counted_when_no_hub_turns_any_more(nsqd, kit, held):
    connection, receiver = held
    kept, settled, _ = receiver.messages
    connection.finish(settled)
    for _ in range(2):
        connection.release([kept])
    connection.write_off()
    assert vars(receiver.tally) == {"received": 3, "finished": 1, "requeued": 1, "lease_lost": 1}
    assert not connection.in_flight
    connection.rescuable.rescue(time.monotonic(), ())
    connection.release(())
    assert vars(receiver.tally) == {"received": 3, "finished": 1, "requeued": 1, "lease_lost": 1}
    connection._stop_watchers()


def test_what_nobody_understands_ends_the_connection_when_the_hub_turns_again(kit, fake_nsqd):
    said = []

    def script(sock, file):
        file.readline()
        sock.sendall(wire.encode_frame(0, b"OK"))
        said.append(sock)
        file.read()

    receiver = kit.Recorder()
    connection = kit.subscribe(fake_nsqd(script), receiver)
    kit.until(lambda: said)
    said[0].sendall(b"\xff" * 8)
    without_the_hub(lambda: connection.rescuable.rescue(time.monotonic(), ()) or connection.rescuable.rescue_made.error)
    assert receiver.ends == []
    connection.rescuable.rescued()
    assert [type(error) for error in receiver.ends] == [ProtocolError]


def without_the_hub(condition, seconds=10.0):
    """Without a turn of the hub."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.fixture
def scripted():
    """An nsqd in a native thread, which answers while no hub turns: two messages, and every line that it was told."""
    listening = socket.create_server(("127.0.0.1", 0))
    lines, peers = [], []

    def serve():
        peer, _ = listening.accept()
        file = peer.makefile("rb")
        file.read(4)
        file.readline()
        file.read(int.from_bytes(file.read(4)))
        peer.sendall(wire.encode_frame(0, b'{"version":"1","max_rdy_count":9,"msg_timeout":1000,"max_msg_timeout":900000}'))
        file.readline()
        peer.sendall(wire.encode_frame(0, b"OK"))
        for number in (1, 2):
            peer.sendall(wire.encode_frame(2, struct.pack(">qH", 0, 1) + b"%016d" % number + b"body"))
        peers.append(peer)
        lines.extend(line for line in file)

    thread = threading.Thread(target=serve)
    thread.start()
    yield SimpleNamespace(address=f"127.0.0.1:{listening.getsockname()[1]}", lines=lines, peers=peers)
    listening.close()
    for peer in peers:
        peer.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def test_what_the_hub_and_the_rescue_have_to_say_is_said_without_a_turn_of_the_hub(scripted, kit):
    receiver = kit.Recorder()
    connection = kit.subscribe(scripted.address, receiver)
    kit.until(lambda: len(receiver.messages) == 2)
    kept, back = receiver.messages
    connection.touch(kept)
    connection.requeue(back, 0)
    connection.drain()
    scripted.peers[0].sendall(wire.encode_frame(0, wire.HEARTBEAT))
    without_the_hub(lambda: connection.rescuable.rescue(time.monotonic() + 10, ()) or b"NOP\n" in scripted.lines)
    said = [line for line in scripted.lines if not line.startswith(b"RDY ")]
    assert said.count(b"TOUCH %b\n" % kept.id) >= 2, "the hub's, and the rescue's own"
    assert said.count(b"REQ %b 0\n" % back.id) == said.count(b"CLS\n") == said.count(b"NOP\n") == 1
    assert not [line for line in said if line.startswith(b"TOUCH") and back.id in line]


def test_what_was_sent_in_the_hubs_place_is_counted_and_what_is_given_back_is_not_touched(scripted, kit):
    receiver = kit.Recorder()
    connection = kit.subscribe(scripted.address, receiver)
    kit.until(lambda: len(receiver.messages) == 2)
    kept, back = receiver.messages
    connection.granted = 5
    connection.release([kept])
    assert connection.granted == 0
    connection.release([kept])
    without_the_hub(lambda: b"REQ %b 0\n" % back.id in scripted.lines)
    connection.rescuable.rescue(time.monotonic() + 10, ())
    without_the_hub(lambda: b"TOUCH %b\n" % kept.id in scripted.lines)
    assert b"TOUCH %b\n" % back.id not in scripted.lines
    connection.requeue(kept, 0)
    connection.rescuable.rescue(time.monotonic() + 10, ())
    connection.write_off()
    assert (receiver.tally.requeued, receiver.tally.lease_lost) == (2, 0)
    told = list(scripted.lines)
    connection.rescuable.rescue(time.monotonic() + 99, ())
    connection.release(())
    assert connection.rescuable.rescue_made is None, "nothing is done for what has ended"
    assert scripted.lines[: len(told)] == told
    connection._stop_watchers()


def test_what_was_read_in_the_hubs_place_is_given_back_when_the_hub_closes_before_it_knows(scripted, kit):
    receiver = kit.Recorder()
    connection = kit.subscribe(scripted.address, receiver)
    kit.until(lambda: len(receiver.messages) == 2)
    connection.drain()
    third = b"%016d" % 3
    scripted.peers[0].sendall(wire.encode_message(0, 1, third, b"body"))
    without_the_hub(lambda: connection.rescuable.rescue(time.monotonic(), ()) or connection.rescuable.rescue_made.messages)
    for message in receiver.messages:
        connection.requeue(message, 0)
    connection.close()
    kit.until(lambda: receiver.ends and b"REQ %b 0\n" % third in scripted.lines)
    assert (receiver.tally.received, receiver.tally.requeued, receiver.tally.lease_lost) == (3, 3, 0)


def test_what_the_hub_gives_back_as_well_is_given_back_once(scripted, kit):
    """A hub that is late and not blocked does so beside the rescue. nsqd would refuse the second REQ."""
    receiver = kit.Recorder()
    connection = kit.subscribe(scripted.address, receiver)
    kit.until(lambda: len(receiver.messages) == 2)
    connection.drain()
    connection.release(())
    for message in receiver.messages:
        connection.requeue(message, 0)
    connection.close()
    kit.until(lambda: receiver.ends)
    for message in receiver.messages:
        without_the_hub(lambda one=message: b"REQ %b 0\n" % one.id in scripted.lines)
    assert sum(line.startswith(b"REQ ") for line in scripted.lines) == 2
    assert (receiver.tally.requeued, receiver.tally.lease_lost) == (2, 0)

"""The end of a subscription: what comes, is sent or is refused meanwhile is given back or counted, and it does end."""

from __future__ import annotations

import time

import gevent
import pytest

from framework.transports.nsq import wire
from tests.transports.nsq.bad_peer import IDS, Peer, fake, greeted, stay

__all__ = ["fake"]


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

"""A handler that runs for long costs no connection and no lease: +WPI is sent at each third of it, and in the hub's place too
while it computes, when PINGs are answered as well."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from statistics import median

import gevent
import pytest

from framework.engine.supervisor import Supervisor
from framework.handler import make_spec
from framework.message import Message
from framework.testing.servers import Server
from framework.transports.nats import wire

from .conftest import until

pytestmark = pytest.mark.real

BLOCK = float(os.environ.get("BLOCK_SECONDS", "4"))
"""Seconds. The server gives up a client that answers no PING for three quarters of it, and a lease is half of it."""


class Listener:
    """A client in a native thread, which reads all that is said of deliveries, whatever the hub does."""

    def __init__(self, server: Server) -> None:
        self.said: list[bytes] = []
        self.at: list[float] = []
        """When each was."""
        self._decoder = wire.ClientDecoder()
        self._sock = socket.create_connection(("127.0.0.1", server.tcp_port))
        self._sock.sendall(b'CONNECT {"verbose":false}\r\n' + wire.sub(b"$JS.ACK.>", 1) + wire.PING)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while data := self._sock.recv(65536):
            for event in self._decoder.feed(data):
                if event is wire.Word.PING:
                    self._sock.sendall(wire.PONG)
                elif isinstance(event, wire.Msg) and not event.subject.endswith(b".0.0.0.0.0"):  # said to know whether we may
                    self.said.append(event.body)
                    self.at.append(time.monotonic())

    def close(self) -> None:
        with suppress(OSError):  # the server has ended it
            self._sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._sock.close()


@pytest.fixture
def listener(kit) -> Iterator[Listener]:
    made = Listener(kit.server)
    yield made
    made.close()


@pytest.fixture
def kit(make_kit):
    """With a server that soon gives up whoever does not answer."""
    return make_kit(f'ping_interval: "{BLOCK * 250:.0f}ms"\nping_max: 1')


def test_while_a_handler_computes_pings_are_answered_and_leases_are_kept(kit, listener):
    attempts: list[int] = []

    def handle(message: Message) -> None:
        end = time.monotonic() + (0 if attempts else BLOCK)
        attempts.append(message.attempts)
        while time.monotonic() < end:  # the hub stands still
            pass

    transport = kit.open(f"?ack_wait={BLOCK / 2:g}s")
    producer = kit.producer(transport)
    producer.publish("orders", [b"1", b"2", b"3"])
    producer.close()  # nobody keeps a publisher's connection
    spec = make_spec(handle, "orders", "billing", {"concurrency": 1, "timeout": BLOCK + 60})
    supervisor = Supervisor([spec], [transport], publish=print)
    greenlet = gevent.spawn(supervisor.run)
    (ledger,) = supervisor.ledgers.values()
    until(lambda: ledger.finished == 3, BLOCK + 20)
    supervisor.stop()
    greenlet.get(timeout=30)
    assert (attempts, ledger.received, ledger.lease_lost) == ([1, 1, 1], 3, 0)
    until(lambda: listener.said.count(b"+ACK") == 3)
    assert listener.said.count(b"+WPI") >= 3, "one each third of a lease, for the message that runs alone"
    assert [line for line in kit.server.log if "Stale" in line] == []


def test_while_a_handler_waits_its_message_is_touched_at_each_third_of_its_lease(make_kit):
    lease = 3.0
    kit = make_kit()
    listener = Listener(kit.server)
    transport = kit.open(f"?ack_wait={lease:g}s")
    producer = kit.producer(transport)
    producer.publish("orders", [b"1"])
    producer.close()

    def handle(message: Message) -> None:
        until(lambda: listener.said.count(b"+WPI") >= 6, 40.0)  # a hub that has no time is later with each of them

    spec = make_spec(handle, "orders", "billing", {"concurrency": 1, "timeout": 60.0})
    supervisor = Supervisor([spec], [transport], publish=print)
    greenlet = gevent.spawn(supervisor.run)
    (ledger,) = supervisor.ledgers.values()
    until(lambda: ledger.finished == 1, 40.0)
    supervisor.stop()
    greenlet.get(timeout=30)
    until(lambda: b"+ACK" in listener.said)
    listener.close()
    assert listener.said == [b"+WPI"] * (len(listener.said) - 1) + [b"+ACK"]
    gaps = [later - earlier for earlier, later in pairwise(listener.at[:6])]
    assert lease / 4 < median(gaps) < lease / 2, "two of three may be lost on the way"
    assert ledger.lease_lost == 0

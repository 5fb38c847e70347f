"""A message that was given up is terminated at JetStream, which tells its operators; one that is done is acknowledged."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from framework.errors import AlreadySettled, BrokerUnreachable
from framework.testing.workers import Worker
from framework.transports.nats import wire

from .conftest import until

pytestmark = pytest.mark.real

SHOP = """
from framework import Reject, handler

@handler("orders", "billing")
def bill(order: bytes) -> None:
    if order == b"bad":
        raise Reject("it is bad")
"""


def terminations(kit) -> list[int]:
    """The numbers in their stream of the messages of which JetStream says from now on that they were terminated."""
    found: list[int] = []

    class Reader:
        def heard(self, messages, at):
            found.extend(msgspec.json.decode(message.body)["stream_seq"] for message in messages)

        def lost(self, error): ...

    kit.session.say(wire.sub(b"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>", kit.session.sid(Reader())))
    kit.api.stream_of("orders")  # the server has read that
    return found


def left(kit) -> int:
    """How many messages the work queue has, given out or not."""
    return kit.api.stream("orders").state.messages


@pytest.mark.parametrize("version", [pytest.param("2.9", marks=pytest.mark.slow), "2.15"])
def test_a_dead_letter_terminates_its_message_and_what_is_done_is_acknowledged(make_kit, tmp_path: Path, version):
    kit = make_kit(version=version)
    terminated = terminations(kit)
    (tmp_path / "shop.py").write_text(SHOP)
    transport = kit.open("?retention=workqueue")
    transport.ensure("orders", ["billing"])
    kit.producer(transport).publish("orders", [b"good", b"bad", b"better"])
    worker = Worker("run", "shop", "--broker", f"nats://{kit.server.address}", cwd=tmp_path)
    try:
        until(lambda: left(kit) == 0)
        until(lambda: terminated)
    finally:
        assert worker.stop() == 0
    assert terminated == [2]
    assert any("received=3 finished=2 requeued=0 dead=1" in line for line in worker.err)
    assert transport.backlog("orders.billing.dead", "reader") == {kit.server.address: 1}


def test_what_was_terminated_before_the_hub_was_blocked_is_told_in_its_place(kit):
    terminated = terminations(kit)
    transport = kit.open("?ack_wait=1s&retention=workqueue")
    held = kit.hold(transport, grant=2)
    kit.producer(transport).publish("orders", [b"1", b"2"])
    until(lambda: len(held.taken) == 2)
    held.connection.terminate(held.taken[0])
    assert held.connection.unsent() > 0
    held.connection.rescuable.rescue(time.monotonic(), ())  # of another thread, as it were: the hub has not turned
    assert held.connection.unsent() > 0, "the hub does not know it yet"
    time.sleep(0.1)
    held.connection.rescuable.rescued()
    assert (held.tally.finished, held.connection.unsent()) == (1, 0)
    until(lambda: terminated == [1])
    held.connection.finish(held.taken[1])
    until(lambda: left(kit) == 0)
    assert terminated == [1]


def test_what_was_terminated_and_not_said_is_said_by_the_next_connection(kit):
    transport = kit.open()
    held = kit.hold(transport, grant=1)
    kit.producer(transport).publish("orders", [b"1"])
    until(lambda: held.taken)
    held.connection.terminate(held.taken[0])
    with pytest.raises(AlreadySettled):
        held.connection.terminate(held.taken[0])
    held.connection.lost(BrokerUnreachable("cut"))
    assert (held.tally.finished, held.tally.lease_lost) == (0, 0)
    until(lambda: held.tally.finished == 1)
    until(lambda: not kit.api.consumer("orders", "billing").num_ack_pending)

"""Messages of publishers that give what none should, on a real RocketMQ: each comes, is settled once, and stops no other."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import pytest

from framework.testing.conformance.receiver import Held
from framework.transports.rocketmq.wire.codes import Request
from framework.transports.rocketmq.wire.properties import MAX_PROPERTIES
from tests.transports.rocketmq.kit import Kit, started, until

pytestmark = [pytest.mark.real, pytest.mark.slow]
COPIED = b"POP_CK\x010 1700000000000 60000 0 0 broker-a 0 7\x02"
"""The handle of another delivery, as who publishes again what came by POP may leave it in."""
STRANGE = {
    b"garbage": b"POP_CK\x01garbage\x02", b"copied": COPIED, b"of another": COPIED.replace(b"broker-a", b"broker-z"),
    b"huge": COPIED.replace(b"1700000000000", b"9" * 25), b"latin": b"KEYS\x01caf\xe9\x02", b"no id": b"",
    b"latin id": b"UNIQ_KEY\x01caf\xe9\x02", b"no pair": b"x", b"no names": b"\x01\x02",
}  # fmt: skip
"""Body -> properties."""


def publish_raw(kit: Kit, messages: Mapping[bytes, bytes]) -> None:
    """In one batch: a broker stores the properties of its messages as they are."""
    body = b""
    for each, properties in messages.items():
        head = struct.pack(">iiiii", 22 + len(each) + len(properties), 0, 0, 0, len(each))
        body += head + each + struct.pack(">h", len(properties)) + properties
    fields = {"a": "g", "b": kit.topic_there, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "m": "true"}
    with kit.open()._sessions.use(kit.server.broker.address) as session:
        session.ask(Request.SEND_BATCH_MESSAGE, fields, body)


def requeue_once(held: Held) -> None:
    """All of them come a second time, and are finished then."""
    until(lambda: len(held.taken) == len(STRANGE))
    for message in list(held.taken):
        held.connection.requeue(message, 0.0)
    until(lambda: len(held.taken) == 2 * len(STRANGE), 40.0)
    for message in held.taken[len(STRANGE) :]:
        assert message.attempts == 2
        held.connection.finish(message)


@pytest.mark.parametrize("mode", ["pop", "pull"])
def test_whatever_a_publisher_gave_its_message_comes_and_is_settled(kit: Kit, mode: str) -> None:
    settle_all(kit, mode)


@pytest.mark.parametrize("mode", ["pop", "pull"])
def test_headers_as_long_as_they_may_be_leave_room_for_what_a_broker_adds_to_what_comes_again(kit: Kit, mode: str) -> None:
    requeue_large(kit, mode)


@pytest.mark.at_length
def test_also_by_pop_where_checkpoints_are_in_files(tmp_path: Path) -> None:
    for server in started(tmp_path):
        kit = Kit(server)
        settle_all(kit, "pop")
        kit.close()
        kit = Kit(server)
        requeue_large(kit, "pop")
        kit.close()


def settle_all(kit: Kit, mode: str) -> None:
    held = kit.hold(kit.open(f"&mode={mode}"))
    publish_raw(kit, STRANGE)
    requeue_once(held)
    assert sorted(held.bodies) == sorted([*STRANGE, *STRANGE])
    until(held.balanced)
    assert (held.receiver.closings, held.receiver.lost_messages) == (0, [])
    until(lambda: sum(kit.open(f"&mode={mode}").backlog(kit.topic, "billing").values()) == 0)


def requeue_large(kit: Kit, mode: str) -> None:
    """With names as long as they may be."""
    kit.topic = f"{kit.topic}-".ljust(64 if mode == "pop" else 48, "t")
    kit.topic_there = kit.topic.replace(".", "%2E")
    held = kit.hold(kit.open(f"&mode={mode}&dlq=true"), "c" * 64)
    headers = {"x": "y" * (MAX_PROPERTIES - 3)}
    kit.publish(b"at once", headers=headers)
    kit.publish(b"delayed", headers=headers, delay=1.0)
    for attempt in (1, 2, 3):
        until(lambda count=2 * attempt: len(held.taken) == count, 40.0)
        for message in held.taken[-2:]:
            assert (message.attempts, message.headers) == (attempt, headers)
            if attempt < 3:
                held.connection.requeue(message, 0.0)
            else:
                held.connection.terminate(message)
    until(held.balanced)
    assert (held.receiver.closings, held.receiver.lost_messages) == (0, [])

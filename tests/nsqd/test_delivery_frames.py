"""What a client is sent of a batch and of what comes again, byte by byte, and which bodies stay in memory meanwhile."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from framework.nsqd import delivery
from framework.nsqd.lease import Leases, Message
from framework.nsqd.store import Batch
from tests.nsqd.storing import payload


class Client:
    """A consumer that takes whatever it is sent."""

    def __init__(self, sample_rate: int = 0) -> None:
        self.leases = Leases(60.0, 900.0, lambda leases, message: None)
        self.sample_rate = sample_rate
        self.sent: list[tuple[bytes, int]] = []
        self.samples = iter([True, False, True])

    def room(self) -> int:
        return 100

    def sampled(self) -> bool:
        return next(self.samples)

    def send(self, frames: list[bytes], count: int) -> None:
        self.sent.append((b"".join(frames), count))

    def close(self, reason: str) -> None: ...


def batch(*bodies: bytes) -> Batch:
    return Batch(7, 1000, len(bodies), 1717, 0, payload(*bodies))


def frame(seq: int, body: bytes, attempts: int = 1) -> bytes:
    """As the protocol has it: size, type 2, nanoseconds, attempts, the id in 16 hexadecimal characters, body."""
    rest = struct.pack(">iqH", 2, 1717, attempts) + b"%016x" % seq + body
    return struct.pack(">i", len(rest)) + rest


@pytest.mark.parametrize(
    ("sizes", "count"), [([60] * 10, 4097), ([1 << 18], 1), ([(1 << 18) - 4], 2), ([(1 << 17) - 4] * 2, 3), ([0], 65537)]
)
def test_a_client_gets_as_many_at_once_as_a_chunk_has_and_one_more(sizes: list[int], count: int) -> None:
    assert delivery.fitting(batch(*[b"x" * size for size in sizes])) == count


def test_the_rest_of_a_batch_is_sent_with_its_ids_and_leased() -> None:
    client = Client()
    some = batch(b"one", b"two", b"three", b"", b"five")
    end = delivery.send_next(client, (some, 1, 7), 3, 100.0, kept=True)
    assert client.sent == [(frame(1001, b"two") + frame(1002, b"three") + frame(1003, b""), 3)]
    assert end == len(payload(b"one", b"two", b"three", b""))
    assert client.leases.messages == {
        b"%016x" % seq: Message(seq, 1717, 1, body, 100.0, 160.0) for seq, body in [(1001, b"two"), (1002, b"three"), (1003, b"")]
    }


def test_of_a_sample_there_is_what_was_drawn_and_nothing_is_sent_where_nothing_was() -> None:
    client = Client(sample_rate=50)
    some = batch(b"a", b"b", b"c")
    assert delivery.send_next(client, (some, 0, 0), 3, 100.0, kept=True) == len(some.payload)
    assert client.sent == [(frame(1000, b"a") + frame(1002, b"c"), 2)]
    client.samples = iter([False])
    assert delivery.send_next(client, (some, 0, 0), 1, 100.0, kept=True) == len(payload(b"a"))
    assert len(client.sent) == 1


def leasing(client: Client, count: int) -> None:
    """It has so many in flight."""
    for at in range(count):
        client.leases.messages[b"%d" % at] = Message(at, 1, 1, None)


@pytest.mark.parametrize(("in_flight", "kept", "held"), [(2, True, True), (3, True, False), (3, False, True)])
def test_bodies_of_a_batch_stay_in_memory_up_to_a_limit_or_where_no_log_has_them(
    monkeypatch: pytest.MonkeyPatch, in_flight: int, kept: bool, held: bool
) -> None:
    """With two more of ten bytes each."""
    monkeypatch.setattr(delivery, "_HELD_BYTES", 40)
    client = Client()
    leasing(client, in_flight)
    delivery.send_next(client, (batch(b"123456", b"abcdef"), 0, 0), 2, 100.0, kept=kept)
    bodies = [one.body for one in [*client.leases.messages.values()][-2:]]
    assert bodies == ([b"123456", b"abcdef"] if held else [None, None])
    assert client.sent == [(frame(1000, b"123456") + frame(1001, b"abcdef"), 2)]


@pytest.mark.parametrize(
    ("in_flight", "kept", "held"), [(0, True, True), (3, True, True), (4, True, False), (4, False, True), (400, False, True)]
)
def test_the_body_of_what_comes_again_stays_in_memory_likewise(
    monkeypatch: pytest.MonkeyPatch, in_flight: int, kept: bool, held: bool
) -> None:
    """With this one, of ten bytes, they are one more."""
    monkeypatch.setattr(delivery, "_HELD_BYTES", 40)
    client: Any = Client()
    leasing(client, in_flight)
    message = Message(1000, 1717, 2, b"1234567890", 5.0, 65.0)
    delivery.send_again(client, message, b"1234567890", 100.0, kept=kept)
    assert message == Message(1000, 1717, 3, b"1234567890" if held else None, 100.0, 160.0)
    assert client.sent == [(frame(1000, b"1234567890", attempts=3), 1)]
    assert client.leases.messages[message.id] is message


def test_attempts_begin_anew_where_the_protocol_has_no_room_for_more() -> None:
    client = Client()
    message = Message(1000, 1717, 65535, b"x")
    delivery.send_again(client, message, b"x", 100.0, kept=True)
    assert client.sent == [(frame(1000, b"x", attempts=0), 1)]

"""Puts messages on their way to one client: its leases, and the frames of the V2 protocol. It does not know whose turn it is."""

from __future__ import annotations

import struct
from array import array
from typing import Protocol

from framework.nsqd.lease import Leases, Message
from framework.nsqd.store import Batch
from framework.transports.nsq.wire import FRAME_MESSAGE

_PREFIX = struct.Struct(">iiqH")
_SIZE = struct.Struct(">i")
_CHUNK_BYTES = 1 << 18
"""About as many bytes of messages as a client gets before it is seen whether its buffer is full."""
_HELD_BYTES = 1 << 20
"""About as many bytes of bodies in flight as one client keeps in memory; of the others the log has to give them again."""


class Consumer(Protocol):
    """A client that is subscribed, as its channel sees it."""

    leases: Leases
    sample_rate: int

    def room(self) -> int:
        """How many more messages it may be sent now: RDY less what is in flight; 0 while its buffer is full."""

    def send(self, frames: list[bytes], count: int) -> None:
        """Message frames for it, buffered; ``count`` messages."""

    def sampled(self) -> bool:
        """Whether this one message is for it (sample_rate)."""

    def close(self, reason: str) -> None: ...


def fitting(batch: Batch) -> int:
    """How many of its messages a client gets at once."""
    return 1 + _CHUNK_BYTES // (len(batch.payload) // batch.count)


def send_next(client: Consumer, piece: tuple[Batch, int, int], count: int, now: float, *, kept: bool) -> int:
    """The next ``count`` messages of a batch: ``piece`` has how many are delivered, and where in its payload the next begins.

    Returns where the one behind them begins. ``kept``: the log has the bodies. This is the hot path.
    """
    batch, done, offset = piece
    first, ts, payload = batch.first + done, batch.ts, batch.payload
    ids = array("Q", range(first, first + count))
    ids.byteswap()
    hexes = ids.tobytes().hex().encode()
    deadline = now + client.leases.duration
    messages, sampling = client.leases.messages, client.sample_rate
    holds = not kept or (len(messages) + count) * (len(payload) // batch.count) <= _HELD_BYTES
    frames: list[bytes] = []
    known: int | None = None
    prefix, sent = b"", 0
    for at in range(count):
        (size,) = _SIZE.unpack_from(payload, offset)
        body = payload[offset + 4 : offset + 4 + size]
        offset += 4 + size
        if sampling and not client.sampled():
            continue
        if size != known:
            prefix, known = _PREFIX.pack(size + 30, FRAME_MESSAGE, ts, 1), size
        message_id = hexes[16 * at : 16 * at + 16]
        messages[message_id] = Message(first + at, ts, 1, body if holds else None, now, deadline)
        frames += (prefix, message_id, body)
        sent += 1
    if frames:
        client.send(frames, sent)
    return offset


def send_again(client: Consumer, message: Message, body: bytes, now: float, *, kept: bool) -> None:
    """One message that was delivered before, or deferred."""
    message.attempts = message.attempts + 1 & 0xFFFF
    message.delivered = now
    message.deadline = now + client.leases.duration
    message_id = message.id
    client.leases.messages[message_id] = message
    if kept and len(client.leases.messages) * len(body) > _HELD_BYTES:
        message.body = None
    client.send([_PREFIX.pack(len(body) + 30, FRAME_MESSAGE, message.ts, message.attempts), message_id, body], 1)

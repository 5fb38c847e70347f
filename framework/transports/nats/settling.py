"""What is said of messages where they are acknowledged, and what that subject tells of them. No I/O here.

Source: the JetStream API reference, acknowledgements.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from framework.errors import ProtocolError
from framework.message import Message
from framework.transports.nats.commands import OF_CLIENTS, Commands

T = TypeVar("T")

_ACK = b" 4\r\n+ACK\r\n"
_WPI = b" 4\r\n+WPI\r\n"
ACK_MORE = len(b"PUB " + _ACK)


def ack(replies: Sequence[bytes], commands: Commands = OF_CLIENTS) -> bytes:
    """A +ACK for each of ``replies``, joined."""
    return _each(replies, _ACK, commands)


def touch(replies: Sequence[bytes], commands: Commands = OF_CLIENTS) -> bytes:
    """A +WPI for each of ``replies``, joined."""
    return _each(replies, _WPI, commands)


def _each(replies: Sequence[bytes], words: bytes, commands: Commands) -> bytes:
    return commands.publish + (words + commands.publish).join(replies) + words if replies else b""


def nak(reply: bytes, delay: float, commands: Commands = OF_CLIENTS) -> bytes:
    """-NAK; ``delay`` in seconds."""
    return commands.pub(reply, b'-NAK {"delay":%d}' % round(delay * 1e9) if delay > 0 else b"-NAK")


def term(reply: bytes, commands: Commands = OF_CLIENTS) -> bytes:
    """+TERM: it is not delivered again, and an advisory of JetStream says so."""
    return commands.pub(reply, b"+TERM")


def metadata(reply: bytes) -> tuple[int, bytes, int]:
    """How often a message has been delivered, its number in the stream, and when it was stored (ns).

    ``$JS.ACK.<stream>.<consumer>.<deliveries>.<stream seq>.<consumer seq>.<ns>.<pending>``; newer servers may put a
    domain and a hash before the stream. Raises ProtocolError."""
    parts = reply.split(b".")
    at = 4 if len(parts) == 9 else 6
    try:
        return int(parts[at]), parts[at + 1], int(parts[at + 3])
    except (IndexError, ValueError):
        raise ProtocolError(f"not a message of JetStream: it is to be acknowledged at {reply[:80]!r}") from None


def taken(waiting: list[T]) -> list[T]:
    """All of it, from a list to which the hub may be adding: each step is one that nothing interrupts."""
    count = len(waiting)
    some = waiting[:count]
    del waiting[:count]
    return some


def snapshot(some: Iterable[tuple[Message, float]]) -> list[tuple[Message, float]]:
    """Of what the hub may be changing."""
    while True:
        try:
            return list(some)
        except RuntimeError:  # it changed
            continue

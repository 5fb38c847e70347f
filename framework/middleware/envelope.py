"""What waits in ``<topic>.<channel>.later``: a JSON line that says whose message it is and when it is due, a newline, the body.

Made from a message and made into it again; when that is to happen is ``later``'s to say.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from framework.headers import NONE
from framework.message import Message, calls_of

Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**62)]
"""What Message and datetime can hold: anybody may publish anything, and what can be neither handled nor buried would go round."""


class Header(msgspec.Struct, omit_defaults=True):
    """The line before the body. ``due`` and ``since``: seconds since 1970; ``timestamp``: nanoseconds, as in Message."""

    topic: str
    channel: str
    id: Annotated[str, Meta(pattern="^[\x00-\xff]*$")]
    """Of bytes, read as Latin-1."""
    node: str
    timestamp: Count
    attempts: Count
    """Those that the message has used up; the deliveries of the envelope at which it is due come on top."""
    due: float
    early: Count = 0
    """How many times in a row it came back long before it should have."""
    put_off: Count = 0
    """How many times its handler has asked for it later without using up an attempt."""
    since: Annotated[float, Meta(ge=0, le=2**32)] = 0.0
    """When it did so first."""
    stored: float = 0.0
    """When it was published, by the clock that ``due`` is of; the broker's may be another."""
    hops: Count = 0
    """How many times it has been published anew since it was put in."""
    headers: dict[str, str] = {}
    """The message's own."""

    @property
    def owner(self) -> tuple[str, str]:
        return self.topic, self.channel


_header = msgspec.json.Decoder(Header)


def sealed(header: Header, body: bytes) -> bytes:
    return msgspec.json.encode(header) + b"\n" + body


def header_for(message: Message, owner: tuple[str, str], due: float) -> Header:
    """Of a message of ``owner`` that is to wait until ``due``. One that came in an envelope goes on with what that knew of it."""
    before = header_of(message)
    return Header(
        *owner, message.id.decode("latin-1"), message.node, message.timestamp, message.attempts, due,
        put_off=before.put_off if before else 0, since=before.since if before else 0.0, headers=dict(message.headers),
    )  # fmt: skip


def header_of(message: Message) -> Header | None:
    """Of the envelope that ``message`` came in, if it came in one."""
    origin = message.connection
    return origin.header if isinstance(origin, _Stand) else None


def opened(envelope: Message) -> tuple[Header, bytes] | None:
    """What is in it; None for what is no envelope."""
    line, _, body = envelope.body.partition(b"\n")
    try:
        return _header.decode(line), body
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def restored(envelope: Message, header: Header, body: bytes) -> Message:
    """The message that was put into ``envelope``, to be settled by the fate of that."""
    stand = _Stand(envelope, header)
    calls_of[stand] = _Calls(envelope)
    return Message(
        header.id.encode("latin-1"), header.timestamp, header.attempts + envelope.attempts, body, stand, header.headers or NONE
    )


class _Stand:
    """The connection of a message that came in an envelope: its names are those of the message, its lease is the envelope's."""

    def __init__(self, envelope: Message, header: Header) -> None:
        self.topic = header.topic
        self.channel = header.channel
        self.node = header.node
        self.header = header
        self._envelope = envelope

    @property
    def limits(self) -> Any:
        return self._envelope.connection.limits

    @property
    def in_flight(self) -> Any:
        return self

    def __contains__(self, message: object) -> bool:
        return not self._envelope.settled

    def touch(self, message: Message) -> None:
        self._envelope.touch()


class _Calls:
    """What a handler may ask of its own message, asked of the envelope, which is what its slot holds."""

    def __init__(self, envelope: Message) -> None:
        self._envelope = envelope

    def ends_at(self, message: Message) -> float | None:
        calls = calls_of.get(self._envelope.connection)
        return calls.ends_at(self._envelope) if calls is not None else None

    def lost(self, message: Message) -> bool:
        return self._envelope.lease_lost

    def touch(self, message: Message) -> None:
        self._envelope.touch()

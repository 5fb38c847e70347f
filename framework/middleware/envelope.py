"""What waits in ``<topic>.<channel>.later``: a JSON line that says whose message it is and when it is due, a newline, the body.

Messages are made into envelopes here, and back. ``later`` decides when.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from framework.decoding import UNREADABLE
from framework.headers import NONE, Headers, without_surrogates
from framework.message import Message

LATER = ".later"
"""Of the topics whose messages are envelopes."""
HOPS = "workers-hops"
"""The header that counts the hops of an envelope, where the broker carries headers; else they are counted in its first line."""

Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**62)]
"""What Message and datetime can hold: what can be neither handled nor dead-lettered would go round."""


_DIGITS = 18  # no message has gone round as often as that


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
    """How many times it has been published anew since it was put in, where no header says so."""
    headers: dict[str, str] = {}
    """The message's own."""

    @property
    def owner(self) -> tuple[str, str]:
        return self.topic, self.channel


_header = msgspec.json.Decoder(Header)


def sealed(header: Header, body: bytes) -> bytes:
    return msgspec.json.encode(header) + b"\n" + body


def sealed_beside(header: Header, body: bytes) -> tuple[bytes, Headers]:
    """As ``sealed``, and what is counted in a header, where the broker carries headers."""
    beside = {HOPS: str(header.hops)} if header.hops else NONE
    return sealed(msgspec.structs.replace(header, hops=0), body), beside


def header_for(message: Message, owner: tuple[str, str], due: float) -> Header:
    """Of a message of ``owner`` that is to wait until ``due``. One that came in an envelope goes on with what that knew of it."""
    before = header_of(message)
    return Header(
        *owner, message.id.decode("latin-1"), message.node, message.timestamp, message.attempts, due,
        put_off=before.put_off if before else 0, since=before.since if before else 0.0,
        headers=without_surrogates(message.headers),
    )  # fmt: skip


def header_of(message: Message) -> Header | None:
    """Of the envelope that ``message`` came in, if it came in one."""
    return message.header if isinstance(message, Returned) else None


def opened(envelope: Message) -> tuple[Header, bytes] | None:
    """What is in it; None for what is no envelope."""
    line, _, body = envelope.body.partition(b"\n")
    try:
        header = _header.decode(line)
    except UNREADABLE:
        return None
    header.hops = _counted(envelope.headers, header.hops)
    return header, body


def _counted(headers: Headers, otherwise: int) -> int:
    """The hops that ``headers`` count; ``otherwise`` where they do not, or not by a number that was written here."""
    said = headers.get(HOPS, "")
    return int(said) if said.isascii() and said.isdigit() and len(said) < _DIGITS else otherwise


class Returned(Message, gc=False, eq=False, kw_only=True):
    """A message that came in an envelope, which is settled in its place: its names are its own, its lease is the envelope's."""

    header: Header
    envelope: Message

    @property
    def topic(self) -> str:
        return self.header.topic

    @property
    def channel(self) -> str:
        return self.header.channel

    @property
    def node(self) -> str:
        return self.header.node

    @property
    def settled(self) -> bool:
        return self.envelope.settled

    @property
    def seconds_left(self) -> float:
        return self.envelope.seconds_left

    @property
    def lease_lost(self) -> bool:
        return self.envelope.lease_lost

    def touch(self) -> None:
        self.envelope.touch()


def known_as(message: Message) -> Message:
    """What its handler knows ``message`` as: of an envelope that which was put into it."""
    found = opened(message) if message.topic.endswith(LATER) and not isinstance(message, Returned) else None
    return restored(message, *found) if found else message


def restored(envelope: Message, header: Header, body: bytes) -> Message:
    """The message that was put into ``envelope``."""
    return Returned(
        header.id.encode("latin-1"), header.timestamp, header.attempts + envelope.attempts, body, envelope.connection,
        header.headers or NONE, header=header, envelope=envelope,
    )  # fmt: skip

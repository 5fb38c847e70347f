"""NSQ's TCP V2 protocol as bytes <-> values: encoders, and a decoder of the server's frames. No I/O here.

Source: the TCP protocol specification of NSQ, and nsqd's protocol_v2.go where the two differ. Numbers on the
wire are big-endian.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import itemgetter
from struct import Struct
from typing import Any

import msgspec

from framework.errors import (
    AccessDenied,
    BrokerError,
    CommandRefused,
    LeaseOver,
    NegotiationRefused,
    ProtocolError,
    RequestRefused,
    TryLater,
)
from framework.message import Message

MAGIC = b"  V2"
FRAME_RESPONSE = 0
FRAME_ERROR = 1
FRAME_MESSAGE = 2
OK = b"OK"
HEARTBEAT = b"_heartbeat_"
CLOSE_WAIT = b"CLOSE_WAIT"
CLS = b"CLS\n"
NOP = b"NOP\n"

MAX_FRAME = 64 * 1024 * 1024
"""Bytes. nsqd's default for one message is 1 MiB; text mistaken for a size is 512 MiB and more."""
MAX_MESSAGE = 1024 * 1024
"""Bytes of one body: nsqd's default --max-msg-size."""
MAX_BODY = 5 * 1024 * 1024
"""Bytes of one MPUB after its size field: nsqd's default --max-body-size."""

NOT_FATAL = frozenset({"E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"})
"""The only errors after which nsqd keeps the connection open."""

ERRORS: tuple[tuple[str, type[BrokerError], str], ...] = (
    ("E_FIN_FAILED", LeaseOver, ""),
    ("E_REQ_FAILED", LeaseOver, ""),
    ("E_TOUCH_FAILED", LeaseOver, ""),
    ("E_SUB_FAILED", TryLater, ""),
    ("E_PUB_FAILED", TryLater, ""),
    ("E_MPUB_FAILED", TryLater, ""),
    ("E_DPUB_FAILED", TryLater, ""),
    ("E_AUTH_FIRST", AccessDenied, "give the secret in a file (auth_secret_file= in the broker URL) or in $NSQ_AUTH_SECRET"),
    ("E_AUTH_FAILED", AccessDenied, "nsqd got no usable answer from its auth server, and its log says why"),
    ("E_AUTH_ERROR", AccessDenied, ""),
    ("E_AUTH_DISABLED", AccessDenied, "start nsqd with --auth-http-address, or give no secret"),
    ("E_UNAUTHORIZED", AccessDenied, "the auth server permits this secret no such thing"),
    ("E_BAD_BODY AUTH", AccessDenied, ""),
    ("E_BAD_PROTOCOL", NegotiationRefused, "is this the TCP port of an nsqd?"),
    ("E_BAD_BODY IDENTIFY", NegotiationRefused, "change that option of the broker URL, or what nsqd was started with"),
    ("E_IDENTIFY_FAILED", NegotiationRefused, "change tls, snappy or deflate in the broker URL"),
    ("E_BAD_TOPIC", RequestRefused, ""),
    ("E_BAD_CHANNEL", RequestRefused, ""),
    ("E_BAD_MESSAGE", RequestRefused, ""),
    ("E_BAD_BODY", RequestRefused, ""),
    ("E_INVALID", CommandRefused, ""),
)
"""How an error begins -> its class, and what a person can do about it. The first that fits counts."""
_TLS_REQUIRED = "(TLS required)"
_USE_TLS = "it takes TLS only: write nsq+tls:// in place of nsq://, or add tls=true"

_SIZE = Struct(">i")
_HEAD = Struct(">ii")
_MAX_SETUP_FRAME = 64 * 1024
_MESSAGE = Struct(">iiqH16s")  # size, frame type, timestamp (ns), attempts (unsigned: it wraps), id
_HEAD_SIZE = _HEAD.size
SIZE_FIELD = _SIZE.size
_SMALL_SIZES = [_SIZE.pack(size) for size in range(4096)]
"""Size fields to look up: half the price of packing, and all that most MPUBs need."""
_OK_FRAME = _HEAD.pack(4 + len(OK), FRAME_RESPONSE) + OK
_BODY_AT = _MESSAGE.size
_MIN_MESSAGE = _BODY_AT - 4  # the size field does not count itself

FIN_SIZE = len(b"FIN 0123456789abcdef\n")
TOUCH_SIZE = len(b"TOUCH 0123456789abcdef\n")


# --- the client's commands ---------------------------------------------------------------------------------


def identify(fields: dict[str, Any]) -> bytes:
    """IDENTIFY; ``fields`` become its JSON body. Times in it are in milliseconds."""
    return b"IDENTIFY\n" + _sized(msgspec.json.encode(fields))


def auth(secret: bytes) -> bytes:
    return b"AUTH\n" + _sized(secret)


def sub(topic: str, channel: str) -> bytes:
    return f"SUB {topic} {channel}\n".encode()


def rdy(count: int) -> bytes:
    return b"RDY %d\n" % count


def fin(ids: Sequence[bytes]) -> bytes:
    """A FIN for each of ``ids`` (at least one), joined: 280 at once cost what 40 formatted ones do."""
    return b"FIN " + b"\nFIN ".join(ids) + b"\n"


def touch(ids: Sequence[bytes]) -> bytes:
    """A TOUCH for each of ``ids`` (at least one)."""
    return b"TOUCH " + b"\nTOUCH ".join(ids) + b"\n"


def req(message_id: bytes, delay: float) -> bytes:
    """REQ; ``delay`` in seconds. nsqd ends the connection for a negative or fractional number of milliseconds."""
    return b"REQ %b %d\n" % (message_id, milliseconds(delay))


def pub(topic: str, body: bytes) -> bytes:
    return _pub_line(topic) + _SIZE.pack(len(body)) + body


@lru_cache(1024)
def _pub_line(topic: str) -> bytes:
    return b"PUB %b\n" % topic.encode()


def dpub(topic: str, delay: float, body: bytes) -> bytes:
    """DPUB; ``delay`` in seconds. nsqd does not clamp it as it does for REQ: out of range is fatal."""
    return f"DPUB {topic} {milliseconds(delay)}\n".encode() + _sized(body)


def mpub(topic: str, bodies: Sequence[bytes], sizes: Sequence[int]) -> bytes:
    """MPUB of ``bodies``, whose lengths are ``sizes``; its body size covers the count and every message with its size field."""
    return _joined(f"MPUB {topic}\n".encode() + _HEAD.pack(mpub_size(sizes), len(bodies)), bodies, sizes)


def mpub_body(bodies: Sequence[bytes]) -> bytes:
    """What HTTP's /mpub?binary=true takes: an MPUB from its count on."""
    return _joined(_SIZE.pack(len(bodies)), bodies, list(map(len, bodies)))


def _joined(head: bytes, bodies: Sequence[bytes], sizes: Sequence[int]) -> bytes:
    pieces: list[bytes] = [head] * (1 + 2 * len(bodies))
    pieces[1::2] = _size_fields(sizes)
    pieces[2::2] = bodies
    return b"".join(pieces)


def _size_fields(sizes: Sequence[int]) -> tuple[bytes, ...]:
    if len(sizes) > 1:  # of one, itemgetter makes no tuple
        try:
            fields: tuple[bytes, ...] = itemgetter(*sizes)(_SMALL_SIZES)  # in one call, at half the price of a call for each
        except IndexError:
            pass
        else:
            return fields
    return tuple(map(_SIZE.pack, sizes))


def mpub_size(sizes: Sequence[int]) -> int:
    """The body size in bytes of an MPUB of messages of these sizes: what --max-body-size bounds."""
    return SIZE_FIELD + SIZE_FIELD * len(sizes) + sum(sizes)


def milliseconds(seconds: float) -> int:
    return max(0, round(seconds * 1000))


def _sized(body: bytes) -> bytes:
    return _SIZE.pack(len(body)) + body


# --- the server's frames -----------------------------------------------------------------------------------


def encode_frame(kind: int, data: bytes) -> bytes:
    """One frame as a server sends it; ``kind`` is one of the FRAME_ constants."""
    return _HEAD.pack(len(data) + 4, kind) + data


def encode_message(timestamp: int, attempts: int, message_id: bytes, body: bytes) -> bytes:
    """A message frame; ``timestamp`` in nanoseconds since 1970, ``message_id`` of 16 bytes."""
    return _MESSAGE.pack(_MIN_MESSAGE + len(body), FRAME_MESSAGE, timestamp, attempts & 0xFFFF, message_id) + body


def parse_error(data: bytes) -> BrokerError:
    """The payload of an error frame, ``E_CODE words``, as an error of the class that ``ERRORS`` has for it."""
    text = data.decode(errors="replace")
    code, _, words = text.partition(" ")
    if words.endswith(_TLS_REQUIRED):
        return NegotiationRefused(code, words, fix=_USE_TLS)
    for start, kind, fix in ERRORS:
        if f"{text} ".startswith(f"{start} "):
            return kind(code, words, fatal=code not in NOT_FATAL, fix=fix)
    return BrokerError(code, words)


def refused_id(error: BrokerError) -> bytes | None:
    """Which message a non-fatal error speaks of: ``FIN <id> failed ID not in flight``."""
    words = error.words.split(" ", 2)
    return words[1].encode() if len(words) > 1 else None


def take_frame(data: bytes) -> tuple[bytes | BrokerError, bytes] | None:
    """The first frame of ``data``, and the bytes after it, which may be of another layer; None while it is not whole.

    For a connection that is being set up: raises ProtocolError for a message, and for bytes that no nsqd sends."""
    decoder = Decoder(max_frame=_MAX_SETUP_FRAME)
    size = decoder.size_at(data, 0, len(data))
    if size is None or SIZE_FIELD + size > len(data):
        return None
    messages, others = decoder.feed(data[: SIZE_FIELD + size])
    if messages:
        raise ProtocolError("it sent a message before it was asked for any")
    [frame] = others
    return frame, data[SIZE_FIELD + size :]


class Decoder:
    """Frames from a stream, cut anywhere.

    ``origin`` becomes each message's ``connection``. Bytes of an unfinished frame are kept as they came and
    joined once, when the frame is whole, so that a large message in many pieces costs no more than its size.
    """

    __slots__ = ("_max_frame", "_missing", "_origin", "_pieces")

    def __init__(self, origin: Any = None, *, max_frame: int = MAX_FRAME) -> None:
        self._origin = origin
        self._max_frame = max_frame
        self._pieces: list[bytes] = []

    def bind(self, origin: Any) -> Decoder:
        """Let ``origin`` be the ``connection`` of the messages from now on."""
        self._origin = origin
        return self

    @property
    def unfinished(self) -> bool:
        """A frame has begun to come."""
        return bool(self._pieces)

    def feed(self, data: bytes) -> tuple[list[Message], list[bytes | BrokerError]]:
        """The messages, and the other frames in their order: a response as bytes, an error as BrokerError.

        Raises ProtocolError for bytes that no nsqd sends; the decoder is of no use after that.
        """
        if self._pieces:
            self._pieces.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return [], []
            data = b"".join(self._pieces)
            self._pieces.clear()
        if data.startswith(_OK_FRAME) and data == _OK_FRAME * (count := len(data) // len(_OK_FRAME)):
            return [], [OK] * count  # all that a publisher gets, mostly, and a hundred at once
        return self._frames(data)

    def _frames(self, data: bytes) -> tuple[list[Message], list[bytes | BrokerError]]:
        messages: list[Message] = []
        others: list[bytes | BrokerError] = []
        unpack, origin, append = _MESSAGE.unpack_from, self._origin, messages.append
        at, end = 0, len(data)
        last = end - _BODY_AT
        while at < end:
            if at <= last:
                size, kind, timestamp, attempts, message_id = unpack(data, at)
                body_at, following = at + _BODY_AT, at + 4 + size
                if kind == FRAME_MESSAGE and body_at <= following <= end:
                    append(Message(message_id, timestamp, attempts, data[body_at:following], origin))
                    at = following
                    continue
            following = self._other(data, at, end, others)  # not a whole message: rare, so checked with care
            if not following:
                break
            at = following
        if at < end:
            self._keep(data, at, end)
        return messages, others

    def _other(self, data: bytes, at: int, end: int, others: list[bytes | BrokerError]) -> int:
        """Take the response or error at ``at``: the index after it, or 0 when it is not whole."""
        size = self.size_at(data, at, end)
        if size is None or at + 4 + size > end:
            return 0
        payload = data[at + _HEAD_SIZE : at + 4 + size]
        kind = data[at + 7]
        others.append(payload if kind == FRAME_RESPONSE else parse_error(payload))
        return at + 4 + size

    def size_at(self, data: bytes, at: int, end: int) -> int | None:
        """The size field of the frame at ``at``, None when it is not whole; checked as early as it can be."""
        if end - at < _SIZE.size:
            return None
        size: int = _SIZE.unpack_from(data, at)[0]
        if not 4 <= size <= self._max_frame:
            raise _garbage(f"a frame of {size} bytes (4 to {self._max_frame} are allowed)", data, at)
        if end - at >= _HEAD_SIZE:
            kind = _HEAD.unpack_from(data, at)[1]
            if kind not in (FRAME_RESPONSE, FRAME_ERROR, FRAME_MESSAGE):
                raise _garbage(f"frame type {kind}", data, at)
            if kind == FRAME_MESSAGE and size < _MIN_MESSAGE:
                raise _garbage(f"a message frame of {size} bytes (at least {_MIN_MESSAGE})", data, at)
        return size

    def _keep(self, data: bytes, at: int, end: int) -> None:
        size = self.size_at(data, at, end)
        have = end - at
        if size is None or have < _HEAD_SIZE:
            self._missing = 1  # so few bytes that joining them again costs nothing
        else:
            self._missing = 4 + size - have
        self._pieces.append(data[at:])


def _garbage(what: str, data: bytes, at: int) -> ProtocolError:
    return ProtocolError(f"not an nsqd's bytes: {what}, in {data[at : at + 32]!r}")

"""NATS's client protocol as bytes <-> values: commands, and a decoder of what a server says. No I/O here.

The protocol between servers (``route_wire``) has other operations, and shares all else. Source: the client protocol of the NATS
documentation, and nats-server's parser.go.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Generic, TypeVar

import msgspec

from framework.decoding import UNREADABLE
from framework.errors import BadMessage, BadName, ProtocolError

MAX_PAYLOAD = 64 * 1024 * 1024
"""Bytes of headers and body: more than that no server can be configured to take."""
MAX_LINE = 64 * 1024
"""Bytes of a line. An INFO with the addresses of a large cluster has thousands; the subjects of clients have 4096 at most."""
PING = b"PING\r\n"
PONG = b"PONG\r\n"

_END = b"\r\n"
_MSG = re.compile(rb"MSG ([^ \t\r\n]+) (\d{1,12}) (?:([^ \t\r\n]+) )?(\d{1,10})\r\n")
_HMSG = re.compile(rb"HMSG ([^ \t\r\n]+) (\d{1,12}) (?:([^ \t\r\n]+) )?(\d{1,10}) (\d{1,10})\r\n")
_NUMBER = re.compile(rb"\d{1,12}")
_TOKEN = re.compile(r"[^ .*>\t\r\n\0]+(?:\.[^ .*>\t\r\n\0]+)*")

# --- what is read ------------------------------------------------------------------------------------------


class Word(Enum):
    """A line that says no more than its first word."""

    PING = b"PING"
    PONG = b"PONG"
    OK = b"+OK"


class Permissions(msgspec.Struct, frozen=True):
    """Subjects that a server lets through, one way; ``allow`` None: all but those of ``deny``."""

    allow: list[str] | None = None
    deny: list[str] | None = None


class Info(msgspec.Struct, frozen=True):
    """What a server says of itself. What it leaves out has a default; what else it says is passed over."""

    server_id: str = ""
    server_name: str = ""
    version: str = ""
    proto: int = 0
    host: str = ""
    port: int = 0
    headers: bool = False
    max_payload: int = 1024 * 1024
    auth_required: bool = False
    tls_required: bool = False
    tls_verify: bool = False
    tls_available: bool = False
    jetstream: bool = False
    nonce: str = ""
    connect_urls: list[str] | None = None
    """Where clients reach the servers of the cluster, ``host:port`` each."""
    cluster: str = ""
    cluster_dynamic: bool = False
    ip: str = ""
    """On a route: whose INFO this is, when it is not its sender's."""
    ldm: bool = False
    """Lame duck mode: it is about to end, and wants its clients gone before."""
    client_id: int = 0
    """Only a client port says it."""
    gossip_mode: int = 0
    """On a route: 1 when nobody else is to be told of its sender."""
    route_pool_size: int = 0
    """On a route, since 2.10: how many connections it would share the accounts out among."""
    imports: Permissions | None = msgspec.field(default=None, name="import")
    """On a route: what it accepts from other servers."""
    exports: Permissions | None = msgspec.field(default=None, name="export")
    """On a route: what it lets go out to them."""


class Err(msgspec.Struct, frozen=True):
    """-ERR, in the server's own words."""

    words: str


class Msg(msgspec.Struct, gc=False):
    """MSG and HMSG, on a client's connection."""

    subject: bytes
    sid: int
    reply: bytes
    """Empty: nobody waits for an answer."""
    headers: bytes
    """As they came, with their first line; empty where there are none."""
    body: bytes


ClientEvent = Msg | Info | Err | Word

_info = msgspec.json.Decoder(Info)

# --- what is written ---------------------------------------------------------------------------------------


def subject(name: str) -> bytes:
    """``name`` as a subject to publish to, or to have a stream of. Raises BadName for what is none, wildcards included."""
    if not _TOKEN.fullmatch(name):
        raise BadName(
            f"{name!r} is no subject to NATS: words with dots between them, without spaces, and without * and >, which are for "
            "subscriptions"
        )
    return name.encode()


def connect(fields: dict[str, object]) -> bytes:
    """CONNECT; ``fields`` become its JSON."""
    return b"CONNECT %b\r\n" % msgspec.json.encode(fields)


def info(fields: dict[str, object]) -> bytes:
    """INFO, which on a route both sides say."""
    return b"INFO %b\r\n" % msgspec.json.encode(fields)


def pub(to: bytes, body: bytes, reply: bytes = b"", *, headers: bytes = b"") -> bytes:
    """PUB; HPUB with ``headers``, as ``headers.encode`` makes them."""
    if headers:
        return b"HPUB %b %b%d %d\r\n%b%b\r\n" % (
            to, reply + b" " if reply else b"", len(headers), len(headers) + len(body), headers, body,
        )  # fmt: skip
    return b"PUB %b %b%d\r\n%b\r\n" % (to, reply + b" " if reply else b"", len(body), body)


def sub(to: bytes, sid: int, queue: bytes = b"") -> bytes:
    """SUB; ``to`` may have wildcards."""
    return b"SUB %b %b%d\r\n" % (to, queue + b" " if queue else b"", sid)


def unsub(sid: int, after: int = 0) -> bytes:
    """UNSUB; ``after``: only when so many messages have come since the SUB."""
    return b"UNSUB %d %d\r\n" % (sid, after) if after else b"UNSUB %d\r\n" % sid


def check_payload(size: int, largest: int, what: str) -> None:
    """Routes take any size, and would bring clients more than these accept. So a publisher must check its own sizes. Raises
    BadMessage."""
    if size > largest:
        raise BadMessage(
            f"{what} has {size} bytes with its headers, and NATS takes up to {largest} (max_payload): make it smaller"
        )


# --- reading -----------------------------------------------------------------------------------------------

Event = TypeVar("Event")


class Decoder(Generic[Event]):
    """Events from a stream, cut anywhere. Bytes of an unfinished one are kept as they came and joined once, when it is whole.

    ``max_payload``: the most bytes of headers and body; a message that announces more is an error before anything of it is kept.
    """

    __slots__ = ("_kept", "_missing", "max_payload")
    _ops: frozenset[bytes]

    def __init__(self, *, max_payload: int = MAX_PAYLOAD) -> None:
        self.max_payload = max_payload
        self._kept: list[bytes] = []
        self._missing = 0
        """Bytes until what is held is whole; negative: until its line ends, of which so many are there."""

    def feed(self, data: bytes) -> list[Event]:
        """The events that ``data`` completes, in order.

        Raises ProtocolError for bytes that no server sends; the decoder is of no use after that.
        """
        if self._kept:
            self._kept.append(data)
            if self._missing > 0:
                self._missing -= len(data)
                if self._missing > 0:
                    return []
            elif b"\n" not in data and len(data) - self._missing < MAX_LINE:
                self._missing -= len(data)
                return []
            data = b"".join(self._kept)
            self._kept.clear()
        return self._events(data)

    def _events(self, data: bytes) -> list[Event]:
        raise NotImplementedError

    def _line(self, data: bytes, at: int) -> tuple[bytes, bytes, int] | None:
        """The first word of the line at ``at``, in capitals, the rest of it, and where the next begins. None: it is not whole."""
        stop = data.find(b"\n", at, at + MAX_LINE)
        if stop < 0:
            self._check_begun(data, at)
            self._keep(data, at, at - len(data))
            return None
        line = data[at:stop].removesuffix(b"\r").replace(b"\t", b" ")
        op, _, rest = line.partition(b" ")
        op = op.upper()
        if op not in self._ops:
            raise garbage("an operation that the protocol does not have", data, at)
        return op, rest.strip(b" "), stop + 1

    def _check_begun(self, data: bytes, at: int) -> None:
        """Garbage is found as early as can be, and a line without an end as well."""
        begun = data[at : at + 16].replace(b"\t", b" ").upper()
        op, space, _ = begun.partition(b" ")
        op = op if space else op.removesuffix(b"\r")
        if not (op in self._ops if space else any(one.startswith(op) for one in self._ops)):
            raise garbage("an operation that the protocol does not have", data, at)
        if len(data) - at >= MAX_LINE:
            raise garbage(f"a line of more than {MAX_LINE} bytes", data, at)

    def _payload(self, data: bytes, at: int, body_at: int, head: int, size: int) -> tuple[bytes, bytes, int] | None:
        """Headers and body at ``body_at``, of the message at ``at``, and where the next line begins. None: they are not whole."""
        if size > self.max_payload:
            raise garbage(f"a message of {size} bytes ({self.max_payload} are allowed)", data, at)
        if head > size:
            raise garbage(f"headers of {head} bytes in a message of {size}", data, at)
        following = body_at + size + 2
        if following > len(data):
            self._keep(data, at, following - len(data))
            return None
        if data[following - 2 : following] != _END:
            raise garbage("a message does not end where it should", data, at)
        return data[body_at : body_at + head], data[body_at + head : following - 2], following

    def _keep(self, data: bytes, at: int, missing: int) -> None:
        self._kept.append(data[at:] if at else data)
        self._missing = missing


class ClientDecoder(Decoder[ClientEvent]):
    """What a server sends to a client."""

    __slots__ = ()
    _ops = frozenset({b"INFO", b"MSG", b"HMSG", b"PING", b"PONG", b"+OK", b"-ERR"})

    def _events(self, data: bytes) -> list[ClientEvent]:
        events: list[ClientEvent] = []
        append, match, hmatch = events.append, _MSG.match, _HMSG.match
        at, end, most = 0, len(data), self.max_payload
        while at < end:
            if (line := match(data, at)) and (size := int(line[4])) <= most:  # nearly all that a worker reads
                body_at = line.end()
                following = body_at + size + 2
                if following <= end and data[following - 2 : following] == _END:
                    append(Msg(line[1], int(line[2]), line[3] or b"", b"", data[body_at : following - 2]))
                    at = following
                    continue
            elif line := hmatch(data, at):
                if (whole := self._payload(data, at, line.end(), int(line[4]), int(line[5]))) is None:
                    break
                append(Msg(line[1], int(line[2]), line[3] or b"", whole[0], whole[1]))
                at = whole[2]
                continue
            at = self._other(data, at, events)
            if at < 0:
                break
        return events

    def _other(self, data: bytes, at: int, events: list[ClientEvent]) -> int:
        """Take what stands at ``at``, however it is written: the index after it, or -1 when it is not whole."""
        if (line := self._line(data, at)) is None:
            return -1
        op, rest, following = line
        if op not in (b"MSG", b"HMSG"):
            events.append(simple(op, rest, data, at))
            return following
        *some, total = words(rest, data, at)
        head = number(some.pop(), data, at) if op == b"HMSG" and some else 0
        if len(some) not in (2, 3):
            raise garbage("a message with too few or too many words", data, at)
        sid = number(some[1], data, at)
        if (whole := self._payload(data, at, following, head, number(total, data, at))) is None:
            return -1
        events.append(Msg(some[0], sid, some[2] if len(some) == 3 else b"", whole[0], whole[1]))
        return whole[2]


def simple(op: bytes, rest: bytes, data: bytes, at: int) -> Info | Err | Word:
    """A line that both protocols have. Raises ProtocolError."""
    if op == b"INFO":
        return read_json(_info, rest, data, at)
    if op == b"-ERR":
        return Err(rest.strip(b"'").decode(errors="replace"))
    return Word(op)


_Json = TypeVar("_Json")


def read_json(decoder: msgspec.json.Decoder[_Json], rest: bytes, data: bytes, at: int) -> _Json:
    """Raises ProtocolError."""
    try:
        return decoder.decode(rest)
    except UNREADABLE as error:
        raise garbage(f"JSON that cannot be read ({error})", data, at) from None


def words(rest: bytes, data: bytes, at: int) -> list[bytes]:
    """Those of a line, at least one. Raises ProtocolError."""
    found = [word for word in rest.split(b" ") if word]
    if not found:
        raise garbage("an operation without its words", data, at)
    return found


def number(word: bytes, data: bytes, at: int) -> int:
    """Raises ProtocolError."""
    if not _NUMBER.fullmatch(word):
        raise garbage(f"{word[:20]!r} in place of a number", data, at)
    return int(word)


def garbage(what: str, data: bytes, at: int) -> ProtocolError:
    """The error for what stands at ``at``."""
    return ProtocolError(f"not a nats-server's bytes: {what}, in {data[at : at + 40]!r}")

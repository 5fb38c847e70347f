"""The protocol between the servers of a NATS cluster (routes) as bytes <-> values, for a peer of theirs. No I/O here.

Source: the cluster protocol of the NATS documentation; nats-server's route.go and leafnode.go for what it leaves out: queue
lists, HMSG and LMSG.
"""

from __future__ import annotations

import re

import msgspec

from framework.transports.nats import wire
from framework.transports.nats.wire import Decoder, Err, Info, Word

_ANSWERED = rb"MSG ([^ \t\r\n]++) ([^ \t\r\n]++) ([^ \t\r\n|+][^ \t\r\n]*) (\d{1,10})"
_PLAIN, _HEADED = re.compile(rb"R" + _ANSWERED + rb"\r\n"), re.compile(rb"H" + _ANSWERED + rb" (\d{1,10})\r\n")
_QUEUED = re.compile(rb"RMSG ([^ \t\r\n]++) ([^ \t\r\n]++) (?:\+ ([^ \t\r\n]++)|\|) ([^ \t\r\n]++) (\d{1,10})\r\n")
_WEIGHT = re.compile(rb"-?\d{1,10}")

# --- what is said, by both sides ---------------------------------------------------------------------------


class Connect(msgspec.Struct, frozen=True):
    """What another server says of itself on a route. As ``Info``."""

    name: str = ""
    cluster: str = ""
    cluster_dynamic: bool = False
    user: str | None = None
    password: str | None = msgspec.field(default=None, name="pass")
    headers: bool = False
    tls_required: bool = False


class Routed(msgspec.Struct, gc=False):
    """RMSG, HMSG and LMSG: a message on a route. It goes to every plain subscription, and to one member of each of ``queues``."""

    account: bytes
    subject: bytes
    reply: bytes
    queues: tuple[bytes, ...]
    headers: bytes
    body: bytes
    origin: bytes = b""
    """The cluster of the leaf node that it comes from, where the route was asked to say so."""


class Interest(msgspec.Struct, frozen=True):
    """RS+ and LS+: the other server wants messages of ``subject``; ``weight`` times as many as one member, as a queue group."""

    account: bytes
    subject: bytes
    queue: bytes = b""
    weight: int = 1
    origin: bytes = b""


class NoInterest(msgspec.Struct, frozen=True):
    """RS- and LS-."""

    account: bytes
    subject: bytes
    queue: bytes = b""
    origin: bytes = b""


RouteEvent = Routed | Interest | NoInterest | Info | Connect | Err | Word

_connect = msgspec.json.Decoder(Connect)


def interest(one: Interest) -> bytes:
    """RS+. A queue group has a weight, always: without it the server ends the route."""
    if one.queue:
        return b"RS+ %b %b %b %d\r\n" % (one.account, one.subject, one.queue, one.weight)
    return b"RS+ %b %b\r\n" % (one.account, one.subject)


def no_interest(one: NoInterest) -> bytes:
    """RS-. It names the queue group, but no weight: with one the server ends the route."""
    return b"RS- %b %b%b\r\n" % (one.account, one.subject, b" " + one.queue if one.queue else b"")


def routed(one: Routed) -> bytes:
    """RMSG; HMSG with headers. The sender has chosen this server for each of ``queues``."""
    middle = b""
    if one.queues:
        middle = (b"+ %b " % one.reply if one.reply else b"| ") + b" ".join(one.queues) + b" "
    elif one.reply:
        middle = one.reply + b" "
    if one.headers:
        total = len(one.headers) + len(one.body)
        sizes = b"%d %d" % (len(one.headers), total)
        return b"HMSG %b %b %b%b\r\n%b%b\r\n" % (one.account, one.subject, middle, sizes, one.headers, one.body)
    return b"RMSG %b %b %b%d\r\n%b\r\n" % (one.account, one.subject, middle, len(one.body), one.body)


# --- reading -----------------------------------------------------------------------------------------------


class RouteDecoder(Decoder[RouteEvent]):
    """What one server of a cluster sends to another; LMSG, LS+ and LS- (of leaf nodes) only where its INFO asked for them."""

    __slots__ = ()
    _ops = frozenset({
        b"INFO", b"CONNECT", b"RS+", b"RS-", b"LS+", b"LS-", b"RMSG", b"HMSG", b"LMSG", b"PING", b"PONG", b"+OK", b"-ERR",
    })  # fmt: skip

    def _events(self, data: bytes) -> list[RouteEvent]:
        events: list[RouteEvent] = []
        at, end, most = 0, len(data), self.max_payload
        while at < end:
            if (quick := _quickly(data, at, most)) is not None:
                events.append(quick[0])
                at = quick[1]
                continue
            if (line := self._line(data, at)) is None:
                break
            op, rest, following = line
            if op in (b"RMSG", b"HMSG", b"LMSG"):
                message, head, size = _routed(op, rest, data, at)
                if (whole := self._payload(data, at, following, head, size)) is None:
                    break
                message.headers, message.body, following = whole
                events.append(message)
            else:
                events.append(_routing(op, rest, data, at))
            at = following
        return events


def _quickly(data: bytes, at: int, most: int) -> tuple[Routed, int] | None:
    """A whole message, and where the next line begins: with a reply and of no queue group, as nearly all that a stream brings, or
    without headers and of one queue group."""
    head, queues = 0, tuple[bytes, ...]()
    if (found := _HEADED.match(data, at) or _PLAIN.match(data, at)) is not None:
        size = int(found[4])
        if found.lastindex == 5:
            head, size = size, int(found[5])
    elif (found := _QUEUED.match(data, at)) is not None:
        size, queues = int(found[5]), (found[4],)
    else:
        return None
    body_at = found.end()
    following = body_at + size + 2
    if head > size or size > most or data[following - 2 : following] != b"\r\n":
        return None
    return Routed(
        found[1], found[2], found[3] or b"", queues, data[body_at : body_at + head], data[body_at + head : following - 2]
    ), following


def _routed(op: bytes, rest: bytes, data: bytes, at: int) -> tuple[Routed, int, int]:
    """A message without its payload, and the bytes of its headers and of all of it."""
    words = wire.words(rest, data, at)
    origin = words.pop(0) if op == b"LMSG" else b""
    sizes = 1 if op == b"RMSG" else 2
    if len(words) < 2 + sizes:
        raise wire.garbage("a message with too few words", data, at)
    account, to, *middle = words[:-sizes]
    reply, queues = _addressees(middle, data, at)
    head, size = [0, *(wire.number(word, data, at) for word in words[-sizes:])][-2:]
    return Routed(account, to, reply, queues, b"", b"", origin), head, size


def _addressees(middle: list[bytes], data: bytes, at: int) -> tuple[bytes, tuple[bytes, ...]]:
    """The reply subject and the queue groups: ``reply``, ``| queue...`` or ``+ reply queue...``."""
    if not middle:
        return b"", ()
    mark, *others = middle
    if mark == b"|" and others:
        return b"", tuple(others)
    if mark == b"+" and len(others) > 1:
        return others[0], tuple(others[1:])
    if others or mark in (b"|", b"+"):
        raise wire.garbage("a message with too few or too many words", data, at)
    return mark, ()


def _routing(op: bytes, rest: bytes, data: bytes, at: int) -> RouteEvent:
    if op == b"CONNECT":
        return wire.read_json(_connect, rest, data, at)
    if op not in (b"RS+", b"RS-", b"LS+", b"LS-"):
        return wire.simple(op, rest, data, at)
    words = wire.words(rest, data, at)
    origin = words.pop(0) if op.startswith(b"L") else b""
    if op.endswith(b"+") and len(words) == 4 and _WEIGHT.fullmatch(words[3]):
        return Interest(words[0], words[1], words[2], int(words[3]), origin)
    if op.endswith(b"+") and len(words) == 2:
        return Interest(words[0], words[1], origin=origin)
    if op.endswith(b"-") and len(words) in (2, 3):
        return NoInterest(words[0], words[1], b"".join(words[2:]), origin)
    raise wire.garbage("a subscription with too few or too many words", data, at)

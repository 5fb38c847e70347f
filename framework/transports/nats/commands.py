"""How one protocol writes what JetStream is used by: publish, subscribe and unsubscribe. No I/O here.

Clients and routes word these alike; what stands before a subject is another. Source: the client protocol and the cluster
protocol of the NATS documentation.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Commands(Protocol):
    """Of a client, or of a peer of the servers."""

    @property
    def publish(self) -> bytes:
        """What stands before the subject of a message without headers."""

    def pub(self, to: bytes, body: bytes, reply: bytes = b"", *, headers: bytes = b"") -> bytes:
        """A message; ``headers`` as ``headers.encode`` makes them."""

    def sub(self, inbox: bytes, sid: int) -> bytes: ...

    def unsub(self, inbox: bytes, sid: int) -> bytes: ...


class _OfClients(NamedTuple):
    publish: bytes = b"PUB "

    def pub(self, to: bytes, body: bytes, reply: bytes = b"", *, headers: bytes = b"") -> bytes:
        return _message((self.publish, b"HPUB "), to, body, reply, headers)

    def sub(self, inbox: bytes, sid: int) -> bytes:
        return b"SUB %b %d\r\n" % (inbox, sid)

    def unsub(self, inbox: bytes, sid: int) -> bytes:
        return b"UNSUB %d\r\n" % sid


class OfPeers(NamedTuple):
    """On a route each line names the account. A subscription has no number: it is taken back by its subject."""

    account: bytes

    @property
    def publish(self) -> bytes:
        return b"RMSG %b " % self.account

    def pub(self, to: bytes, body: bytes, reply: bytes = b"", *, headers: bytes = b"") -> bytes:
        return _message((self.publish, b"HMSG %b " % self.account), to, body, reply, headers)

    def sub(self, inbox: bytes, sid: int = 0) -> bytes:
        return b"RS+ %b %b\r\n" % (self.account, inbox)

    def unsub(self, inbox: bytes, sid: int = 0) -> bytes:
        return b"RS- %b %b\r\n" % (self.account, inbox)


OF_CLIENTS: Commands = _OfClients()


def _message(starts: tuple[bytes, bytes], to: bytes, body: bytes, reply: bytes, headers: bytes) -> bytes:
    """``starts``: what stands before the subject, without headers and with them."""
    answer = reply + b" " if reply else b""
    if headers:
        return b"%b%b %b%d %d\r\n%b%b\r\n" % (starts[1], to, answer, len(headers), len(headers) + len(body), headers, body)
    return b"%b%b %b%d\r\n%b\r\n" % (starts[0], to, answer, len(body), body)

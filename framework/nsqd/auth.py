"""AUTH: asks an HTTP server what a client may do, and keeps the answer for as long as it says.

Source: nsqd v1.3.0 internal/auth.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlencode, urlsplit

import gevent
import msgspec
from gevent import socket, ssl

from framework.decoding import UNREADABLE, prepared
from framework.errors import FrameworkError
from framework.transports.nsq.urls import split_address

SUBSCRIBE, PUBLISH = "subscribe", "publish"
_MOST = 16 << 20


class AuthFailed(FrameworkError):
    """No server gave an answer that can be used. Its words are not for the client."""


class Authorization(msgspec.Struct):
    """Topics and channels, as patterns found anywhere in a name, and what may be done there."""

    topic: str = ""
    channels: list[str] = []
    permissions: list[str] = []

    def allows(self, topic: str, channel: str) -> bool:
        """Publishing is a matter of the channel ""."""
        wanted = SUBSCRIBE if channel else PUBLISH
        return (
            wanted in self.permissions
            and re.search(self.topic, topic) is not None
            and any(re.search(pattern, channel) for pattern in self.channels)
        )


@prepared
class State(msgspec.Struct):
    """What a server said of a client; ``ttl`` in seconds."""

    ttl: int = 0
    authorizations: list[Authorization] | None = None
    identity: str = ""
    identity_url: str = ""
    expires: float = 0.0
    """Monotonic seconds."""

    def allows(self, topic: str, channel: str) -> bool:
        return any(one.allows(topic, channel) for one in self.authorizations or ())

    def stats(self) -> dict[str, Any]:
        """What /stats says of the client; nothing where there is nothing."""
        said = {"authed": bool(self.authorizations), "auth_identity": self.identity, "auth_identity_url": self.identity_url}
        return {name: value for name, value in said.items() if value}

    def check(self) -> None:
        """Raises ValueError, re.error."""
        for one in self.authorizations or ():
            for permission in one.permissions:
                if permission not in (SUBSCRIBE, PUBLISH):
                    raise ValueError(f"unknown permission {permission}")
            for pattern in (one.topic, *one.channels):
                re.compile(pattern)
        if self.ttl <= 0:
            raise ValueError(f"invalid TTL {self.ttl} (must be >0)")


class _Http(HTTPConnection):
    def connect(self) -> None:
        self.sock = socket.create_connection((self.host, self.port), self.timeout)


class _Https(HTTPSConnection):
    def connect(self) -> None:
        sock = socket.create_connection((self.host, self.port), self.timeout)
        self.sock = ssl.create_default_context().wrap_socket(sock, server_hostname=self.host)


def ask(addresses: Sequence[str], seconds: float, **about: str) -> State:
    """The first usable answer, beginning with any of the servers. Blocks. Raises AuthFailed."""
    start, failures = random.randrange(len(addresses)), []
    for address in [*addresses[start:], *addresses[:start]]:
        limit = gevent.Timeout(seconds)
        try:
            with limit:
                return _ask(address, seconds, urlencode(about))
        except (OSError, HTTPException, ValueError, re.error, *UNREADABLE) as error:
            failures.append(f"failed to auth against {address} - {error}")
        except gevent.Timeout as error:
            if error is not limit:
                raise
            failures.append(f"failed to auth against {address} - no answer within {seconds:g} s")
    raise AuthFailed("; ".join(failures))


def _ask(address: str, seconds: float, query: str) -> State:
    connection, path = _connection(address, seconds)
    try:
        connection.request("GET", f"{path}?{query}", headers={"Accept": "application/vnd.nsq; version=1.0"})
        answer = connection.getresponse()
        body = answer.read(_MOST)
    finally:
        connection.close()
    if answer.status != 200:
        raise ValueError(f"got response {answer.status} {body[:80]!r}")
    state = msgspec.json.decode(body, type=State)
    state.check()
    state.expires = time.monotonic() + state.ttl
    return state


def _connection(address: str, seconds: float) -> tuple[HTTPConnection, str]:
    if "://" not in address:
        return _Http(*split_address(address), timeout=seconds), "/auth"
    url = urlsplit(address)
    kind = _Https if url.scheme == "https" else _Http
    return kind(url.hostname or "", url.port, timeout=seconds), url.path or "/"

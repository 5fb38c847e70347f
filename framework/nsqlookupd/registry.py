"""Which nsqd has which topic and channel. A name stays when its last nsqd leaves, as in nsqlookupd. No I/O, no clock.

Source: nsqlookupd v1.3.0 registration_db.go.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

ANY = "*"
CLIENT, TOPIC, CHANNEL = "client", "topic", "channel"


class Registration(NamedTuple):
    """``key`` is a topic, ``subkey`` a channel of it; "client" is every nsqd that has said who it is."""

    category: str
    key: str = ""
    subkey: str = ""

    def matches(self, category: str, key: str, subkey: str) -> bool:
        return category == self.category and key in (ANY, self.key) and subkey in (ANY, self.subkey)


NODES = Registration(CLIENT)


@dataclass
class Peer:
    """An nsqd, as its IDENTIFY says and /lookup gives it."""

    remote_address: str = ""
    hostname: str = ""
    broadcast_address: str = ""
    tcp_port: int = 0
    http_port: int = 0
    version: str = ""


@dataclass(eq=False)
class Node:
    """The connection of an nsqd that has said who it is; ``seen``: when it last pinged, in seconds since 1970."""

    peer: Peer
    seen: float
    registrations: dict[Registration, Producer] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.peer.remote_address


@dataclass(eq=False)
class Producer:
    """An nsqd in one registration, where it can be tombstoned apart from the others."""

    node: Node
    tombstoned_at: float | None = None

    def tombstoned(self, now: float, lifetime: float) -> bool:
        return self.tombstoned_at is not None and now - self.tombstoned_at < lifetime


class Registry:
    """The registrations, in the order in which they came."""

    def __init__(self) -> None:
        self._producers: dict[Registration, dict[Node, Producer]] = {}

    def add(self, registration: Registration) -> None:
        """A name that no nsqd has yet."""
        self._producers.setdefault(registration, {})

    def remove(self, registration: Registration) -> None:
        """The name and all that have it."""
        for node in self._producers.pop(registration, {}):
            node.registrations.pop(registration, None)

    def enter(self, registration: Registration, node: Node) -> bool:
        """The nsqd has it; False when that was known."""
        known = self._producers.setdefault(registration, {})
        if node in known:
            return False
        known[node] = node.registrations[registration] = Producer(node)
        return True

    def leave(self, registration: Registration, node: Node) -> bool:
        """The nsqd has it no more; False when it never had."""
        node.registrations.pop(registration, None)
        return self._producers.get(registration, {}).pop(node, None) is not None

    def leave_all(self, node: Node) -> Iterator[Registration]:
        """The nsqd is gone: every registration that it had."""
        for registration in list(node.registrations):
            self.leave(registration, node)
            yield registration

    def empty(self, registration: Registration) -> bool:
        return not self._producers.get(registration)

    def find(self, category: str, key: str = "", subkey: str = "") -> list[Registration]:
        """The registrations; ANY stands for every key or subkey, as in nsqlookupd also where it comes from a query."""
        if ANY not in (key, subkey):
            one = Registration(category, key, subkey)
            return [one] if one in self._producers else []
        return [one for one in self._producers if one.matches(category, key, subkey)]

    def producers(self, category: str, key: str = "", subkey: str = "") -> list[Producer]:
        """Those of ``find``, each nsqd once."""
        found: dict[Node, Producer] = {}
        for registration in self.find(category, key, subkey):
            for node, producer in self._producers[registration].items():
                found.setdefault(node, producer)
        return list(found.values())

    def items(self) -> list[tuple[Registration, list[Producer]]]:
        return [(one, list(found.values())) for one, found in self._producers.items()]

"""Who wants messages of which subject: what all servers of a cluster have subscribed to, wildcards included. No I/O here.

Source: the NATS documentation of subjects (``*`` is one token, ``>`` one or more at the end); nats-server's sublist.go.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

Server = TypeVar("Server")

PLAIN = b""
"""In place of the name of a queue group: each server that subscribed so gets a copy of its own."""

_REMEMBERED = 10_000
"""Subjects."""


class Wanted(Generic[Server]):
    """Who is to get the messages of one subject."""

    __slots__ = ("groups", "plain")

    def __init__(self) -> None:
        self.plain: dict[Server, None] = {}
        self.groups: dict[bytes, dict[Server, int]] = {}
        """Queue group -> its members, with their weights: one of them is to be drawn."""

    def __bool__(self) -> bool:
        return bool(self.plain or self.groups)


_Leaf = dict[tuple[Server, bytes], int]
"""(server, queue group) -> weight: the subscriptions to one pattern."""


class _Branch(Generic[Server]):
    """A token of a pattern, and what may follow it."""

    __slots__ = ("leaf", "next")

    def __init__(self) -> None:
        self.next: dict[bytes, _Branch[Server]] = {}
        self.leaf: _Leaf[Server] = {}


class Interests(Generic[Server]):
    """The subscriptions of all servers. Those without wildcards, which nearly all are, cost one look in a dict."""

    def __init__(self) -> None:
        self._exact: dict[bytes, _Leaf[Server]] = {}
        self._root: _Branch[Server] = _Branch()
        self._of: dict[Server, dict[tuple[bytes, bytes], None]] = {}
        """Server -> the patterns and queue groups that it has subscribed to."""
        self._known: dict[bytes, Wanted[Server]] = {}
        """What was asked since the last change."""

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def add(self, server: Server, pattern: bytes, queue: bytes = PLAIN, weight: int = 1) -> None:
        """A subscription, or its new ``weight``. A weight of 0 wants nothing, and is kept all the same."""
        self._known.clear()
        self._of.setdefault(server, {})[pattern, queue] = None
        self._leaf(pattern)[server, queue] = weight

    def remove(self, server: Server, pattern: bytes, queue: bytes = PLAIN) -> None:
        """One that is not there changes nothing."""
        mine = self._of.get(server, {})
        if (pattern, queue) in mine:
            del mine[pattern, queue]
            self._known.clear()
            self._drop(server, pattern, queue)

    def forget(self, server: Server) -> None:
        """It is gone, with all that it wanted."""
        self._known.clear()
        for pattern, queue in self._of.pop(server, {}):
            self._drop(server, pattern, queue)

    def _leaf(self, pattern: bytes) -> _Leaf[Server]:
        if b"*" not in pattern and b">" not in pattern:
            if (leaf := self._exact.get(pattern)) is None:
                leaf = self._exact[pattern] = {}
            return leaf
        branch = self._root
        for token in pattern.split(b"."):
            if (after := branch.next.get(token)) is None:
                after = branch.next[token] = _Branch()
            branch = after
        return branch.leaf

    def _drop(self, server: Server, pattern: bytes, queue: bytes) -> None:
        leaf = self._leaf(pattern)
        leaf.pop((server, queue), None)
        if not leaf and self._exact.pop(pattern, None) is None:
            _prune(self._root, pattern.split(b"."))

    def wanted(self, subject: bytes) -> Wanted[Server]:
        """Who wants ``subject``, which has no wildcards. Not to be changed by the caller."""
        if (found := self._known.get(subject)) is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            found = self._known[subject] = Wanted()
            for leaf in self._leaves(subject):
                _collect(found, leaf)
        return found

    def _leaves(self, subject: bytes) -> Iterator[_Leaf[Server]]:
        if (exact := self._exact.get(subject)) is not None:
            yield exact
        if self._root.next:
            yield from _matching(self._root, subject.split(b"."), 0)

    def exactly(self, pattern: bytes) -> list[Server]:
        """Who has subscribed to ``pattern`` by itself, in no queue group; who did so last comes last."""
        return [server for server, queue in self._exact.get(pattern, ()) if queue == PLAIN]

    def patterns(self) -> set[tuple[bytes, bytes]]:
        """All that is subscribed to, each with its queue group."""
        return {one for mine in self._of.values() for one in mine}


def _matching(branch: _Branch[Server], tokens: list[bytes], at: int) -> Iterator[_Leaf[Server]]:
    if at == len(tokens):
        yield branch.leaf
        return
    if (rest := branch.next.get(b">")) is not None:
        yield rest.leaf
    for token in (tokens[at], b"*"):
        if (after := branch.next.get(token)) is not None:
            yield from _matching(after, tokens, at + 1)


def _collect(found: Wanted[Server], leaf: _Leaf[Server]) -> None:
    """Several patterns of one server may match: its weights in a queue group are added up, as a server does."""
    for (server, queue), weight in leaf.items():
        if queue == PLAIN:
            found.plain[server] = None
        elif weight > 0:
            group = found.groups.setdefault(queue, {})
            group[server] = group.get(server, 0) + weight


def _prune(branch: _Branch[Server], tokens: list[bytes]) -> None:
    """Cut what leads to nothing any more."""
    way = [branch]
    for token in tokens:
        way.append(way[-1].next[token])
    for parent, token in zip(reversed(way[:-1]), reversed(tokens), strict=True):
        child = parent.next[token]
        if child.leaf or child.next:
            break
        del parent.next[token]


def matches(pattern: bytes, subject: bytes) -> bool:
    """Whether ``pattern`` takes ``subject``."""
    wanted, tokens = pattern.split(b"."), subject.split(b".")
    if wanted[-1] == b">" and len(tokens) >= len(wanted):
        wanted, tokens = wanted[:-1], tokens[: len(wanted) - 1]
    return len(wanted) == len(tokens) and all(one in (b"*", token) for one, token in zip(wanted, tokens, strict=True))

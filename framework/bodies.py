"""Splits bodies into parts that one call of a producer can take; each body is checked and measured once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

#: How much one call of a producer is given at most: enough for full MPUBs, little enough to hold in memory.
CHUNK_MESSAGES = 1000
CHUNK_BYTES = 1_000_000


class Bodies(list[bytes]):
    """A list of bytes, none of them empty. It is not changed once it is made."""

    __slots__ = ("sizes", "total")

    def __init__(self, bodies: Iterable[bytes]) -> None:
        super().__init__(bodies)
        self.sizes = list(map(len, self))
        self.total = sum(self.sizes)


def chunks(payloads: Iterable[Any], encode: Callable[[Any], bytes]) -> Iterator[Bodies]:
    """All of ``payloads`` in their order. ``encode`` makes a body of one, and may raise."""
    if not isinstance(payloads, list | tuple):
        yield from _encoded(payloads, encode)
        return
    for start in range(0, len(payloads), CHUNK_MESSAGES):
        some = payloads[start : start + CHUNK_MESSAGES]
        if list(map(type, some)).count(bytes) == len(some):  # no Python runs for each
            bodies = Bodies(some)
            if bodies.total <= CHUNK_BYTES and all(bodies.sizes):
                yield bodies
                continue
        yield from _encoded(some, encode)


def _encoded(payloads: Iterable[Any], encode: Callable[[Any], bytes]) -> Iterator[Bodies]:
    chunk: list[bytes] = []
    size = 0
    for body in map(encode, payloads):
        if chunk and (len(chunk) == CHUNK_MESSAGES or size + len(body) > CHUNK_BYTES):
            yield Bodies(chunk)
            chunk, size = [], 0
        chunk.append(body)
        size += len(body)
    if chunk:
        yield Bodies(chunk)

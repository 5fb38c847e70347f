"""Splits bodies into parts that one call of a producer can take; each body is checked and measured once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from framework.errors import BadMessage

#: How much one call of a producer is given at most: enough for full MPUBs, little enough to hold in memory.
CHUNK_MESSAGES = 1000
CHUNK_BYTES = 1_000_000


class Bodies(list[bytes]):
    """A list of bytes, none of them empty. It is not changed once it is made."""

    __slots__ = ("before", "of", "sizes", "total")

    def __init__(self, bodies: Iterable[bytes], before: int = 0, of: int | None = None) -> None:
        """A part of what one publish was given, ``before`` of which came before it. ``of``: how many those are in all, 0 where
        that is not known; None: these alone."""
        super().__init__(bodies)
        self.before, self.of = before, of
        self.sizes = list(map(len, self))
        self.total = sum(self.sizes)


def which(bodies: Sequence[bytes], number: int) -> str:
    """The name in an error of the one that has ``number`` among ``bodies``, from 1: by its number among all of its publish."""
    before, of = (bodies.before, bodies.of) if isinstance(bodies, Bodies) else (0, None)
    return named(before + number, len(bodies) if of is None else of)


def named(number: int, of: int) -> str:
    """``of``: 0 where that is not known."""
    return f"message {number} of {of}" if of else f"message {number}"


def chunks(payloads: Iterable[Any], encode: Callable[[Any], bytes]) -> Iterator[Bodies]:
    """All of ``payloads`` in their order. ``encode`` makes a body of one, and may raise; BadMessage then says which it was."""
    if not isinstance(payloads, list | tuple):
        yield from _encoded(payloads, encode, 0, 0)
        return
    for start in range(0, len(payloads), CHUNK_MESSAGES):
        some = payloads[start : start + CHUNK_MESSAGES]
        if list(map(type, some)).count(bytes) == len(some):  # no Python runs for each
            bodies = Bodies(some, start, len(payloads))
            if bodies.total <= CHUNK_BYTES and all(bodies.sizes):
                yield bodies
                continue
        yield from _encoded(some, encode, start, len(payloads))


def _encoded(payloads: Iterable[Any], encode: Callable[[Any], bytes], before: int, of: int) -> Iterator[Bodies]:
    chunk: list[bytes] = []
    size = 0
    for number, payload in enumerate(payloads, before + 1):
        try:
            body = encode(payload)
        except BadMessage as error:
            raise BadMessage(f"{named(number, of)}: {error}") from error
        if chunk and (len(chunk) == CHUNK_MESSAGES or size + len(body) > CHUNK_BYTES):
            yield Bodies(chunk, number - 1 - len(chunk), of)
            chunk, size = [], 0
        chunk.append(body)
        size += len(body)
    if chunk:
        yield Bodies(chunk, number - len(chunk), of)

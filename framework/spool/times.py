"""When brokers took the rows of each segment in a folder, and which nodes: who wants an hour of a week opens no other segments.

It is a help only, and durable at no time: a segment of which nothing is noted is looked into. A line is a segment, and the last
line of a number counts.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.compute as pc

from framework.spool.arrow import Segment

_log = logging.getLogger(__name__)
_FILE = "times"
_LONGEST = 4000
"""Bytes of a line: so much is appended at once, whoever else appends."""
_HIGHEST = 10**18
"""Numbers that Spark's long can hold, with room for those to come."""
_SMALL = 1 << 20
"""Bytes of a file that is never worth writing anew."""


class Times(NamedTuple):
    """Of the rows of a segment."""

    first: int
    """The earliest time at which a broker took one, in ns since 1970; ``last`` is the latest."""
    last: int
    nodes: frozenset[str] | None = None
    """Each by its name or by its mark; None where they are not known."""


@lru_cache(1024)
def mark_of(node: str) -> str:
    """Stands for ``node`` in names. Where two have the same, segments of one are looked into for the other."""
    return blake2b(node.encode(), digest_size=4).hexdigest()


def of(rows: Any) -> Times:
    """``rows``: of a segment, not empty."""
    ends = pc.min_max(rows["timestamp_ns"])
    return Times(ends["min"].as_py(), ends["max"].as_py(), frozenset(pc.unique(rows["nsqd"]).to_pylist()))


def note(folder: Path, segment: Segment, rows: Any) -> None:
    """Note the times of ``segment``, which is durable. Never raises for a disk that is full."""
    first, last, nodes = of(rows)
    line = _line(segment, first, last, sorted(nodes or ()))
    if len(line) > _LONGEST:
        line = _line(segment, first, last, None)
    try:
        handle = os.open(folder / _FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(handle, line)
        finally:
            os.close(handle)
    except OSError as error:
        _log.debug("spool %s: the times of segment %d were not noted: %s", folder, segment.number, error)


def _line(segment: Segment, first: int, last: int, nodes: list[str] | None) -> bytes:
    # It begins with the end of a line that was cut short.
    return f"\n{json.dumps([segment.number, segment.rows, first, last, nodes])}\n".encode()


def known(folder: Path, segments: Iterable[Segment]) -> dict[int, Times]:
    """By number what is noted of ``segments``."""
    rows = {segment.number: segment.rows for segment in segments}
    return {number: times for number, count, times in _lines_of(folder) if rows.get(number) == count}


def highest(folder: Path) -> int:
    """The highest number of which something is noted, also of a segment that has gone; 0 where nothing is."""
    return max((number for number, _, _ in _lines_of(folder)), default=0)


class Notes:
    """``highest`` for a collector that asks before each batch: it reads what was appended since. While nobody tidies."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / _FILE
        self._read = 0
        self._highest = 0

    def highest(self) -> int:
        """As the function does."""
        try:
            with self._file.open("rb") as file:
                file.seek(self._read)
                content = file.read()
        except OSError:
            return self._highest
        content = content[: content.rfind(b"\n") + 1]  # a line may be under way
        self._read += len(content)
        self._highest = max([self._highest, *(number for number, _, _ in _parsed(content))])
        return self._highest


def _lines_of(folder: Path) -> Iterator[tuple[int, int, Times]]:
    """Number, rows and times of each line that is one."""
    try:
        content = (folder / _FILE).read_bytes()
    except OSError:
        return
    yield from _parsed(content)


def _parsed(content: bytes) -> Iterator[tuple[int, int, Times]]:
    for line in content.splitlines():
        with suppress(ValueError, TypeError, RecursionError):  # empty, cut short, or not of ours
            number, count, first, last, nodes = json.loads(line)
            if all(type(one) is int for one in (number, count, first, last)) and 0 < number <= _HIGHEST:
                yield number, count, Times(first, last, None if nodes is None else _names(nodes))


def _names(nodes: Any) -> frozenset[str]:
    if not isinstance(nodes, list) or not all(isinstance(one, str) for one in nodes):
        raise TypeError("these are no names")  # a line that is not of ours
    return frozenset(nodes)


def tidy(folder: Path, segments: Iterable[Segment]) -> None:
    """Forget those of segments that have gone, where they are many. For its collector, as long as nobody shares it."""
    file = folder / _FILE
    try:
        if not file.exists() or file.stat().st_size < _SMALL:
            return
        kept = list(segments)
        times_of = known(folder, kept)
        latest = highest(folder)
        lines = [
            _line(one, times.first, times.last, None if times.nodes is None else sorted(times.nodes))
            for one in kept
            if (times := times_of.get(one.number))
        ]
        if latest and latest not in times_of:  # it was removed, and its number is taken all the same
            lines.append(_line(Segment(latest, 0, file), 0, 0, None))
        if 2 * sum(map(len, lines)) < file.stat().st_size:
            fresh = folder / f"{_FILE}.tmp"
            fresh.write_bytes(b"".join(lines))
            os.replace(fresh, file)
    except OSError as error:
        _log.debug("spool %s: the times of segments that have gone stay: %s", folder, error)

"""When brokers took the rows of each segment in a folder, and which nodes: who wants an hour of a week opens no other segments.

It is a help only, and durable at no time: a segment of which nothing is noted is looked into. A line is a segment, and the last
line of a number counts. Each block of numbers has a file, ``times-00000000000000042000`` and the like, so that what is noted of
segments that have gone is deleted by the file, whoever else writes, and who opens reads the newest alone. Earlier versions had
one file for all, ``times``, which the first collector to open divides.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.compute as pc

from framework.spool.arrow import HIGHEST, Segment
from framework.spool.faults import check_is_file

_log = logging.getLogger(__name__)
_BLOCK = 1000
"""Numbers in a file: those from a multiple of it on, which is in its name."""
_NAME = re.compile(r"times-\d{20}")
_EARLIER = "times"
_LINE = re.compile(rb'\[(\d{1,19}), \d+, -?\d+, -?\d+, (?:null|\[(?:"(?:[^"\\]|\\.)*"(?:, )?)*\])\]\n?')
"""As all of them were written. It takes a fifth of the time that JSON takes."""
_LONGEST = 4000
"""Bytes of a line: so much is appended at once, whoever else appends."""


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
    try:
        _append(_file_of(folder, segment.number), _line(segment.number, segment.rows, of(rows)))
    except OSError as error:
        _log.debug("spool %s: the times of segment %d were not noted: %s", folder, segment.number, error)


def _append(file: Path, lines: bytes) -> None:
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o644)  # in place of it may be a FIFO
    try:
        if os.write(handle, lines) < len(lines):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(handle)


def _file_of(folder: Path, number: int) -> Path:
    return folder / f"times-{number - number % _BLOCK:020d}"


def _line(number: int, rows: int, times: Times) -> bytes:
    # It begins with the end of a line that was cut short.
    nodes = None if times.nodes is None else sorted(times.nodes)
    line = f"\n{json.dumps([number, rows, times.first, times.last, nodes])}\n".encode()
    return line if len(line) <= _LONGEST else _line(number, rows, times._replace(nodes=None))


def known(folder: Path, segments: Iterable[Segment], *, earlier: bool = True) -> dict[int, Times]:
    """By number what is noted of ``segments``, by an ``earlier`` version as well. It reads what is noted of their blocks."""
    rows = {segment.number: segment.rows for segment in segments if segment.first is None}  # a run's name says it
    if not rows:
        return {}
    found = {}
    # The file of an earlier version first: who divides it deletes it last.
    for number, count, times in _earlier(folder, rows) if earlier else ():
        if rows[number] == count:
            found[number] = times
    for file in sorted({_file_of(folder, number) for number in rows}):
        for number, count, times in _parsed(_content(file)):
            if rows.get(number) == count:
                found[number] = times
    return found


def highest(folder: Path) -> int:
    """The highest number of which something is noted, also of a segment that has gone; 0 where nothing is."""
    earlier = _earlier_highest(folder)  # first, as in ``known``
    return max(earlier, Notes(folder).highest())


class Notes:
    """``highest`` for a collector that asks before each batch: it reads what was appended since."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = _file_of(folder, 0)
        """The newest of which a line was read, up to ``_read``."""
        self._read = 0
        self._highest = 0

    def highest(self) -> int:
        """As the function does, but for what an earlier version has written."""
        for file in reversed(_files(self._folder)):
            if file < self._file:
                break
            begin = self._read if file == self._file else 0
            content = _content(file, begin)
            content = content[: content.rfind(b"\n") + 1]  # a line may be under way
            if numbers := [number for number, _, _ in _parsed(content) if _file_of(self._folder, number) == file]:
                self._file, self._read = file, begin + len(content)
                self._highest = max(self._highest, *numbers)
                break
        return self._highest


def _files(folder: Path) -> list[Path]:
    """By number."""
    try:
        return [folder / name for name in sorted(os.listdir(folder)) if _NAME.fullmatch(name)]
    except OSError:
        return []


def _content(file: Path, begin: int = 0) -> bytes:
    try:
        check_is_file(file)
        with file.open("rb") as reading:
            reading.seek(begin)
            return reading.read()
    except OSError:
        return b""


def _parsed(content: bytes) -> Iterator[tuple[int, int, Times]]:
    """Number, rows and times of each line that is one."""
    for line in content.splitlines():
        if line:
            yield from _one(line)


def _one(line: bytes) -> Iterator[tuple[int, int, Times]]:
    with suppress(ValueError, TypeError, RecursionError):  # cut short, or not of ours
        number, count, first, last, nodes = json.loads(line)
        if all(type(one) is int for one in (number, count, first, last)) and 0 < number <= HIGHEST:
            yield number, count, Times(first, last, None if nodes is None else _names(nodes))


def _names(nodes: Any) -> frozenset[str]:
    if not isinstance(nodes, list) or not all(isinstance(one, str) for one in nodes):
        raise TypeError("these are no names")  # a line that is not of ours
    return frozenset(nodes)


def _earlier(folder: Path, only: Collection[int]) -> Iterator[tuple[int, int, Times]]:
    """What an earlier version has noted of the numbers ``only``."""
    with suppress(OSError):
        for number, line in _earlier_lines(folder):
            if number in only:
                yield from _one(line)


def _earlier_highest(folder: Path) -> int:
    try:
        return max((number for number, _ in _earlier_lines(folder)), default=0)
    except OSError:
        return 0


def _earlier_lines(folder: Path) -> Iterator[tuple[int, bytes]]:
    """Raises OSError."""
    check_is_file(folder / _EARLIER)
    with (folder / _EARLIER).open("rb") as file:
        for line in file:  # they may be of years
            if (match := _LINE.fullmatch(line)) and 0 < (number := int(match[1])) <= HIGHEST:
                yield number, line


def tidy(folder: Path, segments: Sequence[Segment]) -> None:
    """Forget those of segments that have gone, or are in a run, whose name says it. ``segments``: all there are in ``folder``.

    For a collector, also while others write: what is noted of the newest number stays, and a kill anywhere inside loses nothing.
    """
    try:
        if (folder / _EARLIER).exists():
            _divide(folder, segments)
        newest = _file_of(folder, segments[-1].number if segments else 0)
        needed = {_file_of(folder, one.number) for one in segments if one.first is None}
        for file in _files(folder)[:-1]:  # the last tells the highest number, should its segment be removed by hand
            if file < newest and file not in needed:
                file.unlink(missing_ok=True)
    except OSError as error:
        _log.debug("spool %s: the times of segments that have gone stay: %s", folder, error)


def _divide(folder: Path, segments: Sequence[Segment]) -> None:
    """The file of an earlier version goes last: who is killed before that, or is one of two, leaves lines there twice."""
    rows = {one.number: one.rows for one in segments if one.first is None}
    latest, found = 0, {}
    for number, line in _earlier_lines(folder):
        latest = max(latest, number)
        for _, count, times in _one(line) if number in rows else ():
            if count == rows[number]:
                found[number] = times
    later = known(folder, segments, earlier=False)  # what has been noted since is right, whatever there is of before
    lines: dict[Path, list[bytes]] = {}
    for number, times in found.items():
        if number not in later:
            lines.setdefault(_file_of(folder, number), []).append(_line(number, rows[number], times))
    if latest and latest not in found:  # its segment was removed, and its number is taken all the same
        lines.setdefault(_file_of(folder, latest), []).append(_line(latest, 0, Times(0, 0)))
    for file, some in sorted(lines.items()):
        _append(file, b"".join(some))
    (folder / _EARLIER).unlink(missing_ok=True)

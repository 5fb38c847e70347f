"""Which segments a query needs, by what Spark tells of its filters: on ``timestamp``, ``nsqd``, ``collector`` and ``segment``.

Nothing is left out that may hold a row, and Spark filters the rows: what is not understood here costs time, and no row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from framework.spool.segment import Segment, Times
from framework.spool.times import mark_of

_LOWER, _UPPER = (EqualTo, GreaterThan, GreaterThanOrEqual), (EqualTo, LessThan, LessThanOrEqual)


@dataclass
class Wanted:
    """What all of the filters ask for together. Times are microseconds since 1970, as rows have them."""

    since: int | None = None
    until: int | None = None
    nodes: frozenset[str] | None = None
    collectors: frozenset[str] | None = None
    segments: tuple[int | None, int | None] = field(default=(None, None))

    @classmethod
    def by(cls, filters: Iterable[Filter]) -> Wanted:
        wanted = cls()
        for one in filters:
            wanted._take(one)
        return wanted

    def _take(self, one: Filter) -> None:
        column, value = ".".join(getattr(one, "attribute", ())), getattr(one, "value", None)
        if column == "timestamp" and isinstance(value, datetime) and value.tzinfo is not None:
            at = _micros(value)
            self.since = _larger(self.since, at) if isinstance(one, _LOWER) else self.since
            self.until = _smaller(self.until, at) if isinstance(one, _UPPER) else self.until
        elif column == "segment" and isinstance(value, int):
            first, last = self.segments
            self.segments = (
                _larger(first, value) if isinstance(one, _LOWER) else first,
                _smaller(last, value) if isinstance(one, _UPPER) else last,
            )
        elif column == "nsqd":
            self.nodes = _among(self.nodes, one)
        elif column == "collector":
            self.collectors = _among(self.collectors, one)

    def of(self, collector: str, some: Sequence[Segment], known: Mapping[int, Times]) -> list[Segment]:
        """Those of ``some`` that may hold a row that is asked for."""
        if self.collectors is not None and collector not in self.collectors:
            return []
        first, last = self.segments
        return [
            one for one in some
            if (first is None or one.number >= first) and (last is None or one.begins <= last)
            and self._may_hold(known.get(one.number))
        ]  # fmt: skip

    @property
    def by_times(self) -> bool:
        """Whether it matters when a segment's rows were taken, or where."""
        return self.since is not None or self.until is not None or self.nodes is not None

    def _may_hold(self, times: Times | None) -> bool:
        if times is None:
            return True
        if self.since is not None and _cut(times.last) < self.since:
            return False
        if self.until is not None and _cut(times.first) > self.until:
            return False
        if self.nodes is None or times.nodes is None:
            return True
        return any(node in times.nodes or mark_of(node) in times.nodes for node in self.nodes)


def _among(known: frozenset[str] | None, one: Filter) -> frozenset[str] | None:
    if isinstance(one, EqualTo):
        values = [one.value]
    elif isinstance(one, In):
        values = list(one.value)
    else:
        return known
    asked = frozenset(value for value in values if isinstance(value, str))  # no row equals a null
    return asked if known is None else known & asked


def _larger(one: int | None, other: int) -> int:
    return other if one is None else max(one, other)


def _smaller(one: int | None, other: int) -> int:
    return other if one is None else min(one, other)


def _cut(time: int) -> int:
    """As rows have it, in microseconds: nearer to 1970."""
    return time // 1000 if time >= 0 else -(-time // 1000)


def _micros(time: datetime) -> int:
    whole = int(time.replace(microsecond=0).timestamp())
    return whole * 10**6 + time.microsecond


class Pushing:
    """``pushFilters`` of a reader, called where the session lets Spark call it (``spark.sql.python.filterPushdown.enabled``).

    As a method of the reader it would be refused wherever the session does not: Spark tells the two apart by ``__func__``, and
    takes this one for no method of ours (docs/spark-upstream.md, 4).
    """

    def __init__(self, reader: Any, inherited: Any) -> None:
        self._reader = reader
        self.__func__ = inherited

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        self._reader.wanted = Wanted.by(filters)
        return filters  # Spark goes through the rows itself

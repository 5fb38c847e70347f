"""Makes records of a group's entries: single publishes become one, oversized ones several. Nothing is written here."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from framework.nsqd.store import record
from framework.nsqd.store.state import Declare, Entry


class _Growing(msgspec.Struct):
    """Publishes of one topic that become one record."""

    topic: int
    due: int
    parts: list[bytes] = []
    count: int = 0
    size: int = 0

    def takes(self, payload: bytes, count: int) -> bool:
        return self.count + count <= record.MAX_RECORD_MESSAGES and self.size + len(payload) <= record.MAX_RECORD_BYTES

    def add(self, payload: bytes, count: int) -> None:
        self.parts.append(payload)
        self.count += count
        self.size += len(payload)

    def entry(self) -> Entry:
        return Entry(self.topic, self.parts[0] if len(self.parts) == 1 else b"".join(self.parts), self.count, self.due)


def merge(entries: Iterable[Entry | Declare]) -> list[Entry | Declare]:
    """Single publishes of one topic become one record, oversized ones several; the order in a topic stays."""
    merged: list[Declare | _Growing] = []
    growing: dict[int, _Growing] = {}
    for entry in entries:
        if isinstance(entry, Declare):
            merged.append(entry)
            continue
        for payload, count in record.split(entry.payload, entry.count):
            grows = growing.get(entry.topic)
            if grows is None or grows.due or entry.due or not grows.takes(payload, count):
                grows = growing[entry.topic] = _Growing(entry.topic, entry.due)
                merged.append(grows)
            grows.add(payload, count)
    return [one if isinstance(one, Declare) else one.entry() for one in merged]

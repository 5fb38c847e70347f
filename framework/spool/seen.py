"""The ids that a spool has already, bounded, in memory. It does no I/O; ``spool.py`` fills it."""

from __future__ import annotations

from collections.abc import Iterable

Key = tuple[str, str, bytes]
"""(node, topic, message id and time): an id alone is not unique, nsqd makes them per topic (nsqd guid.go)."""

WINDOW = 500_000
"""How many ids are remembered at the least; about 100 bytes each, and at the most twice as many are held."""


def key_of(node: str, topic: str, message_id: bytes, timestamp: int, *, lasting: bool) -> Key:
    """What all deliveries of one message have in common, and no other message has.

    ``lasting``: whether the broker gives no id out again (``Origin.lasting_ids``). Where it may, the time at which it took the
    message tells two of one id apart, because it is the same in each delivery.
    """
    return node, topic, message_id if lasting else b"%b %d" % (message_id, timestamp)


class Seen:
    """A set of keys that forgets the oldest by generations.

    Two sets that rotate, because removing single old keys from one ordered set costs quadratic time
    (measured: 61 CPU seconds in place of 4.6 for a million messages).
    """

    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        self._young: dict[tuple[str, str], set[bytes]] = {}
        self._old: dict[tuple[str, str], set[bytes]] = {}
        self._count = 0

    def __contains__(self, key: Key) -> bool:
        source, message_id = key[:2], key[2]
        return message_id in self._young.get(source, ()) or message_id in self._old.get(source, ())

    def update(self, keys: Iterable[Key]) -> None:
        for node, topic, message_id in keys:
            self._young.setdefault((node, topic), set()).add(message_id)
            self._count += 1
        if self._count >= self._window:
            self._old, self._young, self._count = self._young, {}, 0

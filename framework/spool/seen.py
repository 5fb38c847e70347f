"""The ids that a spool has already, bounded, in memory. It does no I/O; ``spool.py`` fills it."""

from __future__ import annotations

from collections.abc import Iterable

Key = tuple[str, str, bytes]
"""(node, topic, message id and time): an id alone is not unique, nsqd makes them per topic (nsqd guid.go)."""

WINDOW = 500_000
"""How many ids are remembered at the least; about 100 bytes each."""
REMEMBER = 180.0
"""For how many seconds at the least: three times as long as nsqd's own lease (``--msg-timeout`` 60 s)."""
_PARTS = 3
_NSQ_DIGITS = 16


def key_of(node: str, topic: str, message_id: bytes, timestamp: int, *, lasting: bool) -> Key:
    """What all deliveries of one message have in common, and no other message has.

    ``node``: "" where ids tell it by themselves. ``lasting``: whether the broker gives no id out again (``Origin.lasting_ids``).
    Where it may, the time at which it took the message tells two of one id apart, because it is the same in each delivery.
    """
    return node, topic, message_id if lasting else b"%b %d" % (message_id, timestamp)


def node_id_of(message_id: bytes) -> int | None:
    """The ``--node-id`` of the nsqd that made an id (nsqd guid.go: 10 bits, over 12 of a sequence); None of another broker's."""
    if len(message_id) != _NSQ_DIGITS:
        return None
    try:
        return int(message_id, 16) >> 12 & 0x3FF
    except ValueError:
        return None


class Seen:
    """A set of keys that forgets the oldest by generations.

    It knows ``window`` keys and those of ``seconds`` at the least, and holds up to a third more.

    A few sets that rotate, because removing single old keys from one ordered set costs quadratic time
    (measured: 61 CPU seconds in place of 4.6 for a million messages).
    """

    def __init__(self, window: int = WINDOW, seconds: float = REMEMBER) -> None:
        self.seconds = seconds
        self._window = window
        self._generations: list[dict[tuple[str, str], set[bytes]]] = [{}]
        """The youngest first."""
        self._count = 0
        self._began: float | None = None
        """When the first key of the youngest came."""

    def __contains__(self, key: Key) -> bool:
        source, message_id = key[:2], key[2]
        for some in self._generations:  # noqa: SIM110 (``any`` of a generator costs more, for every message)
            if message_id in some.get(source, ()):
                return True
        return False

    def update(self, keys: Iterable[Key], at: float) -> None:
        """``at``: when they were landed, in seconds since any moment. Where clocks differ, time begins anew with the earliest."""
        self._began = at if self._began is None else min(self._began, at)
        young = self._generations[0]
        for node, topic, message_id in keys:
            young.setdefault((node, topic), set()).add(message_id)
            self._count += 1
        if self._count * _PARTS >= self._window and (at - self._began) * _PARTS >= self.seconds:
            self._generations = [{}, *self._generations[:_PARTS]]
            self._count, self._began = 0, None

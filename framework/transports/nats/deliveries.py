"""What JetStream has delivered on one connection: where each message in flight is settled, and which came again. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from framework.message import Message
from framework.transports.contract import TOUCH_AT
from framework.transports.nats import headers, wire
from framework.transports.nats.history import Mark
from framework.transports.nats.leases import Leases
from framework.transports.nats.settling import metadata, snapshot


class Deliveries:
    """Of ``connection``, whose ``in_flight`` it fills. Times are monotonic, in seconds."""

    def __init__(self, connection: Any, leases: Leases, *, counts: bool) -> None:
        """``counts``: the server counts deliveries right."""
        self._connection = connection
        self._in_flight: dict[Message, float] = connection.in_flight
        self._leases = leases
        self._counts = counts
        self.replies: dict[Message, bytes] = {}
        """Where each message in flight is settled."""
        self._touched: dict[bytes, float] = {}
        """What was touched in the hub's place before the hub had read it: reply -> when."""
        self._again: list[Message] = []
        """What came lately, and not for the first time."""
        self._markers: list[Message] = []
        """What came lately, and no publisher has written: JetStream puts it where the last message of a subject was, when that
        is too old (``subject_delete_marker_ttl``)."""

    def message(self, said: wire.Msg, at: float) -> Message:
        """Of ``said``, in flight since ``at``. Raises ProtocolError where it is none of JetStream's."""
        attempts, sequence, timestamp = metadata(said.reply)
        message = Message(
            sequence, timestamp, attempts if self._counts else 1, said.body, self._connection,
            headers.for_handlers(said.headers),
        )  # fmt: skip
        self.replies[message] = said.reply
        self._in_flight[message] = self._touched.pop(said.reply, at) if self._touched else at
        if not said.body and headers.find(said.headers, b"Nats-Marker-Reason"):
            self._markers.append(message)
        if attempts > 1:
            self._again.append(message)
        return message

    def joined(self, batch: list[Message], finishing: Callable[[], list[bytes]]) -> bool:
        """Takes out of ``batch`` what is held here already: a server delivers early after a restart, or when leases have become
        shorter. It is run once, and settled where it came last. Returns whether there was any.

        What is ``finishing`` is not run again either: what is said of it settles it, wherever it came."""
        if not self._again:
            return False
        said = {metadata(reply)[1:] for reply in finishing()}
        for newer in [one for one in self._again if (one.id, one.timestamp) in said]:
            self._again.remove(newer)
            self._in_flight.pop(newer)
            self.replies.pop(newer)
            batch.remove(newer)
        again, self._again = {(one.id, one.timestamp): one for one in self._again}, []
        found = [(one, again[key]) for one in self._in_flight if (key := (one.id, one.timestamp)) in again]
        twice = [(held, newer) for held, newer in found if held is not newer]
        for held, newer in twice:
            self._in_flight.pop(held)
            self._in_flight[held] = self._in_flight.pop(newer)
            self.replies[held] = self.replies.pop(newer)
            self._leases.drop(held)
            batch.remove(newer)
        return bool(twice)

    def published(self, batch: list[Message]) -> list[Message]:
        """Without the markers in ``batch``, which are finished: they are no messages for a handler."""
        markers, self._markers = self._markers, []
        for marker in markers:
            if marker in batch:
                batch.remove(marker)
                self._connection.finish(marker)
        return batch

    def due(self, heard: list[wire.Msg], now: float, expired: Collection[Message], lease: float) -> list[bytes]:
        """In another thread: where to touch now what is in flight, and what was ``heard`` meanwhile."""
        some = snapshot(self._in_flight.items())
        due = [self.replies.get(one, b"") for one in self._leases.due(some, now, expired)]
        for said in heard:
            if said.reply and now - self._touched.get(said.reply, 0.0) >= lease * TOUCH_AT:
                self._touched[said.reply] = now
                due.append(said.reply)
        return [reply for reply in due if reply]

    def marks(self, finished: Iterable[bytes]) -> tuple[list[Mark], list[Mark]]:
        """Of what is in flight, and of what was delivered to be settled at ``finished``."""
        held = [Mark(int(message.id), message.timestamp) for message in self._in_flight]
        return held, [Mark(int(sequence), timestamp) for _, sequence, timestamp in map(metadata, finished)]

    def clear(self) -> None:
        self._in_flight.clear()
        self.replies.clear()
        self._markers.clear()

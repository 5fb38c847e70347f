"""Messages that were stored in another topic and then finished, as dead letters or to wait: counts a finish that is refused
later."""

from __future__ import annotations

from typing import Any

from framework.engine.ledger import Ledger
from framework.message import Message

REMEMBERED = 1000
"""Messages of a handler; brokers refuse a finish within milliseconds, and few messages end in this way."""


class Elsewhere:
    """Keeps the ``ledger`` right: the finish of such a message belongs to ``dead`` or ``requeued``, unless it is refused."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._dead: dict[tuple[Any, bytes], bool] = {}
        """(connection, id) -> whether it is a dead letter; else it waits."""

    def finished(self, message: Message, *, dead: bool) -> None:
        """Its finish has been handed to its connection."""
        if dead:
            self._ledger.dead_lettered()
        else:
            self._ledger.deferred()
        while len(self._dead) >= REMEMBERED:
            del self._dead[next(iter(self._dead))]
        self._dead[message.connection, message.id] = dead

    def refused(self, connection: Any, message_id: bytes) -> None:
        """A settlement on ``connection`` was refused; nothing changes if it was no such message's."""
        dead = self._dead.pop((connection, message_id), None)
        if dead:
            self._ledger.not_dead_lettered()
        elif dead is not None:
            self._ledger.not_deferred()

    def closed(self, connection: Any) -> None:
        """No more is learned of its messages."""
        for key in [key for key in self._dead if key[0] is connection]:
            del self._dead[key]

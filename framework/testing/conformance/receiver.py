"""A strict receiver for tests of a connection: checks at each call what a connection may tell the engine, and when. It handles
nothing."""

from __future__ import annotations

from collections.abc import Callable

from framework.engine.ledger import Ledger
from framework.message import Message
from framework.transports.contract import Connection


class StrictReceiver:
    """``contract.Receiver`` for one connection. ``wrongs`` is what was against the contract: nothing may be raised on the hub."""

    def __init__(self) -> None:
        self.tally = Ledger()
        self.capacity = 10
        self.taken: list[Message] = []
        """All that was delivered, in order."""
        self.lost_messages: list[Message | None] = []
        self.drains = self.closings = 0
        self.most_granted = 0
        """The highest grant so far; what came under it cannot be recalled."""
        self.wrongs: list[str] = []

    def deliver(self, connection: Connection, batch: list[Message]) -> None:
        self._must(not self.closings, "it delivered after it had closed")
        self._must(not self.drains, "it delivered after it had drained")
        self._must(bool(batch), "it delivered an empty batch")
        known = {id(message) for message in self.taken}
        for message in batch:
            self._must(message in connection.in_flight, f"it delivered {message.body!r}, which is not in its in_flight")
            self._must(id(message) not in known, f"it delivered the same Message object twice: {message.body!r}")
            self._must(message.connection is connection, f"{message.body!r} names another connection")
        self.taken += batch
        in_flight = len(connection.in_flight)
        self._must(connection.exposed >= in_flight, f"it is exposed to {connection.exposed}, and {in_flight} are in flight")
        self._must(
            in_flight <= self.most_granted, f"{in_flight} are in flight, and no more than {self.most_granted} were granted"
        )
        self._must(self.tally.received == len(self.taken), f"it counts {self.tally.received} of {len(self.taken)} delivered")

    def settled(self, connection: Connection) -> None:
        self._must(not self.closings, "it said `settled` after it had closed")

    def lost(self, connection: Connection, message: Message | None, words: str, *, settled: bytes = b"") -> None:
        self._must(bool(words), "it lost a lease without a word")
        self._must(message is None or message not in connection.in_flight, "a lost message is still in its in_flight")
        self.lost_messages.append(message)

    def drained(self, connection: Connection) -> None:
        self.drains += 1
        self._must(self.drains == 1, "it said twice that it had drained")

    def closed(self, connection: Connection, error: Exception | None) -> None:
        self.closings += 1
        self._must(self.closings == 1, "it said twice that it had closed")
        self._must(not connection.in_flight, f"it closed with {len(connection.in_flight)} in flight")
        self._must(connection.granted == 0, f"it closed with a grant of {connection.granted}")
        self._must(connection.exposed == 0, f"it closed, and may still have {connection.exposed} come")
        self._must(self.tally.balance(0) == 0, f"it closed, and its books do not add up: {self.tally}")

    def _must(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.wrongs.append(otherwise)


class Held:
    """A connection without a worker: the case itself says what the engine would say."""

    def __init__(self, connect: Callable[[StrictReceiver], Connection]) -> None:
        self.receiver = StrictReceiver()
        self.connection = connect(self.receiver)
        self.receiver._must(self.connection.granted == 0, "it began with a grant")

    @property
    def taken(self) -> list[Message]:
        """All that was delivered, in order."""
        return self.receiver.taken

    @property
    def tally(self) -> Ledger:
        return self.receiver.tally

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.taken]

    def grant(self, n: int) -> None:
        self.receiver.most_granted = max(self.receiver.most_granted, n)
        self.connection.grant(n)

    def balanced(self) -> bool:
        """All that was settled has left, and the books add up."""
        return not self.connection.unsent() and self.tally.balance(len(self.connection.in_flight)) == 0

    def check(self) -> None:
        """Fails if the connection broke the contract so far."""
        assert self.receiver.wrongs == []

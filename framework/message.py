"""What a handler receives: a Message, or a Batch of them. Nothing here knows a broker or does I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol, overload

import msgspec


class Origin(Protocol):
    """What a message needs of the connection that it came on; ``transports.contract.Connection`` is more."""

    node: str
    topic: str
    channel: str
    in_flight: dict[Message, float]

    def touch(self, message: Message) -> None: ...


class Message(msgspec.Struct, gc=False, eq=False):
    """One delivery of one message.

    Two deliveries of the same message are two objects: identity, not the id, tells them apart, because a
    broker may deliver the same id again to the same connection. ``gc=False`` is safe because a connection
    empties its ``in_flight`` when it closes, which is the only cycle a message is part of.
    """

    id: bytes
    """The broker's id (NSQ: 16 hexadecimal characters). Unique only per (node, topic)."""
    timestamp: int
    """When the broker took the message, in nanoseconds since 1970."""
    attempts: int
    """How often it has been delivered, this delivery included; counted by the broker."""
    body: bytes
    connection: Any
    """Where it came from; a ``transports.contract.Connection``."""

    @property
    def topic(self) -> str:
        return self._connection.topic

    @property
    def channel(self) -> str:
        return self._connection.channel

    @property
    def node(self) -> str:
        """The broker it came from, ``host:port``."""
        return self._connection.node

    @property
    def published(self) -> datetime:
        """``timestamp`` as a datetime in UTC."""
        return datetime.fromtimestamp(self.timestamp / 1e9, UTC)

    @property
    def settled(self) -> bool:
        """Whether it was finished or requeued, or its lease was lost."""
        return self not in self._connection.in_flight

    def touch(self) -> None:
        """Start the lease anew. The runtime does this by itself while the handler runs."""
        self._connection.touch(self)

    @property
    def _connection(self) -> Origin:
        return self.connection  # type: ignore[no-any-return]


class Batch(Sequence[Message]):
    """The messages of one call of a batch handler, each with its own outcome.

    Returning finishes every message that was not named in ``fail``; raising requeues all, and raising Reject dead-letters all.
    """

    __slots__ = ("_messages", "outcomes")

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        self.outcomes: dict[Message, Exception] = {}
        """Message -> the exception (Retry, Reject, ...) it shall be settled by, in place of finish."""

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        return self._messages[index]

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    def fail(self, message: Message, error: Exception) -> None:
        """Settle this one message as if its own handler had raised ``error``; the others are not touched."""
        self.outcomes[message] = error

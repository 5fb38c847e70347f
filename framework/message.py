"""What a handler receives: a Message, or a Batch of them. Nothing here knows a broker or does I/O."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, overload
from weakref import WeakKeyDictionary

import msgspec

from framework.errors import Skip, WrongUse, shown
from framework.headers import NONE, Headers

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Item = TypeVar("Item", default="Message")
else:  # Python 3.11 knows no defaults, and at run time none is needed
    from typing import TypeVar

    Item = TypeVar("Item")


class Origin(Protocol):
    """What a message needs of the connection that it came on; ``transports.contract.Connection`` is more."""

    node: str
    topic: str
    channel: str
    lasting_ids: bool
    """Whether no other message of the topic ever gets the id of one, whatever becomes of the node; then its ``timestamp`` may
    differ from delivery to delivery. Else an id may come again, and ``timestamp`` is the same in each delivery."""
    in_flight: dict[Message, float]

    def touch(self, message: Message) -> None: ...


class Calls(Protocol):
    """What calls the handler for the messages of a connection. All of it may be asked from any thread."""

    def ends_at(self, message: Message) -> float | None:
        """Monotonic time at which the call that has ``message`` must be over; None when no call has it."""

    def lost(self, message: Message) -> bool:
        """Whether a call still runs for ``message`` although it is no longer ours to settle."""

    def touch(self, message: Message) -> None:
        """Start its lease anew."""


calls_of: WeakKeyDictionary[Any, Calls] = WeakKeyDictionary()
"""Connection -> what calls the handler for its messages. Here, and not in every message, because few handlers ask."""


class Message(msgspec.Struct, gc=False, eq=False):
    """One delivery of one message.

    Two deliveries of the same message are two objects: identity, not the id, tells them apart, because a
    broker may deliver the same id again to the same connection. ``gc=False`` is safe because a connection
    empties its ``in_flight`` when it closes, which is the only cycle a message is part of.
    """

    id: bytes
    """The broker's id (NSQ: 16 hexadecimal characters). Unique only per (node, topic), and where a broker's ids do not last
    (``Origin.lasting_ids``) only together with ``timestamp``."""
    timestamp: int
    """When the broker took the message, in nanoseconds since 1970."""
    attempts: int
    """How often it has been delivered, this delivery included; counted by the broker. What this worker has given back, or lost,
    before it could be started does not count."""
    body: bytes
    connection: Any
    """Where it came from; a ``transports.contract.Connection``."""
    headers: Headers = NONE
    """What its publisher gave it beside the body; empty, and the same object for all, where that is nothing."""

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

    @property
    def seconds_left(self) -> float:
        """Seconds until its handler's time is over, negative past it; infinite when no handler has it."""
        calls = calls_of.get(self.connection)
        ends_at = calls.ends_at(self) if calls is not None else None
        return math.inf if ends_at is None else ends_at - monotonic()

    @property
    def deadline(self) -> datetime | None:
        """When its handler's time is over, in UTC by this machine's clock; None when no handler has it.

        For what takes a point in time. ``seconds_left`` is exact also when the clock is set.
        """
        left = self.seconds_left
        return None if left == math.inf else datetime.now(UTC) + timedelta(seconds=left)

    @property
    def lease_lost(self) -> bool:
        """For its handler while it runs: whether the message is no longer its own, and is delivered again whatever it does.

        The connection has ended, the broker has given the message to another worker, or the time of the handler is over and the
        message was given back. A thread cannot be interrupted: for a handler in a thread this is the sign to stop.
        """
        calls = calls_of.get(self.connection)
        return calls is not None and calls.lost(self)

    def touch(self) -> None:
        """Start the lease anew. The runtime does this by itself while the handler runs. Raises AlreadySettled."""
        (calls_of.get(self.connection) or self._connection).touch(self)

    @property
    def _connection(self) -> Origin:
        return self.connection  # type: ignore[no-any-return]


class Unreadable(Message, gc=False, eq=False, kw_only=True):
    """One whose body its publisher packed in a way that cannot be undone, or so it says: no handler gets it. ``body`` is as it
    came."""

    why: str
    """In a sentence."""


class Batch(Sequence[Item]):
    """The messages of one call of a batch handler, each with its own outcome; a ``Batch[Order]`` has what they decode to.

    Returning finishes every message that was not named in ``fail``; raising requeues the others, Reject dead-letters them.
    """

    __slots__ = ("_items", "messages", "outcomes")

    def __init__(
        self,
        messages: Sequence[Message],
        items: Sequence[Item] | None = None,
        outcomes: dict[Message, Exception] | None = None,
    ) -> None:
        self.messages = messages
        """That of each item, in the same order."""
        self._items: Sequence[Any] = messages if items is None else items
        self.outcomes: dict[Message, Exception] = {} if outcomes is None else outcomes
        """Message -> the exception (Retry, Reject, ...) it shall be settled by, in place of finish."""

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | Sequence[Item]:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    def fail(self, item: Item | Message, error: Exception | type[Exception]) -> None:
        """Settle this one as if its own handler had raised ``error``, a class as well; the others are not touched.

        ``item``: of this batch, that very object and not one that equals it, or its Message. Where one object is in it several
        times, as equal short strings may be, all of these fail. Raises WrongUse for what is not in the batch, and for what is
        no exception.
        """
        raised = _as_raised(error)
        if isinstance(item, Message):
            self.outcomes[item] = raised
            return
        found = [message for message, one in zip(self.messages, self._items, strict=True) if one is item]
        if not found:
            raise WrongUse(f"fail({shown(item)}): that is no item of this batch: give the item itself, or its Message")
        self.outcomes.update(dict.fromkeys(found, raised))

    def skip(self, message: Message) -> None:
        """Finish this one. The handler does not get it, where a middleware says so before its call."""
        self.fail(message, Skip())


def _as_raised(error: object) -> Any:
    """The exception that ``raise error`` would raise."""
    made = error() if isinstance(error, type) and issubclass(error, BaseException) else error
    if not isinstance(made, BaseException):
        raise WrongUse(f"fail(..., {shown(error)}): that is no exception: give one, as Reject({shown(error)})")
    return made

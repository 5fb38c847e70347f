"""The messages that one consumer has in flight, in the order in which their leases end."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from framework.alarm import Alarm


class Message(msgspec.Struct, gc=False):
    """One message of one channel while the channel holds it in memory. Times in monotonic seconds."""

    seq: int
    ts: int
    attempts: int
    body: bytes | None
    """None: to be read from the log when it is its turn."""
    delivered: float = 0.0
    deadline: float = 0.0
    has_row: bool = False
    """The storage has a row for it, which must go when it is finished."""
    not_before: int = 0
    """It is delivered again when the channel's cursor has come here: requeueing is to the tail."""

    @property
    def id(self) -> bytes:
        """As on the wire: 16 hexadecimal characters."""
        return b"%016x" % self.seq


class Leases:
    """In flight at one consumer. Outlives the consumer: nsqd requeues on timeout, not on disconnect."""

    def __init__(self, duration: float, max_duration: float, expired: Callable[[Leases, Message], None]) -> None:
        """``duration`` is the consumer's msg_timeout, ``max_duration`` what touching can reach; in seconds."""
        self.duration = duration
        self.max_duration = max_duration
        self.messages: dict[bytes, Message] = {}
        """By id. All leases being equally long, this is the order in which they end, but for those near ``max_duration``."""
        self._expired = expired
        self._capped: dict[bytes, Message] = {}
        self._alarm = Alarm(self._ring)

    def arm(self) -> None:
        """To be called after messages were added."""
        if self.messages:
            self._alarm.set(next(iter(self.messages.values())).deadline)

    def touch(self, message_id: bytes) -> bool:
        """Start the lease anew, up to the maximum counted from delivery; False when it is not in flight here."""
        message = self.messages.pop(message_id, None)
        if message is None:
            return False
        self.messages[message_id] = message
        message.deadline = time.monotonic() + self.duration
        latest = message.delivered + self.max_duration
        if message.deadline >= latest:
            # Out of order among the others: watched on its own.
            message.deadline = latest
            self._capped[message_id] = message
        self._alarm.set(message.deadline)
        return True

    def forget_bodies(self) -> None:
        """Have them read again where a message is delivered again: the consumer is gone, and its leases may be long."""
        for message in self.messages.values():
            message.body = None

    def clear(self) -> None:
        self.messages.clear()
        self._capped.clear()
        self._alarm.cancel()

    def _ring(self) -> None:
        now = time.monotonic()
        self._end_capped(now)
        while self.messages:
            first = next(iter(self.messages))
            message = self.messages[first]
            if message.deadline > now:
                break
            del self.messages[first]
            self._expired(self, message)
        self.arm()
        for message in self._capped.values():
            self._alarm.set(message.deadline)

    def _end_capped(self, now: float) -> None:
        for message_id, message in list(self._capped.items()):
            if self.messages.get(message_id) is not message:
                del self._capped[message_id]
            elif message.deadline <= now:
                del self._capped[message_id], self.messages[message_id]
                self._expired(self, message)

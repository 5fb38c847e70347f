"""Keeps a connection and its leases while the hub is blocked; runs in another thread, and is handed to the hub after. No I/O
and no lock here.

It reads, because nsqd gives up writing to a socket that stays full. What it reads it also touches, or the messages would be
delivered again while they wait for the hub.
"""

from __future__ import annotations

from collections.abc import Collection, Container

from framework.errors import BrokerError, ProtocolError
from framework.message import Message
from framework.transports.contract import TOUCH_AT
from framework.transports.nsq import wire


class Rescue:
    """The state of one time that the hub was blocked, on one connection. The caller holds the lock of the connection."""

    __slots__ = ("error", "finished", "frames", "given_back", "heartbeats", "messages", "requeued", "since")

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.frames: list[bytes | BrokerError] = []
        self.since: dict[Message, float] = {}
        """Message -> when it was received or touched here, the oldest first."""
        self.given_back: dict[Message, None] = {}
        """Requeued here, because the worker stops."""
        self.heartbeats = 0
        """Not answered yet."""
        self.finished = self.requeued = 0
        self.error: ProtocolError | None = None

    def heard(self, messages: list[Message], frames: list[bytes | BrokerError], now: float) -> None:
        self.messages += messages
        self.since.update(dict.fromkeys(messages, now))
        for frame in frames:
            if frame == wire.HEARTBEAT:
                self.heartbeats += 1
            else:
                self.frames.append(frame)

    def touch(self, in_flight: dict[Message, float], lease: float, now: float, expired: Collection[Message]) -> list[bytes]:
        """The ids of what was received or last touched a third of a lease ago, on the hub or here, and is not ``expired``."""
        since = self.since
        kept = dict(_snapshot(in_flight)) | dict.fromkeys(self.messages, now)  # what the hub has settled meanwhile is not
        due = [one for one, at in kept.items() if now - since.get(one, at) >= lease * TOUCH_AT and not self._past(one, expired)]
        for message in due:
            since.pop(message, None)
            since[message] = now
        return [message.id for message in due]

    def _past(self, message: Message, expired: Collection[Message]) -> bool:
        return message in expired or message in self.given_back

    def give_back(self, in_flight: dict[Message, float], kept: Container[Message]) -> list[bytes]:
        """The commands that requeue at once what is in flight, or came here, and is not ``kept``."""
        ours = [one for one, _ in _snapshot(in_flight)] + self.messages
        doomed = [one for one in dict.fromkeys(ours) if one not in kept and one not in self.given_back]
        self.given_back.update(dict.fromkeys(doomed))
        return [wire.req(one.id, 0) for one in doomed]

    def commands(self, touches: list[bytes], fins: list[bytes], reqs: list[bytes], others: list[bytes]) -> bytes:
        """What to send, in the hub's order; counted as sent."""
        self.finished += len(fins)
        self.requeued += len(reqs)
        answers, self.heartbeats = wire.NOP * self.heartbeats, 0
        joined = (wire.touch(touches) if touches else b"") + (wire.fin(fins) if fins else b"")
        return b"".join([joined, *reqs, *others, answers])


def taken(waiting: list[bytes]) -> list[bytes]:
    """All of it, from a list to which the hub may be adding: each step is one that nothing interrupts."""
    count = len(waiting)
    some = waiting[:count]
    del waiting[:count]
    return some


def _snapshot(in_flight: dict[Message, float]) -> list[tuple[Message, float]]:
    while True:
        try:
            return list(in_flight.items())
        except RuntimeError:  # the hub goes on, and changed it: the garbage collector may run in the middle of this
            continue

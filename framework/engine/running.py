"""The running calls of one handler, in whatever kind of slot. Other threads may ask: the handler itself, and the guardian."""

from __future__ import annotations

from typing import Any

from gevent import monkey

from framework.engine.remote_slots import Call, RemoteSlots, messages_of
from framework.engine.slots import Slots
from framework.errors import AlreadySettled
from framework.message import Message
from framework.observe import hublog

log = hublog.get(__name__)

_get_ident = monkey.get_original("_thread", "get_ident")


class RunningCalls:
    """``message.Calls`` for one handler. Made on the hub's thread, asked from any."""

    def __init__(self, hub: Any, timeout: float, slots: Slots, remote: RemoteSlots | None) -> None:
        self._loop = hub.loop
        self._thread = _get_ident()
        self._timeout = timeout
        self._slots = slots
        self._remote = remote

    def ends_at(self, message: Message) -> float | None:
        call = self._find(message)
        return call.started + self._timeout if call else None

    def lost(self, message: Message) -> bool:
        return message.settled and self._find(message) is not None

    def touch(self, message: Message) -> None:
        if message.settled or _get_ident() == self._thread:
            message.connection.touch(message)  # of one that is settled it raises, and changes nothing
        else:
            self._loop.run_callback_threadsafe(_touch, message)

    @property
    def computing(self) -> bool:
        """Whether the hub's thread is in a call at this moment."""
        return self._slots.computing

    @property
    def threads(self) -> list[int]:
        """The native threads in which calls run at this moment."""
        calls = self._remote.running() if self._remote is not None else []
        return [call.thread for call in calls if call.thread]

    def calls(self) -> list[Call]:
        """Those that run at this moment, also those that were told that their time is over."""
        return self._remote.running() if self._remote is not None else list(self._slots.busy())

    def messages(self) -> set[Message]:
        """What is with a call at this moment."""
        calls: list[Call] = list(self._slots.busy())
        return {message for call in calls for message in messages_of(call.job)}

    def expired(self, now: float) -> set[Message]:
        """What has been with its call for longer than it may be; its lease is not kept any more."""
        late = [slot.job for slot in self._slots.busy() if now - slot.started > self._timeout]
        return {message for job in late for message in messages_of(job)}

    def _find(self, message: Message) -> Call | None:
        calls: list[Call] = list(self._slots.busy())
        if self._remote is not None:
            calls += self._remote.running()
        return next((call for call in calls if message in messages_of(call.job)), None)


def _touch(message: Message) -> None:
    try:
        message.connection.touch(message)
    except AlreadySettled:
        log.debug("a touch of message %r came when it was settled", message.id)

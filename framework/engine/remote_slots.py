"""Where calls run that do not run on the hub: what thread slots and process slots have in common. Greenlets need none of it.

A slot stays a greenlet in each kind: it waits here for its call. So time limits, leases, the order of stopping and the policies
for a failed message are the same code. Only the function itself runs elsewhere, in one of as many remote slots.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from greenlet import getcurrent  # type: ignore[import-untyped]

from framework.errors import BadHandler
from framework.message import Batch, Message


class Call(Protocol):
    """One call, in a slot or in a remote slot."""

    started: float
    """Monotonic."""
    thread: int
    """The native thread that it runs in; 0 for none of its own."""

    @property
    def job(self) -> Message | Sequence[Message] | None: ...


class RemoteSlots(Protocol):
    """The remote slots of one handler. All but ``running`` is for the hub's thread."""

    refusal: BadHandler | None
    """Why no remote slot can ever be had."""

    @property
    def usable(self) -> int:
        """How many can take a call now or after the one that they have; 0: nothing can be handled."""

    def call(self, job: Message | Batch) -> None:
        """Have ``job`` handled in a free remote slot, and wait for it; raises what the handler raised.

        What is thrown into the waiting greenlet ends the wait, and the call as far as it can be ended."""

    def wait(self) -> bool:
        """Wait until one is free; False when there will be none."""

    def resize(self, size: int) -> None:
        """Have ``size`` of them. What runs in those that are too many ends as it would."""

    def running(self) -> list[Call]:
        """What runs, calls included whose slot waits no more. May be asked from any thread."""

    @property
    def ended(self) -> bool:
        """After ``close``: whether all has ended that will."""

    def look(self, now: float) -> None:
        """Called every 100 ms: say what has gone wrong."""

    def close(self) -> None:
        """Wake the slots that wait, and end what can be ended."""


class Queue:
    """The slots that wait for a remote slot, in their order."""

    def __init__(self, hub: Any) -> None:
        self._hub = hub
        self._waiting: deque[Any] = deque()

    def wait(self) -> None:
        """Leave the hub to others until ``wake``."""
        me = getcurrent()
        self._waiting.append(me)
        try:
            while me in self._waiting:  # a spurious wake-up would leave it listed, to be woken in the middle of a call
                self._hub.switch()
        except BaseException:
            if me in self._waiting:
                self._waiting.remove(me)
            raise

    def wake(self) -> bool:
        """Let the first go on, before this returns; False when none waits. Call it on the hub only."""
        if not self._waiting:
            return False
        self._waiting.popleft().switch()
        return True


def messages_of(job: Message | Sequence[Message] | None) -> Sequence[Message]:
    if job is None:
        return ()
    return (job,) if isinstance(job, Message) else job

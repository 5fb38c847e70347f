"""The publishers that wait for answers on one link: each for one command, or for several of which many are under way.

What goes out on the socket, and what its answers mean, is ``publish_link``'s.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import Protocol

from gevent.hub import Waiter

from framework.errors import PublishError
from framework.transports.publish_link import NotStored

UNKNOWN = "whether the messages are stored is not known, and publishing them again may double them"
WINDOW = 100
"""Commands of one ``ask_each`` that are under way at a time: more gain nothing, and all would be in doubt after a cut."""
REFILL = WINDOW // 4
"""Answers after which the window is filled again: nsqd must not run out of commands while we are on our way."""


class Asker(Protocol):
    """A publisher that waits for an answer. Called in the hub, in the order of its commands."""

    def switch(self, outcome: Exception | None, /) -> object: ...


Pending = tuple[Asker, int, float, float]
"""A command whose answer is awaited: its publisher; where its last byte lies in the stream of all commands; since when; until
when. A plain tuple, because every publish makes one."""


class NoAnswer(PublishError):
    """None came in time. nsqd may have stored the messages, or may do so yet."""


class Nobody:
    """The publisher that waited for the answer waits no more."""

    def switch(self, outcome: Exception | None) -> None: ...


NOBODY = Nobody()


class Sender(Protocol):
    """What a run sends through: a ``publish_link.PublishLink``."""

    error: Exception | None

    def push(self, commands: Sequence[bytes], asker: Asker, until: float) -> None: ...


class Run:
    """Several commands of one greenlet: each answer sends the next one from within the hub, and the last one wakes it."""

    def __init__(self, sender: Sender, commands: Sequence[bytes], timeout: float) -> None:
        self._sender = sender
        self._commands = commands
        self._timeout = timeout
        self._silence: NoAnswer | None = None
        self._begun = 0
        self._answers: list[Exception | None] = []
        self._done: Waiter[None] = Waiter()

    def send(self) -> None:
        """Fill the window."""
        some = self._commands[self._begun : len(self._answers) + WINDOW]
        self._begun += len(some)
        self._sender.push(some, self, monotonic() + self._timeout)

    def switch(self, outcome: Exception | None) -> None:
        """An answer, for the oldest command without one. The window is filled when some of it is answered: to fill it at
        each answer costs a send for each."""
        self._answers.append(outcome)
        if outcome is not None and isinstance(outcome, NoAnswer):
            self._silence = outcome
        unanswered = self._begun - len(self._answers)
        if unanswered == WINDOW - REFILL and self._sender.error is None and self._silence is None:
            self.send()
        elif not unanswered:
            self._done.switch(None)

    def wait(self) -> list[Exception | None]:
        """What became of each; those behind an error that ended the link were never sent."""
        asked = len(self._commands)
        try:
            if len(self._answers) < self._begun:
                self._done.get()
        finally:
            self._commands = ()  # whoever waits may be interrupted, and then wants no more of them sent
        return self._answers + [NotStored(str(self._silence or self._sender.error)) for _ in range(asked - self._begun)]


def fail(waiting: deque[Pending], sent: int, error: Exception) -> None:
    """In the hub: tell each whether nsqd can have read the whole of its command (``sent`` bytes may have reached it)."""
    for waiter, end, _, _ in waiting:
        if end > sent:
            waiter.switch(NotStored(str(error)))
        else:
            waiter.switch(PublishError(f"{error}; {UNKNOWN}", stored=None))

"""What publishes on one connection to one node, and how it says what came of a command. It knows no protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from framework.errors import FrameworkError

Command_contra = TypeVar("Command_contra", contravariant=True)


class NotStored(FrameworkError):
    """The broker certainly did not store the command, through no fault of the command: it may be sent again."""


class Refused(NotStored):
    """This node stores nothing now, and said so: another one may. Where there is no other, waiting does not help."""


class InDoubt(NotStored):
    """It may be stored, and may be sent again all the same, because the broker drops doubles. When there is no more time for
    that, a publisher is told that nothing is known."""


def another() -> bool:
    """Until an owner says otherwise."""
    return True


class PublishLink(Protocol[Command_contra]):
    """A connection to ``node`` that publishes."""

    node: str
    silent: Callable[[], None]
    """Called on its hub when an answer is overdue; its owner says what then."""
    elsewhere: Callable[[], bool]
    """Whether there may be another node; its owner says so. If not, one that refuses is not left: it would be dialled for each
    try."""

    def usable(self) -> bool:
        """Whether it can be used: it is connected, and no answer is long overdue."""

    def ask(self, command: Command_contra, until: float) -> Exception | None:
        """Send it and wait for its answer, ``until`` then at most: None is stored; else NotStored, Refused or PublishError."""

    def ask_each(self, commands: Sequence[Command_contra], timeout: float) -> list[Exception | None]:
        """As ``ask`` for each, many of them under way; the answers in their order. ``timeout``: seconds that each may take."""

    def prove(self, until: float) -> Exception | None:
        """Wait ``until`` then, at most, for the answer to a command that the broker refuses whoever sends it: it reads, then, and
        nothing is stored. Else why there was no answer."""

    def close(self) -> None:
        """Close it, on its own thread; publishes that wait for an answer get NotStored or PublishError."""

    def shut(self) -> None:
        """End it from another native thread, whose hub then sees the end of the stream."""

    def fileno(self) -> int:
        """Of its socket; -1 when it has ended."""

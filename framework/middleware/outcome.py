"""The outcomes of a call: what becomes of its message. Values only; other modules act on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

import msgspec

from framework.hooks import Ending
from framework.message import Message

UNLIMITED = 1 << 20
"""Attempts that no message may have, whatever its handler allows."""


class Fault(Enum):
    """Whose fault it is that a message is not done."""

    NONE = "none"
    """Nobody's: the handler asked for it later."""
    MESSAGE = "message"
    """It failed. What many others do as well is not their fault."""
    DEPENDENCY = "dependency"
    """The handler said that what it depends on is down."""


@dataclass(frozen=True, slots=True)
class Requeue:
    """Deliver it again after ``delay`` seconds."""

    delay: float
    fault: Fault = field(default=Fault.NONE, compare=False)
    pause: float = field(default=0.0, compare=False)
    """Seconds that a pause of the handler is to last at least, where its dependency is at fault."""
    counts: bool = True
    """Whether this attempt uses one up. What does not is known to this worker alone: the broker counts all."""


@dataclass(frozen=True, slots=True)
class Dead:
    """Its dead letter is stored: never deliver it again. The fields are Requeue's."""

    fault: Fault = field(default=Fault.NONE, compare=False)
    pause: float = field(default=0.0, compare=False)


DEAD = Dead()


@dataclass(frozen=True, slots=True)
class Deferred:
    """It is stored elsewhere until its time has come: never deliver this one again. The fields are Requeue's."""

    fault: Fault = field(default=Fault.NONE, compare=False)
    pause: float = field(default=0.0, compare=False)


DEFERRED = Deferred()

Outcome: TypeAlias = Requeue | Dead | Deferred | None
"""None, the one that must cost nothing: it is done, never deliver it again."""


class Told(msgspec.Struct, frozen=True, eq=False, gc=False):
    """``outcome`` of what the handler knew as ``message``. When it is settled, ``tell(message, ending)`` says how."""

    outcome: Outcome
    message: Message
    tell: Callable[[Message, Ending], None]


BatchOutcome: TypeAlias = dict[Message, Any]
"""The Outcome of every message of a batch, or what is Told of it."""

Chain: TypeAlias = Callable[[Any], Outcome | Told | BatchOutcome]
"""A handler with all its policies: Message -> Outcome, or for a batch handler messages -> BatchOutcome."""

"""What shall become of a message once its handler is through: values only, nobody acts here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from framework.message import Message


@dataclass(frozen=True, slots=True)
class Requeue:
    """Deliver it again after ``delay`` seconds."""

    delay: float


@dataclass(frozen=True, slots=True)
class Dead:
    """Its dead letter is stored: never deliver it again."""


DEAD = Dead()

Outcome: TypeAlias = Requeue | Dead | None
"""None, the one that must cost nothing: it is done, never deliver it again."""

BatchOutcome: TypeAlias = dict[Message, Outcome]
"""The outcome of every message of a batch."""

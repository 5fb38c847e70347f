"""All that a topic and its channels know of the nsqd around them. What they have to tell it goes out as events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from framework.nsqd.health import Health
from framework.nsqd.journal import Declaring
from framework.nsqd.options import Options
from framework.nsqd.store import Batch
from framework.nsqd.store.clock import Clock


class Owner(Declaring, Protocol):
    """The topic, as its channels see it."""

    name: str
    ephemeral: bool

    @property
    def pumped(self) -> int:
        """Behind the newest message that its channels have."""

    def declare(self, changed: str = "") -> None:
        """Have the log know that this channel is new, gone or paused."""


class Port(Protocol):
    """Nothing here changes a topic or calls a channel."""

    options: Options
    log: Callable[[str, str], None]
    health: Health
    clock: Clock
    """By which messages are due."""

    @property
    def recent(self) -> Mapping[tuple[int, int], Batch]:
        """What was written lately, by (topic number, first sequence number): read from here, not from the disk."""

    def emit(self, event: object) -> None:
        """Tell those who take this kind of event."""

    def read(self, topic: int, seq: int, max_bytes: int) -> list[Batch]:
        """``Store.read`` without holding up the hub; blocks the greenlet."""

    def bodies(self, topic: int, seqs: Iterable[int], max_bytes: int) -> dict[int, tuple[int, bytes] | None]:
        """``Store.bodies`` likewise."""

"""Reads dead letters, in each form in which they may be stored, and selects them. No broker here."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from framework.decoding import UNREADABLE
from framework.headers import NONE, Headers, known
from framework.message import Message
from framework.middleware.dead_letter import lasting
from framework.observe.logging import scrub

BODY_ALONE = "(unknown: only the body was kept, the broker took no more)"


class _Header(msgspec.Struct):
    """The line before the body; ``middleware.dead_letter.letters`` writes it."""

    topic: str
    channel: str
    id: str
    node: str
    attempts: int
    reason: str
    published: datetime
    dead: datetime
    traceback: str = ""
    headers: dict[str, str] = {}


_header = msgspec.json.Decoder(_Header)


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter. ``topic``, ``channel``, ``node``: where the message was; empty where only its body was kept."""

    topic: str
    channel: str
    id: str
    """The id that the message had; where only the body was kept, the letter's own."""
    node: str
    attempts: int
    """Deliveries until it was given up; 0 where that is not known."""
    reason: str
    published: datetime | None
    dead: datetime | None
    """When it was given up."""
    traceback: str
    body: bytes
    message: Message
    """The letter itself, as its broker delivered it; its own body is not kept twice."""
    headers: Headers = field(default_factory=lambda: NONE)
    """Those that the message had."""

    def belongs_to(self, owners: Set[tuple[str, str]]) -> bool:
        """Whether it is a letter of one of ``owners`` (none: of anybody). One of which only the body was kept is everybody's."""
        return not owners or not self.topic or lasting(self.topic, self.channel) in owners


def read(message: Message) -> Letter:
    """The letter that ``message`` carries, whose body moves into it."""
    line, newline, body = message.body.partition(b"\n")
    raw, message.body = message.body, b""
    try:
        header = _header.decode(line if newline else b"")
    except UNREADABLE:
        own = message.id.decode(errors="replace")
        died = message.published if message.timestamp else None
        return Letter("", "", own, "", 0, BODY_ALONE, None, died, "", raw, message)
    # Letters of earlier versions have the secrets of URLs.
    return Letter(
        topic=header.topic, channel=header.channel, id=header.id, node=header.node, attempts=header.attempts,
        reason=scrub(header.reason), published=_aware(header.published), dead=_aware(header.dead),
        traceback=scrub(header.traceback), body=body, message=message, headers=known(header.headers),
    )  # fmt: skip


def _aware(time: datetime) -> datetime:
    return time if time.tzinfo else time.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which letters are meant: those that fit all that is given here."""

    ids: Set[str] = frozenset()
    """Any of these; none given: every id."""
    reason: str = ""
    """It occurs in the reason, upper and lower case alike."""
    since: datetime | None = None
    """It died at this time or later."""
    before: datetime | None = None
    """It died earlier than this."""
    limit: int | None = None
    """How many at most."""

    def takes(self, letter: Letter) -> bool:
        """Whether ``letter`` is meant. ``limit`` is left to the caller that counts. A letter whose time of death is not known
        is in no span of time."""
        if self.ids and letter.id not in self.ids:
            return False
        if self.reason.casefold() not in letter.reason.casefold():
            return False
        if self.since is None and self.before is None:
            return True
        if letter.dead is None:
            return False
        return (self.since is None or letter.dead >= self.since) and (self.before is None or letter.dead < self.before)

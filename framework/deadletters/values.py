"""A letter as plain values for JSON, and the times that a selection is written with."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

from framework.deadletters.letter import Letter
from framework.values import duration


def as_dict(letter: Letter, dead_topic: str) -> dict[str, Any]:
    """The body as text where it is UTF-8, else as base64."""
    fields = {name: getattr(letter, name) for name in ("id", "topic", "channel", "node", "attempts", "reason")}
    times = {"published": letter.published, "dead": letter.dead}
    headers = {"headers": dict(letter.headers)} if letter.headers else {}
    return {"dead_topic": dead_topic, **fields, **times, "traceback": letter.traceback, **headers, **body_of(letter.body)}


def body_of(body: bytes) -> dict[str, str]:
    """``body`` or ``body_base64``."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def moment(text: str) -> datetime:
    """From an ISO date or time (UTC unless it says otherwise), or so long ago: ``2h``. Raises ValueError with words behind it."""
    try:
        time = datetime.fromisoformat(text)
        return time if time.tzinfo else time.replace(tzinfo=UTC)
    except ValueError:
        pass
    try:
        return datetime.now(UTC) - timedelta(seconds=duration(text))
    except (ValueError, OverflowError):
        raise ValueError("is not a time: write 2026-05-01, 2026-05-01T18:30, or 90m for so long ago") from None

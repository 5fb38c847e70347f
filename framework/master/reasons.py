"""Why a process should be replaced: it is stuck, or it has done or taken enough. Judges what is known of it; does nothing."""

from __future__ import annotations

from framework.master.child import Child
from framework.settings import Settings

JITTER = 0.1
"""The part of a limit by which processes differ, or all that began together would be replaced together."""
SILENCE = 30.0
"""Seconds beyond the longest ``timeout`` of a handler that a process may be silent, as it is while native code holds the GIL."""

LATE = 30.0
"""Seconds that a process may take to subscribe before the log says so. It is waited for: some applications import for minutes."""


def late(child: Child) -> str:
    """Empty where it is not, or where that was said."""
    if child.ready or child.said_late or child.age < LATE:
        return ""
    return f"has not subscribed {child.age:.0f} s after its start; it is waited for, and nothing else is started meanwhile"


def overdue(child: Child, deadline: float | None) -> str:
    """Of the first process of a reload; empty where it may still take time."""
    if child.ready or deadline is None or child.age < deadline:
        return ""
    return f"had not subscribed {child.age:.0f} s after its start (--reload-deadline {deadline:g})"


def stuck(child: Child) -> str:
    """Empty where it is not, as far as is known."""
    if words := child.report.get("stuck"):
        return str(words[0])
    limit = float(child.report.get("patience", 0.0)) + SILENCE
    if child.ready and child.silent > limit:
        return f"it has said nothing for {child.silent:.0f} s: native code holds the GIL, or it is suspended"
    return ""


def worn(child: Child, settings: Settings) -> str:
    """Empty where it may go on."""
    if settings.max_tasks is not None and child.tasks >= settings.max_tasks * (1 + JITTER * child.chance):
        return f"it has ended {child.tasks} messages (--max-tasks)"
    if settings.max_rss is not None and child.rss > settings.max_rss * (1 - JITTER * child.chance):
        return f"it takes {child.rss / (1 << 20):.0f} MiB of memory (--max-rss)"
    return ""

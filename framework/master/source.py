"""What the admin endpoint shows of several processes: their snapshots, asked for when somebody looks, and merged into one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from weakref import WeakSet

import gevent

from framework.admin.fresh import Breathe
from framework.admin.snapshot import Snapshot, at_once, left_over, merged, of_books
from framework.errors import WrongUse
from framework.master import reasons
from framework.master.child import Child

PATIENCE = 0.5
"""Seconds that a process may take for its snapshot; of one that takes longer the last one is shown."""
ACTION_PATIENCE = 2.0
_GLANCE = 0.005


class Children:
    """``admin.Source`` of a master. ``ended`` and ``commands`` are for the master's hub, the others for the endpoint's thread."""

    def __init__(self, loop: Any, children: Callable[[], Iterable[Child]]) -> None:
        self._loop = loop
        self._children = children
        self._ended: tuple[Snapshot, WeakSet[Child]] = merged([]), WeakSet()
        """What is left of those that have ended, and who is in it: the master lists them for a moment longer."""
        self._commands: dict[tuple[str, str | None], dict[str, Any]] = {}

    # -- on the master's hub

    def ended(self, child: Child) -> None:
        """Its counters stay: what is shown in sum must not fall."""
        left, counted = self._ended
        left = merged([left, left_over(of_books(child.snapshot, child.ledgers, child.published))])
        self._ended = left, WeakSet([*counted, child])

    def commands(self) -> list[dict[str, Any]]:
        """What was asked of the handlers so far: a new process has to know of it."""
        return list(self._commands.values())

    # -- in the endpoint's thread

    def snapshot(self, breathe: Breathe = at_once) -> Snapshot:
        for child, answer in self._asked({"do": "snapshot"}, PATIENCE):
            child.snapshot = answer or child.snapshot
        there = list(self._children())
        left, counted = self._ended  # after it: who ends in between is in one of both
        shown = [_of(child) for child in there if child.snapshot is not None and child not in counted]
        return merged([*shown, left], breathe)

    def health(self) -> list[dict[str, Any]]:
        for child, answer in self._asked({"do": "health"}, PATIENCE):
            child.health = answer or child.health
        return [row for child in self._children() if child.code is None for row in _judged(child, child.health)]

    def act(self, command: Mapping[str, Any]) -> None:
        """Have all processes do it, also those that are started later. Raises WrongUse where one says that it cannot."""
        answers = self._asked({"do": "act", "command": dict(command)}, ACTION_PATIENCE)
        for _, answer in answers:
            if answer and answer["error"]:
                raise WrongUse(answer["error"])
        if not any(answer for _, answer in answers):
            raise WrongUse("no process has answered: it is not known whether it was done; ask again")
        self._remember(dict(command))

    def _remember(self, command: dict[str, Any]) -> None:
        """Of the same kind and handler the last one counts, and one for all handlers in place of those for each."""
        action, handler = command["action"], command.get("handler")
        kind = action if action in ("max_in_flight", "concurrency") else "flow"
        if handler is None:
            for key in [key for key in self._commands if key[0] == kind]:
                del self._commands[key]
        self._commands[kind, handler] = command

    def _asked(self, what: dict[str, Any], seconds: float) -> list[tuple[Child, Any]]:
        """Each process with its answer, None of one that gives none in time."""
        asked: list[tuple[Child, int]] = []
        done: list[bool] = []

        def ask() -> None:
            asked.extend((child, child.ask(what)) for child in self._children() if child.ready)
            done.append(True)

        self._loop.run_callback_threadsafe(ask)
        until = time.monotonic() + seconds
        while time.monotonic() < until and not (done and all(child.has_answered(number) for child, number in asked)):
            gevent.sleep(_GLANCE)
        return [(child, child.answer(number)) for child, number in asked]


def _of(child: Child) -> Snapshot:
    """Its snapshot, and whether it is stuck as the master sees it: one that says nothing cannot say so."""
    assert child.snapshot is not None
    return {**child.snapshot, "processes": _judged(child, child.snapshot["processes"])}


def _judged(child: Child, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    words = reasons.stuck(child)
    return [{**row, "stuck": list(dict.fromkeys([*row["stuck"], words]))} for row in rows] if words else rows

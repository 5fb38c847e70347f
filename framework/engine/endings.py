"""Tells observers how messages came and ended: many at a time of those that a slot has finished, as such a message costs 1 us.

It is there for handlers with an observer that asks for it, and costs the others nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from framework import hooks
from framework.engine.slots import Slot, clock
from framework.engine.times import FAST
from framework.handler import HandlerSpec
from framework.hooks import Ending, Finished, Observer
from framework.message import Message

_now = time.time


class Run:
    """What a slot has finished, and nobody was told of yet: messages of one connection, each with as many attempts."""

    __slots__ = ("attempts", "began", "connection", "ids")

    def __init__(self) -> None:
        self.connection: Any = None
        self.attempts = 0
        self.began = 0.0
        """When the first of them was started, monotonic."""
        self.ids: list[bytes] = []
        """The loop holds on to it: it is emptied in place."""


class Endings:
    """Of one handler. All of it is called on the hub or in its slots. Times are monotonic.

    A clock for each message, kept until somebody is told, would be a quarter of the cost: so messages whose calls took less than
    ``FAST`` have the times of their run."""

    def __init__(self, spec: HandlerSpec) -> None:
        self._topic = spec.topic
        observers = [one for one in spec.middleware if isinstance(one, Observer)]
        self._observers = [one for one in observers if hooks.observes(one, "ended")]
        self._receivers = [one for one in observers if hooks.observes(one, "received")]

    def __bool__(self) -> bool:
        return bool(self._observers or self._receivers)

    def came(self, messages: list[Message]) -> None:
        for one in self._receivers:
            one.received(messages)

    def begin(self, run: Run, message: Message, now: float) -> None:
        """``message``, which was begun at ``now``, is the first of another run."""
        self.cut(run, now)
        run.connection, run.attempts, run.began = message.connection, message.attempts, now

    def cut(self, run: Run, until: float) -> None:
        """Tell of ``run``, the last of which ended at ``until``."""
        if run.ids:
            self._tell(run, run.ids, run.began, until)
            run.ids.clear()
        run.connection = None

    def look(self, run: Run, started: float, now: float) -> None:
        """Tell of ``run``, if it has lasted: its last message was begun at ``started``, and has just ended."""
        if now - run.began > FAST:
            if now - started > FAST and len(run.ids) > 1:
                last = run.ids.pop()
                self._tell(run, run.ids, run.began, started)
                run.ids[:], run.began = [last], started
            self.cut(run, now)

    def look_at(self, busy: Iterable[Slot]) -> None:
        """Tell of what slots have finished before calls that take long."""
        for slot in busy:
            if slot.run is not None:
                self.cut(slot.run, slot.started)

    def together(self, messages: list[Message], began: float) -> None:
        """One call, which was begun at ``began``, has finished all of these."""
        now, epoch = clock(), _now() - clock()
        runs: dict[tuple[str, int], list[bytes]] = {}
        for message in messages:
            if message.connection.topic == self._topic:  # else an envelope that waits on
                runs.setdefault((message.connection.node, message.attempts), []).append(message.id)
        for (node, attempts), ids in runs.items():
            for one in self._observers:
                one.finished(Finished(node, attempts, ids, began + epoch, now + epoch, together=True))

    def _tell(self, run: Run, ids: list[bytes], began: float, until: float) -> None:
        epoch = _now() - clock()
        told = Finished(run.connection.node, run.attempts, ids, began + epoch, until + epoch)
        for one in self._observers:
            one.finished(told)

    def ended(self, came: Message, known: Message, outcome: Ending, began: float) -> None:
        """The delivery ``came``, which the handler knew as ``known``, was begun at ``began``."""
        if known is came and came.connection.topic != self._topic:
            return  # an envelope that waits on
        for one in self._observers:
            one.ended(known, outcome, began - clock() + _now())

"""Where handlers run: long-lived greenlets fed by a pump on the hub, and their time limit. It knows no message and no broker.

The pump runs in the hub, so a slot that blocks switches back into the pump, which then, and only then, wakes the next one; a
slot that does not block takes the whole queue without a switch. No wake-up is lost because whoever leaves the queue filled while
a slot is idle kicks the pump: the receiver after adding to it, the pump and a slot at the end of their time slice.
"""

from __future__ import annotations

import contextvars
import time
from collections.abc import Callable, Iterator, Sized
from functools import partial
from typing import Any

from greenlet import GreenletExit, greenlet  # type: ignore[import-untyped]

from framework.engine.turns import SLICE, Turns
from framework.errors import HandlerTimeout
from framework.observe import call, hublog

log = hublog.get(__name__)
clock = time.monotonic
"""The clock of every lease and limit in the engine."""

OWN_TIME = 0.001
"""Seconds that a handler may use even of a turn that the others have spent."""
AGAIN = 5.0
"""Seconds after which a handler that swallowed its HandlerTimeout gets another."""


class Slot:
    """One handler call at a time. ``job`` is what it works on, None while idle; ``started`` when, monotonic."""

    __slots__ = ("base", "context", "greenlet", "idle", "job", "known_as", "leaving", "limit_at", "name", "run", "started")
    thread = 0
    """None of its own: ``remote_slots.Call``."""

    def __init__(self, name: str, context: contextvars.Context, known_as: Callable[[Any], Any]) -> None:
        self.name = name
        """The handler's."""
        self.known_as = known_as
        self.greenlet: Any = None
        self.base = context.copy()
        """What each of its calls begins with: what the app had set, and where it is."""
        self.base.run(call.site.set, self)
        self.context: contextvars.Context
        """Its greenlet's."""
        self.idle = True
        """It is listed as such, and nothing but the pump ends that."""
        self.leaving = False
        """It is one too many, and ends after its job."""
        self.job: Any = None
        self.run: Any = None
        """What it has finished, where somebody keeps that: ``endings.Run``."""
        self.started = 0.0
        self.limit_at = 0.0
        """When the time limit was last thrown; it counts for the current job when it is after ``started``."""


class Slots:
    """``size`` slots that call ``work(slot)``, which takes from ``queue`` until it is empty or the turn is spent."""

    def __init__(
        self, hub: Any, turns: Turns, size: int, queue: Sized, work: Callable[[Slot], None], *, name: str = "",
        known_as: Callable[[Any], Any] = call.itself,
    ) -> None:  # fmt: skip
        self._hub = hub
        self._turns = turns
        self.queue = queue
        """What waits for a slot; true when a slot may take from it."""
        self._work = work
        self.own_time_ends = 0.0
        """When this handler's own part of the turn is over; see ``OWN_TIME``."""
        self.halted = False
        """Start nothing more. May be set from anywhere, a signal handler included."""
        self._open = True
        self.context = contextvars.copy_context()
        """What the app had set when the worker started. Each call begins with it, so none sees what another one left."""
        # Not run_callback: gevent may run what it is given before it polls again, and a spent turn must end in a poll.
        self._kick = hub.loop.timer(0.0)
        self._slot = partial(Slot, name, self.context, known_as)
        self._all = [self._slot() for _ in range(size)]
        self._idle: list[Slot] = list(self._all)

    def pump(self) -> None:
        """Let slots take from the queue until it is empty, all are busy, or the turn is spent. Call it on the hub only."""
        if self.halted:
            return
        queue, idle = self.queue, self._idle
        self.own_time_ends = clock() + OWN_TIME
        while queue and idle:
            slot = idle.pop()
            slot.idle = False
            if not slot.greenlet:  # never started, or dead: switching into a dead greenlet returns at once, and does nothing
                slot.greenlet = greenlet(self._live, self._hub)
                self.renew(slot)
                slot.greenlet.switch(slot)
            else:
                slot.greenlet.switch()
            if self._spent(clock()) or self.halted:
                break
        if queue and idle:
            self.kick()

    def resize(self, size: int) -> None:
        """Have ``size`` slots. Of those that are too many, who runs a job ends after it. Call it on the hub only."""
        staying = [slot for slot in self._all if not slot.leaving]
        for slot in [slot for slot in self._all if slot.leaving][: max(0, size - len(staying))]:
            slot.leaving = False
            staying.append(slot)
        for slot in sorted(staying, key=lambda slot: slot.idle, reverse=True)[: max(0, len(staying) - size)]:
            slot.leaving = True
            if slot.idle:
                self._idle.remove(slot)
                self._all.remove(slot)
                if slot.greenlet:
                    slot.greenlet.throw(GreenletExit)
        new = [self._slot() for _ in range(size - len(staying))]
        self._all += new
        self._idle += new
        if self.queue:
            self.kick()

    def renew(self, slot: Slot) -> contextvars.Context:
        """Give the greenlet of ``slot`` a context without what a call has left in it; its own, if it is the caller."""
        slot.context = slot.greenlet.gr_context = slot.base.copy()
        return slot.context

    def _spent(self, now: float) -> bool:
        return now - self._turns.stamp > SLICE and now > self.own_time_ends

    def kick(self) -> None:
        """Have the hub pump in its next turn. Idempotent."""
        if self._open and not self._kick.active:
            # By the clock, not by the loop's idea of it: after a long turn the timers that are due come first, and among them
            # the one that gives back what has outlived its lease.
            self._kick.start(self.pump, update=True)

    def _live(self, slot: Slot) -> None:
        """A slot's life. It returns to the hub, its parent, to wait."""
        while self._open:
            try:
                self._work(slot)
            except KeyboardInterrupt as error:  # meant for the process: without a context the hub passes it on to it
                self._hub.loop.run_callback(self._hub.handle_error, None, type(error), error, error.__traceback__)
            except BaseException:  # the chain catches what handlers raise: this is our own fault, and must stop nothing else
                log.exception("a slot failed, which is a bug; its message is given back")
            slot.job = None
            if slot.leaving:
                self._all.remove(slot)
            else:
                slot.idle = True
                self._idle.append(slot)
            if self.queue:
                self.kick()
            if slot.leaving:
                return
            if not self._woken(slot):
                return

    def _woken(self, slot: Slot) -> bool:
        """Wait for the pump; False: for nothing any more."""
        while slot.idle:
            try:
                self._hub.switch()
            except GreenletExit:
                return False
            except BaseException:  # meant for the job before, and too late for it: the slot stays listed, and waits on
                log.debug("an exception reached an idle slot", exc_info=True)
        return True

    @property
    def full(self) -> bool:
        """No slot is free."""
        return not self._idle

    def busy(self) -> Iterator[Slot]:
        """The slots that are running a job."""
        return (slot for slot in self._all if slot.job is not None)

    @property
    def computing(self) -> bool:
        """Whether the hub's thread is in one of the handlers at this moment; for other threads to ask."""
        return any(slot.greenlet is not None and slot.greenlet.gr_frame is None for slot in self.busy())

    def enforce(self, limit: float, now: float) -> None:
        """Throw HandlerTimeout into the handlers that have run for more than ``limit`` seconds. Call it on the hub only.

        From the timer's callback itself: through run_callback the handler could have ended in between.
        """
        for slot in list(self.busy()):
            if now - slot.started > limit and (slot.limit_at < slot.started or now - slot.limit_at > AGAIN):
                slot.limit_at = now
                self._throw(slot, f"it has run longer than its timeout of {limit:g} s")

    def abandon(self, reason: str) -> None:
        """Throw HandlerTimeout into all handlers that run. Call it on the hub only."""
        for slot in list(self.busy()):
            self._throw(slot, reason)

    def _throw(self, slot: Slot, reason: str) -> None:
        if slot.job is not None and slot.greenlet:
            slot.greenlet.throw(HandlerTimeout(reason))

    def close(self) -> None:
        """End the idle slots; a busy one ends after its job. Call it on the hub only."""
        self._open = False
        self._kick.close()
        for slot in self._idle:
            if slot.greenlet:
                slot.greenlet.throw(GreenletExit)
        self._idle.clear()

"""Holds a handler back when what it depends on fails: counts failures, and tells ``credit`` how many messages may come.

The rules are in ``backoff.BreakerState``. A timer finds the end of a pause; nobody reports it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from framework.engine.backoff import BreakerState
from framework.engine.credit import Credit
from framework.engine.slots import clock
from framework.message import Message
from framework.middleware.envelope import known_as
from framework.middleware.outcome import Dead, Deferred, Fault, Requeue
from framework.observe import hublog

log = hublog.get(__name__)


class Breaker:
    """Over one handler, whose ``credit`` it caps.

    ``ended()``: how many messages its calls have settled by now. What went well of them is counted when a failure is heard of,
    and not only at each tick: a fast handler ends a thousand in between, and their failures would stand alone.
    """

    def __init__(self, name: str, credit: Credit, ended: Callable[[], int], *, batches: bool, longest: float | None) -> None:
        """``batches``: calls are counted in place of messages, or one that fails would count as all that were with it."""
        self._name = name
        self._credit = credit
        self._ended = ended
        self._state = BreakerState(longest=longest)
        self._well = 0
        self._failed = 0
        self._why = ""
        self._batches = batches
        self.calls_well = 0
        """Batches of which no message failed."""

    @property
    def pausing(self) -> bool:
        """Whether nothing may start now."""
        return self._state.level > 0 and self._state.allowance(clock()) == 0

    @property
    def pause(self) -> tuple[str, float] | None:
        """Why the handler is held back, and for how many seconds from now nothing may start; 0: one at a time, to try. None where
        it is not. May be asked from any thread."""
        return (self._why, max(0.0, self._state.until - clock())) if self._state.level > 0 else None

    @property
    def at_rest(self) -> bool:
        """Nothing is held back, so that no time needs to be looked for at which it ends."""
        return self._state.level == 0

    def pauses_after(self, message: Message, outcome: Requeue | Deferred | Dead) -> bool:
        """``message`` is not done, and settled; whether a pause begins, so that what has not started should be given back."""
        now, state = clock(), self._state
        self._count_well(now, but=1)  # what ended before it
        again = state.level > 0
        if outcome.fault is Fault.NONE or (outcome.fault is Fault.MESSAGE and state.waits_for_a_word):
            self.calls_well += 1
            self._count_well(now)
            return False
        self._failed += 1
        if outcome.fault is Fault.DEPENDENCY:
            begins, why = state.is_down(now, outcome.pause), "the handler raised Backoff"
        else:
            known = known_as(message)  # an envelope has another id each time
            begins = state.failed((known.node, known.id), now, before=known.attempts > 1)
            why = "most messages that were tried after the pause failed" if again else "most of its last messages failed"
        if begins:
            self._why = why
            self._say(why, state.until - now)
            self._credit.cap(0)
        return begins

    def look(self, now: float) -> None:
        """Every tick: what went well since the last, and what may come from now on."""
        self._count_well(now)
        self._credit.cap(self._state.allowance(now))

    def _count_well(self, now: float, *, but: int = 0) -> None:
        """What went well since the last time; of the messages that have ended, ``but`` that many."""
        well = self.calls_well if self._batches else self._ended() - self._failed - but
        if well > self._well:
            count, self._well = well - self._well, well
            self._went_well(count, now)

    def _went_well(self, count: int, now: float) -> None:
        pauses = self._state.level
        if self._state.went_well(count, now):
            log.warning("handler %s: works again, after %d pause%s", self._name, pauses, "s" if pauses > 1 else "")

    def _say(self, why: str, seconds: float) -> None:
        level = self._state.level
        log.log(
            logging.WARNING if level == 1 else logging.INFO,
            "handler %s: %s; it gets no messages for %.1f s, then one at a time to try (pause %d)",
            self._name, why, seconds, level,
        )  # fmt: skip

"""Holds a handler back when what it depends on fails: hears how messages ended, and says to ``credit`` how many may come.

What is allowed when is ``backoff.Restraint``'s to say. The end of a pause is seen by looking, not by being told.
"""

from __future__ import annotations

import logging

from framework.engine.backoff import Restraint
from framework.engine.credit import Credit
from framework.engine.ledger import Ledger
from framework.engine.slots import clock
from framework.message import Message
from framework.middleware.outcome import Deferred, Fault, Requeue

log = logging.getLogger(__name__)


class Watch:
    """Over one handler, whose ``ledger`` counts and whose ``credit`` it restrains."""

    def __init__(self, name: str, ledger: Ledger, credit: Credit) -> None:
        self._name = name
        self._ledger = ledger
        self._credit = credit
        self._restraint = Restraint()
        self._well = 0

    @property
    def pausing(self) -> bool:
        """Whether nothing may start now."""
        return self._restraint.level > 0 and self._restraint.allowance(clock()) == 0

    def pauses_after(self, message: Message, outcome: Requeue | Deferred) -> bool:
        """``message`` is not done; whether a pause begins, so that what has not started should be given back."""
        now, restraint = clock(), self._restraint
        if outcome.fault is Fault.NONE:
            self._went_well(1, now)
            return False
        if outcome.fault is Fault.DEPENDENCY:
            begins, why = restraint.is_down(now, outcome.pause), "the handler raised Backoff"
        else:
            begins, why = restraint.failed((message.node, message.id), now), "most of its last messages failed"
        if begins:
            self._say(why, restraint.until - now)
            self._credit.restrain(0)
        return begins

    def look(self, now: float) -> None:
        """Every tick: what went well since the last, and what may come from now on."""
        ledger = self._ledger
        well = ledger.finished + ledger.dead
        self._went_well(max(0, well - self._well), now)
        self._well = well
        self._credit.restrain(self._restraint.allowance(now))

    def _went_well(self, count: int, now: float) -> None:
        pauses = self._restraint.level
        if self._restraint.went_well(count, now):
            log.warning("handler %s: works again, after %d pause%s", self._name, pauses, "s" if pauses > 1 else "")

    def _say(self, why: str, seconds: float) -> None:
        level = self._restraint.level
        log.log(
            logging.WARNING if level == 1 else logging.INFO,
            "handler %s: %s; it gets no messages for %.1f s, then one to try (pause %d)", self._name, why, seconds, level,
        )  # fmt: skip

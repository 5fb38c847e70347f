"""Settles the messages of a call by its outcome: tells their connections, and the ledger what those cannot know."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from framework.engine.breaker import Breaker
from framework.engine.elsewhere import Elsewhere
from framework.engine.endings import Endings
from framework.engine.ledger import Ledger
from framework.errors import AlreadySettled
from framework.hooks import Ending
from framework.message import Message
from framework.middleware.outcome import BatchOutcome, Dead, Deferred, Fault, Outcome, Requeue, Told
from framework.transports.contract import Terminating

Heed = Callable[[Message, Requeue | Deferred | Dead], None]
"""Is told of each message that was not done, and where the fault was."""


class Settlement:
    """That of one handler."""

    def __init__(
        self,
        ledger: Ledger,
        elsewhere: Elsewhere,
        breaker: Breaker,
        heed: Heed,
        endings: Endings | None = None,
        *,
        uncounted: Callable[[Message], None] = lambda _: None,
    ) -> None:
        """``uncounted`` is told of each message that is given back and has used up no attempt."""
        self._ledger = ledger
        self._elsewhere = elsewhere
        self._breaker = breaker
        self._heed = heed
        self._endings = endings
        self._uncounted = uncounted
        self._telling = 0
        self.batches = 0
        """Calls for batches that have ended."""

    @property
    def telling(self) -> bool:
        """A middleware that hears of what was settled is not through with it."""
        return self._telling > 0

    def settle(self, job: Any, outcome: Outcome | Told | BatchOutcome, began: float | None = None, *, heed: bool = True) -> None:
        """``job``: a Message, or for a BatchOutcome the messages of a batch. Its lease may have been lost meanwhile. ``began``:
        when its call did, monotonic; None where there was none."""
        if isinstance(outcome, dict):
            self._settle_batch(outcome, began)
            return
        said = outcome.outcome if isinstance(outcome, Told) else outcome
        ending = self._settle(job, said)
        if heed and said is not None and (not isinstance(said, Dead) or (ending == "dead" and said.fault is not Fault.NONE)):
            self._heed(job, said)
        if self._endings is not None and began is not None:
            self._endings.ended(job, outcome.message if isinstance(outcome, Told) else job, ending, began)
        if isinstance(outcome, Told):
            self._tell([(outcome, ending)])

    def _settle_batch(self, outcomes: BatchOutcome, began: float | None) -> None:
        """It was one call, which failed where most of its messages did. All of it is settled before anybody hears of it."""
        self.batches += 1
        failed: list[tuple[Message, Requeue | Deferred | Dead]] = []
        endings: list[tuple[Told, Ending]] = []
        well: list[Message] = []
        for message, outcome in outcomes.items():
            said = outcome.outcome if isinstance(outcome, Told) else outcome
            if said is not None and said.fault is not Fault.NONE:
                failed.append((message, said))
            ending = self._settle(message, said)
            if self._endings is not None and began is not None:
                if outcome is None and ending == "finished":
                    well.append(message)
                else:
                    self._endings.ended(message, outcome.message if isinstance(outcome, Told) else message, ending, began)
            if isinstance(outcome, Told):
                endings.append((outcome, ending))
        if self._endings is not None and began is not None:
            self._endings.together(well, began)
        if (worst := _worst_of(failed, len(outcomes))) is None:
            self._breaker.calls_well += 1
        else:
            self._heed(*worst)
        self._tell(endings)

    def _settle(self, message: Message, outcome: Outcome) -> Ending:
        if isinstance(outcome, Requeue):
            lost = self._ledger.lost
            if not outcome.counts:
                self._uncounted(message)
            if not _requeue(message, outcome.delay):
                return "lease_lost"
            return "requeued" if self._ledger.lost == lost else "lost"
        dead = isinstance(outcome, Dead)
        if not (_terminate(message) if dead else _finish(message)):
            return "lease_lost"
        if outcome is None:
            return "finished"
        self._elsewhere.finished(message, dead=dead)
        return "dead" if dead else "requeued"

    def _tell(self, endings: Iterable[tuple[Told, Ending]]) -> None:
        self._telling += 1
        try:
            for told, ending in endings:
                told.tell(told.message, ending)
        finally:
            self._telling -= 1


def _worst_of(
    failed: list[tuple[Message, Requeue | Deferred | Dead]], count: int
) -> tuple[Message, Requeue | Deferred | Dead] | None:
    """The one that stands for a call with ``count`` messages, if it failed: what the handler says of its dependency, else the
    message that has been tried least. One of twenty that failed by itself is its own fault."""
    for one in failed:
        if one[1].fault is Fault.DEPENDENCY:
            return one
    return min(failed, key=lambda one: one[0].attempts) if 2 * len(failed) > count else None


def give_back(messages: Iterable[Message]) -> None:
    """Have them delivered again at once, here or elsewhere."""
    for message in messages:
        _requeue(message, 0.0)


def _finish(message: Message) -> bool:
    try:
        message.connection.finish(message)
    except AlreadySettled:
        return False
    return True


def _terminate(message: Message) -> bool:
    """Its dead letter is stored."""
    connection = message.connection
    if not isinstance(connection, Terminating):
        return _finish(message)
    try:
        connection.terminate(message)
    except AlreadySettled:
        return False
    return True


def _requeue(message: Message, delay: float) -> bool:
    try:
        message.connection.requeue(message, delay)
    except AlreadySettled:
        return False
    return True

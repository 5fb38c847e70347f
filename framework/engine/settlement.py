"""What the outcome of a call means for its messages: told to their connections, and to the ledger what those cannot know."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from framework.engine.elsewhere import Elsewhere
from framework.engine.restraint import Watch
from framework.errors import AlreadySettled
from framework.message import Message
from framework.middleware.outcome import BatchOutcome, Dead, Deferred, Fault, Outcome, Requeue

Heed = Callable[[Message, Requeue | Deferred | Dead], None]
"""Hears of a message that was not done, and whose fault that was."""


class Settlement:
    """That of one handler."""

    def __init__(self, elsewhere: Elsewhere, watch: Watch, heed: Heed) -> None:
        self._elsewhere = elsewhere
        self._watch = watch
        self._heed = heed

    def settle(self, job: Any, outcome: Outcome | BatchOutcome, *, heed: bool = True) -> None:
        """``job``: a Message, or for a BatchOutcome the messages of a batch. Its lease may have been lost meanwhile."""
        if isinstance(outcome, dict):
            self._settle_batch(outcome)
        elif isinstance(outcome, Requeue):
            _requeue(job, outcome.delay)
            if heed:
                self._heed(job, outcome)
        elif isinstance(outcome, Deferred):
            if _finish(job):
                self._elsewhere.finished(job, dead=False)
            if heed:
                self._heed(job, outcome)
        elif _finish(job) and outcome is not None:
            self._elsewhere.finished(job, dead=True)
            if heed and outcome.fault is not Fault.NONE:
                self._heed(job, outcome)

    def _settle_batch(self, outcomes: BatchOutcome) -> None:
        """It was one call: whatever failed in it counts as one failure."""
        worst: tuple[Message, Requeue | Deferred | Dead] | None = None
        for message, outcome in outcomes.items():
            if outcome is not None and outcome.fault is not Fault.NONE and (worst is None or outcome.fault is Fault.DEPENDENCY):
                worst = message, outcome
            self.settle(message, outcome, heed=False)
        if worst is None:
            self._watch.calls_well += 1
        else:
            self._heed(*worst)


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


def _requeue(message: Message, delay: float) -> None:
    try:
        message.connection.requeue(message, delay)
    except AlreadySettled:
        pass

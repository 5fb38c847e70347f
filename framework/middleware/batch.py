"""The retry and dead letter policies for a batch handler: one call, an outcome for each of its messages."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence

from framework.errors import HandlerTimeout, Reject
from framework.handler import HandlerSpec
from framework.message import Batch, Message
from framework.middleware.dead_letter import Bury, dies_of_time, exhausted
from framework.middleware.outcome import BatchOutcome, Outcome, Requeue
from framework.middleware.retry import Delay, Failed, delay_after, describe, level_of, trace_of

log = logging.getLogger(__name__)


def compile_batch(
    spec: HandlerSpec, call: Callable[[Batch], None], bury: Bury, failed: Failed, delay: Delay
) -> Callable[[Sequence[Message]], BatchOutcome]:
    """``call`` with all policies around it: messages -> the outcome of each."""
    limit = spec.max_attempts or sys.maxsize

    def handle(messages: Sequence[Message]) -> BatchOutcome:
        spent = [message for message in messages if message.attempts > limit]
        fresh = [message for message in messages if message.attempts <= limit] if spent else messages
        outcomes = _call(fresh) if fresh else {}
        for message in spent:
            outcomes[message] = _bury(message, exhausted(spec), None)
        return outcomes

    def _call(messages: Sequence[Message]) -> BatchOutcome:
        batch = Batch(messages)
        try:
            call(batch)
        except KeyboardInterrupt:
            raise
        except Reject as error:
            return {message: _bury(message, describe(error), error) for message in messages}
        except HandlerTimeout as error:
            doomed = [message for message in messages if dies_of_time(message, spec)]
            return {message: _bury(message, describe(error), error) for message in doomed} or _all_failed(messages, error)
        except BaseException as error:
            return _all_failed(messages, error)
        outcomes: BatchOutcome = dict.fromkeys(messages)
        for message, why in batch.outcomes.items():
            if message in outcomes:  # a name from another batch is not ours to settle
                outcomes[message] = _one_failed(message, why)
        return outcomes

    def _all_failed(messages: Sequence[Message], error: BaseException) -> BatchOutcome:
        log.log(  # one failure, one line: a batch may hold thousands
            level_of(error),
            "handler %s: a batch of %d messages (first %s, attempt %d) failed: %s; all are delivered again",
            spec.name, len(messages), messages[0].id.decode(errors="replace"), messages[0].attempts, describe(error),
            exc_info=trace_of(error),
        )  # fmt: skip
        return {message: Requeue(delay_after(error, message.attempts, delay)) for message in messages}

    def _one_failed(message: Message, error: Exception) -> Outcome:
        if isinstance(error, Reject):
            return _bury(message, describe(error), error)
        return failed(message, error)

    def _bury(message: Message, reason: str, error: BaseException | None) -> Outcome:
        try:
            return bury(message, reason, error)
        except Exception as unpublished:  # one dead letter that cannot be stored must not fail the others
            return failed(message, unpublished)

    return handle

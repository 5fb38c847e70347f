"""The retry and dead letter policies for a batch handler: one call, an outcome for each of its messages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from framework.errors import HandlerTimeout, Reject
from framework.handler import HandlerSpec
from framework.message import Batch, Message
from framework.middleware.dead_letter import UNLIMITED, Bury, dies_of_time, exhausted
from framework.middleware.later import WaitingRoom
from framework.middleware.outcome import BatchOutcome, Outcome
from framework.middleware.policy import Means
from framework.middleware.retry import Delay, Failed, delay_after, describe, level_of, requeue_after, trace_of

log = logging.getLogger(__name__)


def compile_batch(
    spec: HandlerSpec,
    call: Callable[[Batch], None],
    *,
    bury: Bury,
    failed: Failed,
    delay: Delay,
    later: WaitingRoom,
    means: Means,
) -> Callable[[Sequence[Message]], BatchOutcome]:
    """``call`` with all policies around it: messages -> the outcome of each. ``call`` raises what its errors mean."""
    limit = spec.max_attempts or UNLIMITED

    def handle(messages: Sequence[Message]) -> BatchOutcome:
        if any(message.attempts > limit for message in messages):
            return _handle_odd(messages)
        return _call(messages)

    def _handle_odd(messages: Sequence[Message]) -> BatchOutcome:
        """Some have no attempts left, or came in an envelope."""
        outcomes: BatchOutcome = {}
        arrived: dict[Message, Message] = {}  # what the handler gets -> what it came as
        for message in messages:
            found = message if message.attempts <= limit else later.returned(message)
            if not isinstance(found, Message):
                outcomes[message] = found
            elif found.attempts > limit:
                outcomes[message] = _bury(found, exhausted(spec), None)
            else:
                arrived[found] = message
        handled = _call(list(arrived)) if arrived else {}
        return outcomes | {arrived[message]: outcome for message, outcome in handled.items()}

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
        return {m: later.requeue(m, requeue_after(error, delay_after(error, m.attempts, delay))) for m in messages}

    def _one_failed(message: Message, error: Exception) -> Outcome:
        meant = means(error)
        if isinstance(meant, Reject):
            return _bury(message, describe(meant), meant)
        return failed(message, meant)

    def _bury(message: Message, reason: str, error: BaseException | None) -> Outcome:
        try:
            return bury(message, reason, error)
        except Exception as unpublished:  # one dead letter that cannot be stored must not fail the others
            return failed(message, unpublished)

    return handle

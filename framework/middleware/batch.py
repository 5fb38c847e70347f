"""The retry and dead letter policies for a batch handler: one call, an outcome for each of its messages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from framework.errors import HandlerTimeout, Reject, Retry, Skip
from framework.handler import HandlerSpec
from framework.message import Batch, Message
from framework.middleware.dead_letter import GiveUp, dies_of_time
from framework.middleware.failures import Note, ignore
from framework.middleware.outcome import UNLIMITED, BatchOutcome, Outcome
from framework.middleware.policy import Means
from framework.middleware.retry import (
    Delay,
    Failed,
    Requeuing,
    delay_after,
    describe,
    is_for_the_process,
    is_last,
    judged,
    level_of,
    requeue_after,
    trace_of,
)
from framework.middleware.strays import blamed
from framework.observe import hublog

log = hublog.get(__name__)


def compile_batch_call(spec: HandlerSpec) -> Callable[[Batch], None]:
    """Decode each and call. An item that cannot be decoded fails by itself; the function gets the others, if there are any.

    It gets none that a middleware has judged before."""
    function, decode, as_list = spec.function, spec.decode or _as_it_is, spec.as_list

    def call(batch: Batch) -> None:
        messages: list[Message] = []
        items: list[Any] = []
        for message in [one for one in batch if one not in batch.outcomes] if batch.outcomes else batch:
            try:
                items.append(decode(message))
            except Exception as error:
                batch.fail(message, error)
            else:
                messages.append(message)
        if messages:
            function(items if as_list else Batch(messages, items, batch.outcomes))

    return call


def _as_it_is(message: Message) -> Message:
    return message


def compile_batch(
    spec: HandlerSpec,
    call: Callable[[Batch], None],
    *,
    give_up: GiveUp,
    failed: Failed,
    delay: Delay,
    requeue: Requeuing,
    means: Means,
    note: Note = ignore,
) -> Callable[[Sequence[Message]], BatchOutcome]:
    """``call`` with all policies around it: messages -> the outcome of each. ``call`` raises what its errors mean."""
    limit = spec.max_attempts or UNLIMITED

    def handle(messages: Sequence[Message]) -> BatchOutcome:
        if any(message.attempts > limit for message in messages):
            return _handle_rest(messages)
        return _call(messages)

    def _handle_rest(messages: Sequence[Message]) -> BatchOutcome:
        """Some have no attempts left: before the function runs, as those that kill the process count as well."""
        outcomes: BatchOutcome = {message: give_up(message, None) for message in messages if message.attempts > limit}
        rest = [message for message in messages if message not in outcomes]
        return outcomes | _call(rest) if rest else outcomes

    def _call(messages: Sequence[Message]) -> BatchOutcome:
        batch = Batch(messages)
        outcomes: BatchOutcome = {}
        try:
            call(batch)
        except BaseException as error:
            if is_for_the_process(error):
                raise
            rest = [message for message in messages if message not in batch.outcomes]
            outcomes = judged(partial(_all_failed, rest), error) if rest else {}
        else:
            outcomes = dict.fromkeys(messages)
        if batch.outcomes:
            ours = set(messages)  # a name from another batch is not ours to settle
            named = {message: why for message, why in batch.outcomes.items() if message in ours}
            outcomes |= {message: judged(partial(_one_failed, message), why) for message, why in named.items()}
        return outcomes

    def _all_failed(messages: Sequence[Message], error: BaseException) -> BatchOutcome:
        if isinstance(error, Skip):
            return dict.fromkeys(messages)
        error = blamed(messages[0], spec.timeout, error)
        if isinstance(error, Reject) and (ours := [message for message in messages if not message.settled]):
            return {message: give_up(message, error) for message in ours}
        if isinstance(error, HandlerTimeout) and any(dies_of_time(message, spec) for message in messages):
            return {message: give_up(message, error) for message in messages if dies_of_time(message, spec)}
        if isinstance(error, Retry) and not error.count:
            return {message: failed(message, error) for message in messages}
        doomed = [message for message in messages if is_last(message, limit)]
        _log(messages, error, len(doomed))
        outcomes: BatchOutcome = {message: give_up(message, error, told=True) for message in doomed}
        for message in messages:
            if message not in outcomes:
                outcomes[message] = requeue(message, requeue_after(error, delay_after(error, message.attempts, delay)))
        return outcomes

    def _log(messages: Sequence[Message], error: BaseException, doomed: int) -> None:
        """One failure, one line: a batch may hold thousands."""
        rest = f"{len(messages) - doomed} are delivered again, {doomed} given up" if doomed else "all are delivered again"
        settled = all(message.settled for message in messages)  # at a stop, or their connection ended
        if settled:
            rest = "all were given back before, or their leases were lost"
        log.log(
            logging.WARNING if settled else level_of(error),
            "handler %s: a batch of %d messages (first %s, attempt %d) failed: %s; %s",
            spec.name, len(messages), messages[0].id.decode(errors="replace"), messages[0].attempts, describe(error), rest,
            exc_info=None if settled else trace_of(error),
        )  # fmt: skip
        if doomed < len(messages) and not isinstance(error, Retry):
            note(messages[0], describe(error), "requeued", error, len(messages) - doomed)

    def _one_failed(message: Message, error: BaseException) -> Outcome:
        if isinstance(error, Skip):
            return None
        meant = means(error)
        return give_up(message, meant) if isinstance(meant, Reject) else failed(message, meant)

    return handle

"""The retry policy: a handler that raises gets its message again later, from the broker, with a growing delay."""

from __future__ import annotations

import logging
import signal
import traceback
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Protocol, TypeVar

from framework.errors import Backoff, Reject, Retry
from framework.handler import HandlerSpec
from framework.message import Message
from framework.middleware.failures import Note, ignore
from framework.middleware.outcome import UNLIMITED, Deferred, Fault, Outcome, Requeue
from framework.middleware.strays import blamed
from framework.observe import hublog
from framework.observe.logging import encodable, scrub

log = hublog.get(__name__)

Delay = Callable[[int], float]
"""attempts -> seconds."""
Failed = Callable[[Message, BaseException], Outcome]
"""A message, and why it is not done -> what becomes of it."""


class PutsOff(Protocol):
    """Where messages wait without using up an attempt; ``later.LaterTopic`` is one."""

    def put_off(self, message: Message, seconds: float) -> Outcome:
        """None where it cannot wait there."""

    def times_put_off(self, message: Message) -> int: ...


Result = TypeVar("Result")
Traced = tuple[type[BaseException], BaseException, TracebackType | None]
"""What logging takes for an exception. Of one alone it would ask whether it is true, which is for an app's class to answer."""

Requeuing = Callable[[Message, Requeue], Outcome]
"""A requeue, whatever its delay -> what the broker can be asked for."""


def compile_retry(failed: Failed) -> Failed:
    """Turns every exception of a call into a requeue by ``failed``, but for one that is meant for the process."""

    def retry(message: Message, error: BaseException) -> Outcome:
        if is_for_the_process(error):  # the slot gives the message back
            raise error
        return judged(lambda known: failed(message, known), error)

    return retry


def is_for_the_process(error: BaseException) -> bool:
    """Whether it may be Ctrl-C: Python raises that in whatever runs. Where signals are handled, as in ``workers run``, it is an
    exception as any other, a child process's for example."""
    return isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler


class Unspeakable(Exception):
    """Stands for an exception that fails itself when it is looked at."""


def judged(judge: Callable[[BaseException], Result], error: BaseException) -> Result:
    """``judge(error)``, or of what stands for it: an app's exception may raise in its ``__str__``, ``__eq__``, metaclass."""
    try:
        return judge(error)
    except Exception:
        name = type.__getattribute__(type(error), "__name__")
        return judge(Unspeakable(f"an exception {name} that raises another when it is looked at"))


def compile_failed(spec: HandlerSpec, put_off: Failed, counted: Failed) -> Failed:
    """Decides whether an attempt counts."""

    def failed(message: Message, error: BaseException) -> Outcome:
        error = blamed(message, spec.timeout, error)
        if isinstance(error, Retry) and not error.count:
            return put_off(message, error)
        return counted(message, error)

    return failed


def compile_counted(spec: HandlerSpec, *, again: Failed, give_up: Failed) -> Failed:
    """Decides whether a failed message comes again. The failure of its last attempt is its end, and the reason for it."""
    limit = spec.max_attempts or UNLIMITED

    def counted(message: Message, error: BaseException) -> Outcome:
        return give_up(message, error) if is_last(message, limit) else again(message, error)

    return counted


def is_last(message: Message, limit: int) -> bool:
    """Whether a message that failed now has no attempts left. One that was given back already (at a stop) comes again."""
    return message.attempts >= limit and not message.settled


def compile_again(spec: HandlerSpec, delay: Delay, requeue: Requeuing, note: Note = ignore) -> Failed:
    """Decides and logs, once, when a failed message comes again. ``note`` is told of what was not asked for."""

    def again(message: Message, error: BaseException) -> Outcome:
        seconds = delay_after(error, message.attempts, delay)
        if message.settled:
            log.warning(
                "handler %s: message %s, given back before or its lease lost, ended at attempt %d with %s",
                spec.name, message.id.decode(errors="replace"), message.attempts, describe(error),
            )  # fmt: skip
            return requeue_after(error, seconds)
        outcome = requeue(message, requeue_after(error, seconds))
        log.log(
            level_of(error),
            "handler %s: message %s failed at attempt %d: %s; delivered again in %.1f s",
            spec.name, message.id.decode(errors="replace"), message.attempts, describe(error),
            outcome.delay if isinstance(outcome, Requeue) else seconds,
            exc_info=trace_of(error),
        )  # fmt: skip
        if not isinstance(error, Retry):
            note(message, describe(error), "requeued", error)
        return outcome

    return again


def compile_put_off(spec: HandlerSpec, delay: Delay, later: PutsOff, counted: Failed) -> Failed:
    """For ``Retry(count=False)``: the message comes again with the attempts that it has. Where that cannot be, it counts."""

    def put_off(message: Message, error: BaseException) -> Outcome:
        seconds = delay_after(error, message.attempts + later.times_put_off(message), delay)
        outcome = later.put_off(message, seconds)
        if outcome is None:
            return counted(message, error)
        log.info(
            "handler %s: message %s put off at attempt %d: %s; delivered again in %.1f s",
            spec.name, message.id.decode(errors="replace"), message.attempts, describe(error), seconds,
        )  # fmt: skip
        if isinstance(outcome, Deferred):
            fault, pause = fault_of(error)
            return replace(outcome, fault=fault, pause=pause)
        return outcome

    return put_off


def delay_after(error: BaseException, attempts: int, delay: Delay) -> float:
    """Seconds until the next delivery: what ``Retry(delay=...)`` says, else the schedule."""
    if isinstance(error, Retry | Backoff) and error.delay is not None:
        return error.delay
    return delay(attempts)


def requeue_after(error: BaseException, seconds: float) -> Requeue:
    """The requeue of a message that failed by ``error``, and whose fault that was."""
    return Requeue(seconds, *fault_of(error))


def fault_of(error: BaseException) -> tuple[Fault, float]:
    """Where the fault was, and how long the pause should be."""
    if isinstance(error, Backoff):
        return Fault.DEPENDENCY, error.delay or 0.0
    return (Fault.NONE if isinstance(error, Retry | Reject) else Fault.MESSAGE), 0.0


def describe(error: BaseException, limit: int = 300) -> str:
    """The error in one bounded line that can be encoded, without the secrets of URLs."""
    words = _words_of(error)
    text = f"{type(error).__name__}: {words}" if words else type(error).__name__
    # Scrubbed before it is cut: half a URL does not show which part of it is its password.
    return encodable(scrub(" ".join(text.split()))[:limit])


def _words_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:  # an app's own __str__ may fail, sys.exit() even, and that must cost no more than its words
        return "(its own text cannot be had)"


def level_of(error: BaseException) -> int:
    """What was asked for is no reason to worry; what failed is one to be told."""
    return logging.INFO if isinstance(error, Retry | Backoff) else logging.ERROR


def trace_of(error: BaseException) -> Traced | None:
    """What the log shall show a traceback of: the unexpected; the expected only where debug is on."""
    if isinstance(error, Retry | Backoff) and not log.isEnabledFor(logging.DEBUG):
        return None
    try:
        traceback.format_exception(error)
    except Exception:  # it, or one of its causes, fails when it is looked at, and so would the log
        return None
    return type(error), error, error.__traceback__

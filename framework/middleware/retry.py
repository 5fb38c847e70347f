"""The retry policy: a handler that raises gets its message again later, from the broker, with a growing delay."""

from __future__ import annotations

import logging
from collections.abc import Callable

from framework.errors import Backoff, HandlerTimeout, Retry
from framework.handler import HandlerSpec
from framework.message import Message
from framework.middleware.outcome import Fault, Outcome, Requeue

log = logging.getLogger(__name__)

Delay = Callable[[int], float]
"""attempts -> seconds."""
Failed = Callable[[Message, BaseException], Outcome]
Later = Callable[[Message, Requeue], Outcome]
"""A requeue, whatever its delay -> what the broker can be asked for."""


def compile_retry(call: Callable[[Message], Outcome], failed: Failed) -> Callable[[Message], Outcome]:
    """``call`` with every exception turned into a requeue by ``failed``."""

    def handle(message: Message) -> Outcome:
        try:
            return call(message)
        except KeyboardInterrupt:  # meant for the process, not for this message: the slot gives it back
            raise
        except BaseException as error:  # sys.exit() or a gevent.Timeout in a handler fails the message, not the worker
            return failed(message, error)

    return handle


def compile_failed(spec: HandlerSpec, delay: Delay, later: Later) -> Failed:
    """Decides and logs, once, when a failed message comes again."""

    def failed(message: Message, error: BaseException) -> Outcome:
        seconds = delay_after(error, message.attempts, delay)
        log.log(
            level_of(error),
            "handler %s: message %s failed at attempt %d: %s; delivered again in %.1f s",
            spec.name, message.id.decode(errors="replace"), message.attempts, describe(error), seconds,
            exc_info=trace_of(error),
        )  # fmt: skip
        return later(message, requeue_after(error, seconds))

    return failed


def delay_after(error: BaseException, attempts: int, delay: Delay) -> float:
    """Seconds until the next delivery: what ``Retry(delay=...)`` says, else the schedule."""
    if isinstance(error, Retry | Backoff) and error.delay is not None:
        return error.delay
    return delay(attempts)


def requeue_after(error: BaseException, seconds: float) -> Requeue:
    """The requeue of a message that failed by ``error``, and whose fault that was."""
    if isinstance(error, Backoff):
        return Requeue(seconds, Fault.DEPENDENCY, error.delay or 0.0)
    return Requeue(seconds, Fault.NONE if isinstance(error, Retry) else Fault.MESSAGE)


def describe(error: BaseException, limit: int = 300) -> str:
    """The error in one bounded line that can be encoded."""
    words = _words_of(error)
    text = f"{type(error).__name__}: {words}" if words else type(error).__name__
    return encodable(" ".join(text.split())[:limit])


def encodable(text: str) -> str:
    """``text`` with lone surrogates escaped: names of files and what was decoded with surrogateescape have them."""
    return text.encode(errors="backslashreplace").decode()


def _words_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # an app's own __str__ may fail, and that must cost no more than its words
        return "(its own text cannot be had)"


def level_of(error: BaseException) -> int:
    """What was asked for is no reason to worry."""
    return logging.INFO if isinstance(error, Retry | Backoff) else logging.WARNING


def trace_of(error: BaseException) -> BaseException | None:
    """What the log shall show a traceback of: the unexpected; the expected only where debug is on."""
    expected = isinstance(error, Retry | Backoff | HandlerTimeout)
    return error if not expected or log.isEnabledFor(logging.DEBUG) else None

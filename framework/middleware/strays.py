"""Recognises a ``gevent.Timeout`` that another call left running: the message that it hits has not failed."""

from __future__ import annotations

from gevent import Timeout

from framework.errors import Retry
from framework.message import Message
from framework.observe import hublog

log = hublog.get(__name__)

SLACK = 0.01
"""Seconds by which a timer may end early. It is no more, because gevent has the loop's clock read when a Timeout starts."""


def blamed(message: Message, limit: float, error: BaseException) -> BaseException:
    """``error``, or what stands for it: a Timeout for longer than the call for ``message`` has run was not started in it.

    ``limit``: for how long the call may run. What a handler starts and does not cancel is thrown into its slot, whatever that
    does by then. The delay is the schedule's: one that was never started, and raised by hand, must not go round in circles."""
    if not isinstance(error, Timeout) or not is_stray(message, limit, error):
        return error
    seconds, ran = error.seconds, limit - message.seconds_left
    words = f"a gevent.Timeout of {seconds:g} s ended {ran:.1f} s after the start of this call: one before it did not cancel it"
    log.warning("message %s: %s; start them by `with gevent.Timeout(...):`", message.id.decode(errors="replace"), words)
    retry = Retry(words, count=False)
    retry.__cause__ = error
    return retry


def is_stray(message: Message, limit: float, error: BaseException) -> bool:
    """Whether ``error`` is a Timeout that the call for ``message`` did not start."""
    seconds = error.seconds if isinstance(error, Timeout) else None
    return seconds is not None and 0 <= limit - message.seconds_left < seconds - SLACK

"""Which exceptions of a handler mean Retry, Reject or Backoff. What those do to a message is not decided here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from framework.errors import Backoff, HandlerTimeout, Reject, Retry, Skip
from framework.handler import HandlerSpec
from framework.middleware.retry import describe
from framework.rules import Action

Means = Callable[[BaseException], BaseException]
"""What a handler raised -> what it counts as."""


def compile_policy(spec: HandlerSpec) -> Means:
    """The rule of the nearest class decides; what no rule names, and what says itself what it means, stays as it is."""
    rules = dict(spec.policy)

    def means(error: BaseException) -> BaseException:
        if isinstance(error, Retry | Reject | Backoff | Skip | HandlerTimeout):  # the last is on_timeout's
            return error
        for kind in type(error).__mro__:
            if kind in rules:
                return _raised_by(rules[kind], error)
        return error

    return means


def translated(call: Callable[[Any], None], means: Means) -> Callable[[Any], None]:
    """``call``, raising what its exceptions mean."""

    def call_by_rules(job: Any) -> None:
        try:
            call(job)
        except Exception as error:
            meant = means(error)
            if meant is error:
                raise
            raise meant from error

    return call_by_rules


def _raised_by(action: Action, error: BaseException) -> BaseException:
    """As if the handler had written ``raise ... from error``; a new one each time, or its traceback would grow."""
    made: BaseException
    if isinstance(action, type):
        made = action(describe(error))
    elif isinstance(action, Reject):
        made = Reject(action.reason or describe(error))
    elif isinstance(action, Retry):
        made = Retry(action.reason or describe(error), delay=action.delay, count=action.count)
    else:
        made = Backoff(action.reason or describe(error), delay=action.delay)
    made.__cause__ = error  # for those that are not raised: of a Batch's messages
    return made


def is_marked(error: BaseException, mark: str) -> bool:
    """Whether ``error`` has an attribute ``mark`` that is true, or what a policy made it of has: its cause."""
    seen: BaseException | None = error
    while seen is not None and not getattr(seen, mark, False):
        seen = seen.__cause__
    return seen is not None

"""Puts an app's own middleware around the calls of a handler. None can finish a message by mistake, or call the handler twice.

A middleware wraps the call, and is not told before and after it: what it opens, ``with`` closes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from framework import hooks
from framework.errors import WrongUse
from framework.hooks import Middleware
from framework.message import Batch

Call = Callable[[Any], None]
"""Of a Message or a Batch."""
Tell = Callable[[Any, BaseException | None], None]
"""Of a job, and what its call failed by; None where some messages of a Batch failed."""


def nobody(job: Any, error: BaseException | None) -> None:
    """Is told, and does nothing."""


def compile_around(call: Call, middleware: Sequence[Middleware]) -> Call:
    """``call`` with the ``around`` of each; the first is the outermost. Without any, ``call`` itself."""
    for one in reversed(middleware):
        if hooks.overridden(one, "around"):
            call = _wrapped(call, one)
    return call


def compile_missed(call: Call, middleware: Sequence[Middleware]) -> Call:
    """``call``, which is made elsewhere, with each observer told of what it fails by. Without any, ``call`` itself."""
    observers = [one for one in middleware if isinstance(one, hooks.Observer)]

    def call_observed(job: Any) -> None:
        try:
            call(job)
        except BaseException as error:
            for one in observers:
                one.missed(job, error)
            raise

    return call_observed if observers else call


def compile_tell(middleware: Sequence[Middleware]) -> Tell:
    """Tells the observers who ask for it of what a call fails by."""
    observers = [one for one in middleware if isinstance(one, hooks.Observer) and hooks.observes(one, "failed")]

    def tell(job: Any, error: BaseException | None) -> None:
        for one in observers:
            one.failed(job, error)

    return tell if observers else nobody


def compile_failures(call: Call, tell: Tell) -> Call:
    """``call``, which tells of what it fails by. For nobody, ``call`` itself."""

    def call_told(job: Any) -> None:
        try:
            call(job)
        except BaseException as error:
            tell(job, error)
            raise
        if isinstance(job, Batch) and job.outcomes:
            tell(job, None)

    return call if tell is nobody else call_told


class _Call:
    """``call`` as a middleware gets it, for one job."""

    __slots__ = ("_call", "_job", "error", "over", "started")

    def __init__(self, call: Call, job: Any) -> None:
        self._call = call
        self._job = job
        self.started = False
        self.over = False
        self.error: BaseException | None = None

    def __call__(self) -> None:
        if self.started:
            raise WrongUse("a middleware may make its call() once, before its around() returns: to repeat it, raise Retry")
        self.started = True
        try:
            self._call(self._job)
        except BaseException as error:
            self.error = error
            raise
        finally:
            self.over = True


def _wrapped(call: Call, one: Middleware) -> Call:
    around, name = one.around, hooks.name_of(one)

    def call_around(job: Any) -> None:
        made = _Call(call, job)
        try:
            around(job, made)
            if made.error is not None:  # swallowed: the message would be finished, and is not done
                raise made.error
            if not made.over:
                raise WrongUse(f"middleware {name} returned before its call() did: call it, or raise Skip to end the message")
        finally:
            made.started = True  # by who kept it for later, when the message is another's
            made.error = None  # its traceback holds this frame

    return call_around

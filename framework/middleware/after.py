"""Calls the ``after`` hooks of an app's middleware, once a message has been settled. They change nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import time
from typing import Any

from framework import hooks
from framework.handler import HandlerSpec
from framework.hooks import Ending, Observer
from framework.message import Message
from framework.middleware.outcome import BatchOutcome, Chain, Told
from framework.middleware.retry import is_for_the_process
from framework.observe import hublog

log = hublog.get(__name__)


def compile_after(spec: HandlerSpec, chain: Chain) -> Chain:
    """``chain`` with outcomes that name the middleware to call: the last one first. Without any, ``chain`` itself."""
    middleware = [one for one in reversed(spec.middleware) if hooks.overridden(one, "after")]
    observers = [one for one in spec.middleware if isinstance(one, Observer) and hooks.observes(one, "ended")]

    def tell(message: Message, ending: Ending) -> None:
        for one in middleware:
            try:
                one.after(message, ending)
            except BaseException as error:  # the time limit as well: the message has ended
                if is_for_the_process(error):
                    raise
                log.exception("handler %s: middleware %s fails after message %s", spec.name, hooks.name_of(one), message.id)

    def handle(message: Message) -> Any:
        return Told(chain(message), message, tell)  # type: ignore[arg-type]

    def handle_batch(messages: Sequence[Message]) -> BatchOutcome:
        outcomes: Any = chain(messages)
        return {message: Told(outcome, message, tell) for message, outcome in outcomes.items()}

    if observers:
        return compile_ended(spec, chain, observers, tell)
    return (handle_batch if spec.batch else handle) if middleware else chain


def compile_ended(
    spec: HandlerSpec, chain: Chain, observers: Sequence[Observer], tell: Callable[[Message, Ending], None]
) -> Chain:  # fmt: skip
    """``chain`` with outcomes that name ``observers`` too, and when the slot began."""

    ended = [one.ended for one in observers]
    others = any(hooks.overridden(one, "after") for one in spec.middleware)

    def tell_all(began: float, message: Message, ending: Ending) -> None:
        for one in ended:
            one(message, ending, began)
        if others:
            tell(message, ending)

    def handle(message: Message) -> Any:
        began = time()
        return Told(chain(message), message, partial(tell_all, began))  # type: ignore[arg-type]

    def handle_batch(messages: Sequence[Message]) -> BatchOutcome:
        tell_began = partial(tell_all, time())
        outcomes: Any = chain(messages)
        return {message: Told(outcome, message, tell_began) for message, outcome in outcomes.items()}

    return handle_batch if spec.batch else handle

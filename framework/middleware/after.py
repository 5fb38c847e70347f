"""Calls the ``after`` hooks of an app's middleware, once a message has been settled. They change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from framework import hooks
from framework.handler import HandlerSpec
from framework.hooks import Ending
from framework.message import Message
from framework.middleware.outcome import BatchOutcome, Chain, Told
from framework.middleware.retry import is_for_the_process
from framework.observe import hublog

log = hublog.get(__name__)


def compile_after(spec: HandlerSpec, chain: Chain) -> Chain:
    """``chain`` with outcomes that name the middleware to call: the last one first. Without any, ``chain`` itself."""
    middleware = [one for one in reversed(spec.middleware) if hooks.overridden(one, "after")]
    if not middleware:
        return chain

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

    return handle_batch if spec.batch else handle

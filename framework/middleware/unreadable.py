"""A message whose body cannot be unpacked (``message.Unreadable``): no handler gets it, and it fails as if one had."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from framework.errors import ProtocolError
from framework.handler import HandlerSpec
from framework.message import Message, Unreadable
from framework.middleware.outcome import BatchOutcome, Chain, Outcome
from framework.middleware.retry import Failed


def compile_unreadable(spec: HandlerSpec, chain: Chain, fail: Failed) -> Chain:
    """``chain`` for all others. It comes again like what fails, because what was garbled on its way is whole the next time, and
    dies of its last attempt."""

    def failed(message: Unreadable) -> Outcome:
        return fail(message, ProtocolError(message.why))

    def handle(message: Message) -> Any:
        return failed(message) if isinstance(message, Unreadable) else chain(message)

    def handle_batch(messages: Sequence[Message]) -> BatchOutcome:
        outcomes: BatchOutcome = {message: failed(message) for message in messages if isinstance(message, Unreadable)}
        if not outcomes:
            return chain(messages)  # type: ignore[return-value]
        rest = [message for message in messages if message not in outcomes]
        return outcomes | chain(rest) if rest else outcomes  # type: ignore[operator]

    return handle_batch if spec.batch else handle

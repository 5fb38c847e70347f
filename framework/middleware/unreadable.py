"""A message whose body cannot be unpacked (``message.Unreadable``): no handler gets it, and it fails as if one had."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from framework.errors import ProtocolError
from framework.message import Message, Unreadable
from framework.middleware.outcome import BatchOutcome
from framework.middleware.retry import Failed


def compile_unreadable(chain: Callable[[Sequence[Message]], BatchOutcome], fail: Failed) -> Callable[..., BatchOutcome]:
    """``chain`` of a batch handler for all others. It comes again like what fails, because what was garbled on its way is whole
    the next time, and dies of its last attempt. Where messages come one by one ``compile_dead_letter`` looks for it."""

    def handle(messages: Sequence[Message]) -> BatchOutcome:
        outcomes: BatchOutcome = {
            message: fail(message, ProtocolError(message.why)) for message in messages if isinstance(message, Unreadable)
        }
        if not outcomes:
            return chain(messages)
        rest = [message for message in messages if message not in outcomes]
        return outcomes | chain(rest) if rest else outcomes

    return handle

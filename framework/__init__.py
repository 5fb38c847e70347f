"""A worker framework for message queues: what app code imports, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from framework.errors import (
    AlreadySettled,
    Backoff,
    BadHandler,
    BadMessage,
    BadName,
    BadSetting,
    BrokerUnreachable,
    FrameworkError,
    HandlerTimeout,
    PublishError,
    Reject,
    Retry,
    Skip,
    UndecodablePayload,
    WrongUse,
)
from framework.handler import handler
from framework.hooks import Middleware, use_middleware
from framework.message import Batch, Message
from framework.publisher import Publisher, publish, publish_each, publish_many

if TYPE_CHECKING:
    from framework.spool import Spool as Spool

# Spool is not in __all__: `from framework import *` must not ask for pyarrow.
__all__ = [
    "AlreadySettled",
    "Backoff",
    "BadHandler",
    "BadMessage",
    "BadName",
    "BadSetting",
    "Batch",
    "BrokerUnreachable",
    "FrameworkError",
    "HandlerTimeout",
    "Message",
    "Middleware",
    "PublishError",
    "Publisher",
    "Reject",
    "Retry",
    "Skip",
    "UndecodablePayload",
    "WrongUse",
    "handler",
    "publish",
    "publish_each",
    "publish_many",
    "use_middleware",
]


def __getattr__(name: str) -> Any:
    """Spool brings pyarrow, so it is imported by those who use it."""
    if name == "Spool":
        from framework.spool import Spool  # noqa: PLC0415

        return Spool
    raise AttributeError(f"module 'framework' has no attribute {name!r}")

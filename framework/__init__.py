"""A worker framework for message queues: what app code imports, and nothing else."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from framework.dedupe import Dedupe, KeyStore
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
    "Dedupe",
    "FrameworkError",
    "HandlerTimeout",
    "KeyStore",
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


_HOMES = {
    "framework.errors": (
        "AlreadySettled", "Backoff", "BadHandler", "BadMessage", "BadName", "BadSetting", "BrokerUnreachable", "FrameworkError",
        "HandlerTimeout", "PublishError", "Reject", "Retry", "Skip", "UndecodablePayload", "WrongUse",
    ),
    "framework.dedupe": ("Dedupe", "KeyStore"),
    "framework.hooks": ("Middleware", "use_middleware"),
    "framework.message": ("Batch", "Message"),
    "framework.publisher": ("Publisher", "publish", "publish_each", "publish_many"),
    "framework.spool": ("Spool",),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import what is asked for, and no more: a Spark executor reads a spool where there may be neither gevent nor msgspec."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'framework' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return found


class _Package(ModuleType):
    """The package, in which ``handler`` is the decorator, although there is a module of that name as well."""

    @property
    def handler(self) -> Any:
        return import_module("framework.handler").handler

    @handler.setter
    def handler(self, module: ModuleType) -> None:
        """The import of the module, which would put the module in the decorator's place."""


sys.modules[__name__].__class__ = _Package

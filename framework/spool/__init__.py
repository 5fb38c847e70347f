"""Messages made durable as Arrow segments before they are finished: what a batch handler lands in and Spark reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from framework.spool.arrow import SpoolError
from framework.spool.limit import SpoolFull

if TYPE_CHECKING:
    from framework.spool.spool import Spool as Spool

__all__ = ["Spool", "SpoolError", "SpoolFull"]


def __getattr__(name: str) -> Any:
    """Spool brings gevent, which those who only read a spool may lack."""
    if name == "Spool":
        from framework.spool.spool import Spool  # noqa: PLC0415

        return Spool
    raise AttributeError(f"module 'framework.spool' has no attribute {name!r}")

"""Messages made durable as Arrow segments before they are finished: what a batch handler lands in and Spark reads."""

from framework.spool.segment import SpoolError
from framework.spool.spool import Spool

__all__ = ["Spool", "SpoolError"]

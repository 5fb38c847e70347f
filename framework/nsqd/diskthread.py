"""A native thread beside the hub, for calls that block on the disk: one after another."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from gevent.threadpool import ThreadPool

Result = TypeVar("Result")


class DiskThread:
    """One thread. ``do`` blocks the greenlet that calls it and nothing else."""

    def __init__(self) -> None:
        self._pool = ThreadPool(1)
        self._since = 0.0

    def do(self, call: Callable[..., Result], *arguments: Any) -> Result:
        """What ``call`` returns or raises."""
        result, error = self._pool.apply(self._outcome, (call, arguments))
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    @property
    def busy(self) -> float:
        """For how many seconds it has been at what it does now."""
        since = self._since
        return time.monotonic() - since if since else 0.0

    def end(self) -> None:
        self._pool.kill()

    def _outcome(self, call: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, Exception | None]:
        """The error as a value: gevent writes the traceback of one that is raised in its thread, also when it is expected."""
        self._since = time.monotonic()
        try:
            return call(*arguments), None
        except Exception as error:
            return None, error
        finally:
            self._since = 0.0

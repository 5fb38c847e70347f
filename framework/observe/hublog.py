"""Log records that nobody waits for: queued, and written by a greenlet, so that a log that waits or fails stops nothing.

A logger of the standard library calls its handlers where it is called; one that waits there, for a lock or for a socket, throws
an error into a callback of the hub, which has no other place to wait in, and holds up or ends what runs messages and their stop.
So records from callbacks of a hub are queued, and in the thread of a ``serving`` hub all of them. Elsewhere they are written
where they are made, unless older ones are still queued.
"""

from __future__ import annotations

import atexit
import contextvars
import logging
import sys
import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary

import gevent
from gevent.hub import _get_hub
from greenlet import getcurrent  # type: ignore[import-untyped]

from framework.forked import Step, call_in_child

SIZE = 10_000
"""Records that may wait; what comes while so many do is dropped and counted."""
_FLUSH_SECONDS = 2.0
_PLAIN = (str, int, float, type(None))
"""What a record can keep as it is: who groups records by their words wants them apart."""


class HubLogger(logging.LoggerAdapter[logging.Logger]):
    """``logging.getLogger(name)``, as far as the methods that log go."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if self.isEnabledFor(level):
            hub = _get_hub()  # None in a thread that has none
            queue = _queues.get(hub) if hub is not None else None
            stacklevel = kwargs.pop("stacklevel", 1) + 1  # this one
            if (queue and (queue.serving or queue.waiting)) or getcurrent() is hub:
                queue = queue or _queues.setdefault(hub, _Queue())
                queue.put(self._record(level, msg, args, stacklevel, **kwargs))
            else:
                self.logger.log(level, msg, *args, stacklevel=stacklevel, **kwargs)

    def _record(
        self, level: int, msg: object, args: tuple[object, ...], stacklevel: int, exc_info: Any = None, **_: object
    ) -> logging.LogRecord:  # fmt: skip
        path, line, function, _stack = self.logger.findCaller(stacklevel=stacklevel + 1)
        if isinstance(exc_info, BaseException):
            exc_info = (type(exc_info), exc_info, exc_info.__traceback__)
        elif exc_info and not isinstance(exc_info, tuple):
            exc_info = sys.exc_info()
        record = self.logger.makeRecord(self.logger.name, level, path, line, msg, args, exc_info, function)
        if not all(isinstance(one, _PLAIN) for one in args):
            record.msg, record.args = record.getMessage(), None  # as of now: what it speaks of goes on
        return record


class _Queue:
    """Of one hub."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[contextvars.Context, logging.LogRecord]] = deque()
        self.serving = False
        """All that is logged in the hub's thread comes here."""
        self._dropped = 0
        self._stuck = False
        """A log that did not come to its end is not waited for a second time."""
        self._writer: gevent.Greenlet | None = None

    def put(self, record: logging.LogRecord) -> None:
        if self._dropped or len(self.waiting) >= SIZE:
            self._dropped += 1
            return
        self.waiting.append((contextvars.copy_context(), record))  # a filter may ask for what the handler has set
        if self._writer is None:
            self._writer = gevent.spawn(self._write_all)

    def _write_all(self) -> None:
        try:
            while self.waiting:
                context, record = self.waiting[0]  # it counts as waiting until it is written: the next one must not overtake it
                try:
                    context.run(_write, record)
                except KeyboardInterrupt:
                    raise
                except BaseException as error:  # SystemExit as well: it would end the worker
                    _say_failed(error)
                self.waiting.popleft()
                if self._dropped and len(self.waiting) <= SIZE // 2:
                    self._say_dropped()
        finally:
            self._writer = None

    def _say_dropped(self) -> None:
        """In the place of those that were dropped."""
        dropped, self._dropped = self._dropped, 0
        words = "%d log records were dropped: they came faster than they could be written"
        about = {"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING", "msg": words, "args": (dropped,)}
        self.waiting.append((contextvars.Context(), logging.makeLogRecord(about)))

    def flush(self, seconds: float) -> bool:
        """Whether all is written; once it was not, it is not waited for again."""
        if self._writer is not None:
            self._writer.join(0 if self._stuck else seconds)
        self._stuck = bool(self.waiting)
        return not self._stuck


def _write(record: logging.LogRecord) -> None:
    logging.getLogger(record.name).handle(record)


def _say_failed(error: BaseException) -> None:
    """As ``logging.Handler.handleError`` does, for a handler that does not use it."""
    if logging.raiseExceptions:
        with suppress(Exception):  # there may be no stderr
            sys.stderr.write("a log handler failed: " + "".join(traceback.format_exception(error)))


_queues: WeakKeyDictionary[Any, _Queue] = WeakKeyDictionary()


def get(name: str) -> HubLogger:
    """A logger for a module whose functions are called on a hub."""
    return HubLogger(logging.getLogger(name))


def flush(seconds: float = _FLUSH_SECONDS) -> None:
    """Wait until all that was logged on the hub of this thread is written."""
    queue = _queues.get(_get_hub())
    if queue is not None:
        queue.flush(seconds)


@contextmanager
def serving(hub: Any) -> Iterator[None]:
    """While the block runs on ``hub``, nothing that is logged in its thread by a logger of ours is waited for.

    At its end all is written, or what is not after a moment is left where it waits: the process can end all the same.
    """
    queue = _queues.setdefault(hub, _Queue())
    queue.serving = True
    try:
        yield
    finally:
        if not queue.flush(_FLUSH_SECONDS):
            atexit.unregister(logging.shutdown)  # it would wait for the lock of the handler that does not come back
            with suppress(Exception):
                sys.stderr.write(f"workers: the last {len(queue.waiting)} log records could not be written\n")
        queue.serving = False


def _flush_at_exit() -> None:
    with suppress(Exception):
        flush()


atexit.register(_flush_at_exit)
call_in_child(Step.QUEUED, _queues.clear)

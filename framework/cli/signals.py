"""What SIGTERM, SIGINT and SIGHUP do to a verb: stop it, where it runs until told to, or interrupt it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from gevent.hub import _get_hub
from greenlet import getcurrent  # type: ignore[import-untyped]

from framework.cli.exit_codes import Exit


def _numbers() -> list[signal.Signals]:
    """SIGHUP too, which a closed terminal sends, unless it is ignored: so ``nohup`` asks for it."""
    hangs_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return [signal.SIGTERM, signal.SIGINT, *([signal.SIGHUP] if hangs_up else [])]


class Stoppable(Protocol):
    def stop(self, now: bool = False) -> None:
        """May be called from a signal handler; ``now``: give everything back at once."""


class Signals:
    """The first signal stops, the second stops at once, the third ends the process where it stands."""

    def __init__(self, target: Stoppable) -> None:
        self._target = target
        self._count = 0
        self.exit_code: int = Exit.CLEAN

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count == 1:
            self._target.stop()
            return
        self.exit_code = 128 + number
        if self._count == 2:
            self._target.stop(now=True)
        else:
            os._exit(self.exit_code)


@contextmanager
def stopping(target: Stoppable) -> Iterator[Signals]:
    """Stop ``target`` on SIGTERM, SIGINT and SIGHUP while the block runs."""
    signals = Signals(target)
    before = {number: signal.signal(number, signals) for number in _numbers()}
    try:
        yield signals
    finally:
        for number, action in before.items():
            signal.signal(number, action)


class Interrupted(KeyboardInterrupt):
    """One of the signals came. Raised in the main greenlet."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextmanager
def interrupting() -> Iterator[None]:
    """Raise Interrupted on SIGTERM, SIGINT and SIGHUP while the block runs."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        hub = _get_hub()
        if hub is None or getcurrent() is hub.parent:
            raise Interrupted(number)
        # Here it would cut a callback in two: messages that were read, and not yet delivered, would be nobody's to give back.
        hub.loop.run_callback_threadsafe(hub.parent.throw, Interrupted(number))

    before = {number: signal.signal(number, interrupt) for number in _numbers()}
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)

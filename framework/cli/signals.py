"""What SIGTERM, SIGINT and SIGHUP do to a verb: stop it, where it runs until told to, or interrupt it."""

from __future__ import annotations

import atexit
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Protocol

from gevent import monkey
from gevent.hub import _get_hub
from greenlet import getcurrent  # type: ignore[import-untyped]

from framework.cli.exit_codes import Exit
from framework.forked import Step, call_in_child
from framework.observe import stderr


def _numbers() -> list[signal.Signals]:
    """SIGHUP too, which a closed terminal sends, unless it is ignored: so ``nohup`` asks for it."""
    hangs_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return [signal.SIGTERM, signal.SIGINT, *([signal.SIGHUP] if hangs_up else [])]


class Stoppable(Protocol):
    def stop(self, now: bool = False) -> None:
        """May be called from any thread; ``now``: give everything back at once."""


class Signals:
    """The first signal stops, the second stops at once, the third ends the process where it stands.

    They are heeded in a native thread: Python calls a signal's handler in the main thread, and only when that is back from what
    it called in C. The system's own handler writes to a pipe in any case (``signal.set_wakeup_fd``).
    """

    def __init__(self, target: Stoppable, *, to_the_end: bool = False, hangs_up: bool = True) -> None:
        """``to_the_end``: once one has come, they stay ours until the process is gone, for verbs that end it after the block.
        Without ``hangs_up``, SIGHUP is none of them."""
        self._target = target
        self._to_the_end = to_the_end
        self.exit_code: int = Exit.CLEAN
        self._numbers = [number for number in _numbers() if hangs_up or number != signal.SIGHUP]
        self._written: list[int] = []
        self._called: list[int] = []
        """The signals as the pipe and as Python told of them: whatever took the one from us, the other counts."""
        self._heeded = 0
        self._ended = _allocate_lock()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._called.append(number)
        self._ring(_LOOK)

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """While the block runs. In the main thread."""
        self._ears, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        self._ended.acquire()
        _start_new_thread(self._listen, ())
        wakeup = signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        _listening.add(self)
        before = {number: _otherwise(signal.signal(number, self)) for number in self._numbers}
        try:
            yield
        finally:
            for number, action in before.items():
                signal.signal(number, _end_now if self._to_the_end and self._heeded else action)
            signal.set_wakeup_fd(wakeup)
            _listening.discard(self)
            self._ring(_END)
            self._ended.acquire()
            os.close(self._ears)
            os.close(self._waker)

    def _ring(self, what: int) -> None:
        with suppress(BlockingIOError):  # there is enough in it to be woken by
            os.write(self._waker, bytes([what]))

    # -- in a thread of its own

    def _listen(self) -> None:
        while _END not in (said := os.read(self._ears, 64)):
            self._written += [number for number in said if number in self._numbers]
            self._heed()
        self._heed()
        self._ended.release()

    def _heed(self) -> None:
        came = max(list(self._written), list(self._called), key=len)
        for number in came[self._heeded :]:
            self._heeded += 1
            self._heed_one(number)

    def _heed_one(self, number: int) -> None:
        if self._heeded == 1:
            self._target.stop()
            return
        self.exit_code = 128 + number
        if self._heeded == 2:
            self._target.stop(now=True)
        else:
            stderr.last_words()
            os._exit(self.exit_code)


def _otherwise(action: Any) -> Any:
    """``action``, unless that was for the first moments of the process alone (``workers_command``): then what it stood for."""
    return getattr(action, "before", action)


def as_before() -> None:
    """Have the signals do what they would have, had nobody looked after the first moments. Of greenlets ctrl-c means the main
    one: Python interrupts the one that runs."""
    for number in _numbers():
        action = _otherwise(signal.getsignal(number))
        signal.signal(number, _interrupt if action is signal.default_int_handler else action)


def _interrupt(number: int, frame: FrameType | None) -> None:
    _throw_into_main(KeyboardInterrupt())


def _throw_into_main(interrupt: KeyboardInterrupt) -> None:
    hub = _get_hub()
    if hub is None or getcurrent() is hub.parent:
        raise interrupt
    # Here it would cut a callback in two: messages that were read, and not yet delivered, would never be given back.
    hub.loop.run_callback_threadsafe(hub.parent.throw, interrupt)


def _end_now(number: int, frame: FrameType | None) -> None:
    """For what comes when all is given back and written: what still runs is an exit function, and it may hang."""
    stderr.last_words()
    os._exit(128 + number)


def at_the_end() -> None:
    """What the verb had to do is done: have a signal end the process without a traceback, and without a word once the exit
    functions have run. So ends the second ctrl-c of somebody who is impatient."""
    for number in _numbers():
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler, _interrupt):
            signal.signal(number, _end_now)


@atexit.register
def _ignore() -> None:
    """The last of the exit functions, as this module is imported early: from here on a signal would kill the process."""
    for number in _numbers():
        if signal.getsignal(number) is _end_now:
            signal.signal(number, signal.SIG_IGN)


_LOOK, _END = 0, 255  # no signals
_allocate_lock = monkey.get_original("_thread", "allocate_lock")
_start_new_thread = monkey.get_original("_thread", "start_new_thread")
_listening: set[Signals] = set()


def _deaf_in_child() -> None:
    """A forked child has the same pipe: what is sent to it would stop its parent."""
    if _listening:
        signal.set_wakeup_fd(-1)
        for one in _listening:
            one._waker = os.open(os.devnull, os.O_WRONLY)
        _listening.clear()


call_in_child(Step.SIGNALS, _deaf_in_child)


@contextmanager
def stopping(target: Stoppable, *, to_the_end: bool = False, hangs_up: bool = True) -> Iterator[Signals]:
    """Stop ``target`` on SIGTERM, SIGINT and SIGHUP while the block runs; see ``Signals``."""
    signals = Signals(target, to_the_end=to_the_end, hangs_up=hangs_up)
    with signals.heeded():
        yield signals


class Interrupted(KeyboardInterrupt):
    """One of the signals came. Raised in the main greenlet."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextmanager
def interrupting() -> Iterator[None]:
    """Raise Interrupted on SIGTERM, SIGINT and SIGHUP while the block runs."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        _throw_into_main(Interrupted(number))

    before = {number: _otherwise(signal.signal(number, interrupt)) for number in _numbers()}
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)

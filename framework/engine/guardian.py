"""The guardian: a native thread that watches the hub, and keeps its connections and leases while a handler blocks it.

It does nothing while the hub turns: it cannot end a handler, only keep the others from paying for it, and name it. When the
worker shall stop meanwhile, it gives back in the hub's place, and ends the process when the time to drain is over. A handler
that holds the GIL in C stops this thread as well; that is told afterwards.
"""

from __future__ import annotations

import logging
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from traceback import StackSummary
from types import FrameType

from gevent import monkey

from framework.engine.consumer import Consumer
from framework.engine.stopping import Stop
from framework.engine.turns import Turns
from framework.log_thread import log_in_thread
from framework.message import Message
from framework.transports.contract import Connection, Releasable, Rescuable

log = logging.getLogger(__name__)
clock = time.monotonic

LOOK = 0.1
"""Seconds between two looks at the hub."""
BLOCKED = 0.3
"""Seconds without a turn after which the connections are kept from here, and between two times of doing so."""
WORTH_A_WORD = 1.0
"""Seconds without a turn after which it is said, once each time."""
GRACE = 1.0
"""Seconds that a blocked hub has to turn when the time to drain is over; the process ends then. So long may its last words take,
too."""
STACK = 12
"""Lines of the stack that is shown, the innermost."""
HUB = (
    "%s has blocked the hub for %.1f s; its connections and leases are kept, but nothing else runs: "
    'give such a handler slots="thread" or "process". It is at:\n%s'
)
GIL = (
    "%s has held the GIL for %.1f s in native code, so that nothing could keep connections and leases: "
    'give such a handler slots="process". It is at:\n%s'
)

SUSPENDED = (
    "this process has not run for %.1f s: it was suspended, or the machine had no time for it. Nothing could keep connections "
    "and leases meanwhile: what ran out is delivered again, and lease_lost says how many"
)

# Patched, they would be a greenlet's.
_allocate_lock = monkey.get_original("_thread", "allocate_lock")
_start_new_thread = monkey.get_original("_thread", "start_new_thread")
_sleep = monkey.get_original("time", "sleep")
_get_ident = monkey.get_original("_thread", "get_ident")


class Guardian:
    """Made and started on the hub's thread. ``consumers`` may grow. ``leave()`` ends the process, with nothing in flight; None:
    it must not be ended from here.
    """

    def __init__(self, turns: Turns, consumers: Sequence[Consumer], stop: Stop, leave: Callable[[], object] | None) -> None:
        self._turns = turns
        self._consumers = consumers
        self._stop = stop
        self._leave = leave
        self._hub_thread = _get_ident()
        self._stopping = _allocate_lock()
        self._ended = _allocate_lock()
        self._acted = False
        self._told = 0.0
        """The turn that was spoken of last."""
        self._looked = clock()
        """When its thread, or the hub in its place, last saw that this process runs."""
        self._stood_still = 0.0
        """The longest time without such a look, since ``stood_still`` was asked."""

    # -- on the hub

    def start(self) -> None:
        self._stopping.acquire()
        self._ended.acquire()
        _start_new_thread(self._look_on, ())

    def stop(self) -> None:
        """Returns when it does nothing more."""
        self._stopping.release()
        self._ended.acquire()
        self.report()

    def stood_still(self) -> float:
        """For how many seconds in a row neither its thread nor the hub could run, since this was last asked; 0 for the usual
        pauses between two looks."""
        now = clock()
        seconds, self._stood_still, self._looked = max(self._stood_still, now - self._looked), 0.0, now
        return seconds if seconds > BLOCKED else 0.0

    def report(self) -> None:
        """The hub turns: let every connection learn of what was done for it."""
        if self._acted:
            self._acted = False
            for one in self._rescuables():
                one.rescued()

    # -- in its own thread

    def _look_on(self) -> None:
        rescued = looked = awake = self._looked = clock()
        cpu = time.process_time()
        try:
            while not (self._stopping.acquire(timeout=LOOK) or self._turns.over):
                late, looked = clock() - looked, clock()
                self._stood_still, self._looked = max(self._stood_still, looked - self._looked), looked
                used, cpu = time.process_time() - cpu, time.process_time()
                blocked = looked - self._turns.stamp
                if late > WORTH_A_WORD:
                    awake = looked
                # First of all: while connections are kept the GIL is let go of, and whoever held it goes on to other places.
                with _never_failing():
                    self._tell_of(late, used, blocked)
                if blocked > BLOCKED and looked - rescued > BLOCKED:
                    rescued = looked
                    self._rescue(looked)
                    if self._stop.times:
                        self._release(looked)
                # A hub that stood still because all did, this thread too, has not had its chance yet.
                if self._leave is not None and min(looked - awake, blocked) > GRACE and looked > self._stop.until + GRACE:
                    self._end(self._leave)
                    return
        finally:
            self._ended.release()

    def _rescue(self, now: float) -> None:
        self._acted = True
        expired: set[Message] = set()
        for consumer in list(self._consumers):
            with _never_failing():
                expired |= consumer.running.expired(now)
        for one in self._rescuables():
            with _never_failing():
                one.rescue(now, expired)
        self._acted = True  # the hub may have turned in the middle, and told those whose turn was still to come

    def _release(self, now: float) -> None:
        """Take no more, and give back what has not started; past the time to drain what runs as well."""
        for consumer in list(self._consumers):
            with _never_failing():
                kept = consumer.shutdown.kept() if now < self._stop.until else ()
                for connection in list(consumer.accounts):
                    if isinstance(connection, Releasable):
                        connection.release(kept)

    def _end(self, leave: Callable[[], object]) -> None:
        """The handler does not return, and nothing else would end the process."""
        until = clock() + GRACE
        self._release(clock())
        while clock() < until and any(connection.unsent() for connection in self._connections()):
            _sleep(LOOK / 10)
            self._release(clock())
        for connection in self._connections():
            if isinstance(connection, Releasable):
                with _never_failing():
                    connection.write_off()
        leave()

    def _rescuables(self) -> list[Rescuable]:
        """Each once, however many connections share it."""
        found = [connection.rescuable for connection in self._connections()]
        return list(dict.fromkeys(one for one in found if one is not None))

    def _connections(self) -> list[Connection]:
        return [connection for consumer in list(self._consumers) for connection in list(consumer.accounts)]

    def _tell_of(self, late: float, used: float, blocked: float) -> None:
        """What is worth a word of the seconds for which this thread did not run, all computed, and the hub has not turned."""
        if late > WORTH_A_WORD and used > late / 10:  # it computed meanwhile, so it was not suspended
            self._tell(late, GIL, *self._who_held_the_gil())
        elif late > WORTH_A_WORD:
            self._tell_of_suspension(late)
        elif blocked > WORTH_A_WORD:
            self._tell(blocked, HUB, self._who_is_on_the_hub(), self._hub_thread)

    def _tell(self, seconds: float, words: str, who: str, thread: int) -> None:
        """Once for each turn that took too long."""
        if self._told != self._turns.stamp:
            self._told = self._turns.stamp
            frame = sys._current_frames().get(thread)  # None: it has ended meanwhile
            stack = [] if frame is None else list(traceback.walk_stack(frame))[:STACK]  # the lines as of now
            _say(words, who or "something", seconds, stack)

    def _tell_of_suspension(self, seconds: float) -> None:
        self._told = self._turns.stamp  # the hub stood still as well, and kept nothing
        log_in_thread(log.warning, SUSPENDED, seconds)

    def _who_is_on_the_hub(self) -> str:
        return next((f"handler {one.spec.name}" for one in list(self._consumers) if one.running.computing), "")

    def _who_held_the_gil(self) -> tuple[str, int]:
        """A handler and its thread: on the hub, or else in a thread slot, where it is a guess if several run."""
        in_threads = ((f"handler {one.spec.name}", thread) for one in list(self._consumers) for thread in one.running.threads)
        on_hub = self._who_is_on_the_hub()
        return (on_hub, self._hub_thread) if on_hub else next(in_threads, ("", self._hub_thread))


@contextmanager
def _never_failing() -> Iterator[None]:
    """An error here must not end the guardian of the other connections."""
    try:
        yield
    except Exception:
        log_in_thread(log.warning, "the guardian failed, which is a bug: %s", traceback.format_exc())


def _say(words: str, who: str, seconds: float, stack: list[tuple[FrameType, int]]) -> None:
    log_in_thread(lambda: log.warning(words, who, seconds, "".join(StackSummary.extract(reversed(stack)).format())))

"""The master: keeps N processes of one worker at work, and starts, replaces and stops them. It runs no handler itself.

All that happens comes to one queue, and one greenlet takes it from there: ``run`` reads from top to bottom.
"""

from __future__ import annotations

import logging
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import gevent
from gevent.queue import Empty, Queue

from framework.amounts import cores
from framework.app import embedded_nsqd
from framework.errors import BrokerUnreachable, FrameworkError
from framework.master import books, reasons, refused
from framework.master.child import Child, command, folder
from framework.master.dump import FROZEN
from framework.master.seat import Seat
from framework.observe import logfile
from framework.observe.logging import setup
from framework.settings import Settings
from framework.systemd import Condition, Herald, Notifier
from framework.transports import open_transports

if TYPE_CHECKING:
    from framework.master.source import Children
    from framework.nsqd.embedded import EmbeddedNsqd

log = logging.getLogger(__name__)

LOOK = 0.25
"""Seconds between two looks at what no event tells of."""
MARGIN = 4.0
"""Seconds beyond ``drain`` that a process has to end by itself."""
TRIES = 3
"""Processes of a reload that may die, be it by a signal, before one has subscribed."""
_STARTS_NOTHING = (1, 2, 3)
"""With these a process says that what it was given cannot work; see cli/exit_codes."""

Event = Callable[[], object]


class Master:
    """``load()`` reads the settings anew. ``notifier``: to systemd, if that has started it. ``run`` returns the exit code."""

    def __init__(self, settings: Settings, load: Callable[[], Settings], notifier: Notifier | None = None) -> None:
        self._settings = settings
        self._load = load
        self._herald = Herald(notifier, self._condition) if notifier is not None else None
        self._wanted = settings.processes or 1
        self._seats: list[Seat] = []
        self._leaving: set[Child] = set()
        """Told to stop, and still there."""
        self._generation = self._proven = self._newest = 0
        """Of the code and the settings: the one that is wanted, the one of which a process has subscribed, the newest."""
        self._reloading = False
        self._fallen = 0
        """How many of the wanted generation have died, while none has subscribed."""
        self._said: list[str] = []
        self._last_reload = ""
        self._before: tuple[Settings, int] = settings, self._wanted
        """What to go back to if what was asked for last does not work."""
        self._nsqd: EmbeddedNsqd | None = None
        self._source: Children | None = None
        self._stops = self._exit_code = 0
        self._ledgers: books.Books = {}
        self._published: books.Books = {}
        self._events: Queue = Queue()
        self._loop = gevent.get_hub().loop
        self._looked = time.monotonic()
        self._command, self._folder = command(), folder()

    # -- from anywhere

    def stop(self, now: bool = False) -> None:
        """Have all drain, and ``run`` return; ``now``, or a second time: give back at once. From any thread."""
        self._loop.run_callback_threadsafe(self._events.put, partial(self._stop, now))

    # -- the greenlet of ``run``

    def run(self) -> int:
        """Until told to stop. Raises FrameworkError for a ledger that cannot be written."""
        self._generation = self._newest = 1
        self._heed_signals()
        with embedded_nsqd(self._settings) as nsqd, self._admin(nsqd):
            self._nsqd = nsqd
            while not self._over():
                self._fill()
                self._next()()
                self._look()
            gone = nsqd is not None and nsqd.ended
        books.write(self._ledgers, self._published, self._settings.ledger)
        if gone:
            raise BrokerUnreachable(f"the embedded nsqd on {self._settings.data_path} has ended (its log: nsqd.log there)")
        return self._exit_code

    @contextmanager
    def _admin(self, nsqd: EmbeddedNsqd | None) -> Iterator[None]:
        """One endpoint for all, where it is asked for."""
        if not self._settings.admin:
            yield
            return
        from framework import admin  # noqa: PLC0415
        from framework.master.source import Children  # noqa: PLC0415

        self._source = Children(self._loop, lambda: list(self._children()))
        brokers = [nsqd.url] if nsqd else self._settings.brokers
        with admin.serving(self._settings, self._source, lambda: open_transports(brokers)):
            yield

    def _over(self) -> bool:
        return bool(self._stops) and not any(True for _ in self._children())

    def _next(self) -> Event:
        try:
            event: Event = self._events.get(timeout=LOOK)
        except Empty:
            return lambda: None
        return event

    def _children(self) -> Iterator[Child]:
        for seat in list(self._seats):
            yield from seat.children()
        yield from list(self._leaving)  # the admin endpoint's thread looks while some end

    # -- starting

    def _fill(self) -> None:
        """Start what is to be started, the empty seats first; of a new generation one alone, until that has subscribed."""
        if self._nsqd is not None and self._nsqd.ended and not self._stops:
            self._stop(now=True)  # it has what was confirmed: whoever restarts this starts it again
        if self._stops:
            return
        self._set_seats()
        room = 1 if self._proven != self._generation else max(1, cores())
        starting = sum(seat.successor is not None for seat in self._seats)
        for seat in sorted(self._seats, key=lambda seat: seat.child is not None):
            if starting < room and seat.wants(self._generation):
                self._start(seat)
                starting += 1

    def _set_seats(self) -> None:
        while len(self._seats) < self._wanted:
            self._seats.append(Seat(len(self._seats) + 1))
        while len(self._seats) > self._wanted:
            for child in self._seats.pop().children():
                self._retire(child)
        for seat in self._seats:
            if seat.successor is not None and seat.successor.generation != self._generation:
                self._retire(seat.successor)
                seat.successor = None

    def _start(self, seat: Seat) -> None:
        try:
            seat.successor = Child(self._command, self._folder, generation=self._generation, heard=self._heard)
        except OSError as error:  # its folder is gone, or the system has no memory or file descriptors left: the others go on
            self._not_started(seat, error)
            return
        log.debug("process %d is started as %d", seat.number, seat.successor.pid)
        for asked in self._source.commands() if self._source is not None else ():
            seat.successor.tell(asked)

    def _not_started(self, seat: Seat, error: OSError) -> None:
        if self._reloading and self._proven != self._generation:
            self._keep_old(f"could not be started: {error}")
            return
        log.error("process %d cannot be started: %s; this is tried again in %g s", seat.number, error, seat.rest() or LOOK)

    def _retire(self, child: Child) -> None:
        self._leaving.add(child)
        child.stop(self._settings.drain + MARGIN)

    # -- what children say

    def _heard(self, child: Child, report: dict[str, Any] | None) -> None:
        if report is None:
            self._events.put(partial(self._ended, child))
        elif report["ready"] and not child.ready:
            child.ready = True
            self._events.put(partial(self._subscribed, child))

    def _subscribed(self, child: Child) -> None:
        seat = next((seat for seat in self._seats if seat.successor is child), None)
        if seat is None:  # it was told to stop meanwhile
            return
        if self._proven != child.generation:
            self._prove(child.generation)
        former = seat.promote()
        if former is not None:
            log.info("process %d is %d now; %d drains: %s", seat.number, child.pid, former.pid, former.due or "reload")
            if former.due:
                seat.rest(former.age)
            self._retire(former)
        else:
            log.info("process %d of %d is at work: %d", seat.number, len(self._seats), child.pid)
        if all(seat.child is not None and seat.child.generation == self._generation for seat in self._seats):
            self._all_there(child)

    def _prove(self, generation: int) -> None:
        """The first of it works: from now on the master's own lines are where its are, and look as they do."""
        if self._proven:
            settings = self._settings
            setup(settings.log_level, timed=True, form=settings.log_format, frames=settings.log_frames)
            if settings.log_file:
                logfile.move_to(settings.log_file)
        self._proven = generation

    def _all_there(self, child: Child) -> None:
        """Of the newest generation, as ``child`` is."""
        if self._reloading:
            self._reloading = False
            log.info("reloaded: all %d processes have the new code and settings", len(self._seats))
            self._tell_reloaded("reloaded")
        if (words := self._words_of_sum(child)) != self._said:  # not when one of them has been replaced
            self._said = words
            for line in words:
                log.info("%s", line)

    def _words_of_sum(self, child: Child) -> list[str]:
        n = len(self._seats)
        each = child.report.get("handlers", {}).items()
        return [
            *(
                f"handler {name}: max_in_flight {n} x {most} = {n * most}, concurrency {n} x {calls} = {n * calls}"
                for name, (calls, most) in each
            ),
            f"all {n} processes are ready",
        ]

    def _ended(self, child: Child) -> None:
        self._ledgers = books.total([self._ledgers, child.ledgers])
        self._published = books.total([self._published, child.published])
        if self._source is not None:
            self._source.ended(child)
        if child in self._leaving:
            self._leaving.discard(child)
            (log.debug if child.code == 0 else log.warning)("%d, which was to end, %s", child.pid, child.end)
            return
        seat = next(seat for seat in self._seats if child in seat.children())
        died_at_work = child is seat.child
        seconds = seat.lost(child)
        if not died_at_work and self._proven != self._generation:
            self._fallen += 1
            if child.code in _STARTS_NOTHING or (self._reloading and self._fallen == TRIES):
                self._gave_up(child)
                return
        then = f"another is started in {seconds:g} s" if seconds else "another is started"
        log.error("process %d (%d) %s; %s", seat.number, child.pid, child.end, then)

    def _gave_up(self, child: Child) -> None:
        """What was to be started first does not work as it is: its own words are in the log."""
        if not self._proven:
            self._exit_code = child.code or 0
            self._stop()
            return
        log_file = self._settings.log_file
        where = "above" if log_file == self._before[0].log_file else f"in {log_file}"
        self._keep_old(f"{child.end}, its words are {where}")

    def _keep_old(self, how: str) -> None:
        """Of the former generation, as the first process of the new one does not work, which ``how`` says."""
        self._generation, self._reloading = self._proven, False
        self._settings, self._wanted = self._before
        log.error("not reloaded: the first new process %s; the others go on as they are", how)
        self._tell_reloaded(f"not reloaded: the first new process {how}")

    # -- what signals ask for

    def _reload(self) -> None:
        """New code and settings: a process of the new generation in each seat, and only then an end for the old one."""
        if self._stops:
            return
        if self._herald is not None:
            self._herald.reloading()
        try:
            settings = self._load()
            refused.at_reload(settings, self._settings, embedded=self._nsqd is not None)
        except FrameworkError as error:
            log.error("not reloaded: %s; the processes go on as they are", error)
            self._tell_reloaded(f"not reloaded: {error}")
            return
        log.info("reloading: a new process is started, and if it can work, one for each of the others")
        if settings.admin != self._settings.admin:
            log.warning("--admin stays %s: it changes with the next start only", self._settings.admin or "off")
        if self._proven == self._generation:
            self._before = self._settings, self._wanted
        self._settings, self._wanted = settings, settings.processes or 1
        self._newest += 1
        self._generation, self._fallen = self._newest, 0
        self._reloading = True

    def _tell_reloaded(self, words: str) -> None:
        self._last_reload = f"; {words}"
        if self._herald is not None:
            self._herald.reloaded(words)

    def _resize(self, by: int) -> None:
        if not self._stops:
            self._wanted = max(1, self._wanted + by)
            self._before = self._before[0], max(1, self._before[1] + by)  # should a reload that is under way fail
            log.info("%d processes from now on", self._wanted)

    def _open_logs(self) -> None:
        logfile.open_again()
        for child in self._children():
            child.open_log()

    def _dump(self) -> None:
        for child in self._children():
            child.dump("SIGUSR2")

    # -- stopping

    def _stop(self, now: bool = False) -> None:
        self._stops += 1
        now = now or self._stops > 1
        if there := sum(1 for _ in self._children()):
            words = "what runs is given back" if now else f"running handlers may take up to {self._settings.drain:g} s more"
            log.info("stopping %d processes; %s", there, words)
        for seat in self._seats:
            self._leaving.update(seat.children())
        self._seats.clear()
        for child in self._leaving:
            child.stop(MARGIN if now else self._settings.drain + MARGIN, now=now)

    # -- what no event tells of

    def _look(self) -> None:
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, 2 * LOOK), now  # this process may have been suspended as well
        for seat in self._seats:
            if seat.child is not None and not seat.child.due:
                self._judge(seat.child)
            if seat.successor is not None and (words := reasons.late(seat.successor)):
                seat.successor.said_late = True
                log.warning("process %d (%d) %s", seat.number, seat.successor.pid, words)
            first = seat.successor if self._reloading and self._proven != self._generation else None
            if first is not None and (words := reasons.overdue(first, self._settings.reload_deadline)):
                self._keep_old(words)
        for child in list(self._children()):
            child.silent += passed
            if now > child.kill_at:
                log.error("%d does not end: it is killed", child.pid)
                child.kill_at = math.inf
                child.signal(signal.SIGKILL)
        if self._herald is not None:
            self._herald.look()

    def _condition(self) -> Condition:
        """Stuck, where all that are at work are: one that is stuck alone is replaced from here."""
        there = [seat.child for seat in self._seats if seat.child is not None]
        stuck = bool(there) and all(reasons.stuck(child) for child in there)
        words = f"{len(there)} of {self._wanted} processes at work{self._last_reload}"
        if self._stops:
            words = f"draining: {sum(1 for _ in self._children())} processes left"
        return Condition(bool(self._said), bool(self._stops), stuck, words)

    def _judge(self, child: Child) -> None:
        """Have another take its place, if there is a reason to."""
        if words := reasons.stuck(child):
            log.error("%d is stuck, and is replaced: %s", child.pid, words)
            child.dump(words)
            if child.silent > reasons.SILENCE:
                child.signal(FROZEN)  # faulthandler's, where nothing else runs
            child.due = words
        elif words := reasons.worn(child, self._settings):
            child.due = words

    def _heed_signals(self) -> None:
        """To the end: one that comes while the ledger is written would end this process. Those that stop it are the command's."""
        heeded: dict[int, Event] = {
            signal.SIGHUP: self._reload,
            signal.SIGTTIN: partial(self._resize, 1),
            signal.SIGTTOU: partial(self._resize, -1),
            signal.SIGUSR1: self._open_logs,
            signal.SIGUSR2: self._dump,
        }
        for number, event in heeded.items():
            gevent.signal_handler(number, self._events.put, event)

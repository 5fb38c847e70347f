"""Thread slots: native threads for handlers that block where gevent cannot see it. They share the GIL with the hub.

A thread cannot be interrupted. A call that is over its time is told (``Message.lease_lost``), its message is given back, and
its remote slot stays taken until it returns: this is said in the log, with the line at which it hangs.
"""

from __future__ import annotations

import contextvars
import sys
import time
import traceback
from _queue import SimpleQueue  # the C one, which nothing patches
from collections import deque
from typing import Any

import gevent
from gevent import monkey
from greenlet import getcurrent  # type: ignore[import-untyped]

from framework import children, locks
from framework.engine.remote_slots import Call, Queue, messages_of
from framework.errors import BadHandler
from framework.handler import HandlerSpec
from framework.message import Batch, Message
from framework.middleware import compile_call
from framework.observe import call, hublog

log = hublog.get(__name__)

GRACE = 1.0
"""Seconds that a call which was told that its time is over may take to return, before the log names it."""
STACK = 12
"""Lines of the stack of a call that does not return, the innermost."""

# Patched, they would start and name greenlets.
_start_new_thread = monkey.get_original("_thread", "start_new_thread")
_get_ident = monkey.get_original("_thread", "get_ident")


class Ticket:
    """One call in a thread. ``slot`` is the greenlet that waits for it; None when it was told that its time is over."""

    __slots__ = ("caller", "context", "error", "job", "name", "slot", "started", "thread", "told", "warned")
    known_as = staticmethod(call.itself)
    greenlet = None
    """Whatever runs in its context is of this call."""

    def __init__(self, job: Message | Batch, name: str) -> None:
        self.job = job
        self.name = name
        self.slot: Any = getcurrent()
        self.started = time.monotonic()
        # What the app and the policies around the call have set. Each call has a copy, so none sees what another one left.
        self.context = contextvars.copy_context()
        self.context.run(call.site.set, self)
        self.error: BaseException | None = None
        self.thread = 0
        self.caller: Any = None
        """The greenlet of the thread that makes the call: while it waits by gevent, the thread itself is in its hub."""
        self.told = 0.0
        self.warned = False


class ThreadPlaces:
    """``remote_slots.RemoteSlots``: up to ``spec.concurrency`` threads, each started when it is needed first."""

    def __init__(self, spec: HandlerSpec, hub: Any) -> None:
        self.refusal: BadHandler | None = None
        self._stuck = 0
        self._spec = spec
        self._hub = hub
        self._run = compile_call(spec)
        if monkey.is_module_patched("threading"):  # by the app itself: `workers run` has done this before it imported the app
            locks.install()
        if monkey.is_module_patched("subprocess"):
            children.install()
        self._size = spec.concurrency
        self._threads: set[int] = set()
        """The idents of the threads that have said they are there; ``_started`` counts those that have been asked for."""
        self._started = 0
        self._hubs: list[tuple[int, Any]] = []
        self._jobs: SimpleQueue[Ticket | None] = SimpleQueue()
        self._done: deque[Ticket] = deque()
        self._out: set[Ticket] = set()
        self._queue = Queue(hub)
        self._open = True
        self._wake = hub.loop.async_()  # many results, one wake-up: sending again before the hub turns is nothing
        self._wake.start(self._take_results)

    @property
    def usable(self) -> int:
        return max(0, self._size - self._stuck)

    def resize(self, size: int) -> None:
        self._size = size
        surplus = self._started - max(size, len(self._out))
        self._end_threads(max(0, surplus))
        while len(self._out) < self._size and self._queue.wake():
            pass

    def _end_threads(self, count: int) -> None:
        """As many as are free next."""
        self._started -= count
        for _ in range(count):
            self._jobs.put(None)

    # -- in a slot

    def call(self, job: Message | Batch) -> None:
        ticket = Ticket(job, self._spec.name)
        self._out.add(ticket)
        if self._started < len(self._out):
            self._started += 1
            _start_new_thread(self._serve, ())
        self._jobs.put(ticket)
        try:
            while ticket.slot is not None:  # a spurious wake-up is no answer
                self._hub.switch()
        except BaseException:  # the time limit, or the worker's end
            ticket.slot, ticket.told = None, time.monotonic()
            self._stuck += 1
            raise
        if ticket.error is not None:
            try:
                raise ticket.error
            finally:
                ticket.error = None  # its traceback holds this frame

    def wait(self) -> bool:
        while self._open and len(self._out) >= self._size:
            self._queue.wait()
        return self._open

    # -- in a thread

    def _serve(self) -> None:
        jobs, done, run, wake = self._jobs, self._done, self._run, self._wake
        ident = _get_ident()
        self._threads.add(ident)
        try:
            while (ticket := jobs.get()) is not None:
                ticket.thread, ticket.caller = ident, getcurrent()
                try:
                    ticket.context.run(run, ticket.job)
                except BaseException as error:  # SystemExit as well: it fails the message, not the thread
                    ticket.error = error
                done.append(ticket)
                del ticket  # or a thread that waits keeps its last message alive
                wake.send()
        finally:
            hub = gevent.hub._get_hub()  # made by what the handler used of gevent here; get_hub() would make one
            if hub is not None:
                self._hubs.append((ident, hub))

    # -- on the hub

    def _take_results(self) -> None:
        while self._done:
            ticket = self._done.popleft()
            self._out.discard(ticket)
            self._end_threads(max(0, self._started - max(self._size, len(self._out))))
            if ticket.slot is None:
                self._returned_late(ticket)
            else:
                slot, ticket.slot = ticket.slot, None
                slot.switch()
        while len(self._out) < self._size and self._queue.wake():
            pass

    def _returned_late(self, ticket: Ticket) -> None:
        self._stuck -= 1
        if ticket.warned:
            log.info(
                "handler %s: the call for message %s has returned after %.1f s; its thread is in service again",
                self._spec.name, _name_of(ticket), time.monotonic() - ticket.started,
            )  # fmt: skip

    def running(self) -> list[Call]:
        return list(self._out)

    def look(self, now: float) -> None:
        for ticket in [one for one in self._out if one.told and not one.warned and now - one.told > GRACE]:
            ticket.warned = True
            log.warning(
                "handler %s: the call for message %s was told that its time is over and does not return; until it does, %d of %d "
                "threads are left%s. It is at:\n%s",
                self._spec.name, _name_of(ticket), self.usable, self._size,
                "" if self.usable else ", so this handler takes no messages", _stack_of(ticket),
            )  # fmt: skip

    def close(self) -> None:
        self._open = False
        for _ in range(self._started):
            self._jobs.put(None)
        while self._queue.wake():
            pass
        self._wake.stop()  # not closed: a thread that returns after this still sends
        if self._out:
            left = ", ".join(map(_name_of, self._out))
            log.warning("handler %s: left behind, because threads cannot be ended: %s", self._spec.name, left)

    @property
    def ended(self) -> bool:
        alive = sys._current_frames()
        # After the thread: what it kept for itself, connections to publish by, ends with it and needs the loop for that.
        for entry in [one for one in self._hubs if one[0] not in alive]:
            self._hubs.remove(entry)
            entry[1].loop.destroy()
        stuck = {ticket.thread for ticket in self._out}
        return not self._hubs and not (self._threads - stuck) & alive.keys()


def _name_of(ticket: Ticket) -> str:
    messages = messages_of(ticket.job)
    first = messages[0].id.decode(errors="replace")
    return first if len(messages) == 1 else f"{first} and {len(messages) - 1} more"


def _stack_of(ticket: Ticket) -> str:
    frame = getattr(ticket.caller, "gr_frame", None) or sys._current_frames().get(ticket.thread)
    return "".join(traceback.format_stack(frame)[-STACK:]) if frame else "(a thread that has just returned)"

"""Process slots: processes of their own for handlers that compute, or hold the GIL in C. They share nothing with the worker.

Each remote slot is a process that imports the handler's module once and takes one call at a time. A call over its time is ended
with its process; a process that dies costs its own message an attempt, and nothing else. Dead ones are replaced.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import gevent
from gevent.event import Event

from framework.engine import backoff
from framework.engine.remote_slots import Call, Queue
from framework.engine.slot_process import SlotDied, SlotProcess
from framework.errors import BadHandler
from framework.handler import HandlerSpec
from framework.message import Batch, Message
from framework.observe import hublog

log = hublog.get(__name__)

STEADY = 10.0
"""Seconds after which a process counts as good, and its death as the first."""
_STOP_SECONDS = 1.0
"""Seconds that idle processes have to end by themselves when the worker ends."""


class ProcessPlaces:
    """``remote_slots.RemoteSlots``: ``spec.concurrency`` processes, each kept alive by a greenlet."""

    def __init__(self, spec: HandlerSpec, hub: Any, environ: Mapping[str, str] | None = None) -> None:
        self.refusal: BadHandler | None = None
        self._spec = spec
        self._hub = hub
        self._environ = environ
        self._free: deque[SlotProcess] = deque()
        self._children: set[SlotProcess] = set()
        """All that have not been reaped yet."""
        self._queue = Queue(hub)
        self._open = True
        self._size = spec.concurrency
        self._closed_at = 0.0
        self._keepers = [gevent.spawn(self._keep_one) for _ in range(spec.concurrency)]

    @property
    def usable(self) -> int:
        return min(self._size, len([child for child in self._children if child.alive and child.ready.is_set()]))

    def resize(self, size: int) -> None:
        self._size = size
        self._keepers = [one for one in self._keepers if not one.dead]
        self._keepers += [gevent.spawn(self._keep_one) for _ in range(size - len(self._keepers))]
        # Those that are still starting go first: without them there may be no process for seconds that takes calls.
        going = [child for child in self._children if not child.ready.is_set()] + list(self._free)
        for child in going[: max(0, self._surplus)]:
            if child in self._free:
                self._free.remove(child)
            child.dismiss()

    @property
    def _surplus(self) -> int:
        """How many processes take calls that should not."""
        return len([child for child in self._children if child.alive and not child.killed]) - self._size

    # -- in a slot

    def call(self, job: Message | Batch) -> None:
        while not self._free:
            if not self._open:
                raise SlotDied("the worker stops")
            self._queue.wait()
        child = self._free.popleft()
        try:
            child.handle(job)
        finally:
            if child.alive and not child.killed:
                if self._surplus > 0:
                    child.dismiss()
                else:
                    self._free.append(child)

    def wait(self) -> bool:
        while self._open and not self._free:
            self._queue.wait()
        return self._open

    # -- keeping them alive

    def _keep_one(self) -> None:
        failures = 0
        while self._open:
            if len(self._keepers) > self._size:
                self._keepers.remove(gevent.getcurrent())
                return
            began = time.monotonic()
            child = self._start()
            if child is not None and not child.killed:
                failures = 1 if time.monotonic() - began > STEADY else failures + 1
                log.warning(
                    "handler %s: slot process %d %s%s; another is started",
                    self._spec.name, child.pid, child.how_it_ended(), f": {child.refusal}" if child.refusal else "",
                )  # fmt: skip
            elif child is None:
                failures += 1
            else:
                failures = 0
            gevent.sleep(backoff.reconnect_delay(failures) if failures else 0)

    def _start(self) -> SlotProcess | None:
        """One process from its start to its end."""
        ended = Event()
        try:
            child = SlotProcess(self._spec, self._hub, self._environ, ended.set)
        except OSError as error:
            log.error("handler %s: no slot process can be started: %s", self._spec.name, error)
            return None
        self._children.add(child)
        child.ready.wait()
        if child.refusal:
            self.refusal = BadHandler(f"handler {self._spec.name}: a slot process {child.refusal}")
        elif child.alive:
            log.debug("handler %s: slot process %d is ready", self._spec.name, child.pid)
            if self._surplus > 0:
                child.dismiss()
            else:
                self._free.append(child)
                self._hub.loop.run_callback(self._wake)
        ended.wait()
        if child in self._free:
            self._free.remove(child)
        return child

    def _wake(self) -> None:
        while self._free and self._queue.wake():
            pass

    def running(self) -> list[Call]:
        return [child for child in list(self._children) if child.job is not None]

    def look(self, now: float) -> None:
        for child in list(self._children):
            if child.alive:
                child.look()
            elif child.status() is not None:
                self._children.discard(child)
        if self._free:  # who was freed by a call whose slot took no other
            self._wake()

    # -- the end

    def close(self) -> None:
        self._open = False
        self._closed_at = time.monotonic()
        gevent.killall(self._keepers, block=False)
        for child in list(self._children):
            child.dismiss()
        while self._queue.wake():
            pass

    @property
    def ended(self) -> bool:
        late = time.monotonic() - self._closed_at > _STOP_SECONDS
        for child in list(self._children):
            if child.status() is not None:
                self._children.discard(child)
            elif late:
                child.kill()
        return not self._children

"""The messages of a channel that wait for another try or for their time, and how many of their bodies are in memory.

Those that are ready stand in a queue of their own, behind the turn that each has among what was never delivered. What the
storage must know of them is ``framework.nsqd.unsaved``'s affair.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Container, Mapping
from itertools import islice

from framework.alarm import Alarm
from framework.nsqd.lease import Message

_WAITING_BYTES = 4 << 20
"""About as many bytes of bodies as one channel keeps in memory of what waits; of the others the log has to give them again."""
_LOOK = 2000
"""The most that are looked at for their age at once: there may be a million."""
_FETCH = 500
"""Bodies read from the log at once."""


class Retries:
    """What was requeued, has timed out, or is deferred. ``rung`` is called when something is due."""

    def __init__(self, kept: bool, rung: Callable[[], None]) -> None:
        """``kept``: the log has the bodies."""
        self.ready: deque[Message] = deque()
        """To be delivered when the cursor has come to their turn."""
        self.deferred: list[tuple[float, int, Message]] = []
        """A heap by due time (monotonic seconds)."""
        self.bytes_in_memory = 0
        """Of their bodies."""
        self._cutoff = self._cutoff_made = 0
        """What was published before is not delivered again; and the wall clock when that was said (ns since 1970)."""
        self._kept = kept
        self._alarm = Alarm(rung)
        self._generation = object()

    def keep_body(self, message: Message) -> None:
        """It waits from here on; with its body in memory if there is room, else the log has to give it again."""
        if message.body is None:
            return
        if self._kept and self.bytes_in_memory + len(message.body) > _WAITING_BYTES:
            message.body = None
        else:
            self.bytes_in_memory += len(message.body)

    def defer(self, message: Message, delay: float) -> None:
        """Until ``delay`` seconds from now."""
        when = time.monotonic() + delay
        self.keep_body(message)
        heapq.heappush(self.deferred, (when, message.seq, message))
        self._alarm.set(when)

    def due(self, most: int) -> list[Message]:
        """Up to ``most`` whose time has come; they are deferred no more. ``rung`` is called for the others when theirs does."""
        now, found = time.monotonic(), list[Message]()
        while self.deferred and self.deferred[0][0] <= now and len(found) < most:
            found.append(heapq.heappop(self.deferred)[2])
        if self.deferred:
            self._alarm.set(self.deferred[0][0])
        return found

    def take_first(self, body: bytes) -> None:
        """The first that is ready, which has this body, waits no longer."""
        self.ready.popleft()
        self.bytes_in_memory -= len(body)

    def give_up(self, gone: Container[int]) -> list[Message]:
        """Wait no longer for messages that the log cannot give again, and return them. Those in memory are delivered all the
        same."""
        waiting = (*self.ready, *(entry[2] for entry in self.deferred))
        lost = [one for one in waiting if one.body is None and one.seq in gone]
        if lost:
            numbers = {one.seq for one in lost}
            self.ready = deque(one for one in self.ready if one.seq not in numbers)
            self.deferred = [entry for entry in self.deferred if entry[2].seq not in numbers]
            heapq.heapify(self.deferred)
        return lost

    def older_than(self, cutoff: int) -> list[Message]:
        """Wait no longer for what was published before ``cutoff`` (ns since 1970) of the next that are ready, and return it."""
        self._cutoff, self._cutoff_made = cutoff, time.time_ns()
        looked = list(islice(self.ready, _LOOK))
        old = [one for one in looked if 0 < one.ts < cutoff]
        if old:
            for _ in looked:
                self.ready.popleft()
            self.ready.extendleft(one for one in reversed(looked) if not 0 < one.ts < cutoff)
            self.bytes_in_memory -= sum(len(one.body) for one in old if one.body is not None)
        return old

    def is_old(self, message: Message) -> bool:
        """Whether it was published before the last ``cutoff``. Where the wall clock was set back since, nothing is old: what was
        published after that bears an earlier time."""
        return message.ts < self._cutoff and time.time_ns() >= self._cutoff_made

    def clear(self) -> None:
        self._generation = object()
        self.ready.clear()
        self.deferred.clear()
        self.bytes_in_memory = 0
        self._alarm.cancel()

    # --- bodies that the log has to give again ---------------------------------------------------------------------

    def without_body(self) -> tuple[object, list[Message]]:
        """The next that have none, to be read; and what ``take_bodies`` needs to know them by."""
        return self._generation, [one for one in list(self.ready)[:_FETCH] if one.body is None]

    def take_bodies(self, generation: object, wanted: list[Message], found: Mapping[int, tuple[int, bytes] | None]) -> None:
        """What the log gave, as (time of publishing in ns, body)."""
        if generation != self._generation:
            return
        for message in wanted:
            one = found.get(message.seq)  # else it was not looked for, and is read with the next; or it is damaged
            if one is not None and message.body is None:
                message.ts, message.body = one
                self.bytes_in_memory += len(one[1])

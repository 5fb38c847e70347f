"""Tells systemd how a service is (sd_notify(3)): plain datagrams to $NOTIFY_SOCKET, nothing where there is none."""

from __future__ import annotations

import _socket
import math
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from gevent import monkey

EXTENSION = 10.0
"""Seconds that systemd is asked for again and again while it drains, or starts."""
_MOST = 100
"""Messages that wait until they are read."""
_LOOK = 0.25
_sleep = monkey.get_original("time", "sleep")
_start_new_thread = monkey.get_original("_thread", "start_new_thread")


class Notifier:
    """From any thread. ``watchdog``: seconds between two signs of life, half of what systemd waits; None: it wants none."""

    def __init__(self, address: str, watchdog: float | None = None) -> None:
        self.watchdog = watchdog
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        self._status = ""
        self._unsent: deque[bytes] = deque(maxlen=_MOST)

    @classmethod
    def from_environ(cls) -> Notifier | None:
        """This process's; what it starts has none, and cannot speak for it. None where it is no service of that kind."""
        address = os.environ.pop("NOTIFY_SOCKET", "")
        microseconds, whose = os.environ.pop("WATCHDOG_USEC", ""), os.environ.pop("WATCHDOG_PID", "")
        if not address.startswith(("/", "@")):
            return None
        watched = microseconds.isdecimal() and whose in ("", str(os.getpid()))
        return cls(address, int(microseconds) / 2e6 if watched else None)

    def ready(self, status: str) -> None:
        """At the start, and again when a reload is over."""
        self.send(READY="1", STATUS=status)

    def reloading(self) -> None:
        self.send(RELOADING="1", MONOTONIC_USEC=str(time.monotonic_ns() // 1000), STATUS="reloading")

    def stopping(self, status: str) -> None:
        self.send(STOPPING="1", STATUS=status)

    def extend(self, seconds: float) -> None:
        """What is under way may take so much longer."""
        self.send(EXTEND_TIMEOUT_USEC=str(int(seconds * 1e6)))

    def alive(self) -> None:
        """Not queued: what is late is no sign of life."""
        if not self._unsent:
            with suppress(OSError):
                self._socket.sendto(b"WATCHDOG=1\n", self._address)

    def status(self, words: str) -> None:
        """Said once, until it changes."""
        if words != self._status:
            self.send(STATUS=words)

    def send(self, **fields: str) -> None:
        self._status = fields.get("STATUS", self._status)
        self._unsent.append("".join(f"{name}={' '.join(value.split())}\n" for name, value in fields.items()).encode())
        self.flush()

    def flush(self) -> None:
        """Send what could not be sent before: a socket takes ten at a time, until they are read."""
        while self._unsent:
            try:
                self._socket.sendto(self._unsent[0], self._address)
            except BlockingIOError:
                return
            except OSError:  # nobody listens: that is systemd's to notice
                pass
            self._unsent.popleft()


@dataclass(frozen=True)
class Condition:
    """How a service is. ``ready``: it does what it is for. ``stuck``: it makes no progress, and only a restart would help."""

    ready: bool = False
    stopping: bool = False
    stuck: bool = False
    status: str = ""


class Herald:
    """Has systemd know of the ``condition()`` of a service, as long as somebody calls ``look`` about four times a second."""

    def __init__(self, notifier: Notifier, condition: Callable[[], Condition]) -> None:
        self._notifier = notifier
        self._condition = condition
        self._ready = self._stopping = False
        self._extended = self._alive = -math.inf

    def look(self) -> None:
        self._notifier.flush()
        here, now = self._condition(), time.monotonic()
        if here.ready and not self._ready:
            self._ready = True
            self._notifier.ready(here.status)
        if here.stopping and not self._stopping:
            self._stopping = True
            self._notifier.stopping(here.status)
        self._notifier.status(here.status)
        watchdog = self._notifier.watchdog
        if watchdog is not None and not here.stuck and now - self._alive >= watchdog - _LOOK:
            self._alive = now
            self._notifier.alive()
        if (here.stopping or not (self._ready or here.stuck)) and now - self._extended >= EXTENSION / 4:
            self._extended = now
            self._notifier.extend(EXTENSION)  # it ends in time by itself: a drain by its limit, a start by its deadline

    def reloading(self) -> None:
        self._notifier.reloading()

    def reloaded(self, words: str) -> None:
        """Or not, as ``words`` say: it is as ready as before."""
        self._notifier.ready(words)

    def in_a_thread(self) -> None:
        """Have a native thread look from now on, until the process ends."""
        _start_new_thread(self._look_on, ())

    def _look_on(self) -> None:
        while True:
            with suppress(RuntimeError):  # what is looked at changes meanwhile: the next look will do
                self.look()
            _sleep(_LOOK)

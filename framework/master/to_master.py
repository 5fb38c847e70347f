"""The child's end of the socket between a master and one of its processes: says how it is, heeds what the master says.

A native thread serves it, so that it does while a handler blocks the hub. When the master is gone, however it ended, the socket
says so, and the process drains and ends: there are no orphans.
"""

from __future__ import annotations

import _socket
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from gevent import monkey

from framework.engine.supervisor import Supervisor
from framework.errors import FrameworkError
from framework.log_thread import log_in_thread
from framework.master import dump
from framework.master.state import State
from framework.observe import logfile

if TYPE_CHECKING:
    from framework.admin.here import Here

log = logging.getLogger(__name__)

FD = "WORKERS_MASTER_FD"
"""In the environment of a child until it has been read: the number of its end of the socket."""
SOON = 0.1
"""Seconds between two looks at a child that has not subscribed yet."""
EVERY = 0.5
"""Seconds between two reports."""
PATIENCE = 5.0
"""Seconds that the last report may take; any other that the master does not read is left out."""
_LINE = b"\n"
_PIECE = 1 << 16
"""Bytes that are read at a time."""
_POLLIN, _POLLOUT = 1, 4
_poll = monkey.get_original("select", "poll")
_sleep = monkey.get_original("time", "sleep")
_allocate_lock = monkey.get_original("_thread", "allocate_lock")
_start_new_thread = monkey.get_original("_thread", "start_new_thread")


class Runs(State, Protocol):
    """What the master has running: ``app.App``."""

    def stop(self, now: bool = False) -> None: ...


class ToMaster:
    """``about(app)`` is what is reported of it, as JSON can say it."""

    def __init__(self, fd: int, about: Callable[[Any], dict[str, Any]]) -> None:
        os.set_inheritable(fd, False)
        self._socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, fileno=fd)
        self._socket.setblocking(False)
        self._about = about
        self._app: Runs | None = None
        self._supervisor: Supervisor | None = None
        self._seen: Here | None = None
        self._asked: list[dict[str, Any]] = []
        """What operators have asked for, and there is nobody yet to do it."""
        self._stopping = False
        self._lock, self._beginning = _allocate_lock(), _allocate_lock()
        self._unsent = b""
        self._broken = False
        self._shown = False
        """Somebody looks at snapshots."""
        dump.on_signal()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # it is for the master
        _start_new_thread(self._serve, ())

    @classmethod
    def inherited(cls, about: Callable[[], Callable[[Any], dict[str, Any]]]) -> ToMaster | None:
        """This process's, if a master has started it."""
        fd = os.environ.pop(FD, "")  # what the handlers start is not the master's
        return cls(int(fd), about()) if fd else None

    # -- in the main thread

    def serve(self, app: Runs, *, shown: bool) -> None:
        """From now on there is something to report of, and to stop. ``shown``: the master has an admin endpoint."""
        self._app, self._shown = app, shown
        if self._stopping:
            app.stop()

    def begun(self, supervisor: Supervisor) -> None:
        """Before it subscribes: what operators have asked for is done from the first message on."""
        with self._beginning:
            self._supervisor = supervisor
        if self._shown:
            self._here()
        for command in self._asked:
            self._act(command)

    def stop(self, now: bool = False) -> None:
        """For signals. Whoever sends them to all processes sends one more than the master does: that is no second one."""
        if now or not self._stopping:
            self._stopping = True
            if self._app is None:
                os._exit(0)  # nothing was started
            self._app.stop(now)

    def tell_books(self, ledgers: Mapping[str, Any], published: Mapping[str, Any]) -> bool:
        """The last report: how every message ended. False: there is no master to tell."""
        last = {"snapshot": self._snapshot()} if self._shown else {}
        self._say({"ledgers": ledgers, "published": published, "last": True, **last})
        until = time.monotonic() + PATIENCE
        while self._unsent and not self._broken and time.monotonic() < until:
            _sleep(0.01)
            self._send()
        return not self._unsent and not self._broken

    # -- in its own thread

    def _serve(self) -> None:
        poll, read = _poll(), b""
        poll.register(self._socket.fileno(), _POLLIN)
        reported, ready = 0.0, False
        while True:
            poll.modify(self._socket.fileno(), _POLLIN | (_POLLOUT if self._unsent else 0))
            came = sum(events for _, events in poll.poll(1000 * (EVERY if ready else SOON)))
            try:
                piece = self._socket.recv(_PIECE) if came & ~_POLLOUT else None
            except OSError:
                piece = b""
            if piece == b"":
                self._orphaned()
                return
            if came & _POLLOUT:
                self._send()
            *lines, read = (read + (piece or b"")).split(_LINE)
            for line in lines:
                self._heed(json.loads(line))
            now = time.monotonic()
            if self._app is not None and (now - reported >= EVERY or ready != self._app.ready):
                reported, ready = now, self._app.ready
                self._report(self._app)

    def _report(self, app: Runs) -> None:
        with suppress(RuntimeError):  # what is read changes meanwhile: the next one will do
            report = self._about(app)
            if not self._unsent:
                self._say(report)

    def _heed(self, said: dict[str, Any]) -> None:
        match said:
            case {"do": "stop"}:
                self.stop(bool(said.get("now")))
            case {"do": "dump", "why": why}:
                dump.write(str(why))
            case {"do": "open log"}:
                logfile.open_again()
            case {"do": "snapshot", "question": question}:
                self._shown = True
                self._say({"question": question, "answer": self._snapshot()})
            case {"do": "health", "question": question}:
                here = self._here()
                self._say({"question": question, "answer": here.health() if here is not None else []})
            case {"do": "act", "command": command}:
                error = self._act(command)
                if "question" in said:
                    self._say({"question": said["question"], "answer": {"error": error}})

    def _here(self) -> Here | None:
        """Imported only where somebody looks."""
        if self._seen is None and self._supervisor is not None:
            from framework.admin.here import Here  # noqa: PLC0415

            self._seen = Here(self._supervisor)
        return self._seen

    def _snapshot(self) -> dict[str, Any] | None:
        here = self._here()
        return here.snapshot() if here is not None else None

    def _act(self, command: dict[str, Any]) -> str:
        """Returns why it cannot be done."""
        with self._beginning:
            if self._supervisor is None:
                self._asked.append(command)
                return ""
        here = self._here()
        assert here is not None
        try:
            here.act(command)
        except FrameworkError as error:
            log_in_thread(log.warning, "not done, as this process cannot: %s", error)
            return str(error)
        return ""

    def _orphaned(self) -> None:
        self._broken = True
        log_in_thread(log.error, "the master has gone: this process finishes what runs, and ends")
        self.stop()

    def _say(self, what: dict[str, Any]) -> None:
        with self._lock:
            self._unsent += json.dumps(what).encode() + _LINE
        self._send()

    def _send(self) -> None:
        with self._lock:
            try:
                while self._unsent:
                    self._unsent = self._unsent[self._socket.send(self._unsent) :]
            except BlockingIOError:
                pass  # the rest goes when there is room again
            except OSError:
                self._broken = True

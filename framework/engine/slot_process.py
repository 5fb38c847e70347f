"""One slot process as the worker sees it: started, given calls, listened to, killed. ``slots_process`` decides when.

It is a fresh interpreter, because a process that runs a hub must not be forked. ``slot_child`` is what it runs.
"""

from __future__ import annotations

import _socket
import fcntl
import json
import logging
import mmap
import os
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import gevent
from gevent import monkey
from gevent.event import Event
from greenlet import getcurrent  # type: ignore[import-untyped]

from framework import hooks, published
from framework.engine import slot_wire as wire
from framework.engine.remote_slots import messages_of
from framework.engine.slot_child import FLAGS, SOCKET
from framework.errors import AlreadySettled, FrameworkError
from framework.forked import forget_in_child, let_go
from framework.handler import HandlerSpec, declared_in
from framework.message import Batch, Message
from framework.observe import hublog, logfile

log = hublog.get(__name__)

PATIENCE = 1.0
"""Seconds, at most, until it is known how a process has ended whose socket is closed."""
_BOOT = """
import sys, json
sys.path[:] = json.loads(sys.argv.pop())
from framework.engine.slot_child import main
from framework.process_end import end_process
main()
end_process(0)
"""
_READ, _WRITE = 1, 2
_CHUNK = 65536

_waitpid = monkey.get_original("os", "waitpid")


class SlotDied(FrameworkError):
    """A slot process ended in the middle of a call: its message has one attempt less."""


class SlotProcess:
    """All of it is called on the hub, but ``handle``: that is in a slot."""

    def __init__(self, spec: HandlerSpec, hub: Any, environ: Mapping[str, str] | None, ended: Callable[[], None]) -> None:
        self.job: Message | Batch | None = None
        self.started = 0.0
        self.thread = 0
        self.alive = True
        self.ready = Event()
        """Set when it takes calls, and when it has died before."""
        self.refusal = ""
        self.killed = False
        """By us: its death is no fault of its own."""
        self._spec = spec
        self._hub = hub
        self._tell_end = ended
        self._slot: Any = None
        self._frames = wire.Frames()
        self._status: int | None = None
        self._records: deque[wire.Record] = deque()
        self._log_opened = logfile.times_opened()
        """Of the file that is its stderr."""
        self._start(environ)

    def _start(self, environ: Mapping[str, str] | None) -> None:
        self._sock, theirs = _socket.socketpair()  # not gevent's, whose sockets never block: the other one shall
        try:
            with _shared(max(1, self._spec.batch)) as shared:
                self._flags = mmap.mmap(shared.fileno(), max(1, self._spec.batch))
                self.pid = _spawn(theirs.fileno(), shared.fileno(), environ)
        finally:
            theirs.close()
        self._sock.setblocking(False)
        self._reader = self._hub.loop.io(self._sock.fileno(), _READ)
        self._writer = self._hub.loop.io(self._sock.fileno(), _WRITE)
        self._reader.start(self._guarded)
        forget_in_child(self)
        # gevent's subprocess has the main thread's loop reap every child: then only that can say how one ended.
        if monkey.is_module_patched("subprocess") and self._hub.loop.default:
            self._hub.loop.install_sigchld()
            self._reaper = self._hub.loop.child(self.pid, ref=False)
            self._reaper.start(self._reaped)
        self._sock.send(wire.frame(_setup(self._spec)))

    # -- in a slot

    def handle(self, job: Message | Batch) -> None:
        """One call. Raises what the handler raised, and SlotDied; what else is thrown into this greenlet kills the process."""
        self.job, self.started = job, time.monotonic()
        try:
            done = self._ask(self._news() + wire.frame(self._job(job)))
        except BaseException:
            self.kill()
            raise
        finally:
            self._clear_flags()
            self.job = None
        if done is None:
            raise SlotDied(f"its slot process {self.how_it_ended()} in the middle of the call")
        published.add(done.published)
        if isinstance(job, Batch):
            job.outcomes.update((job[index], wire.error_of(failure)) for index, failure in done.failed)  # type: ignore[misc]
        if done.error is not None:
            raise wire.error_of(done.error)

    def _news(self) -> bytes:
        """What native code writes to its stderr goes where the log is."""
        times, path = logfile.times_opened(), logfile.path()
        if times == self._log_opened or path is None:
            return b""
        self._log_opened = times
        return wire.frame(wire.Log(str(path)))

    def _job(self, job: Message | Batch) -> wire.Job:
        return wire.Job([wire.delivery(one) for one in messages_of(job)], self.started + self._spec.timeout)

    def _ask(self, data: bytes) -> wire.Done | None:
        """None: it has died."""
        if not self.alive:
            return None
        self._slot = getcurrent()
        try:
            if not self._send(memoryview(data)):
                return None
            while self.alive:  # a spurious wake-up is no answer
                if isinstance(heard := self._hub.switch(), wire.Done):
                    return heard
        finally:
            self._slot = None
        return None

    def _send(self, data: memoryview) -> bool:
        """Returns when it is sent, or False when the process has died before."""
        while data:
            try:
                data = data[self._sock.send(data) :]
            except BlockingIOError:
                self._writer.start(self._wake, True)
                self._hub.switch()
                if not self.alive:
                    return False
                self._writer.stop()
            except OSError:  # the reader finds the end, and wakes us
                while self.alive:
                    self._hub.switch()
        return True

    def how_it_ended(self) -> str:
        until = time.monotonic() + PATIENCE
        while self.status() is None and time.monotonic() < until:
            gevent.sleep(0.002)
        status = self.status()
        if status is None or status < 0 or not (os.WIFSIGNALED(status) or os.WIFEXITED(status)):
            return "ended"
        if os.WIFSIGNALED(status):
            return f"was killed by {signal.Signals(os.WTERMSIG(status)).name}"
        return f"exited with {os.WEXITSTATUS(status)}"

    # -- what it says

    def _guarded(self) -> None:
        """The watcher's callback: the hub would print an exception, and the slot wait for ever."""
        try:
            self._read()
        except Exception:
            log.exception("handler %s: what a slot process said cannot be read, which is a bug; it is killed", self._spec.name)
            self.kill()
            self._end()

    def _read(self) -> None:
        try:
            data = self._sock.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end()
            return
        for each in self._frames.feed(data):
            self._hear(wire.said(each))

    def _hear(self, said: wire.Said) -> None:
        if isinstance(said, wire.Done):
            self._wake(said)
        elif isinstance(said, wire.Record):
            self._log(said)
        elif isinstance(said, wire.Touch):
            self._touch(said.index)
        elif isinstance(said, wire.Refused):
            self.refusal = said.words
        else:
            self.ready.set()

    def _wake(self, heard: wire.Done | bool | None) -> None:
        if self._slot is not None:
            self._slot.switch(heard)

    def _touch(self, index: int) -> None:
        try:
            messages_of(self.job)[index].touch()
        except (AlreadySettled, IndexError):
            log.debug("handler %s: a touch came too late", self._spec.name)

    def _log(self, record: wire.Record) -> None:
        """In a greenlet: the worker's log may block, and a callback may not."""
        if not self._records:
            gevent.spawn(self._write_log)
        self._records.append(record)

    def _write_log(self) -> None:
        while self._records:
            one = self._records.popleft()
            logger = logging.getLogger(one.name)
            if logger.isEnabledFor(one.level):
                record = logger.makeRecord(one.name, one.level, one.path, one.line, one.text, (), None, one.function)
                record.exc_text, record.created, record.process = one.trace.rstrip("\n") or None, one.created, self.pid
                vars(record).update(one.extra)
                record.call = one.call
                logger.handle(record)

    def look(self) -> None:
        """Tell it what it has lost."""
        for index, message in enumerate(messages_of(self.job)):
            if message.settled:
                self._flags[index] = 1

    def _clear_flags(self) -> None:
        size = len(messages_of(self.job))
        self._flags[:size] = bytes(size)

    # -- its end

    def kill(self) -> None:
        """SIGKILL, for what it has started as well, as far as that is still of its group."""
        self.killed = True
        if self.status() is None:
            for kill in (os.killpg, os.kill):
                try:
                    kill(self.pid, signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    pass

    def dismiss(self) -> None:
        """Let it end by itself: its next read finds the end."""
        self.killed = True
        self._end()

    def forget(self) -> None:
        """In a forked child: it is the parent's, and what it answers as well."""
        if self.alive:
            self._part()
            let_go(self._sock.fileno())

    def _part(self) -> None:
        self.alive = False
        for watcher in (self._reader, self._writer):
            watcher.close()

    def _end(self) -> None:
        if not self.alive:
            return
        self._part()
        self._sock.close()
        self.ready.set()
        self._tell_end()
        self._wake(None)

    def status(self) -> int | None:
        """As of ``os.waitpid``; -1 when somebody else has taken it; None while it lives."""
        if self._status is None and not hasattr(self, "_reaper"):
            try:
                pid, status = _waitpid(self.pid, os.WNOHANG)
                self._status = status if pid else None
            except ChildProcessError:
                self._status = -1
        return self._status

    def _reaped(self) -> None:
        self._status = self._reaper.rstatus
        self._reaper.close()


def _setup(spec: HandlerSpec) -> wire.Setup:
    function, level = spec.function, logging.getLogger().getEffectiveLevel()
    return wire.Setup(
        function.__module__, function.__qualname__, spec.topic, spec.channel, spec.batch, level,
        declared_in(spec), [hooks.name_of(one) for one in spec.middleware if not isinstance(one, hooks.Observer)],
        [there for one in spec.middleware if isinstance(one, hooks.Observer) and (there := one.elsewhere())],
    )  # fmt: skip


def _spawn(sock: int, shared: int, environ: Mapping[str, str] | None) -> int:
    """Start the interpreter; by the system's own call, not by a fork of this process and its hub."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 5) for fd in (sock, shared)]  # none of them is 3 or 4 by chance
    try:
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-c", _BOOT, json.dumps(sys.path)],
            {**os.environ, **(environ or {})},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, high[0], SOCKET),
                (os.POSIX_SPAWN_DUP2, high[1], FLAGS),
            ],
            setpgroup=0,  # Ctrl-C is for the worker
            setsigmask=[],
        )
    finally:
        for fd in high:
            os.close(fd)


def _shared(size: int) -> Any:
    """A file without a name, of ``size`` zeros."""
    file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
    file.truncate(size)
    return file

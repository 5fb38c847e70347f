"""A slot process: imports the handler's module and makes one call at a time, for the worker at the other end of a socket.

It decides nothing: what becomes of a message, and for how long a call may run, is said at the other end. It is not patched by
gevent, so everything blocks as in plain Python; nobody else waits here.
"""

from __future__ import annotations

import _thread
import contextvars
import ctypes
import importlib
import logging
import mmap
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from framework import hooks, published
from framework.bytecode import not_kept_while_fresh
from framework.engine import slot_wire as wire
from framework.engine.lifetime import Lifetime
from framework.errors import AlreadySettled, BadHandler, BadSetting
from framework.handler import HandlerSpec, make_spec, registered
from framework.headers import NONE
from framework.message import Batch, Message, calls_of
from framework.middleware import compile_call
from framework.observe import call, logfile
from framework.observe.logging import encodable, extra_of

SOCKET, FLAGS = 3, 4
"""The descriptors that it is born with: the socket, and a byte of shared memory for each message of a job, 1 when it is lost."""
_PR_SET_PDEATHSIG = 1
_DISK_SECONDS = 0.2
_FOR_THE_WORKER = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Origin:
    """Where a message came from, as far as it matters here."""

    def __init__(self, node: str, topic: str, channel: str, *, lasting_ids: bool) -> None:
        self.node, self.topic, self.channel = node, topic, channel
        self.lasting_ids = lasting_ids
        self.in_flight: dict[Message, float] = {}

    def touch(self, message: Message) -> None:
        raise AlreadySettled(f"message {message.id.decode(errors='replace')} is not with a handler any more")


class Worker:
    """What a child process says to its worker, and hears. Handlers log from any of their threads."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._stream = sock.makefile("rb", buffering=65536)
        self._lock = _thread.allocate_lock()

    def next(self) -> Any:
        """The next Setup, Job or Log; None when the worker is gone, or wants no more."""
        try:
            head = self._stream.read(4)
            return wire.asked(self._stream.read(int.from_bytes(head, "big"))) if len(head) == 4 else None
        except ConnectionResetError:  # it went without having read all that was said
            return None

    def say(self, value: wire.Said) -> None:
        """To a worker that has gone, a stop may be that quick, nothing is said; ``next`` tells."""
        with self._lock, suppress(BrokenPipeError, ConnectionResetError):
            self._sock.sendall(wire.frame(value))


class LogToWorker(logging.Handler):
    """Log records go to the worker's log, which knows where they are written and how they look."""

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self._worker = worker

    def emit(self, record: logging.LogRecord) -> None:
        try:
            trace = "".join(traceback.format_exception(*record.exc_info)) if record.exc_info else ""
            text, where = encodable(record.getMessage()), (encodable(record.pathname), record.lineno, record.funcName)
            extra = {name: wire.plain(value) for name, value in extra_of(record).items()}
            about = getattr(record, "call", None)
            self._worker.say(
                wire.Record(record.name, record.levelno, text, encodable(trace), *where, record.created, about, extra)
            )
        except Exception:
            self.handleError(record)


@dataclass
class _Site:
    """``observe.call.Site`` for one call."""

    name: str
    job: Message | Batch
    greenlet: None = None
    known_as = staticmethod(call.itself)


class Calls:
    """Makes calls, and answers what a handler asks of its messages meanwhile (``message.Calls``)."""

    def __init__(self, worker: Worker, flags: mmap.mmap, function: Callable[[Any], None], setup: wire.Setup) -> None:
        self._worker = worker
        self._flags = flags
        self._call = function
        self._setup = setup
        self._name = f"{setup.topic}/{setup.channel}"
        self._origins: dict[str, Origin] = {}
        self._messages: list[Message] = []
        self._ends_at = 0.0

    def make(self, job: wire.Job) -> wire.Done:
        messages = self._messages = [self._message(one) for one in job.messages]
        self._ends_at = job.ends_at
        batch = Batch(messages)
        raised: wire.Failure | None = None
        try:
            context = contextvars.copy_context()
            context.run(call.site.set, _Site(self._name, batch if self._setup.batch else messages[0]))
            context.run(self._call, batch if self._setup.batch else messages[0])
        except BaseException as error:  # SystemExit as well: it fails the message, not the process
            raised = wire.failure(error)
        finally:
            self._messages = []
            for message in messages:
                message.connection.in_flight.clear()
        named = [(messages.index(message), error) for message, error in batch.outcomes.items() if message in messages]
        return wire.Done(raised, [(index, wire.failure(error)) for index, error in named], published.take())

    def _message(self, one: wire.Delivery) -> Message:
        origin = self._origins.get(one.node)
        if origin is None:
            origin = self._origins[one.node] = Origin(
                one.node, self._setup.topic, self._setup.channel, lasting_ids=one.lasting_id
            )
            calls_of[origin] = self
        message = Message(one.id, one.timestamp, one.attempts, one.body, origin, one.headers or NONE)
        origin.in_flight[message] = time.monotonic()
        return message

    def ends_at(self, message: Message) -> float | None:
        return self._ends_at if message in self._messages else None

    def lost(self, message: Message) -> bool:
        return message in self._messages and self._flags[self._messages.index(message)] != 0

    def touch(self, message: Message) -> None:
        if message not in self._messages or self.lost(message):
            raise AlreadySettled.of(message.id)
        self._worker.say(wire.Touch(self._messages.index(message)))


def main() -> None:
    parent = os.getppid()
    _die_with(parent)
    for number in _FOR_THE_WORKER:  # which tells us; what we start gets the default
        signal.signal(number, _ignore)
    worker = Worker(socket.socket(fileno=SOCKET))
    setup = worker.next()
    if setup is None:
        return
    logging.basicConfig(level=setup.level, handlers=[LogToWorker(worker)], force=True)
    call.bind_records()
    try:
        with not_kept_while_fresh():
            spec = _observed(_find(setup), setup)
    except BaseException as error:
        worker.say(wire.Refused(encodable(f"cannot import {setup.module}: {type(error).__name__}: {error}")))
        raise
    lifetime = Lifetime([spec])
    try:
        lifetime.start()
    except BadHandler as error:
        worker.say(wire.Refused(encodable(f"cannot start: {error}")))
        raise
    calls = Calls(worker, mmap.mmap(FLAGS, max(1, setup.batch)), compile_call(spec), setup)
    worker.say(wire.Ready())
    published.tally.set(Counter())
    while (asked := worker.next()) is not None:
        if isinstance(asked, wire.Log):
            _open_log(Path(asked.path))
        else:
            worker.say(calls.make(asked))
    lifetime.stop()


def _open_log(path: Path) -> None:
    """A disk that stands still holds no call up."""

    def open_it() -> None:
        with suppress(BadSetting):  # the worker's own says it
            logfile.write_to(path)

    thread = threading.Thread(target=open_it, daemon=True)
    thread.start()
    thread.join(_DISK_SECONDS)


def _ignore(*_: object) -> None:
    pass


def _die_with(parent: int) -> None:
    """Where the system can do it, end with the worker however it ends; elsewhere only after the call that runs then."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before it was asked for
            os._exit(1)


def _find(setup: wire.Setup) -> HandlerSpec:
    """The handler with all that is around its calls. Raises BadHandler where that is not what the worker has."""
    if setup.middleware:
        importlib.import_module(setup.declared_in)  # which may be another module than the function's
    spec = _found(setup)
    here = [hooks.name_of(one) for one in spec.middleware]
    if here != setup.middleware:
        raise BadHandler(
            f"its middleware is {here} when imported, and {setup.middleware} in the worker: name it in @handler, or by "
            "use_middleware at the top of a module"
        )
    return spec


def _observed(spec: HandlerSpec, setup: wire.Setup) -> HandlerSpec:
    """``spec`` with what the worker's settings put around its calls."""
    for module, options in setup.observers:
        spec = importlib.import_module(module).observe(spec, options)
    return spec


def _found(setup: wire.Setup) -> HandlerSpec:
    """The handler that the module registers when it is imported, or its function of that name."""
    module: Any = importlib.import_module(setup.module)
    for spec in registered():
        if (spec.topic, spec.channel, spec.function.__qualname__) == (setup.topic, setup.channel, setup.function):
            return spec
    function = module
    for part in setup.function.split("."):
        function = getattr(function, part)
    return make_spec(function, setup.topic, setup.channel, {"batch": setup.batch} if setup.batch else {})

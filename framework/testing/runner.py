"""The fixture ``worker``: runs handlers through the whole engine, in the test's own thread, until they have nothing left to do.

Nothing is patched and no process is started. Handlers are called, retried and given up by what ``workers run`` uses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from importlib import import_module
from types import ModuleType, TracebackType
from typing import Any

import gevent

from framework.engine.ledger import Ledger
from framework.engine.refusals import refusals
from framework.engine.supervisor import Supervisor
from framework.errors import Backoff, BrokerUnreachable, Reject, Retry, Skip, UndecodablePayload, WrongUse, shown
from framework.handler import HandlerSpec, registered
from framework.hooks import Middleware
from framework.message import Batch, Message
from framework.modules import handlers_of
from framework.publisher import Publisher
from framework.testing.idle import Far, Idleness, Near
from framework.transports import open_transports
from framework.transports.memory import MemoryBroker

LINGER = 0.02
"""Seconds that a batch waits to fill, at most: all that it could wait for is published already."""


class Runner:
    """Runs handlers on the broker of ``url``; ``broker`` is it, when it is in memory."""

    def __init__(self, url: str, publisher: Publisher, broker: MemoryBroker | None = None) -> None:
        self.errors: list[BaseException] = []
        """What handlers raised in the last run, in that order."""
        self.ledgers: dict[str, Ledger] = {}
        """How every message ended in the last run, by handler: ``worker.ledgers["orders/billing"].dead``."""
        self._url = url
        self._publisher = publisher
        self._broker = broker

    def run(
        self,
        *handlers: Callable[..., object] | ModuleType | str,
        raise_errors: bool = True,
        advance: bool = True,
        timeout: float = 10.0,
    ) -> Ledger:
        """Run ``handlers`` until they have nothing left to do; returns how every message ended, over all of them.

        A handler is a function decorated with ``@handler``. A module, or its name, stands for its own and those of its
        submodules, as for ``workers run``; nothing stands for all that have been declared. They share the test's thread,
        whatever their ``slots``.

        ``raise_errors``: stop at the first exception of a handler other than Retry, Backoff and Reject, or at a body that it
        cannot take, and raise it here. Without, the message is retried as in production, and given up after ``max_attempts``.
        ``advance``: when only what is due later is left (retries, deferred publishes, lost finishes), let the clock of
        the broker in memory jump there. Without, it is left, and the run is over. Other brokers are waited for.
        ``timeout``: real seconds, after which handlers that still have work are stopped and TimeoutError is raised.
        """
        __tracebackhide__ = True
        specs = _specs(handlers)
        if self._broker is not None:
            for topic in {spec.topic for spec in specs}:
                self._broker.declare(topic, *(spec.channel for spec in specs if spec.topic == topic))
        clock = self._broker.clock.wall if self._broker is not None else time.time
        _refuse(specs, self._url)
        run = _Run(self._url, specs, self._publisher, clock, raise_errors=raise_errors, timeout=timeout)
        self.errors, self.ledgers = run.errors, run.supervisor.ledgers
        run.until_idle(Near(self._broker, specs, advance=advance) if self._broker is not None else run.far(specs))
        return _sum(self.ledgers.values())


class _Run:
    """One run: a supervisor, and a greenlet beside it that stops it when there is nothing left to do."""

    def __init__(
        self,
        url: str,
        specs: Sequence[HandlerSpec],
        publisher: Publisher,
        clock: Callable[[], float],
        *,
        raise_errors: bool,
        timeout: float,
    ) -> None:
        self.errors: list[BaseException] = []
        self._raise_errors = raise_errors
        self._timeout = timeout
        self._failure: BaseException | None = None
        self._traceback: TracebackType | None = None
        self._transports = open_transports([url])
        self.supervisor = Supervisor(
            [self._watched(spec) for spec in specs],
            self._transports,
            publish=publisher.publish,
            drain=timeout,
            connect_deadline=timeout,
            clock=clock,
        )

    def far(self, specs: Sequence[HandlerSpec]) -> Far:
        return Far(self._transports[0], specs, self.supervisor.ledgers)

    def until_idle(self, idleness: Idleness) -> None:
        __tracebackhide__ = True
        watcher = gevent.spawn(self._await, idleness)
        try:
            self.supervisor.run()
        finally:
            watcher.kill()
        if self._failure is not None:
            raise self._failure.with_traceback(self._traceback)
        for name, ledger in self.supervisor.ledgers.items():
            assert ledger.balance(0) == 0, f"the ledger of {name} does not add up, which is a bug of the framework: {ledger}"

    # -- whether there is something to do

    def _await(self, idleness: Idleness) -> None:
        try:
            self._until_nothing_is_left(idleness)
        except Exception as error:  # such as a broker that does not answer
            self._fail(error)

    def _until_nothing_is_left(self, idleness: Idleness) -> None:
        deadline = time.monotonic() + self._timeout
        while not (self.supervisor.ready and idleness.idle()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the handlers still had work after {self._timeout:g} s: {idleness.left()}")
            gevent.sleep(idleness.pause)
        self.supervisor.stop()

    # -- what handlers raise

    def _watched(self, spec: HandlerSpec) -> HandlerSpec:
        middleware = (_Noting(self._note), *spec.middleware)
        return replace(spec, middleware=middleware, linger=min(spec.linger, LINGER), slots="greenlet")

    def _note(self, error: BaseException) -> None:
        if self._failure is not None:  # what is stopped now fails for that reason alone
            return
        self.errors.append(error)
        if self._raise_errors and not _is_meant(error):
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._failure, self._traceback = error, _from_the_app(error.__traceback__)
        self.supervisor.stop(now=True)


class _Noting(Middleware):
    """Outside of all other middleware: notes what makes a message fail."""

    def __init__(self, note: Callable[[BaseException], None]) -> None:
        self._note = note

    def around(self, job: Message | Batch[Any], call: Callable[[], None], /) -> None:
        try:
            call()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._note(error)
            raise
        finally:
            for one in job.outcomes.values() if isinstance(job, Batch) else ():
                if isinstance(one, UndecodablePayload):
                    self._note(one)


def _from_the_app(trace: TracebackType | None) -> TracebackType | None:
    """Without the frames of the framework around what the app wrote, where there is any."""
    at = trace
    while at is not None and at.tb_frame.f_globals.get("__name__", "").startswith("framework."):
        at = at.tb_next
    return at or trace


def _is_meant(error: BaseException) -> bool:
    """What a handler says on purpose. A body that it cannot take is the test's mistake, or the handler's."""
    return isinstance(error, Retry | Backoff | Reject | Skip) and not isinstance(error, UndecodablePayload)


def _specs(handlers: Iterable[Callable[..., object] | ModuleType | str]) -> list[HandlerSpec]:
    """What is declared under ``handlers``, each once. Raises WrongUse for one that declares nothing."""
    chosen = list(handlers)
    found = [spec for one in chosen for spec in _declared(one)] if chosen else registered()
    if not found:
        raise WrongUse("no handler has been declared: import the module whose functions are decorated with @handler")
    return list({spec.name: spec for spec in found}.values())


def _declared(one: Callable[..., object] | ModuleType | str) -> Iterator[HandlerSpec]:
    if isinstance(one, str):
        one = import_module(one)
    if isinstance(one, ModuleType):
        found = handlers_of([one.__name__])
    else:
        found = [spec for spec in registered() if spec.function is one]
    if not found:
        raise WrongUse(f"{shown(one)} is no handler, and no module that declares one: give a function decorated with @handler")
    yield from found


def _refuse(specs: Sequence[HandlerSpec], url: str) -> None:
    """As ``workers run`` does. Raises WrongUse."""
    for transport in open_transports([url]):
        try:
            nodes = transport.probe()
        except BrokerUnreachable:  # a test of a broker that is down
            nodes = []
        if found := refusals(specs, transport, nodes):
            raise WrongUse(found[0])


def _sum(ledgers: Iterable[Ledger]) -> Ledger:
    total = Ledger()
    for ledger in ledgers:
        for count, value in asdict(ledger).items():
            setattr(total, count, getattr(total, count) + value)
    return total

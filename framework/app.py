"""App: handlers and settings made into one running worker, from brokers to the ledger; no command line, no policy."""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

import gevent

from framework import publisher
from framework.engine.refusals import cautions, refusals
from framework.engine.supervisor import Supervisor
from framework.errors import BadModule, BadSetting, BrokerUnreachable, WrongUse
from framework.handler import HandlerSpec, registered
from framework.publisher import Publisher
from framework.settings import Settings, check_writable, write_at_end
from framework.transports import open_transports
from framework.transports.contract import NodeInfo, Transport

if TYPE_CHECKING:
    from framework.nsqd.embedded import EmbeddedNsqd

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5


def import_handlers(modules: Iterable[str]) -> list[HandlerSpec]:
    """Import ``modules``, the current folder included in the search; returns every handler declared by then.

    Raises BadModule for one that cannot be imported, BadHandler for a wrong declaration, BadModule for no handler.
    """
    modules = list(modules)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    for name in modules:
        _import(name)
    handlers = registered()
    if not handlers:
        raise BadModule(f"{', '.join(modules)}: no function there is decorated with @handler, so there is nothing to run")
    return handlers


def _import(name: str) -> None:
    if "/" in name or name.endswith(".py"):
        dotted = name.removesuffix(".py").strip("./").replace("/", ".")
        raise BadModule(f"{name!r} is a path: give the module's name, {dotted!r}")
    if not all(part.isidentifier() for part in name.split(".")):
        raise BadModule(f"{name!r} is not a module's name: write it as after `import`, for example shop.handlers")
    try:
        import_module(name)
    except (WrongUse, KeyboardInterrupt):
        raise
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise BadModule(_what_it_raised(name, error)) from error
        raise BadModule(f"there is no module {error.name!r} in {os.getcwd()} or on the Python path: check the name") from error
    except BaseException as error:  # SystemExit, a gevent.Timeout, what the app made itself
        raise BadModule(_what_it_raised(name, error)) from error


def _what_it_raised(name: str, error: BaseException) -> str:
    words = " ".join(str(error).split())
    if isinstance(error, SyntaxError):
        return f"module {name!r} cannot be imported: {words}"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"module {name!r} cannot be imported: {type(error).__name__}: {words} ({os.path.relpath(last.filename)}:{last.lineno})"


@contextmanager
def _embedded_nsqd(settings: Settings) -> Iterator[EmbeddedNsqd | None]:
    """Without brokers in ``settings``, an nsqd of our own which lives as long as the block.

    Raises BadSetting when that nsqd cannot start.
    """
    if settings.brokers:
        yield None
        return
    from framework.nsqd.embedded import ensure  # noqa: PLC0415

    try:
        nsqd = ensure(settings.data_path, tcp_address=settings.nsqd_tcp_address, http_address=settings.nsqd_http_address)
    except OSError as error:
        words = f"--data-path {settings.data_path} cannot be used: {error.strerror}: name a folder that is yours, or a --broker"
        raise BadSetting(words) from error
    except BrokerUnreachable as error:
        words = f"the embedded nsqd does not start: {error} (--nsqd-tcp-address, --nsqd-http-address), or give a --broker"
        raise BadSetting(words) from error
    try:
        yield nsqd
    finally:
        nsqd.stop()


class App:
    """One worker: the handlers, the connections they need, and this process's publisher."""

    def __init__(self, handlers: Sequence[HandlerSpec], settings: Settings) -> None:
        self.handlers = list(handlers)
        self.settings = settings
        self._supervisor: Supervisor | None = None
        self._stopping = False

    def run(self) -> None:
        """Return when stopped. Raises BadSetting, BadHandler, BrokerUnreachable before any handler was called."""
        if self.settings.ledger:
            check_writable(self.settings.ledger, "--ledger")
        with _embedded_nsqd(self.settings) as nsqd:  # stopped last: messages are given back to it
            transports = open_transports([nsqd.url] if nsqd else self.settings.brokers)
            self._refuse(transports)
            with _publisher(transports) as publish:
                self._run(transports, publish, nsqd)
            if nsqd and nsqd.ended and not self._stopping:
                words = f"the embedded nsqd on {self.settings.data_path} has ended (its log: nsqd.log there)"
                raise BrokerUnreachable(f"{words}: nothing that it had confirmed is lost, start the worker again")

    def _run(self, transports: Sequence[Transport], publish: Publisher, nsqd: EmbeddedNsqd | None) -> None:
        supervisor = Supervisor(
            self.handlers,
            transports,
            publish=publish.publish,
            drain=self.settings.drain,
            connect_deadline=self.settings.connect_deadline,
            poll_interval=self.settings.poll_interval,
            brokers=[nsqd.url] if nsqd else self.settings.brokers,
        )
        self._supervisor = supervisor
        if self._stopping:  # a signal came before there was anything to stop
            return
        helpers = [gevent.spawn(_say_when_ready, supervisor)]
        if nsqd:
            helpers.append(gevent.spawn(_stop_without, nsqd, supervisor))
        try:
            supervisor.run()
        finally:
            gevent.killall(helpers)
            self._write_ledgers(supervisor)

    @property
    def left_behind(self) -> bool:
        """After ``run``: a handler still runs, in a thread that cannot be ended."""
        return self._supervisor is not None and self._supervisor.left_behind

    def stop(self, now: bool = False) -> None:
        """Stop taking messages and let ``run`` return; may be called from a signal handler.

        ``now``, or a second call: give back what runs, at once.
        """
        self._stopping = True
        if self._supervisor is not None:
            self._supervisor.stop(now)

    def pause(self, name: str) -> None:
        """Ask for no more messages for the handler ``name`` (``topic/channel``) until ``resume``; what has come is handled.

        From any thread, while it runs. Raises WrongUse for a handler that is not here, and when it does not run.
        """
        self._running().pause(name)

    def resume(self, name: str) -> None:
        """End the pause of the handler ``name``. As ``pause``."""
        self._running().resume(name)

    def set_max_in_flight(self, name: str, max_in_flight: int) -> None:
        """Have at most so many messages of the handler ``name`` in flight from now on. As ``pause``; raises BadHandler, too."""
        self._running().set_max_in_flight(name, max_in_flight)

    def _running(self) -> Supervisor:
        if self._supervisor is None:
            raise WrongUse("this App does not run, so no handler of it can be changed: call run() first, in another thread")
        return self._supervisor

    def _refuse(self, transports: Sequence[Transport]) -> None:
        """Raises WrongUse for the first thing that a broker cannot do: before any connection what is known without one."""
        for transport in transports:
            self._refuse_any(transport, [])
        for transport in transports:
            for caution in cautions(self.handlers, transport):
                log.warning("%s", caution)
            try:
                self._refuse_any(transport, transport.probe())
            except BrokerUnreachable:
                continue  # the supervisor waits for it

    def _refuse_any(self, transport: Transport, nodes: Sequence[NodeInfo]) -> None:
        found = refusals(self.handlers, transport, nodes)
        if found:
            raise WrongUse(found[0])

    def _write_ledgers(self, supervisor: Supervisor) -> None:
        ledgers = {name: ledger.as_dict() for name, ledger in supervisor.ledgers.items()}
        for name, counts in ledgers.items():
            log.info("ledger %s %s", name, " ".join(f"{key}={count}" for key, count in counts.items()))
        for name, stored in supervisor.published.items():
            if stored:
                log.info("published by %s %s", name, " ".join(f"{topic}={count}" for topic, count in sorted(stored.items())))
        if self.settings.ledger:
            write_at_end(self.settings.ledger, "--ledger", json.dumps(ledgers, indent=2) + "\n")


@contextmanager
def _publisher(transports: Sequence[Transport]) -> Iterator[Publisher]:
    """This process's publisher while the block runs."""
    made = Publisher(transports)
    publisher.use(made)
    try:
        yield made
    finally:
        publisher.use(None)
        made.close()


def _stop_without(nsqd: EmbeddedNsqd, supervisor: Supervisor) -> None:
    """Nobody would start it again: better that whoever started this worker is told than that it waits for ever."""
    while not nsqd.ended:
        gevent.sleep(_LOOK_SECONDS)
    supervisor.stop(now=True)


def _say_when_ready(supervisor: Supervisor) -> None:
    while not supervisor.ready:
        gevent.sleep(0.02)
    log.info("ready")

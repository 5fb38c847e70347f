"""App: handlers and settings made into one running worker, from brokers to the ledger; no command line, no policy."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import gevent

from framework import publisher
from framework.engine.fitness import described, misfits, notes
from framework.engine.refusals import cautions, refusals
from framework.engine.supervisor import Supervisor
from framework.errors import BadSetting, BrokerRefuses, BrokerUnreachable, WrongUse
from framework.handler import HandlerSpec
from framework.observe import hublog
from framework.observe.background import Background
from framework.publisher import Publisher
from framework.settings import Settings, as_environ, check_writable, write_at_end
from framework.transports import open_transports
from framework.transports.contract import Transport
from framework.tuning import tuned

if TYPE_CHECKING:
    from framework.nsqd.embedded import EmbeddedNsqd

log = hublog.get(__name__)

_LOOK_SECONDS = 0.5
_DESCRIBE_SECONDS = 0.5
_WHY_SECONDS = 5.0
_LAST_WORDS = 1.0


@contextmanager
def embedded_nsqd(settings: Settings) -> Iterator[EmbeddedNsqd | None]:
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


class Superior(Protocol):
    """Whoever has an App run as one of several, and shows them as one."""

    def begun(self, supervisor: Supervisor) -> None:
        """It is about to subscribe."""

    def tell_books(self, ledgers: Mapping[str, Any], published: Mapping[str, Any]) -> bool:
        """How every message ended, at the end; False: nobody has taken it, so it is logged."""


class App:
    """One worker: the handlers, the connections they need, and this process's publisher."""

    def __init__(
        self,
        handlers: Sequence[HandlerSpec],
        settings: Settings,
        *,
        superior: Superior | None = None,
    ) -> None:
        """Raises BadSetting for options of ``settings.handlers`` that none of ``handlers`` can have."""
        self.handlers = _observed(tuned(handlers, settings.handlers), settings)
        self.settings = settings
        self._supervisor: Supervisor | None = None
        self._superior = superior
        self._stopping = False

    def run(self, *, leave: Callable[[], NoReturn] | None = None) -> None:
        """Return when stopped. Raises BadSetting, BadHandler, BrokerUnreachable at the start: what cannot be known without the
        brokers comes when they have been reached, and where one of several fits handlers may have been called by then.

        ``leave()`` ends the process. It is called, in another native thread, in place of returning, when a handler still blocks
        everything after the time to drain; without it, that handler is waited for.
        """
        if self.settings.ledger:
            check_writable(self.settings.ledger, "--ledger")
        with hublog.serving(gevent.get_hub()), embedded_nsqd(self.settings) as nsqd:  # stopped last: messages go back to it
            transports = open_transports([nsqd.url] if nsqd else self.settings.brokers)
            with _closing(transports):
                self._refuse(transports)
                try:
                    with _publisher(transports, self.settings.publish_timeout) as publish:
                        self._run(transports, publish, nsqd, leave)
                except BrokerRefuses:  # why, a node may have said too late before the start
                    for transport in transports:
                        _raise_first(misfits(self.handlers, transport, described(self.handlers, transport, _WHY_SECONDS)))
                    raise
            if nsqd and nsqd.ended and not self._stopping:
                words = f"the embedded nsqd on {self.settings.data_path} has ended (its log: nsqd.log there)"
                raise BrokerUnreachable(f"{words}: nothing that it had confirmed is lost, start the worker again")

    def _run(
        self,
        transports: Sequence[Transport],
        publish: Publisher,
        nsqd: EmbeddedNsqd | None,
        leave: Callable[[], NoReturn] | None,
    ) -> None:
        supervisor = Supervisor(
            self.handlers,
            transports,
            publish=publish.publish,
            drain=self.settings.drain,
            connect_deadline=self.settings.connect_deadline,
            poll_interval=self.settings.poll_interval,
            environ=as_environ(replace(self.settings, brokers=(nsqd.url,)) if nsqd else self.settings),
            longest_pause=self.settings.longest_pause,
            leave=leave and (lambda: self._leave(supervisor, leave)),
        )
        self._supervisor = supervisor
        if self._superior is not None:
            self._superior.begun(supervisor)
        with self._admin(supervisor, [nsqd.url] if nsqd else self.settings.brokers):
            self._supervise(supervisor, nsqd)

    @contextmanager
    def _admin(self, supervisor: Supervisor, brokers: Sequence[str]) -> Iterator[None]:
        """Health and metrics while the block runs, where they are asked for."""
        if not self.settings.admin:
            yield
            return
        from framework import admin  # noqa: PLC0415

        with admin.serving(self.settings, admin.Here(supervisor), lambda: open_transports(brokers)):
            yield

    def _supervise(self, supervisor: Supervisor, nsqd: EmbeddedNsqd | None) -> None:
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

    def _leave(self, supervisor: Supervisor, leave: Callable[[], NoReturn]) -> NoReturn:
        """The handler that blocks everything may hold the lock of the log, or nothing reads it: its last lines get a second."""

        def say(words: str) -> None:
            log.error("%s", words)
            self._write_ledgers(supervisor)
            sys.stdout.flush()

        last = Background(say, str)
        last.put("a handler still blocks the hub after the time to drain: what it had is given back, and the process ends")
        last.flush(_LAST_WORDS)
        leave()

    @property
    def time_left(self) -> float:
        """After ``run``: the seconds that are left of the time to drain; the app's exit functions may use them."""
        left = self._supervisor.time_left if self._supervisor is not None else math.inf
        return min(left, self.settings.drain)

    @property
    def supervisor(self) -> Supervisor | None:
        """None before there is one."""
        return self._supervisor

    @property
    def ready(self) -> bool:
        """Every handler can be called, and none is to stop. From any thread."""
        return self._supervisor is not None and self._supervisor.ready and not self._supervisor.stopping

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
            _raise_first(refusals(self.handlers, transport))
        for transport in transports:
            found = self._misfits(transport)
            _raise_first([*refusals(self.handlers, transport), *found])  # asking may have brought its capabilities up to date
            for caution in cautions(self.handlers, transport):
                log.warning("%s", caution)

    def _misfits(self, transport: Transport) -> list[str]:
        """What nodes cannot do for the handlers whose topics they have, seen before anything is subscribed there."""
        found = described(self.handlers, transport, _DESCRIBE_SECONDS)
        for words in notes(self.handlers, found):
            log.info("%s", words)
        return misfits(self.handlers, transport, found)

    def _write_ledgers(self, supervisor: Supervisor) -> None:
        ledgers = {name: ledger.as_dict() for name, ledger in supervisor.ledgers.items()}
        if self.settings.ledger:  # first: in ``_leave`` the log may not come back
            write_at_end(self.settings.ledger, "--ledger", json.dumps(ledgers, indent=2) + "\n")
        if self._superior is not None and self._superior.tell_books(ledgers, supervisor.published):
            return
        for name, counts in ledgers.items():
            log.info("ledger %s %s", name, " ".join(f"{key}={count}" for key, count in counts.items()))
        for name, stored in supervisor.published.items():
            if stored:
                log.info("published by %s %s", name, " ".join(f"{topic}={count}" for topic, count in sorted(stored.items())))


def _observed(handlers: Sequence[HandlerSpec], settings: Settings) -> list[HandlerSpec]:
    """With what the settings put around them. What that needs is slow to import, so it is done only where they are asked for."""
    observed = list(handlers)
    if settings.otel:
        observed = _with_otel(observed, settings)
    if settings.history:
        from framework import history  # noqa: PLC0415

        observed = history.watched(observed, settings.history, age=settings.history_age, size=settings.history_size)
    sdk = sys.modules.get("sentry_sdk")
    if settings.sentry_dsn or (sdk is not None and sdk.get_client().is_active()):
        from framework import sentry  # noqa: PLC0415

        observed = sentry.watched(observed, sentry.of_settings(settings))
    return observed


def _with_otel(handlers: Sequence[HandlerSpec], settings: Settings) -> list[HandlerSpec]:
    try:
        from framework import otel  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise BadSetting(f"otel: {error.name} is not installed: `pip install 'nsq-workers[otel]'`") from None
    return otel.watched(handlers, otel.of_settings(settings))


def _raise_first(found: Sequence[str]) -> None:
    if found:
        raise WrongUse(found[0])


@contextmanager
def _closing(transports: Sequence[Transport]) -> Iterator[None]:
    try:
        yield
    finally:
        for transport in transports:
            transport.close()


@contextmanager
def _publisher(transports: Sequence[Transport], timeout: float) -> Iterator[Publisher]:
    """This process's publisher while the block runs."""
    made = Publisher(transports, timeout=timeout)
    publisher.use(made)
    try:
        yield made
    finally:
        publisher.use(None)
        made.close()


def _stop_without(nsqd: EmbeddedNsqd, supervisor: Supervisor) -> None:
    """The embedded nsqd has ended, and nothing would start it again: the worker ends as well, so that its supervisor is told."""
    while not nsqd.ended:
        gevent.sleep(_LOOK_SECONDS)
    supervisor.stop(now=True)


def _say_when_ready(supervisor: Supervisor) -> None:
    while not supervisor.ready:
        gevent.sleep(0.02)
    log.info("ready")

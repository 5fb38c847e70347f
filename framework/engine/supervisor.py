"""Handlers x nodes -> connections: finds nodes, keeps a connection to each for every handler, and stops in the right order.

It touches no message: a connection, once made, is its handler's ``Consumer``'s.
"""

from __future__ import annotations

import contextvars
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import gevent
from gevent import monkey
from gevent.event import Event

from framework import published
from framework.engine import backoff, credit, lease
from framework.engine.consumer import Consumer
from framework.engine.controls import Controls
from framework.engine.dialler import Dialler
from framework.engine.guardian import Guardian
from framework.engine.later_dialler import Waits, carry_headers, known_delays
from framework.engine.ledger import Ledger
from framework.engine.lifetime import Lifetime
from framework.engine.pulse import Pulse
from framework.engine.slot_kinds import remote_slots_for
from framework.engine.stopping import Stop
from framework.engine.turns import Turns
from framework.engine.ways import Ways
from framework.errors import BrokerUnreachable, few_files
from framework.forked import forget_in_child
from framework.handler import HandlerSpec
from framework.middleware import compile_chain
from framework.middleware.failures import Failures
from framework.middleware.later import LaterTopic, compile_later, lasts
from framework.observe import hublog
from framework.transports.contract import GOODBYE, Transport

log = hublog.get(__name__)
_get_ident = monkey.get_original("_thread", "get_ident")

PATIENCE = 1.0
"""Seconds that the start waits for nodes that do not answer when every handler has another: whether they fit is told later."""
GLANCE = 0.05
"""Seconds between two looks at how far the start is, at least: with thousands of handlers each look takes milliseconds."""
HEARD = 0.2
"""Seconds, at most, until brokers have answered that they send no more, and what has not started is given back."""


class Supervisor:
    """Runs ``handlers`` on the nodes of ``transports``, on the hub of the thread that calls ``run``.

    ``publish(topic, body, delay=0)`` stores dead letters, and what must wait longer than the broker takes.
    ``drain``: seconds that handlers may take to end when it stops.
    ``connect_deadline``: seconds at start, anew from each handler that has a connection, until all must have; None: no end.
    ``leave()`` ends the process; called in another native thread when the time to drain is over and a handler still blocks the
    hub, with what was in flight given back as far as connections can (``contract.Releasable``). None: it is not ended.
    ``poll_interval``: seconds between two discoveries. ``environ``: for handlers in processes.
    ``clock``: seconds since 1970, by which it is known what is due.

    Raises BadHandler for a batch that ``max_in_flight`` can never fill.
    """

    def __init__(
        self,
        handlers: Sequence[HandlerSpec],
        transports: Sequence[Transport],
        *,
        publish: Callable[..., None],
        drain: float = 25.0,
        connect_deadline: float | None = 30.0,
        poll_interval: float = 15.0,
        environ: Mapping[str, str] | None = None,
        longest_pause: float | None = None,
        clock: Callable[[], float] = time.time,
        leave: Callable[[], object] | None = None,
    ) -> None:
        self._controls = Controls(handlers)
        self._handlers = list(handlers)
        self._transports = list(transports)
        self._ways = [Ways() for _ in transports]
        self._pulse = Pulse()
        self._publish = publish
        self._stop = Stop(drain)
        self._lifetime = Lifetime(handlers)
        self._leave = leave
        self._connect_deadline = connect_deadline
        self._poll_interval = poll_interval
        self._waits = Waits(self._transports, self._ways, publish)
        self._environ = environ
        self._longest_pause = longest_pause
        self._clock = clock
        self._consumers: list[Consumer] = []
        self._diallers: list[Dialler] = []
        self._max_in_flight = self._controls.max_in_flight
        self._wakeup: Any = None
        self._hub: Any = None
        """Where it runs, while it does."""
        self.hub_thread = 0
        """The native thread in which it runs."""
        self._turns: Turns | None = None
        self._timers: Sequence[Any] = ()
        self._context = contextvars.copy_context()  # of the app, for its handlers
        self.ledgers: dict[str, Ledger] = {spec.name: Ledger() for spec in handlers}
        """The ledger of each handler by its name."""
        self.published: dict[str, Counter[str]] = {spec.name: Counter() for spec in handlers}
        """What has been stored by each handler, or for it (dead letters): topic -> messages, by the handler's name."""
        self.failures: dict[str, Failures] = {spec.name: Failures() for spec in handlers}
        """The last failures of each handler by its name."""

    @property
    def ready(self) -> bool:
        """Every handler has a connection, and where it runs in processes one that takes calls."""
        return bool(self._consumers) and all(consumer.able for consumer in self._consumers)

    @property
    def time_left(self) -> float:
        """Seconds until what runs is given back; infinity before a stop."""
        return max(0.0, self._stop.until - time.monotonic())

    @property
    def stopping(self) -> bool:
        return self._stop.times > 0

    @property
    def blocked(self) -> float:
        """Seconds since the hub turned last, while it runs; it turns ten times a second at least."""
        turns = self._turns
        return time.monotonic() - turns.stamp if turns is not None else 0.0

    # -- from anywhere

    def stop(self, now: bool = False) -> None:
        """Stop: drain, or at once with ``now`` or when called again. Returns immediately.

        May be called from a signal handler, another greenlet or another thread, before ``run`` as well.
        """
        self._stop.ask(now)
        for consumer in list(self._consumers):
            consumer.shutdown.halt()
        self._wake()

    def pause(self, name: str) -> None:
        """Ask for no more messages for the handler ``name`` until ``resume``; what has come is handled. Returns immediately.

        From wherever ``stop`` may be called, before ``run`` as well. Raises WrongUse for a handler that is not here.
        """
        self._controls.pause(name)
        self._wake()

    def resume(self, name: str) -> None:
        """End the pause or drain of the handler ``name``; without one, nothing changes. As ``pause``."""
        self._controls.resume(name)
        self._wake()

    def drain(self, name: str) -> None:
        """As ``pause``, and give back what the handler ``name`` has not started; the worker goes on."""
        self._controls.drain(name)
        self._wake()

    def set_max_in_flight(self, name: str, max_in_flight: int) -> None:
        """Have at most so many messages of the handler ``name`` in flight; what is over it is handled. As ``pause``.

        Raises WrongUse for a handler that is not here, BadHandler for a number that it cannot have.
        """
        self._controls.set_max_in_flight(name, max_in_flight)
        self._wake()

    def set_concurrency(self, name: str, concurrency: int) -> None:
        """Have at most so many calls of the handler ``name`` run at once; what runs over it ends as it would. As
        ``set_max_in_flight``."""
        self._controls.set_concurrency(name, concurrency)
        self._wake()

    def _heed(self, changed: Event) -> None:
        """On the hub, do what was asked for elsewhere."""
        for consumer in self._consumers:
            self._controls.apply(consumer)
        changed.set()

    def _wake(self) -> None:
        wakeup = self._wakeup
        if wakeup is not None:
            wakeup.send()

    # -- one run

    def run(self) -> None:
        """Run until stopped; blocks the calling greenlet.

        Raises BrokerUnreachable when a handler has no connection ``connect_deadline`` seconds after the start, or after the last
        one that has (BrokerRefuses at once, when every broker refuses it), and BadHandler when a node's limits cannot carry a
        handler's timeout.
        """
        with self._hub_watchers() as (hub, turns, changed):
            try:
                if self._lifetime.start_unless(self._stop, changed):
                    self._context.run(self._start, hub, turns, changed)
                self._until_ready(changed)
                self._diallers += self._context.run(self._waits.start)  # when the handlers are connected: they come first
                while not self._stop.times:
                    changed.wait()
                    changed.clear()
            except BaseException:
                self._stop.hurry()
                raise
            finally:
                self._drain(hub)
                self._end(hub)
                self._lifetime.stop_by(self._stop)
                hublog.flush()

    def _start(self, hub: Any, turns: Turns, changed: Event) -> None:
        for transport in self._transports:
            transport.start(hub)
        for spec in self._handlers:
            consumer = contextvars.copy_context().run(self._consumer, spec, hub, turns)
            self._controls.apply(consumer)
            self._consumers.append(consumer)
            self._diallers += [
                Dialler(consumer, transport, ways, self._poll_interval, changed)
                for transport, ways in zip(self._transports, self._ways, strict=True)
            ]
        self._waits.prepare(self._consumers, changed)  # before the first message: what waits must be kept for its handler
        for dialler in self._diallers:
            dialler.start()

    def _consumer(self, spec: HandlerSpec, hub: Any, turns: Turns) -> Consumer:
        """In a context of its own, which its slots take over."""
        published.tally.set(self.published[spec.name])
        remote = remote_slots_for(spec, hub, self._environ)
        later = LaterTopic(
            spec, self._waits.defer if lasts(spec) else None, partial(known_delays, self._transports), clock=self._clock,
            copies=any(transport.capabilities.fan_out for transport in self._transports),
            carries=partial(carry_headers, self._transports),
        )  # fmt: skip
        call = remote.call if remote else None
        chain = compile_chain(
            spec, publish=self._publish, delay=backoff.retry_delay, call=call, later=later, note=self.failures[spec.name].note,
            packed=any(transport.capabilities.packed for transport in self._transports),
        )  # fmt: skip
        return Consumer(
            hub, turns, spec, chain, self.ledgers[spec.name], later_chain=compile_later(spec, chain, later), remote=remote,
            later=later, pulse=self._pulse, longest_pause=self._longest_pause,
        )  # fmt: skip

    def _until_ready(self, changed: Event) -> None:
        """Returns when all is connected, when it shall stop, or when the deadline found nothing worth an error. It moves with
        each handler that is connected: thousands of them on a busy machine take longer, and a broker is there."""
        limit = math.inf if self._connect_deadline is None else self._connect_deadline
        connected, deadline, patience = 0, time.monotonic() + limit, math.inf
        while not self._stop.times:
            self._check_refusals()
            now = time.monotonic()
            if (count := sum(bool(consumer.accounts) for consumer in self._consumers)) > connected:
                connected, deadline = count, now + limit
            if self.ready:
                patience = min(patience, now + PATIENCE)
                if now >= patience or all(dialler.tried for dialler in self._diallers):
                    break
            elif now >= deadline:
                self._check_reached()
                break
            changed.clear()
            changed.wait(max(0.0, min(deadline - now, patience - now, 1.0)))
            gevent.sleep(GLANCE)

    def _check_refusals(self) -> None:
        """Raise for a handler that can never work as it is. At the start that is an error; later it is one bad node among
        others.

        A handler that every broker rejects is one of them: the error comes at once, not at the deadline.
        """
        for consumer, diallers in self.of_consumers():
            for refusal in [consumer.refusal, *(dialler.refusal for dialler in diallers)]:
                if refusal is not None:
                    raise refusal
            shut_out = [dialler.shut_out for dialler in diallers]
            if shut_out[0] is not None and all(shut_out):
                raise shut_out[0]

    def of_consumers(self) -> Iterator[tuple[Consumer, list[Dialler]]]:
        """Each with its diallers, of which it has one for each transport. From any thread."""
        each = len(self._transports)
        for index, consumer in enumerate(list(self._consumers)):
            yield consumer, self._diallers[index * each : (index + 1) * each]

    def _check_reached(self) -> None:
        """Past the deadline: raise for the handlers without a connection. A topic that no node has yet is worth waiting for."""
        for consumer, mine in self.of_consumers():
            if consumer.accounts:
                continue
            if any(dialler.found_no_node for dialler in mine):
                log.warning("handler %s: no node has the topic yet; waiting for one", consumer.spec.name)
                continue
            errors = [dialler.error for dialler in mine if dialler.error]
            silent = [f"{node} has not answered yet" for dialler in mine for node in dialler.silent]
            why = "; ".join([*map(str, errors), *silent]) or "none has answered yet"
            fix = "" if any(map(few_files, errors)) else "; start the broker, or check its URL"
            raise BrokerUnreachable(
                f"handler {consumer.spec.name}: no broker reached within {self._connect_deadline:g} s ({why}){fix}"
            )

    # -- the end

    def _drain(self, hub: Any) -> None:
        """Nothing new; give back what waits; let finish what runs, its leases being kept by the timer; give back the rest."""
        log.info("stopping; running handlers may take up to %g s more", 0.0 if self._stop.now else self._stop.drain)
        for dialler in self._diallers:
            dialler.stop()
        for consumer in self._consumers:
            consumer.shutdown.drain()
        gevent.sleep(0.001)  # a turn of the hub: what was said so far has gone out
        self._wait(lambda consumer: consumer.shutdown.deaf, HEARD)
        for consumer in self._consumers:
            consumer.shutdown.give_back_unstarted()
        self._wait(lambda consumer: not consumer.shutdown.handling, self._stop.drain, hurry=True)
        for consumer in self._consumers:  # on the hub, because it throws into slots, which come back to where it is
            hub.loop.run_callback(consumer.shutdown.abandon)
        gevent.sleep(0.001)
        self._wait(lambda consumer: not consumer.shutdown.unheard, self._stop.until - time.monotonic(), hurry=True)
        self._wait(lambda consumer: consumer.shutdown.quiet, self._goodbye)
        for consumer in self._consumers:
            if why := consumer.shutdown.unheard:
                log.warning("handler %s: messages that were handled come again, because of (%s)", consumer.spec.name, why)

    @property
    def _goodbye(self) -> float:
        """Seconds, at most, for what must be said before the sockets close: CLS and its answer, the last settlements."""
        return max([GOODBYE, *(consumer.shutdown.goodbye for consumer in self._consumers)])

    def _wait(self, condition: Callable[[Consumer], bool], seconds: float, *, hurry: bool = False) -> None:
        """Until ``condition`` holds for all handlers, but no longer than ``seconds``; with ``hurry``, until told to stop now."""
        deadline = time.monotonic() + seconds
        while not all(map(condition, self._consumers)):
            if time.monotonic() > deadline or (hurry and self._stop.now):
                return
            gevent.sleep(0.01)

    def _end(self, hub: Any) -> None:
        for consumer in self._consumers:
            hub.loop.run_callback(consumer.shutdown.close)
        gevent.sleep(0.001)
        self._wait(lambda consumer: consumer.shutdown.ended, GOODBYE)

    # -- the hub

    @contextmanager
    def _hub_watchers(self) -> Iterator[tuple[Any, Turns, Event]]:
        hub = gevent.get_hub()
        turns, changed = Turns(hub), Event()
        self._hub, self._turns, self.hub_thread = hub, turns, _get_ident()
        ticker = hub.loop.timer(credit.PERIOD, credit.PERIOD)
        keeper = hub.loop.timer(lease.PERIOD, lease.PERIOD)
        wakeup = self._wakeup = hub.loop.async_()
        self._timers = ticker, keeper
        guardian = Guardian(turns, self._consumers, self._stop, self._leave)
        forget_in_child(self)
        turns.start()
        wakeup.start(self._heed, changed)
        ticker.start(self._pulse.tick)
        keeper.start(self._keep, guardian)
        guardian.start()
        try:
            yield hub, turns, changed
        finally:
            self._hub, self._wakeup, self._timers, self._turns = None, None, (), None
            guardian.stop()
            turns.stop()
            for watcher in (wakeup, ticker, keeper):
                watcher.close()

    def forget(self) -> None:
        """In a forked child, of which a handler wants something else: nothing of the worker goes on there."""
        if self._hub is None or self._hub.loop is None:  # its run is over, or its hub was destroyed with what ran there
            return
        for dialler in self._diallers:
            dialler.stop()
        for consumer in self._consumers:
            consumer.shutdown.forget()
        for timer in self._timers:
            timer.stop()

    def _keep(self, guardian: Guardian) -> None:
        if seconds := guardian.stood_still():  # first of all: the report hands over what came meanwhile
            for consumer in self._consumers:
                consumer.stood_still(seconds)
        guardian.report()  # before the leases: whose lease it has kept is not too late to start
        self._pulse.keep_leases()

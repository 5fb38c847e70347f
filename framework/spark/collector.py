"""The embedded collector: a batch handler that lands a channel in the spool, run by the engine in a thread of its own.

It lives in the process that Spark keeps beside the driver for each query. It knows nothing of offsets: the reader
sees what it lands by listing the spool.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from framework.engine.dialler import Dialler
from framework.engine.supervisor import Supervisor
from framework.errors import FrameworkError, WrongUse
from framework.handler import HandlerSpec
from framework.message import Batch
from framework.spark.options import ReadOptions
from framework.spark.start import Start
from framework.spool import Spool
from framework.transports import open_transports

if TYPE_CHECKING:
    from framework.transports.contract import Transport

NAME = "embedded"
"""The collector's folder in the spool."""
_log = logging.getLogger(__name__)
_LOCK_WAIT = 30.0
"""Seconds to wait for a former process of the same query to end."""
_CONNECT_WAIT = 15.0
_IDLE = 2.0
"""Seconds without a message from before, after which a channel counts as drained; a segment's linger comes on top."""
_STALL = 0.5
"""Seconds that this thread or the hub may be late by: what passes while either stands still is no time in which nothing came."""
_LAND_TIMEOUT = 60.0
_DRAIN = 5.0
_STOP_WAIT = 10.0


class Collector:
    """Lands ``topic``'s ``channel`` in the spool until stopped; finishes what is durable."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._spool = Spool(
            options.spool_dir,
            NAME,
            window=options.dedupe_window,
            remember=options.dedupe_time,
            max_bytes=options.max_spool_bytes,
            node_ids=options.node_ids,
        )
        self._thread = threading.Thread(target=self._run, name=f"collect {options.topic}/{options.channel}", daemon=True)
        self._supervisor: Supervisor | None = None
        self._transports: Sequence[Transport] = ()
        self._stopping = threading.Event()
        self._error: Exception | None = None
        self._start: Start | None = None
        self._answers_until = 0.0
        self._last_old = 0.0
        self._looked = 0.0
        self._landing = False
        """Whether a batch is being landed that may have messages from before the start."""

    def start(self) -> None:
        self._thread.start()

    def check(self) -> None:
        """Raises what ended the collector, if it has ended by itself: a query that silently reads no more is worse."""
        if self._error is not None:
            raise self._error

    def counts(self) -> dict[str, int]:
        """How the messages ended so far; the ledger's words."""
        supervisor = self._supervisor
        return {} if supervisor is None else next(iter(supervisor.ledgers.values())).as_dict()

    def drain_channel(self) -> None:
        """Return when the messages that the channel held on this call are landed, as far as one can know.

        NSQ has no end of a channel to ask for, so: when no message from before has come for a while. Which are from before
        is told by the clock of the nsqd that took them. A broker that does not answer is waited for a while, and so is each of
        its nodes; then it is left to the next run.
        """
        self._start = Start()
        self._answers_until = time.monotonic() + _CONNECT_WAIT
        if not self._wait_for(lambda: self._supervisor is not None and self._supervisor.ready, _CONNECT_WAIT):
            _log.warning("no broker of %s answers: this run reads what the spool holds already", ", ".join(self._options.urls))
            return
        self._last_old = self._looked = time.monotonic()
        self._wait_for(self._drained, None)
        for node in [node for one in self._diallers() for node in one.silent]:
            _log.warning("%s has not answered: what it holds is left to the next run", node)

    def stop(self) -> None:
        """Finish what is becoming durable, requeue the rest, and end."""
        self._stopping.set()
        if self._supervisor is not None:
            self._supervisor.stop()
        if self._thread.is_alive():
            self._thread.join(_STOP_WAIT)

    def _drained(self) -> bool:
        """Whether nothing from before has come for a while in which this process looked."""
        now = time.monotonic()
        blocked = self._supervisor.blocked if self._supervisor is not None else 0.0
        idle = _IDLE + self._options.segment_linger
        stalled = blocked > _STALL or now - self._looked > _STALL
        awaited = now < self._answers_until and not all(one.tried for one in self._diallers())
        if self._landing or stalled or awaited or (now - self._last_old > idle and self._has_old()):
            self._last_old = now
        self._looked = now
        return now - self._last_old > idle

    def _has_old(self) -> bool:
        """Whether messages from before have come and wait, as behind a batch of newer ones that a slow disk takes."""
        if self._start is None or self._supervisor is None:
            return False
        connections = [one for consumer, _ in self._supervisor.of_consumers() for one in list(consumer.accounts)]
        return self._start.precedes((message for one in connections for message in list(one.in_flight)), self._transports)

    def _diallers(self) -> list[Dialler]:
        return [one for _, some in self._supervisor.of_consumers() for one in some] if self._supervisor is not None else []

    def _wait_for(self, condition: Callable[[], bool], seconds: float | None) -> bool:
        until = None if seconds is None else time.monotonic() + seconds
        while not condition():
            self.check()
            if self._stopping.is_set() or (until is not None and time.monotonic() > until):
                return False
            time.sleep(0.02)
        return True

    def _land(self, batch: Batch) -> None:
        self._landing = True  # a disk may be slower than idle is long, and so may an nsqd that is asked for its time
        self._landing = self._start is None or self._start.precedes(batch, self._transports)
        try:
            self._spool.land(batch)
        finally:
            if self._landing:
                self._last_old = time.monotonic()
            self._landing = False

    def _run(self) -> None:
        try:
            self._open_spool()
            self._consume()
        except Exception as error:
            self._error = error
        finally:
            self._spool.close()

    def _open_spool(self) -> None:
        until = time.monotonic() + _LOCK_WAIT
        while not self._stopping.is_set():
            try:
                return self._spool.open()
            except WrongUse as error:
                if time.monotonic() > until:
                    raise WrongUse(
                        f"{error}. Two queries cannot collect into one spoolDir, nor share a channel: each gets a part. Give "
                        "each its own spoolDir and channel, or let both read one spool with collector=external"
                    ) from None
            time.sleep(0.1)
        return None

    def _consume(self) -> None:
        transports = self._transports = open_transports(self._options.urls)
        self._supervisor = Supervisor([self._spec()], transports, publish=_no_dead_letters, drain=_DRAIN, connect_deadline=None)
        try:
            if not self._stopping.is_set():
                self._supervisor.run()
        finally:
            for transport in transports:
                transport.close()

    def _spec(self) -> HandlerSpec:
        options = self._options
        return HandlerSpec(
            topic=options.topic,
            channel=options.channel,
            function=self._land,
            decode=None,
            concurrency=1,
            max_in_flight=options.max_in_flight,
            timeout=_LAND_TIMEOUT,
            max_attempts=0,
            batch=options.segment_max_messages,
            linger=options.segment_linger,
        )


def _no_dead_letters(topic: str, body: bytes) -> None:
    raise FrameworkError(f"a collector never gives a message up, and was asked to publish one to {topic}")

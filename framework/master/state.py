"""What a process tells its master of itself: whether it takes messages, how far it is, and whether it is stuck."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from framework.engine.consumer import Consumer
from framework.engine.slots import clock
from framework.engine.supervisor import Supervisor
from framework.systemd import Condition

IDLE = 30.0
"""Seconds, beside a batch's ``linger``, that messages may wait where nothing runs and nothing holds them back."""


class State(Protocol):
    """``app.App``, as far as it is asked for here."""

    @property
    def ready(self) -> bool: ...

    @property
    def supervisor(self) -> Supervisor | None: ...


class About:
    """Asked again and again, of one ``App``: it sees what has not changed since."""

    def __init__(self) -> None:
        from framework.admin import health  # noqa: PLC0415 - here, as it is asked in another thread: two that import it fail

        self._stuck = health.stuck
        self._waited: dict[str, float] = {}
        self._ended_at: dict[str, float] = {}
        self._looked = clock()

    def __call__(self, app: State) -> dict[str, Any]:
        """From any thread, but always the same. Raises RuntimeError when what is read changed meanwhile."""
        supervisor = app.supervisor
        if supervisor is None:
            return {"ready": False}
        return {
            "ready": app.ready,
            "draining": supervisor.stopping,
            "stuck": [*self._stuck(supervisor), *self._standing_still(supervisor)],
            "tasks": sum(ledger.settled for ledger in supervisor.ledgers.values()),
            "handlers": {one.spec.name: [one.spec.concurrency, one.flow.max_in_flight] for one, _ in supervisor.of_consumers()},
            "patience": max((one.spec.timeout for one, _ in supervisor.of_consumers()), default=0.0),
            "ledgers": {name: ledger.as_dict() for name, ledger in supervisor.ledgers.items()},
            "published": {name: dict(stored) for name, stored in supervisor.published.items() if stored},
        }

    def _standing_still(self, supervisor: Supervisor) -> Iterator[str]:
        now = clock()
        passed, self._looked = now - self._looked, now
        for one, _ in supervisor.of_consumers():
            waited = self._waited_of(one, passed)
            if waited > IDLE + one.spec.linger:
                yield f"handler {one.spec.name}: messages have waited for {waited:.0f} s, and nothing runs"

    def _waited_of(self, consumer: Consumer, passed: float) -> float:
        """Seconds for which messages have waited though a call could have begun, since one ended or ran; what comes and is given
        back in between does not count as progress."""
        name, ended_at = consumer.spec.name, consumer.times.ended_at
        if consumer.running.calls() or ended_at != self._ended_at.get(name):
            self._ended_at[name] = ended_at
            self._waited.pop(name, None)
        elif _could_begin(consumer):
            self._waited[name] = self._waited.get(name, 0.0) + passed
        return self._waited.get(name, 0.0)


def condition(app: State, about: About) -> Condition:
    """Of a process without a master, for systemd."""
    report = about(app)
    handlers = len(report.get("handlers", ()))
    words = "draining" if report.get("draining") else f"{handlers} handlers subscribed" if report["ready"] else "not subscribed"
    return Condition(report["ready"], report.get("draining", False), bool(report.get("stuck")), words)


def _could_begin(consumer: Consumer) -> bool:
    """Messages have come, and nothing holds them back."""
    held_back = consumer.flow.paused or consumer.flow.breaker.pausing or not consumer.able
    return not held_back and any(connection.in_flight for connection in list(consumer.accounts))

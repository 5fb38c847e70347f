"""What a process tells its master of itself: whether it takes messages, how far it is, and whether it is stuck."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from framework.engine.consumer import Consumer
from framework.engine.slots import clock
from framework.engine.supervisor import Supervisor

IDLE = 30.0
"""Seconds, beside a batch's ``linger``, that messages may wait where nothing runs and nothing holds them back."""


class State(Protocol):
    """``app.App``, as far as it is asked for here."""

    @property
    def ready(self) -> bool: ...

    @property
    def supervisor(self) -> Supervisor | None: ...


def about(app: State) -> dict[str, Any]:
    """From any thread. Raises RuntimeError when what is read changed meanwhile."""
    from framework.admin import health  # noqa: PLC0415

    supervisor = app.supervisor
    if supervisor is None:
        return {"ready": False}
    ledgers = supervisor.ledgers
    return {
        "ready": app.ready,
        "stuck": [*health.stuck(supervisor), *_standing_still(supervisor)],
        "tasks": sum(ledger.settled for ledger in ledgers.values()),
        "handlers": {one.spec.name: [one.spec.concurrency, one.flow.max_in_flight] for one, _ in supervisor.of_consumers()},
        "patience": max((one.spec.timeout for one, _ in supervisor.of_consumers()), default=0.0),
        **books(supervisor),
    }


def books(supervisor: Supervisor) -> dict[str, Any]:
    return {
        "ledgers": {name: ledger.as_dict() for name, ledger in supervisor.ledgers.items()},
        "published": {name: dict(stored) for name, stored in supervisor.published.items() if stored},
    }


def _standing_still(supervisor: Supervisor) -> Iterator[str]:
    for one, _ in supervisor.of_consumers():
        waited = _idle_for(one)
        if waited > IDLE + one.spec.linger:
            yield f"handler {one.spec.name}: messages have waited for {waited:.0f} s, and nothing runs"


def _idle_for(consumer: Consumer) -> float:
    """Seconds for which messages have waited though a call could have begun; 0 where something runs, or holds them back."""
    flow = consumer.flow
    if flow.paused or flow.breaker.pausing or not consumer.able or consumer.running.calls():
        return 0.0
    came = [at for connection in list(consumer.accounts) for at in list(connection.in_flight.values())]
    return max(0.0, clock() - max(consumer.times.ended_at, min(came))) if came else 0.0

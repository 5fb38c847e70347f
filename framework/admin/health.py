"""Whether a worker is alive, and whether it is ready: sentences about what is wrong. It changes nothing, and asks no broker."""

from __future__ import annotations

from collections.abc import Iterator

from framework.engine.consumer import Consumer
from framework.engine.slots import clock
from framework.engine.supervisor import Supervisor
from framework.transports.contract import away

GRACE = 0.5
"""Seconds that a call may take to heed that its time is over."""
NOBODY = 30.0
"""Seconds that the hub may be blocked by something that is no handler."""


def stuck(supervisor: Supervisor) -> list[str]:
    """Why only a new process would help. A broker that is away is no reason, nor a handler that blocks the hub within its
    ``timeout``."""
    return [*_hub(supervisor), *(words for one, _ in supervisor.of_consumers() for words in _slots(one))]


def unready(supervisor: Supervisor) -> list[str]:
    """Why no messages should be counted on to be handled here."""
    if supervisor.stopping:
        return ["draining: it takes no more messages"]
    found = [words for one, _ in supervisor.of_consumers() for words in _subscription(one)]
    return found or ([] if supervisor.ready else ["starting: it has not subscribed yet"])


def _hub(supervisor: Supervisor) -> Iterator[str]:
    blocked = supervisor.blocked
    if blocked < GRACE:
        return
    who = next((one for one, _ in supervisor.of_consumers() if one.running.computing), None)
    limit = who.spec.timeout + GRACE if who is not None else NOBODY
    if blocked > limit:
        name = f"handler {who.spec.name}, whose timeout is {who.spec.timeout:g} s," if who is not None else "something"
        yield f"{name} has blocked the hub for {blocked:.1f} s"


def _slots(consumer: Consumer) -> Iterator[str]:
    now, limit = clock(), consumer.spec.timeout + GRACE
    late = sum(now - call.started > limit for call in consumer.running.calls())
    if late >= consumer.concurrency:
        yield f"handler {consumer.spec.name}: all of its {late} calls are past their timeout and do not return"


def _subscription(consumer: Consumer) -> Iterator[str]:
    if not consumer.connected:
        why = "; ".join(dict.fromkeys(map(away, list(consumer.accounts))))
        yield f"handler {consumer.spec.name} has no connection to a broker" + (f" ({why})" if why else "")
    elif not consumer.able:
        yield f"handler {consumer.spec.name} has no thread or process that can take a call"

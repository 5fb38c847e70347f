"""Why a channel is not consumed, as far as its brokers and its workers tell: a line for each. It asks nobody."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from framework.cli.tables import backlog, seconds, state
from framework.transports.kept import Kept

Worker = Mapping[str, Any]
"""The row of the channel's handler in the API of a worker."""


@dataclass(frozen=True)
class Rates:
    """Messages a second, over the last ``over`` seconds."""

    came: float
    done: float
    """Finished, or given up."""
    over: float


def rates(before: Kept, now: Kept, elapsed: float) -> Rates | None:
    """None where its nodes do not count what comes, or have been started anew."""
    if before.came is None or now.came is None or now.came < before.came:
        return None
    came = now.came - before.came
    return Rates(came / elapsed, max(0.0, (came - (now.total - before.total)) / elapsed), elapsed)


def why(kept: Kept, speed: Rates | None, worker: Worker | None) -> str:
    """What holds it up, or how it goes: the first reason that explains it all."""
    if kept.paused:
        return "paused at the broker: `workers resume` ends it"
    if worker is not None and worker["pause"] is not None:
        return f"the worker: {state(worker)}"
    if worker is not None and not worker["connected"]:
        return "the worker has no connection"
    if not kept.total:
        return "nothing is there"
    if kept.consumers == 0:
        return "no consumer is subscribed"
    if not kept.waiting and not kept.in_flight:
        return "all of it is deferred"
    if speed is not None and not speed.done:
        busy = worker is not None and worker["running"] >= worker["concurrency"]
        slots = f"all {worker['concurrency']} slots are busy, and " if worker is not None and busy else ""
        return f"{slots}nothing has ended in {speed.over:.1f} s"
    if speed is not None and kept.waiting and speed.came > speed.done:
        return "consumed more slowly than it comes"
    return "consumed" if speed is not None else "not known: the broker does not count what comes"


HEAD = ("TOPIC/CHANNEL", ">WAITING", ">IN FLIGHT", ">DEFERRED", ">AGE", ">IN", ">OUT", ">CONSUMERS", "WHY")


def cells(name: str, kept: Kept, speed: Rates | None, worker: Worker | None) -> list[str]:
    """In the order of ``HEAD``."""
    came, done = (f"{speed.came:.1f}/s", f"{speed.done:.1f}/s") if speed else ("-", "-")
    consumers = "-" if kept.consumers is None else f"{kept.consumers}"
    age = seconds(worker["oldest_age"]) if worker is not None and backlog(worker) else "-"
    numbers = [f"{number}" for number in (kept.waiting, kept.in_flight, kept.deferred)]
    return [name, *numbers, age, came, done, consumers, why(kept, speed, worker)]


def as_dict(kept: Kept, speed: Rates | None, worker: Worker | None) -> dict[str, Any]:
    """For JSON."""
    return {
        "waiting": kept.waiting, "in_flight": kept.in_flight, "deferred": kept.deferred, "consumers": kept.consumers,
        "paused": kept.paused,
        "in_rate": round(speed.came, 2) if speed else None, "out_rate": round(speed.done, 2) if speed else None,
        "oldest_age": worker["oldest_age"] if worker is not None else None,
        "pause": worker["pause"] if worker is not None else None, "why": why(kept, speed, worker),
    }  # fmt: skip

"""The snapshot of this process, read from its ledgers and counters by another thread; and what is asked of its handlers."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from framework.admin import health
from framework.admin.fresh import Breathe
from framework.admin.snapshot import Snapshot, at_once, in_words, most
from framework.admin.where import positions
from framework.engine.consumer import Consumer
from framework.engine.dialler import Dialler
from framework.engine.ledger import OUTCOMES
from framework.engine.remote_slots import Call, messages_of
from framework.engine.slots import clock
from framework.engine.supervisor import Supervisor
from framework.middleware.envelope import known_as
from framework.resident import rss
from framework.transports.contract import away
from framework.version import VERSION

WINDOW = 10.0
"""Seconds, at least, over which rates and percentiles are taken, once there are as many."""
STEP = 1.0
"""Seconds between two samples of the counters, at least."""
TRIES = 3
"""What is read changes meanwhile, and a set that does cannot be gone through."""

Read = TypeVar("Read")
One = TypeVar("One")


class _Sample(NamedTuple):
    at: float
    counts: tuple[int, ...]
    calls: tuple[int, ...]
    """By bucket, the fast ones too."""
    waits: tuple[int, ...]


class Here:
    """``snapshot.Source`` for one process. Asked from any thread but the hub's."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._began = time.time()
        self._samples: dict[str, deque[_Sample]] = {}

    def act(self, command: Mapping[str, Any]) -> None:
        """Raises WrongUse for a handler that is not here, and for a number that it cannot have."""
        supervisor, action = self._supervisor, command["action"]
        names = [command["handler"]] if command.get("handler") else list(supervisor.ledgers)
        for name in names:
            if action in ("max_in_flight", "concurrency"):
                getattr(supervisor, f"set_{action}")(name, command["value"])
            else:
                getattr(supervisor, action)(name)

    def snapshot(self, breathe: Breathe = at_once) -> Snapshot:
        return _tried(lambda: self._snapshot(breathe))

    def health(self) -> list[dict[str, Any]]:
        return [_tried(self._health)]

    def _snapshot(self, breathe: Breathe) -> Snapshot:
        consumers = list(self._supervisor.of_consumers())
        return {
            "at": time.time(),
            "processes": [self._process()],
            "handlers": list(_each(lambda one: self._handler(*one), consumers, breathe)),
            "running": self._running([one for one, _ in consumers]),
            "failures": self._failures(),
            "connections": [row for rows in _each(lambda one: list(_connections(one[0])), consumers, breathe) for row in rows],
        }

    def _health(self) -> dict[str, Any]:
        return {"stuck": health.stuck(self._supervisor), "unready": health.unready(self._supervisor)}

    def _process(self) -> dict[str, Any]:
        supervisor = self._supervisor
        state = "draining" if supervisor.stopping else "ready" if supervisor.ready else "starting"
        return {
            "pid": os.getpid(), "host": os.uname().nodename, "version": VERSION, "started": self._began, "state": state,
            "blocked": round(supervisor.blocked, 3), **self._health(), "cpu": round(time.process_time(), 3), "memory": rss(),
        }  # fmt: skip

    # -- a handler

    def _handler(self, one: Consumer, diallers: list[Dialler]) -> dict[str, Any]:
        spec, flow, times, name = one.spec, one.flow, one.times, one.spec.name
        counts, in_flight = self._counts(name)
        slow, waits = list(times.slow_calls), tuple(times.waits)
        calls = max(one.calls_ended, sum(slow))
        sample = _Sample(clock(), tuple(counts.values()), (calls - sum(slow), *slow[1:]), waits)
        row = {
            "handler": name, "topic": spec.topic, "channel": spec.channel, "slots": spec.slots, "processes": 1,
            "concurrency": one.concurrency, "max_in_flight": flow.max_in_flight, "timeout": spec.timeout, "batch": spec.batch,
            "running": len(one.running.calls()), "waiting": one.waiting, "in_flight": in_flight, "counts": counts,
            "failures": self._supervisor.failures[name].count, "calls": calls, "busy": round(times.busy, 6), "slow": slow,
            "waits": list(waits), "waited": round(times.waited, 6), "pause": _pause(one), "connected": one.connected,
            "wanted": sum(dialler.wanted for dialler in diallers), "stalled": round(_stalled(one), 3), "started": times.started,
            "published": dict(self._supervisor.published[name]),
        } | self._recent(name, sample)  # fmt: skip
        return row | in_words(row)

    def _counts(self, name: str) -> tuple[dict[str, int], int]:
        """What is in flight is what has not ended: so the sum is right, whenever the counters are read."""
        ledger = self._supervisor.ledgers[name]
        ended = {outcome: getattr(ledger, outcome) for outcome in OUTCOMES}
        received = max(ledger.received, sum(ended.values()))
        return {"received": received, **ended}, received - sum(ended.values())

    def _recent(self, name: str, now: _Sample) -> dict[str, Any]:
        """What has happened since a sample of about ``WINDOW`` ago, or since the start."""
        samples = self._samples.setdefault(name, deque())
        if not samples:
            began = now.at - max(1e-3, time.time() - self._began)
            samples.append(_Sample(began, (0,) * len(now.counts), (0,) * len(now.calls), (0,) * len(now.waits)))
        elif now.at - samples[-1].at >= STEP:
            last = samples[-1]  # an idle handler's samples share what they hold
            same = now._replace(calls=last.calls, waits=last.waits) if (now.calls, now.waits) == last[2:] else now
            samples.append(same)
        while len(samples) > 1 and now.at - samples[1].at >= WINDOW:
            samples.popleft()
        then = samples[0]
        seconds = now.at - then.at
        rates = [max(0.0, round((a - b) / seconds, 3)) for a, b in zip(now.counts, then.counts, strict=True)]
        return {
            "rate": dict(zip(("received", *OUTCOMES), rates, strict=True)), "rate_seconds": round(seconds, 1),
            "recent_calls": _less(now.calls, then.calls), "recent_waits": _less(now.waits, then.waits),
        }  # fmt: skip

    # -- calls

    def _running(self, consumers: list[Consumer]) -> list[dict[str, Any]]:
        """Those of each handler that run longest, each with where it is."""
        found = [(call, one) for one in consumers for call in one.running.calls()]
        found = most(found, lambda pair: pair[1].spec.name, lambda pair: pair[0].started)
        calls = [call for call, _ in found]
        where = positions(calls, self._supervisor.hub_thread) if calls else []
        now = clock()
        rows = (_call(call, one, words, now) for (call, one), words in zip(found, where, strict=True))
        return [row for row in rows if row is not None]

    def _failures(self) -> list[dict[str, Any]]:
        pid = os.getpid()
        rows = [
            {"handler": name, **failure._asdict(), "pid": pid}
            for name, failures in self._supervisor.failures.items()
            for failure in list(failures.last)
        ]
        return most(rows, lambda row: row["handler"], lambda row: -row["at"])


def _tried(read: Callable[[], Read]) -> Read:
    for _ in range(TRIES - 1):
        try:
            return read()
        except RuntimeError:
            continue
    return read()


def _each(made: Callable[[One], Read], ones: Iterable[One], breathe: Breathe) -> Iterator[Read]:
    for one in ones:
        breathe()
        yield made(one)


def _call(call: Call, one: Consumer, where: str, now: float) -> dict[str, Any] | None:
    messages = messages_of(call.job)
    if not messages:  # it has ended
        return None
    first = known_as(messages[0])
    return {
        "handler": one.spec.name, "id": first.id.decode(errors="replace"), "attempt": first.attempts, "node": first.node,
        "messages": len(messages), "since": round(max(0.0, now - call.started), 3), "where": where, "slot": one.spec.slots,
        "pid": os.getpid(),
    }  # fmt: skip


def _connections(one: Consumer) -> Iterator[dict[str, Any]]:
    for connection in list(one.accounts):
        yield {
            "handler": one.spec.name, "topic": connection.topic, "node": connection.node, "granted": connection.granted,
            "in_flight": len(connection.in_flight), "unsent": connection.unsent(), "pid": os.getpid(),
            "away": away(connection),
        }  # fmt: skip


def _pause(one: Consumer) -> dict[str, Any] | None:
    flow = one.flow
    if flow.paused:
        by, why = ("drain", "an operator has drained it") if flow.drained else ("operator", "an operator has paused it")
        return {"by": by, "until": None, "why": why, "processes": 1}
    if (pause := flow.breaker.pause) is not None:
        why, seconds = pause
        return {"by": "backoff", "until": round(time.time() + seconds, 1), "why": why, "processes": 1, "trying": not seconds}
    return None


def _stalled(consumer: Consumer) -> float:
    """Seconds since a call ended, or the oldest one that runs began, or the oldest message that waits came."""
    began = [call.started for call in consumer.running.calls()]
    began = began or [at for connection in list(consumer.accounts) for at in list(connection.in_flight.values())]
    return max(0.0, clock() - max(consumer.times.ended_at, min(began))) if began else 0.0


def _less(now: tuple[int, ...], then: tuple[int, ...]) -> list[int] | None:
    found = [max(0, a - b) for a, b in zip(now, then, strict=True)]
    return found if any(found) else None

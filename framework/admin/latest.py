"""The snapshot as whoever asks gets it: made anew now and then, however many ask, with what the brokers keep beside it."""

from __future__ import annotations

from typing import Any

from framework.admin.backlog import Backlog
from framework.admin.fresh import Fresh
from framework.admin.snapshot import Snapshot, Source
from framework.middleware.dead_letter import topic_name
from framework.middleware.envelope import LATER
from framework.transports.kept import together

FRESH = 0.25
"""Seconds, at least, for which a snapshot is not made anew: it takes CPU of the process whose messages it counts."""
_UNKNOWN = {"backlog": None, "kept": None, "oldest_age": None}


class Latest:
    """That of ``source``. All of it is called on one hub."""

    def __init__(self, source: Source, backlog: Backlog) -> None:
        self._snapshot = Fresh(source.snapshot, FRESH)
        self._backlog = backlog

    def __call__(self) -> Snapshot:
        return self._snapshot()

    def forget(self) -> None:
        """Something was changed: the next who asks shall see it."""
        self._snapshot.forget()

    def named(self, name: str) -> dict[str, Any] | None:
        """The row of a handler, None where there is none. It may be old: what a handler is called and reads does not change."""
        return _row(self._snapshot.last, name) or _row(self(), name)

    def handlers(self) -> list[dict[str, Any]]:
        """The handlers' rows with ``backlog`` (node -> messages), ``kept`` (the sum of the nodes) and ``oldest_age`` (seconds).

        Each is None while it is not known."""
        rows = self()["handlers"]
        self._backlog.refresh((row["topic"], row["channel"]) for row in rows)
        return [row | self._kept(row) for row in rows]

    def work_for(self, name: str, patience: float) -> int | None:
        """What brokers could deliver for a handler at this moment, and what is in flight; also of what has waited for long in
        ``<topic>.<channel>.later``, and is due. None where that is not known within ``patience`` seconds."""
        row = self.named(name)
        assert row is not None, "who asks has looked"
        topic, channel = row["topic"], row["channel"]
        return self._backlog.work_for(topic, channel, topic_name(topic, channel, LATER), patience)

    def _kept(self, row: dict[str, Any]) -> dict[str, Any]:
        channel = row["topic"], row["channel"]
        nodes = self._backlog.kept.get(channel)
        if nodes is None:
            return _UNKNOWN
        all_ = together(nodes)
        return {
            "backlog": {node: one.total for node, one in nodes.items()},
            "kept": {"waiting": all_.waiting, "in_flight": all_.in_flight, "deferred": all_.deferred,
                     "consumers": all_.consumers, "paused": all_.paused},
            "oldest_age": round(self._backlog.age_at_most(channel, row["started"]), 1),
        }  # fmt: skip


def _row(snapshot: Snapshot | None, name: str) -> dict[str, Any] | None:
    return next((row for row in snapshot["handlers"] if row["handler"] == name), None) if snapshot is not None else None

"""The rows of a worker's API as tables for a terminal: columns and their words. It asks nobody."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from framework.cli.dead.shown import printable
from framework.engine.times import FAST

Row = Mapping[str, Any]
Column = Callable[[Row], str]


def seconds(value: float | None) -> str:
    """``12ms``, ``3.2s``, ``5m12s``, ``2h05m``; a dash where it is not known."""
    if value is None:
        return "-"
    if value < 1:
        return f"{value * 1000:.0f}ms" if value >= 0.0095 or not value else f"{value * 1000:.1f}ms"
    if value < 60:
        return f"{value:.1f}s"
    minutes, rest = divmod(int(value), 60)
    return f"{minutes}m{rest:02}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02}m"


def took(value: float | None) -> str:
    """Calls of less than 5 ms are not told apart."""
    return "<5ms" if value is not None and value <= FAST else seconds(value)


def state(row: Row) -> str:
    """Why a handler asks for no messages, or ``ok``."""
    pause = row["pause"]
    if pause is None:
        return "no connection" if row["connected"] == 0 else "ok"
    some = f" ({pause['processes']} of {row['processes']})" if pause["processes"] < row["processes"] else ""
    if pause["by"] == "backoff":
        left = seconds(max(0.0, pause["until"] - time.time()))
        return f"trying again: {pause['why']}{some}" if pause.get("trying") else f"backing off {left}: {pause['why']}{some}"
    return {"operator": "paused", "drain": "drained"}[pause["by"]] + some


def ended(row: Row) -> float:
    """Messages a second that have ended, in whatever way."""
    return float(sum(rate for outcome, rate in row["rate"].items() if outcome != "received"))


def backlog(row: Row) -> int | None:
    """What brokers keep; None while it is not known."""
    return None if row.get("backlog") is None else sum(row["backlog"].values())


def percentile(row: Row, of: str, which: str) -> float | None:
    return float(row[of][which]) if row[of] else None


TABLES: dict[str, tuple[str, dict[str, Column]]] = {
    "handlers": (
        "Show the handlers: rates, what runs, waits and failed, pauses.",
        {
            "HANDLER": lambda row: row["handler"],
            ">RATE": lambda row: f"{ended(row):.1f}/s",
            ">RUNNING": lambda row: f"{row['running']}/{row['concurrency']}",
            ">IN FLIGHT": lambda row: f"{row['in_flight']}/{row['max_in_flight']}",
            ">BACKLOG": lambda row: "-" if (count := backlog(row)) is None else f"{count}",
            ">AGE": lambda row: seconds(row.get("oldest_age")),
            ">P50": lambda row: took(percentile(row, "took", "p50")),
            ">P99": lambda row: took(percentile(row, "took", "p99")),
            ">DEAD": lambda row: f"{row['counts']['dead']}",
            ">LOST": lambda row: f"{row['counts']['lease_lost'] + row['counts']['lost']}",
            "STATE": state,
        },
    ),
    "running": (
        "Show the calls that run now, the oldest first, and the line that each is at.",
        {
            ">SINCE": lambda row: seconds(row["since"]),
            "HANDLER": lambda row: row["handler"],
            "ID": lambda row: row["id"],
            ">ATTEMPT": lambda row: f"{row['attempt']}",
            "WHERE": lambda row: row["where"] or "?",
        },
    ),
    "failures": (
        "Show the latest failures, the newest first.",
        {
            "AT": lambda row: datetime.fromtimestamp(row["at"], UTC).strftime("%Y-%m-%d %H:%M:%SZ"),
            "HANDLER": lambda row: row["handler"],
            "ID": lambda row: row["id"],
            ">ATTEMPT": lambda row: f"{row['attempt']}",
            "BECAME": lambda row: row["became"],
            "ERROR": lambda row: row["error"] + (f"  ({row['where']})" if row["where"] else ""),
        },
    ),
    "dead": (
        "Count dead letters by topic.",
        {
            ">LETTERS": lambda row: f"{row['letters']}",
            "TOPIC": lambda row: row["dead_topic"],
            "HANDLER": lambda row: row["handler"] or "-",
        },
    ),
    "connections": (
        "Show the connections, and how many messages each may have in flight (RDY).",
        {
            "NODE": lambda row: row["node"],
            "HANDLER": lambda row: row["handler"],
            ">RDY": lambda row: f"{row['granted']}",
            ">IN FLIGHT": lambda row: f"{row['in_flight']}",
            ">PID": lambda row: f"{row['pid']}",
        },
    ),
    "processes": (
        "Show the processes.",
        {
            ">PID": lambda row: f"{row['pid']}",
            "HOST": lambda row: row["host"],
            "STATE": lambda row: row["state"],
            ">UP": lambda row: seconds(max(0.0, time.time() - row["started"])),
            ">MEMORY": lambda row: f"{row['memory'] / 1e6:.0f} MB",
            "WRONG": lambda row: "; ".join([*row["stuck"], *row["unready"]]) or "-",
        },
    ),
}
"""Part of the API -> what shows it, and its columns; those with ``>`` are to the right."""


def table(part: str, rows: Sequence[Row]) -> Iterator[str]:
    """Lines, the head first. What a name or an exception holds moves no cursor."""
    _, columns = TABLES[part]
    cells = [[printable(column(row)) for column in columns.values()] for row in rows]
    yield from aligned(list(columns), cells)


def aligned(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines, the head first; the columns with ``>`` are to the right."""
    heads = [head.lstrip(">") for head in columns]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    right = [head.startswith(">") for head in columns]
    for line in [heads, *cells]:
        words = (text.rjust(width) if end else text.ljust(width) for text, width, end in zip(line, widths, right, strict=True))
        yield "  ".join(words).rstrip()

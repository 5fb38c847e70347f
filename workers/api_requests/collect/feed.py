"""``workers publish`` as the pipeline uses it: where the lines go, how far they are, and how many there were."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from framework import Publisher
from workers.api_requests.collect.topics import CHANNELS, TOPIC

INCOMPLETE = 4
"""Its exit code when some lines were refused, and the rest is published."""
_NO_FAN_OUT = "beanstalkd://"  # its publisher makes the copies for the channels


def broker_of(url: str) -> str:
    """``url``, told which channels get a copy where the broker makes none. Raises WrongUse for one that cannot be used."""
    if url.startswith(_NO_FAN_OUT) and "fanout=" not in url:
        copies = ",".join(f"{TOPIC}/{channel}" for channel in CHANNELS)
        url += f"{'&' if '?' in url else '?'}fanout={copies}"
    Publisher(url).close()  # which connects to nothing
    return url


def arguments(source: Path, broker: str, summary: Path) -> list[str]:
    """Of a Python that publishes the lines of ``source``; it writes ``summary`` with ``.part`` behind its name."""
    return ["-m", "framework.cli", "publish", TOPIC, str(source), f"--broker={broker}", f"--summary={summary}.part"]


def done(said: Sequence[str]) -> int | None:
    """How many messages it has published, by what it said last; None before it said anything."""
    words = [line.split()[1].replace(",", "") for line in said if line.startswith("published ") and " messages" in line]
    return int(words[-1]) if words and words[-1].isdigit() else None


def notes(said: Sequence[str]) -> list[str]:
    """What it said of the input that its reader should know."""
    return [line.removeprefix("workers: ") for line in said if line.startswith("workers: ")]


def complete(summary: Path) -> dict[str, int]:
    """Its counts, once it has ended. From now on others find them, whole, in ``summary``: the job waits for that."""
    published: dict[str, int] = json.loads(Path(f"{summary}.part").read_text())
    os.replace(f"{summary}.part", summary)
    return published

"""How long each phase took, and how far the job is: what the demo shows, read from what its parts say."""

from __future__ import annotations

import json
import time
from typing import Any

from workers.api_requests.collect.topics import CHANNELS
from workers.api_requests.demo.display import Display


class Clock:
    """When each phase began and ended, in seconds from the start."""

    def __init__(self) -> None:
        self._zero = time.monotonic()
        self.phases: dict[str, tuple[float, float]] = {}

    def now(self) -> float:
        return time.monotonic() - self._zero

    def note(self, phase: str, since: float) -> float:
        """The phase ends now; returns its seconds."""
        self.phases[phase] = (since, self.now())
        return self.now() - since


class Progress:
    """Reads what the job tells, and shows it."""

    def __init__(self, clock: Clock, shown: Display, since: float, total: int) -> None:
        self._clock = clock
        self._shown = shown
        self._started = self._since = since
        self._total = total
        self._read = 0
        self._complete: set[str] = set()
        self.done = False
        self._now = "Spark is starting"
        shown.begin("Spark")

    def look(self, lines: list[str]) -> bool:
        """Whether the job says that it is done."""
        self._shown.still(self._now)
        for line in lines[self._read :]:
            self._read += 1
            if line.startswith('{"event"'):
                event = json.loads(line)
                getattr(self, f"_{event['event']}", lambda _: None)(event)
        return self.done

    def _ready(self, _: dict[str, Any]) -> None:
        self._clock.note("Spark", self._started)
        self._since = self._clock.now()
        self._shown.end("Spark", "session is up")
        for channel in CHANNELS:
            self._shown.begin(channel, self._total)
        self._now = f"Spark is reading {self._total:,} lines in three channels"

    def _lines(self, event: dict[str, Any]) -> None:
        for channel, counts in event["done"].items():
            lines = sum(counts.values())
            if channel in self._complete:
                continue
            self._shown.update(channel, lines, self._total)
            if lines >= self._total:
                self._complete.add(channel)
                self._clock.note(channel, self._since)
                self._shown.end(channel, f"{counts.get('parsed', 0):,} requests, {counts.get('rejected', 0):,} rejected")
        if len(self._complete) == len(CHANNELS) and "verdicts" not in self._complete:
            self._complete.add("verdicts")
            self._since = self._clock.now()
            self._shown.begin("verdicts")
            self._now = "judging what every address did"

    def _done(self, event: dict[str, Any]) -> None:
        self._clock.note("verdicts", self._since)
        self._shown.end("verdicts", f"{event['suspects']:,} suspects published to spam_suspects")
        self.done = True

"""How many lines a query has done, kept beside its checkpoint: a batch that runs again is not counted again."""

from __future__ import annotations

import json
from pathlib import Path

from framework import FrameworkError
from workers.api_requests import durable


class Tally:
    """Counts by name over all batches, in one small file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._batch = -1
        self._before: dict[str, int] = {}
        self._last: dict[str, int] = {}
        if path.exists():
            try:
                known = json.loads(path.read_text())
                self._batch, self._before, self._last = known["batch"], known["before"], known["last"]
            except (ValueError, KeyError, TypeError):
                raise FrameworkError(f"{path} is damaged: without it the job goes on, and counts lines from there") from None

    @property
    def last(self) -> int | None:
        """The number of the last batch with lines; None before it."""
        return self._batch if self._batch >= 0 else None

    def add(self, batch: int, counts: dict[str, int]) -> None:
        """Count ``batch``; when it is the last one again, in place of what was counted for it."""
        before = self._before if batch == self._batch else self.totals()
        durable.write(self._path, json.dumps({"batch": batch, "before": before, "last": counts}))
        self._batch, self._before, self._last = batch, before, counts

    def totals(self) -> dict[str, int]:
        names = {**self._before, **self._last}
        return {name: self._before.get(name, 0) + self._last.get(name, 0) for name in names}

    def total(self) -> int:
        """All names together."""
        return sum(self.totals().values())

"""How many lines a query has done, kept beside its checkpoint: a batch that runs again is not counted again."""

from __future__ import annotations

import json
import os
from pathlib import Path


class Tally:
    """Counts by name over all batches, in one small file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._batch = -1
        self._before: dict[str, int] = {}
        self._last: dict[str, int] = {}
        if path.exists():
            known = json.loads(path.read_text())
            self._batch, self._before, self._last = known["batch"], known["before"], known["last"]

    def add(self, batch: int, counts: dict[str, int]) -> None:
        """Count ``batch``; when it is the last one again, in place of what was counted for it."""
        if batch != self._batch:
            self._before = self.totals()
        self._batch, self._last = batch, counts
        self._save()

    def totals(self) -> dict[str, int]:
        names = {**self._before, **self._last}
        return {name: self._before.get(name, 0) + self._last.get(name, 0) for name in names}

    def total(self) -> int:
        """All names together."""
        return sum(self.totals().values())

    def _save(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps({"batch": self._batch, "before": self._before, "last": self._last}))
        os.replace(fresh, self._path)

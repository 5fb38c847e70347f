"""Which segments are older than a retention, by clocks that may jump."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from framework.spool import segment as segments
from framework.spool.ages import Age, ages
from framework.spool.arrow import Segment
from framework.spool.storage import Location

_log = logging.getLogger(__name__)


class Expiry:
    """Of one collector's ``folder``."""

    def __init__(self, folder: Location, retention: float) -> None:
        """``retention``: seconds."""
        self._folder = folder
        self.retention = retention
        self._landed: dict[int, float] = {}
        """When segments were landed, by number: who looks each minute does not ask a file system for all of them."""
        self._told = 0

    def forget(self) -> None:
        """Of another life of the folder, numbers may be of other segments."""
        self._landed.clear()

    def of(self, kept: Sequence[Segment]) -> Sequence[Segment]:
        """The first of ``kept``, which are in order, that are older than the retention.

        How old they are is told by the clock that dated them, a storage's own, as the newest has it. What is before a step of
        more than the retention, which may be one of the clock (``ages``), stays until as much has passed after it.
        """
        landed = {one.number: self._landed.get(one.number) or segments.landed_at(one) for one in kept}
        self._landed = {number: at for number, at in landed.items() if at}  # what has gone meanwhile is nobody's step
        dated = [one for one in kept if one.number in self._landed]
        age: Age | None = None
        newest_first = [self._landed[one.number] for one in reversed(dated)]
        for count, age in zip(range(len(dated), 0, -1), ages(newest_first, self.retention), strict=True):
            if age.seconds > self.retention:
                return dated[:count]
        if age is not None and age.doubted is not None:
            self._tell(dated[-1 - age.doubted], dated[-age.doubted], age.step)
        return []

    def _tell(self, older: Segment, newer: Segment, step: float) -> None:
        if newer.begins != self._told:
            self._told = newer.begins
            _log.warning(
                "spool %s: between segments %d and %d the clock went on by %.0f s. If it was set, set it right; what is older "
                "stays until the retention of %.0f s has passed since",
                self._folder,
                older.number,
                newer.begins,
                step,
                self.retention,
            )

"""Which segments are older than a retention, by clocks that may jump."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from itertools import pairwise

from framework.spool import segment as segments
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

        How old they are is told by the clock that dated them, a storage's own, as the newest has it. Where more than the
        retention passed from one segment to the next, nobody knows whether nothing came or the clock was set: what is before
        that stays until as much has passed after it. Of several such steps only the newest is doubted. What was dated later than
        one that came after it is as old as that: else each time that a clock goes ahead and is set back would count, also where
        two hosts land in turn whose clocks differ.
        """
        landed = {one.number: self._landed.get(one.number) or segments.landed_at(one) for one in kept}
        self._landed = {number: at for number, at in landed.items() if at}  # what has gone meanwhile is nobody's step
        dated = [one for one in kept if one.number in self._landed]
        age, doubted, after = 0.0, None, math.inf
        for count, (older, newer) in reversed([*enumerate(pairwise(dated), 1)]):
            after = min(after, self._landed[newer.number])
            step = max(0.0, after - self._landed[older.number])
            if step > self.retention and doubted is None:
                doubted = older.number, newer.begins, step
            else:
                age += step
            if age > self.retention:
                return dated[:count]
        if doubted is not None and doubted[1] != self._told:
            self._told = doubted[1]
            _log.warning(
                "spool %s: between segments %d and %d the clock went on by %.0f s. If it was set, set it right; what is older "
                "stays until the retention of %.0f s has passed since",
                self._folder,
                *doubted,
                self.retention,
            )
        return []

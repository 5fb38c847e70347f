"""How long ago segments were landed, by clocks that may jump."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Age(NamedTuple):
    """Of one segment."""

    seconds: float
    """How much older it is than the newest one."""
    doubted: int | None
    """Which one stands before the step that does not count, where there is such a step."""
    step: float
    """Its seconds."""


def ages(landed: Iterable[float], doubt: float) -> Iterator[Age]:
    """Of each of ``landed``, the newest first: when it was, in seconds since any moment; 0 where that is not known.

    Where more than ``doubt`` seconds passed from one to the next, nobody knows whether nothing came or the clock was set: the
    step does not count. Of several such steps that is said of the newest alone. What was dated later than one that came after it
    is as old as that: else each time that a clock goes ahead and is set back would count, also where two hosts land in turn whose
    clocks differ.
    """
    age, after, doubted, doubted_step = 0.0, math.inf, None, 0.0
    for index, at in enumerate(landed):
        if at:
            step = max(0.0, after - at) if after < math.inf else 0.0
            after = min(after, at)
            if step > doubt and doubted is None:
                doubted, doubted_step = index, step
            else:
                age += step
        yield Age(age, doubted, doubted_step)

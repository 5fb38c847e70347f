"""Durations: as people write them (``250ms``, ``30s``, ``1.5m``, ``1h``), and which numbers are some."""

from __future__ import annotations

import re
import sys
from typing import TypeGuard

_STRICT = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
LONGEST = 3.6e9
"""Seconds, 114 years: what a lock waits for is 292 years at most, and the sum of two durations must be below that."""
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(text: str) -> float | None:
    """None when it is none."""
    match = _STRICT.fullmatch(text)
    return float(match[1]) * _UNITS[match[2]] if match else None


def are_seconds(value: object) -> TypeGuard[float]:
    """Whether it is a number that is not negative, finite also as a float; NaN is not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max

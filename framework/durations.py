"""Durations as people write them: ``250ms``, ``30s``, ``1.5m``, ``1h``."""

from __future__ import annotations

import re

_STRICT = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(text: str) -> float | None:
    """None when it is none."""
    match = _STRICT.fullmatch(text)
    return float(match[1]) * _UNITS[match[2]] if match else None

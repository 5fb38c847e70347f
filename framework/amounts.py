"""Numbers of things as people write them: bytes as ``500MB``, processes as ``4`` or ``auto``. Each raises ValueError."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)i?b?")
_FACTORS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
MOST = 1 << 53
"""Bytes, or messages: more cannot be reckoned with exactly, and there is no more of either."""
MOST_PROCESSES = 4096
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def size(value: object) -> int:
    """Bytes, from 500000, "500k", "500MB" or "1.5GiB"; a k is 1024."""
    match = _SIZE.fullmatch(str(value).strip().lower())
    bytes_ = float(match[1]) * _FACTORS[match[2]] if match and not isinstance(value, bool) else 0
    if not 1 <= bytes_ <= MOST:
        raise ValueError("is not a size: write bytes, or 500MB, 2GB")
    return int(bytes_)


def count(value: object) -> int:
    """A whole number from 1 up."""
    return _whole(value, MOST, "is not a whole number from 1 up")


def processes(value: object) -> int:
    """As ``count``, to 4096, or "auto": as many as there are cores."""
    if str(value).strip().lower() == "auto":
        return cores()
    return _whole(value, MOST_PROCESSES, f"is neither a whole number from 1 to {MOST_PROCESSES} nor auto")


def _whole(value: object, most: int, words: str) -> int:
    text = "" if isinstance(value, bool) else str(value).strip()
    number = int(text) if text.isdecimal() and len(text) <= len(str(most)) else 0
    if not 1 <= number <= most:
        raise ValueError(words)
    return number


def cores() -> int:
    """How many this process may keep busy: those that it may run on, and no more than a container's limit pays for."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # no control groups of version 2, or no limit: "max 100000"
        quota, period = map(int, _QUOTA.read_text().split())
        found = min(found, -(-quota // period))
    return max(1, found)

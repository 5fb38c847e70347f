"""Gives memory that a burst left in the allocator back to the system. With glibc; other allocators are left alone."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable

import gevent

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
"""Parameters of mallopt(3)."""
_LARGE = 1 << 20
"""Bytes from which an allocation is a mapping of its own, and gone once it is freed. glibc begins with 128 KiB, which is less
than what is read from a socket at once, and goes up with what was freed to 32 MiB, which bursts of bodies then stay below."""
_TOP = 8 << 20
"""Bytes that stay at the heap's end for what comes next."""
_SLACK = 16 << 20
"""Bytes that the process grows by before it is trimmed: a trim blocks for about 0.1 ms for each MiB that it gives back."""
_SECONDS = 1.0
_ROUND_SECONDS = 10.0
"""And so often whatever it did: what was freed while it did not grow is not seen. With nothing to give it takes 1 ms."""


def keep_small() -> None:
    """Give back, from now on, what this process does not need any more."""
    libc = ctypes.CDLL(None)
    try:
        trim, mallopt = libc.malloc_trim, libc.mallopt
        statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    except (AttributeError, OSError):
        return  # another allocator, or another system
    mallopt(_MMAP_THRESHOLD, _LARGE)
    mallopt(_TRIM_THRESHOLD, _TOP)
    gevent.spawn(_trim_in_rounds, trim, statm)


def _trim_in_rounds(trim: Callable[[int], int], statm: int) -> None:
    least, trimmed = _resident(statm), time.monotonic()
    while True:
        gevent.sleep(_SECONDS)
        if _resident(statm) > least + _SLACK or time.monotonic() - trimmed > _ROUND_SECONDS:
            trim(0)
            least, trimmed = _resident(statm), time.monotonic()


def _resident(statm: int) -> int:
    """Bytes."""
    return int(os.pread(statm, 100, 0).split()[1]) * os.sysconf("SC_PAGE_SIZE")

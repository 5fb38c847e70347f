"""What a burst leaves behind in the allocator goes back to the system. With glibc; other allocators are left alone."""

from __future__ import annotations

import ctypes
import os
import time

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


class _Memory:
    def __init__(self) -> None:
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, _LARGE)
        libc.mallopt(_TRIM_THRESHOLD, _TOP)
        self._trim = libc.malloc_trim
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)

    def resident(self) -> int:
        """Bytes."""
        return int(os.pread(self._statm, 100, 0).split()[1]) * self._page

    def keep_small(self) -> None:
        """For ever."""
        least, trimmed = self.resident(), time.monotonic()
        while True:
            gevent.sleep(_SECONDS)
            if self.resident() > least + _SLACK or time.monotonic() - trimmed > _ROUND_SECONDS:
                self._trim(0)
                least, trimmed = self.resident(), time.monotonic()


def keep_small() -> None:
    """Give back, from now on, what this process does not need any more."""
    try:
        memory = _Memory()
    except (AttributeError, OSError):
        return  # another allocator, or another system
    gevent.spawn(memory.keep_small)

"""Whether processes still run, for tests. A zombie does not, and may stay for ever: in many containers PID 1 collects nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

_PROC = Path("/proc/self/stat")
_ENDED = "ZX"


def has_ended(pid: int) -> bool:
    """Whether the process ``pid`` runs no more, collected or not."""
    if not _PROC.exists():
        return not _exists(pid)
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]  # its name, before that, may be anything
    except OSError:
        return True
    return state in _ENDED


def left_after(pids: Iterable[int], seconds: float) -> list[int]:
    """Those of ``pids`` that still run, as soon as there are none or ``seconds`` are over."""
    until = time.monotonic() + seconds
    left = [pid for pid in pids if not has_ended(pid)]
    while left and time.monotonic() < until:
        time.sleep(0.02)
        left = [pid for pid in left if not has_ended(pid)]
    return left


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True

"""Waiting for what comes true."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gevent


def until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    """Turn the hub until ``condition`` holds; fails the test when it does not in time."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s"
        gevent.sleep(0.002)
    return value

"""What each test costs in seconds of CPU, its processes included: ``pytest -p tests.costs`` and ``COSTS=file``.

A line for each test goes to the file: seconds of CPU, seconds, test. What is not a test's (starting, collecting, what ends with
the session) comes under the name of the process that runs tests. Not counted: processes that outlive their parent."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_TICK = os.sysconf("SC_CLK_TCK")


def _spent() -> float:
    """Seconds of CPU of this process, of what it has waited for, and of what runs below it."""
    spent = sum(os.times()[:4])
    below = _children(os.getpid())
    while below:
        child = below.pop()
        below += _children(child)
        try:
            spent += sum(map(int, Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[11:15])) / _TICK
        except OSError:  # it has ended meanwhile
            pass
    return spent


def _children(process: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{process}/task"):
            found += map(int, Path(f"/proc/{process}/task/{thread}/children").read_text().split())
    except OSError:
        pass
    return found


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Costs(), "costs of each test")


class _Costs:
    def __init__(self) -> None:
        self._tests = 0.0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        before, began = _spent(), time.monotonic()
        result = yield
        spent = _spent() - before
        self._tests += spent
        _write(spent, time.monotonic() - began, item.nodeid)
        return result

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        _write(sum(os.times()[:2]), 0.0, f"({os.environ.get('PYTEST_XDIST_WORKER', 'pytest')} until all is collected)")

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        if "PYTEST_XDIST_WORKER" in os.environ or not self._tests:
            _write(_spent() - self._tests, 0.0, f"({os.environ.get('PYTEST_XDIST_WORKER', 'pytest')} but for its tests)")


def _write(spent: float, seconds: float, what: str) -> None:
    with open(os.environ.get("COSTS", "costs.txt"), "a") as file:
        file.write(f"{spent:8.2f} {seconds:8.2f} {what}\n")

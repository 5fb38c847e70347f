"""A plugin for pytest that notes, for each test, how long it takes, whether it passes, and which lines of ``framework`` it runs.

Each process of the run writes files of its own, ``.coverage.PID`` and ``.learned.PID``; ``lines.py`` reads them all."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

_coverage = coverage.Coverage(
    source=["framework"], concurrency=["gevent", "thread"], config_file=False, data_suffix=str(os.getpid())
)
_coverage.start()
_seconds: dict[str, float] = {}
_failed: set[str] = set()


def _name(nodeid: str) -> str:
    """Without the group that pytest-xdist adds: ``tests/test_a.py::test_b@group``."""
    return nodeid.rpartition("@")[0] or nodeid


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _coverage.switch_context(_name(item.nodeid))
    began = time.monotonic()
    try:
        return (yield)
    finally:
        _seconds[_name(item.nodeid)] = time.monotonic() - began
        _coverage.switch_context("")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _failed.add(_name(report.nodeid))


def pytest_sessionfinish() -> None:
    _coverage.stop()
    _coverage.save()
    learned = {test: [seconds, test not in _failed] for test, seconds in _seconds.items()}
    Path(f".learned.{os.getpid()}").write_text(json.dumps(learned))

"""A plugin for pytest that notes, for each test, how long it takes, whether it passes, which lines of ``framework`` it runs, and
whether it starts a process of Python, whose lines are not seen.

Each process of the run writes files of its own, ``.coverage.PID`` and ``.learned.PID``; ``lines.py`` reads them all."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coverage
import pytest

_coverage = coverage.Coverage(
    source=["framework"], concurrency=["gevent", "thread"], config_file=False, data_suffix=str(os.getpid())
)
_coverage.start()
_seconds: dict[str, float] = {}
_failed: set[str] = set()
_starters: set[str] = set()
_current = ""


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook. A server in another language runs none of our lines."""
    if event == "os.fork" or (event in ("subprocess.Popen", "os.posix_spawn") and _is_ours(*arguments[:2])):
        _starters.add(_current)


def _is_ours(program: Any, arguments: Any) -> bool:
    return any(name in f"{program} {arguments}" for name in ("python", "workers"))


sys.addaudithook(_watch)


def _name(nodeid: str) -> str:
    """Without the group that pytest-xdist adds: ``tests/test_a.py::test_b@group``."""
    return nodeid.rpartition("@")[0] or nodeid


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    global _current  # noqa: PLW0603
    _current = _name(item.nodeid)
    _coverage.switch_context(_current)
    began = time.monotonic()
    try:
        return (yield)
    finally:
        _seconds[_current] = time.monotonic() - began
        _current = ""
        _coverage.switch_context("")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _failed.add(_name(report.nodeid))


def pytest_sessionfinish() -> None:
    _coverage.stop()
    _coverage.save()
    learned = {test: (seconds, test not in _failed, test in _starters) for test, seconds in _seconds.items()}
    Path(f".learned.{os.getpid()}").write_text(json.dumps(learned))

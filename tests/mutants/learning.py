"""A plugin for pytest that notes, for each test, how long it takes, itself and what is set up for it, whether it passes, which
lines of ``framework`` it runs, and whether it starts a process of Python, whose lines are not seen.

Each process of the run writes files of its own, ``.coverage.PID`` and ``.learned.PID``; ``lines.py`` reads them all."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import coverage
import pytest

_coverage = coverage.Coverage(
    source=["framework"], concurrency=["gevent", "thread"], config_file=False, data_suffix=str(os.getpid())
)
_coverage.start()
_seconds: Counter[str] = Counter()
_around: Counter[str] = Counter()
"""What takes them before and after it: for others of its file too, perhaps."""
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
    try:
        return (yield)
    finally:
        _current = ""
        _coverage.switch_context("")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where the test runs, and not in the process that shares out the tests."""
    report = yield
    test = _name(report.nodeid)
    (_seconds if report.when == "call" else _around)[test] += report.duration
    if report.failed:
        _failed.add(test)
    return report


def pytest_sessionfinish() -> None:
    _coverage.stop()
    _coverage.save()
    learned = {test: (_seconds[test], around, test not in _failed, test in _starters) for test, around in _around.items()}
    Path(f".learned.{os.getpid()}").write_text(json.dumps(learned))

"""A plugin for pytest: coverage of ``framework`` with a context for each test, named by its node id, into ``.coverage``."""

from __future__ import annotations

from collections.abc import Iterator

import coverage
import pytest

_coverage = coverage.Coverage(source=["framework"], concurrency=["gevent", "thread"], config_file=False)
_coverage.start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _coverage.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        _coverage.switch_context("")


def pytest_sessionfinish() -> None:
    _coverage.stop()
    _coverage.save()

"""A plugin for pytest that runs the tests, and files of tests, named in a file, and tells who started it which one is under way.

The environment says where: ``MUTANTS_TESTS`` is a JSON file of node ids and paths in their order, ``MUTANTS_NEWS`` the number of
an open pipe."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

_order = {test: place for place, test in enumerate(json.loads(Path(os.environ["MUTANTS_TESTS"]).read_text()))}
_news = int(os.environ["MUTANTS_NEWS"])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {item: _order.get(item.nodeid, _order.get(item.nodeid.partition("::")[0], -1)) for item in items}
    items[:] = sorted((item for item in items if places[item] >= 0), key=places.__getitem__)


def pytest_runtest_logstart(nodeid: str) -> None:
    os.write(_news, f"began {nodeid}\n".encode())


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Else the test that is under way has ended the process, be it with 0."""
    os.write(_news, b"over\n")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        os.write(_news, f"failed {report.nodeid}\n".encode())

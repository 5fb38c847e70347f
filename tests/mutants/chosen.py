"""A plugin for pytest that runs the tests named in a file, in its order, and tells who started it which one is under way.

The environment says where: ``MUTANTS_TESTS`` is a JSON file of node ids, ``MUTANTS_NEWS`` the number of an open pipe."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

_order = {test: place for place, test in enumerate(json.loads(Path(os.environ["MUTANTS_TESTS"]).read_text()))}
_news = int(os.environ["MUTANTS_NEWS"])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = sorted((item for item in items if item.nodeid in _order), key=lambda item: _order[item.nodeid])


def pytest_runtest_logstart(nodeid: str) -> None:
    os.write(_news, f"began {nodeid}\n".encode())


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        os.write(_news, f"failed {report.nodeid}\n".encode())

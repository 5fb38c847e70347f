"""The conformance suite over the embedded nsqd, which goes down by SIGKILL: what it confirmed is on disk."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from framework.testing.conformance import Subject, Suite
from framework.testing.servers import Server


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory, nsqds: Callable[..., Subject]) -> Iterator[Subject]:
    command = [sys.executable, "-m", "framework.nsqd"]
    with nsqds(command, lambda: tmp_path_factory.mktemp("embedded"), Server.kill) as made:
        yield made


class TestEmbeddedNsqd(Suite):
    """Every chapter."""

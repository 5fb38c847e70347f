"""The core of the conformance suite over a broker that defers nothing: as good as any other where no delay is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from framework.testing.conformance import Core, Subject
from tests.conformance.directories import Directories
from tests.conformance.variants import around


def no_delays(module: Any) -> None:
    transport = module.DirectoryTransport
    transport.capabilities = replace(transport.capabilities, max_defer=0.0)
    around(module.DirectoryConnection, "requeue", lambda original, self, message, delay: original(self, message, 0.0))


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    with Directories(tmp_path_factory.mktemp("undelayed"), no_delays) as made:
        yield made


class TestDirectoryWithoutDelays(Core):
    """What even the smallest transport passes."""

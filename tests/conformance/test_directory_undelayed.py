"""The core of the conformance suite over brokers that delay nothing, or nothing that is published: as good as any other where no
delay is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from framework.testing.conformance import Core, Subject
from tests.conformance.directories import Directories
from tests.conformance.variant import around


def no_delays(module: Any) -> None:
    transport = module.DirectoryTransport
    transport.capabilities = replace(transport.capabilities, max_requeue=0.0, max_defer=0.0)
    around(module.DirectoryConnection, "requeue", lambda original, self, message, delay: original(self, message, 0.0))


def no_delays_of_publishes(module: Any) -> None:
    transport = module.DirectoryTransport
    transport.capabilities = replace(transport.capabilities, max_defer=0.0)


@pytest.fixture(scope="class")
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    with Directories(tmp_path_factory.mktemp("undelayed"), request.cls.change) as made:
        yield made


class TestDirectoryWithoutDelays(Core):
    """What even the smallest transport passes."""

    change = staticmethod(no_delays)


class TestDirectoryWithoutDelaysOfPublishes(Core):
    """As JetStream before its schedules."""

    change = staticmethod(no_delays_of_publishes)

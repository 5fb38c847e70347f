"""The pytest plugin: the fixtures ``broker``, ``nsqd`` and ``worker``. Until a test asks for one, it imports and changes nothing.

It is no part of the package ``framework``, because pytest imports every installed plugin at its start.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from framework.nsqd.embedded import EmbeddedNsqd
    from framework.testing.broker import Broker
    from framework.testing.runner import Runner


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("broker_like", "The broker that the fixture `broker` refuses as: nsq, beanstalkd, or a broker URL.", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Whoever runs the conformance suite with --strict-markers need not declare its marker."""
    config.addinivalue_line("markers", "slow: takes more than about five seconds")


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """An empty broker in memory, with a clock to move and faults to inject; ``framework.publish`` publishes to it. It refuses
    what the one that the setting ``broker_like`` names would refuse."""
    from framework.testing.fixtures import memory_broker  # noqa: PLC0415

    with memory_broker() as broker:
        if named := request.config.getini("broker_like"):
            broker.like(named)
        yield broker


@pytest.fixture
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNsqd]:
    """The embedded nsqd, a process of its own on a fresh folder and real sockets; ``framework.publish`` publishes to it."""
    from framework.testing.fixtures import embedded_nsqd  # noqa: PLC0415

    with embedded_nsqd(tmp_path_factory.mktemp("nsqd")) as nsqd:
        yield nsqd


@pytest.fixture
def worker(request: pytest.FixtureRequest) -> Iterator[Runner]:
    """Runs handlers until they have nothing left to do: ``ledger = worker.run(bill)``. On ``nsqd`` if the test has it, else on
    ``broker``."""
    from framework.testing.fixtures import runner  # noqa: PLC0415

    place = request.getfixturevalue("nsqd" if "nsqd" in request.fixturenames else "broker")
    with runner(place) as worker:
        yield worker

"""The core of the conformance suite over a broker that delivers each message once and hears no acknowledgement, as core NATS."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from framework.errors import AlreadySettled
from framework.testing.conformance import Core, Subject
from tests.conformance.directories import Directories
from tests.conformance.variant import around


def delivers_once(module: Any) -> None:
    transport, connection = module.DirectoryTransport, module.DirectoryConnection
    transport.capabilities = replace(
        transport.capabilities, acknowledges=False, attempts=False, touch=False, max_requeue=0.0, max_defer=0.0
    )

    def received(original: Any, self: Any, file: Path) -> Any:
        message = original(self, file)
        file.unlink()
        return message

    def settled(count: str) -> Any:
        def settle(self: Any, message: Any, delay: float = 0.0) -> None:
            if self.in_flight.pop(message, None) is None:
                raise AlreadySettled(f"message {message.id!r} was settled before")
            setattr(self.receiver.tally, count, getattr(self.receiver.tally, count) + 1)

        return settle

    def close(original: Any, self: Any) -> None:
        self.receiver.tally.lost += len(self.in_flight)
        self.in_flight.clear()
        original(self)

    around(connection, "received", received)
    around(connection, "close", close)
    connection.finish, connection.requeue = settled("finished"), settled("lost")


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    with Directories(tmp_path_factory.mktemp("once"), delivers_once) as made:
        yield made


class TestDirectoryWithoutAcknowledgements(Core):
    """What even the smallest transport passes."""

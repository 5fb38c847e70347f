"""What the conformance suites over real nats-servers share: both versions, what is known of them, and streams as a subject."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

from framework.testing import servers
from framework.testing.conformance import Bench, Subject
from framework.transports.contract import Capabilities
from framework.transports.nats import streams
from framework.transports.nats.outgoing import OVERHEAD
from tests.conftest import missing

Marks = tuple[pytest.MarkDecorator, ...]
AT_LENGTH: Marks = (pytest.mark.slow, pytest.mark.at_length)
INVALID_NAMES = ("orders#ephemeral", "orders..new", ".orders", "orders.")

#: What is given back while no pull waits makes 2.9 deliver a neighbour again, as new: mended in 2.10.14.
DOUBLES = pytest.mark.xfail(reason="nats-server#5305: it delivers a neighbour of what is given back once more", strict=False)


class JetStream(Subject):
    """Nodes with short leases are the same servers: the lease is that of the consumers that are made."""

    largest = (1 << 20) - OVERHEAD
    silence = 1.0
    drops_doubles = True
    invalid_names = INVALID_NAMES

    def __init__(self, tmp_path_factory: pytest.TempPathFactory, version: str) -> None:
        super().__init__()
        self._folders = tmp_path_factory
        self._version = version
        self._found: Any = None

    def watchful(self, url: str) -> str:
        return f"{url}{'&' if '?' in url else '?'}ping_interval=500ms"

    def capabilities(self) -> Capabilities:
        """Whether it counts deliveries, and keeps a publish for later, hangs on the version: asked once, while it is up."""
        if self._found is None:
            transport: Any = self.open([self.node().url])
            transport.probe()
            transport.close()
            self._found = transport.capabilities
        return self._found


One = TypeVar("One", bound=Subject)


@contextmanager
def served(make: Callable[[pytest.TempPathFactory, str], One], folders: pytest.TempPathFactory, version: str) -> Iterator[One]:
    """The subject over servers of ``version``; skips, or fails in CI, where there is none."""
    try:
        servers.nats_binary(version)
    except servers.ServerMissing as error:
        missing(str(error))
    with make(folders, version) as made, pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "SETTLING", 0.02)  # before 2.10 each new stream waits for that; here one client makes each
        yield made


def versions(*, older: Marks = (pytest.mark.slow,), newer: Marks = ()) -> pytest.MarkDecorator:
    """A chapter over both, each with its marks."""
    both = [pytest.param("2.9", marks=older), pytest.param("2.15", marks=newer)]
    return pytest.mark.parametrize("subject", both, indirect=True, scope="module")


@pytest.fixture
def doubles(request: pytest.FixtureRequest, bench: Bench) -> None:
    """A case that takes no message twice, on a server that may deliver one so."""
    if "2.9" in request.node.name:
        request.applymarker(DOUBLES)
        bench.patience = 10.0

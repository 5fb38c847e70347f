"""The conformance suite over the embedded nsqd, which goes down by SIGKILL: what it confirmed is on disk."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from framework.testing.conformance import Subject, Suite
from framework.testing.servers import Server, ServerMissing
from tests.conformance.nsqds import NsqdNode, Nsqds
from tests.disks import Disk, library


class OnFaultyDisk(NsqdNode):
    """Its disk can be full."""

    def __init__(self, server: Server, disk: Disk) -> None:
        super().__init__(disk.under(server), Server.kill)
        self._disk = disk

    def full(self, full: bool) -> None:
        self._disk.is_full(full)


class Embedded(Nsqds):
    """``built``: the library that makes disks faulty; None: there is no compiler, so that they are never full."""

    def __init__(self, folder: Callable[[], Path], built: Path | None) -> None:
        super().__init__([sys.executable, "-m", "framework.nsqd"], folder, Server.kill)
        self._faults = folder
        self._built = built
        self.fills = built is not None

    def node_of(self, server: Server) -> NsqdNode:
        return OnFaultyDisk(server, Disk(self._built, self._faults() / "disk")) if self._built else super().node_of(server)


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    try:
        built = library(tmp_path_factory.mktemp("disk"))
    except ServerMissing:
        built = None
    with Embedded(lambda: tmp_path_factory.mktemp("embedded"), built) as made:
        yield made


class TestEmbeddedNsqd(Suite):
    """Every chapter."""

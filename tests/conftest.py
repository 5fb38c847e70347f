"""Fixtures that every room's tests share: real servers, skipped where missing on a laptop, failing in CI."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from framework.testing import servers


def missing(reason: str) -> None:
    """A real part is missing: a skip on a laptop, a failure in CI."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture
def start_nsqd(tmp_path: Path) -> Iterator[Callable[..., servers.Server]]:
    """Starts real nsqds: ``start_nsqd("--msg-timeout=2s")``."""
    started: list[servers.Server] = []

    def start(*flags: str) -> servers.Server:
        folder = tmp_path / f"nsqd-{len(started)}"
        folder.mkdir()
        try:
            server = servers.real_nsqd(folder, *flags)
        except servers.ServerMissing as error:
            missing(str(error))
            raise
        server.start()
        started.append(server)
        return server

    yield start
    for server in started:
        server.kill()


@pytest.fixture
def nsqd(start_nsqd: Callable[..., servers.Server]) -> servers.Server:
    """One real nsqd with default flags."""
    return start_nsqd()


@pytest.fixture
def start_nsqlookupd() -> Iterator[Callable[..., servers.Server]]:
    """Starts real nsqlookupds."""
    started: list[servers.Server] = []

    def start(*flags: str) -> servers.Server:
        try:
            server = servers.real_nsqlookupd(*flags)
        except servers.ServerMissing as error:
            missing(str(error))
            raise
        server.start()
        started.append(server)
        return server

    yield start
    for server in started:
        server.kill()

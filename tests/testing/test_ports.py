"""Free ports: no two servers, and no two ports of one server, are given the same."""

from __future__ import annotations

import pytest

from framework.testing import servers
from framework.testing.servers import free_port


@pytest.mark.parametrize("worker", ["", "gw3"])
def test_a_port_that_was_given_out_is_not_given_out_again(monkeypatch: pytest.MonkeyPatch, worker: str) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
    monkeypatch.setattr(servers, "_given_out", dict.fromkeys(range(1300)))  # by tests before this one
    ports = [free_port() for _ in range(300)]
    first = free_port(4)
    ports += range(first, first + 4)
    assert len(set(ports)) == len(ports)

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


@pytest.mark.parametrize("count", [8, 12])
def test_processes_that_run_beside_each_other_have_ports_of_their_own(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", str(count))
    found: dict[int, list[int]] = {}
    for number in range(count):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", f"gw{number}")
        monkeypatch.setattr(servers, "_given_out", {})
        found[number] = [free_port() for _ in range(100)]
    ends = [(min(ports), max(ports)) for ports in found.values()]
    assert all(after[0] > before[1] for before, after in zip(sorted(ends), sorted(ends)[1:], strict=False))

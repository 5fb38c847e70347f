"""The benchmark of NATS measures what it says: a client is run for a moment, and nats-server agrees that all ended well."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from framework.testing.servers import Server, ServerMissing, nats_binary
from tests.conftest import missing

sys.path.append(str(Path(__file__).parents[2]))  # they are part of the project, not of the package
from benchmarks import nats

pytestmark = pytest.mark.real


@pytest.fixture(autouse=True)
def _server_is_there() -> None:
    try:
        nats_binary("2.15")
    except ServerMissing as error:
        missing(str(error))


@pytest.mark.parametrize("client", ["ours", "bare-nats"])
def test_pulling_is_measured_and_ends_clean(client: str):
    result = nats.run(client, "pull", 0.1)
    assert result.fault == ""
    assert result.rate > 1000
    assert 0 < result.client_cpu < 1000


@pytest.mark.parametrize("client", ["ours", "bare-nats"])
def test_storing_is_measured(client: str, monkeypatch):
    monkeypatch.setattr(nats, "WARM_UP", 500)
    result = nats.run(client, "store", 0.1)
    assert result.fault == ""
    assert result.rate > 100


def test_a_run_that_does_not_end_clean_says_what_is_left(start_nats: Callable[..., Server], tmp_path: Path):
    with nats._server(tmp_path) as server:
        nats._fill(server, 10)
        assert nats._fault(server, 10, patience=0.1) == "not acknowledged 10"

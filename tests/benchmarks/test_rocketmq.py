"""The benchmark of RocketMQ measures what it says: a client is run for a moment, and the broker agrees that all ended well."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from framework.testing.rocketmq import RocketMQ
from framework.testing.servers import ServerMissing
from tests.conftest import missing

sys.path.append(str(Path(__file__).parents[2]))  # they are part of the project, not of the package
from benchmarks import rocketmq as room

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.at_length]


@pytest.fixture(scope="module")
def server() -> Iterator[RocketMQ]:
    try:
        with room.running({}) as made:
            yield made
    except ServerMissing as error:
        missing(str(error))
        raise


@pytest.mark.parametrize("job", room.JOBS)
@pytest.mark.parametrize("client", room.CLIENTS)
def test_each_client_is_measured_and_ends_clean(server: RocketMQ, client: str, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if (client, job) == ("java", "pop"):
        pytest.skip("the Java client is not asked for POP")
    monkeypatch.setattr(room, "WARM_UP", dict.fromkeys(room.WARM_UP, 100))
    result = room.run(server, client, job, 0.05)
    assert result.fault == ""
    assert result.rate > 50
    assert 0 < result.client_cpu < 10_000


def test_the_time_from_publish_to_handler_is_measured_of_both_at_once(server: RocketMQ) -> None:
    times = room.delays(server, 200)
    assert {name: len(each) for name, each in times.items()} == {"ours": 180, "bare-rocketmq": 180}
    assert min(min(each) for each in times.values()) > 0

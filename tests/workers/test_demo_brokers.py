"""The shipped log goes through the demo over each kind of broker, and gives the summary that the embedded nsqd gives.

At length: `python -m tests.chaos`. Over NSQ in each run of the tests, and over beanstalkd at length, test_demo.py sends another.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.workers.demos import ROOT, Run, demos

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.real, pytest.mark.at_length, pytest.mark.timeout(600)]
SHIPPED = ROOT / "data" / "erddap_access_2024-05.log.gz"


@pytest.fixture
def demo(java: None) -> Iterator[Callable[..., Run]]:
    with demos() as start:
        yield start


def over_nats(request: pytest.FixtureRequest) -> str:
    return f"nats://{request.getfixturevalue('start_nats')().address}"


def over_rocketmq(request: pytest.FixtureRequest) -> str:
    return f"rocketmq://{request.getfixturevalue('rocketmq').address}"


@pytest.mark.parametrize("url", [over_nats, over_rocketmq], ids=["nats", "rocketmq"])
def test_the_summary_is_that_of_the_embedded_nsqd(
    tmp_path: Path, demo: Callable[..., Run], request: pytest.FixtureRequest, url: Callable[[pytest.FixtureRequest], str]
) -> None:
    run = demo("--input", str(SHIPPED), "--output", str(tmp_path / "out"), "--broker", url(request))
    code, _, err = run.finish(500)
    assert (code, err) == (0, "")
    assert run.none_is_left()
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    counts = [summary[name] for name in ("input_lines", "published", "archived", "rejected", "addresses")]
    assert counts == [16_275, 16_275, 10_479, 5_796, 917]
    assert len(summary["spam"]) == 60
    assert all(ends["received"] == ends["finished"] + ends["requeued"] for ends in summary["ledger"].values())

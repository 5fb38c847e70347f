"""The whole demo as its user starts it, Spark included: what comes out, and that nothing is left.

The shipped log goes through it in tests/house/test_readme.py in each run of the tests, and another one over brokers that were
there before here, at length: `python -m tests.chaos`. What needs no Spark to be seen is in test_demo_ends.py: what comes over
them to the spools that Spark reads, too.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from tests.workers.demos import Run, demos
from tests.workers.leftovers import LEFTOVERS, MIXED, half_a_gzip, readable_part

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@pytest.fixture
def demo(java: None) -> Iterator[Callable[..., Run]]:
    with demos() as start:
        yield start


@pytest.mark.real
@pytest.mark.at_length
@pytest.mark.parametrize("broker", ["nsqd", "beanstalkd"])
def test_half_a_gzip_of_everything_through_a_broker_that_holds_leftovers_has_every_line_accounted_for(
    tmp_path: Path, demo: Callable[..., Run], request: pytest.FixtureRequest, broker: str
) -> None:
    packed = half_a_gzip()
    (tmp_path / "log.gz").write_bytes(packed)
    held = LEFTOVERS[broker](request.getfixturevalue(broker))
    run = demo("--input", str(tmp_path / "log.gz"), "--output", str(tmp_path / "out"), "--broker", held)
    code, out, err = run.finish(380)
    assert (code, err) == (0, "")
    assert "report:" in out.splitlines()[-1]
    assert run.none_is_left()
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    whole = readable_part(packed)
    assert whole == MIXED
    assert summary["input_lines"] == len(MIXED) + 1
    assert (summary["published"], summary["refused"]) == (633, {"empty": 2, "oversized": 1, "unreadable": 1})
    assert (summary["archived"], summary["rejected"], summary["addresses"]) == (631, 2, 51)
    assert summary["by_status"] == {"200": 601, "404": 30}
    assert [one["address"] for one in summary["spam"]] == ["66.0.0.1"]
    assert any("gzip" in note for note in summary["notes"])
    assert any("40 messages of an earlier run" in note for note in summary["notes"])
    assert all(ends["received"] == ends["finished"] + ends["requeued"] for ends in summary["ledger"].values())
    assert summary["ledger"]["spam_suspects/blocklist"]["finished"] == 1
    raw = {
        row["raw"]
        for name in ("archive", "rejected")
        for row in ds.dataset(tmp_path / "out" / name).to_table(["raw"]).to_pylist()
    }
    assert raw == {line.removesuffix(b"\r") for line in whole if 0 < len(line) < 1_000_000}
    page = (tmp_path / "out" / "report.html").read_text()
    assert "&lt;b&gt;&#34;half" in page
    assert "<b>" not in page
    for name in ("growth.png", "spam.png", "archive", "rejected", "growth", "spam"):
        assert (tmp_path / "out" / name).exists()


def test_ctrl_c_while_spark_works_leaves_nothing_running(tmp_path: Path, demo: Callable[..., Run]) -> None:
    run = demo("--output", str(tmp_path / "out"))
    run.wait_for("Spark: session is up")
    os.killpg(run.process.pid, signal.SIGINT)  # as a terminal does
    code, out, err = run.finish(90)
    assert (code, err) == (0, "")
    assert "nothing is left running" in out
    assert run.none_is_left()

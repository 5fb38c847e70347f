"""The whole demo as its user starts it, Spark included: what comes out, and that nothing is left.

The shipped log goes through it in tests/house/test_readme.py, and what needs no Spark to be seen is in test_demo_ends.py: what
comes over beanstalkd to the spools, too, that Spark reads.
"""

from __future__ import annotations

import gzip
import json
import os
import signal
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from tests.workers.demos import Run, demos
from tests.workers.leftovers import left_on_beanstalkd, left_on_nsqd

pytestmark = [pytest.mark.slow, pytest.mark.spark]

MIXED = [
    *(
        f'10.0.0.{n % 50} - - [12/May/2024:{n // 60:02}:{n % 60:02}:00 +0000] "GET /page/{n % 9} HTTP/1.1" 200 5\r'.encode()
        for n in range(600)
    ),
    *(f'66.0.0.1 - - [13/May/2024:01:00:{n:02} +0000] "GET /{n}/.env HTTP/1.1" 404 5'.encode() for n in range(30)),
    b'10.0.0.1 - - [13/May/2024:01:00:00 +0000] "GET /caf\xe9 HTTP/1.1" 200 5',
    b"not \xff a line",
    b'<b>"half',
    b"",
    b"",
    b"x" * 1_100_000,
]


@pytest.fixture
def demo(java: None) -> Iterator[Callable[..., Run]]:
    with demos() as start:
        yield start


def readable_part(packed: bytes) -> list[bytes]:
    """The whole lines of a gzip that ends early."""
    return zlib.decompressobj(wbits=31).decompress(packed).split(b"\n")[:-1]


LEFTOVERS = {"nsqd": left_on_nsqd, "beanstalkd": left_on_beanstalkd}


@pytest.mark.real
@pytest.mark.parametrize("broker", ["nsqd", pytest.param("beanstalkd", marks=pytest.mark.at_length)])
def test_half_a_gzip_of_everything_through_a_broker_that_holds_leftovers_has_every_line_accounted_for(
    tmp_path: Path, demo: Callable[..., Run], request: pytest.FixtureRequest, broker: str
) -> None:
    packed = gzip.compress(b"\n".join(MIXED) + b"\n" + os.urandom(4000).hex().encode() + b"\n")[:-1500]
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

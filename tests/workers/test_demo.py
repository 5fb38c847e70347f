"""The whole demo as its user starts it: what comes out, and that nothing is left whatever happens."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow.dataset as ds
import pytest

from framework import Publisher

ROOT = Path(__file__).resolve().parents[2]
CHANNELS = ("archive", "growth", "spam")
LOG = ROOT / "data" / "erddap_access_2024-05.log.gz"

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


class Run:
    """A demo in a process of its own, all whose children can be told by a mark in their environment."""

    def __init__(self, *arguments: str) -> None:
        self.mark = f"demo-test-{uuid4()}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "workers.api_requests.demo", *arguments], cwd=ROOT, text=True, bufsize=1,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "DEMO_TEST": self.mark}, start_new_session=True,
        )  # fmt: skip

    def wait_for(self, words: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if words in line:
                return
        pytest.fail(f"the demo ended before it said {words!r}: {self.process.communicate()}")

    def finish(self, seconds: float = 560) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, out, err

    def alive(self) -> list[str]:
        """The command lines of what still runs."""
        found = []
        for folder in Path("/proc").iterdir():
            with suppress(OSError):
                if folder.name.isdecimal() and self.mark.encode() in (folder / "environ").read_bytes():
                    found.append((folder / "cmdline").read_text().replace("\0", " "))
        return found

    def pid_of(self, words: str) -> int:
        for folder in Path("/proc").iterdir():
            with suppress(OSError):
                if (
                    folder.name.isdecimal()
                    and self.mark.encode() in (folder / "environ").read_bytes()
                    and words in (folder / "cmdline").read_text().replace("\0", " ")
                ):
                    return int(folder.name)
        raise LookupError(words)

    def none_is_left(self) -> bool:
        until = time.monotonic() + 5
        while self.alive() and time.monotonic() < until:
            time.sleep(0.05)
        return not self.alive()


@pytest.fixture
def demo(java: None) -> Iterator[Callable[..., Run]]:
    started: list[Run] = []

    def start(*arguments: str) -> Run:
        started.append(Run(*arguments))
        return started[-1]

    yield start
    for run in started:
        with suppress(ProcessLookupError):
            run.process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            run.process.communicate(timeout=40)
        run.process.kill()


def readable_part(packed: bytes) -> list[bytes]:
    """The whole lines of a gzip that ends early."""
    return zlib.decompressobj(wbits=31).decompress(packed).split(b"\n")[:-1]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_half_a_gzip_of_everything_comes_out_with_every_line_accounted_for(tmp_path: Path, demo: Callable[..., Run]) -> None:
    packed = gzip.compress(b"\n".join(MIXED) + b"\n" + os.urandom(4000).hex().encode() + b"\n")[:-1500]
    (tmp_path / "log.gz").write_bytes(packed)
    run = demo("--input", str(tmp_path / "log.gz"), "--output", str(tmp_path / "out"))
    code, out, err = run.finish()
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
    assert all(ends["received"] == ends["finished"] + ends["requeued"] for ends in summary["ledger"].values())
    raw = {
        row["raw"]
        for name in ("archive", "rejected")
        for row in ds.dataset(tmp_path / "out" / name).to_table(["raw"]).to_pylist()
    }
    assert raw == {line.removesuffix(b"\r") for line in whole if 0 < len(line) < 1_000_000}
    page = (tmp_path / "out" / "report.html").read_text()
    assert "&lt;b&gt;&quot;half" in page
    assert "<b>" not in page


def post(address: str, path: str, body: bytes = b"") -> None:
    urllib.request.urlopen(urllib.request.Request(f"http://{address}{path}", data=body), timeout=10).close()


def left_on_nsqd(nsqd: Any) -> str:
    """Forty lines in each channel; returns the broker's URL."""
    post(nsqd.http_address, "/topic/create?topic=api_requests")
    for channel in CHANNELS:
        post(nsqd.http_address, f"/channel/create?topic=api_requests&channel={channel}")
    post(nsqd.http_address, "/mpub?topic=api_requests", b"\n".join(b"left over %d" % n for n in range(40)))
    return f"nsq://{nsqd.address}"


def left_on_beanstalkd(beanstalkd: Any) -> str:
    """Forty lines in each channel's tube; returns the broker's URL, which says nothing of the copies."""
    url = f"beanstalkd://{beanstalkd.address}"
    publisher = Publisher(f"{url}?fanout={','.join(f'api_requests/{channel}' for channel in CHANNELS)}")
    publisher.publish_many("api_requests", [f"left over {n}" for n in range(40)])
    publisher.close()
    return url


LEFTOVERS = {"nsqd": left_on_nsqd, "beanstalkd": left_on_beanstalkd}


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.real
@pytest.mark.timeout(600)
@pytest.mark.parametrize("broker", ["nsqd", "beanstalkd"])
def test_the_shipped_log_through_a_real_broker_that_holds_leftovers(
    tmp_path: Path, demo: Callable[..., Run], request: pytest.FixtureRequest, broker: str
) -> None:
    run = demo("--output", str(tmp_path / "out"), "--broker", LEFTOVERS[broker](request.getfixturevalue(broker)))
    code, _, err = run.finish(560)
    assert (code, err) == (0, "")
    assert run.none_is_left()
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert {name: summary[name] for name in ("input_lines", "published", "archived", "rejected", "addresses")} == {
        "input_lines": 16_275, "published": 16_275, "archived": 10_479, "rejected": 5_796, "addresses": 917,
    }  # fmt: skip
    assert summary["by_status"] == {"200": 9_472, "301": 76, "302": 29, "400": 24, "404": 758, "499": 120}
    assert [(day["requests"], day["addresses"]) for day in summary["by_day"].values()] == [
        (938, 81), (1361, 142), (1407, 346), (1145, 88), (1770, 118), (1026, 97), (1004, 100), (1068, 131), (760, 86),
    ]  # fmt: skip
    assert any("40 messages of an earlier run" in note for note in summary["notes"])
    suspects = {one["address"] for one in summary["spam"]}
    assert "152.91.93.52" in suspects
    assert "148.87.179.6" not in suspects
    assert summary["ledger"]["spam_suspects/blocklist"]["finished"] == len(suspects)
    for name in ("growth.png", "spam.png", "report.html", "archive", "rejected", "growth", "spam"):
        assert (tmp_path / "out" / name).exists()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("moment", ["broker: ...", "workers: ...", "publish: ...", "Spark: ...", "Spark: session is up"])
def test_ctrl_c_leaves_nothing_running(tmp_path: Path, demo: Callable[..., Run], moment: str) -> None:
    run = demo("--output", str(tmp_path / "out"))
    run.wait_for(moment)
    os.killpg(run.process.pid, signal.SIGINT)  # as a terminal does
    code, out, err = run.finish(90)
    assert (code, err) == (0, "")
    assert "nothing is left running" in out
    assert run.none_is_left()


@pytest.mark.slow
@pytest.mark.spark
def test_a_part_that_dies_ends_the_run_with_a_sentence(tmp_path: Path, demo: Callable[..., Run]) -> None:
    run = demo("--output", str(tmp_path / "out"))
    run.wait_for("publish: ...")
    os.kill(run.pid_of("workers.api_requests.handlers"), signal.SIGKILL)
    code, _, err = run.finish(90)
    assert code == 1
    assert err.startswith("demo: workers ended with code -9")
    assert run.none_is_left()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--input", "none.log"], 2, "No such file"),
        (["--input", "data"], 2, "is a folder"),
        (["--input", sys.executable], 2, "binary"),
        (["--broker", "127.0.0.1:4150"], 2, "the scheme must be one of nsq://"),
        (["--output", "tests"], 2, "holds files that no demo made"),
        (["--broker", "nsq://127.0.0.1:1"], 3, "127.0.0.1:1"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, demo: Callable[..., Run], arguments: list[str], code: int, words: str) -> None:
    output = [] if "--output" in arguments else ["--output", str(tmp_path / "out")]
    run = demo(*arguments, *output)
    found, _, err = run.finish(90)
    assert found == code
    assert words in err
    assert len(err.splitlines()) == 1
    assert run.none_is_left()
    if code == 2:
        assert not (tmp_path / "out").exists()

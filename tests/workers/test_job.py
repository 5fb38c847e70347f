"""The Spark job: killed at any moment it goes on where it was, with every line counted once; wrong use is one sentence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from framework import Batch, Message, Spool
from workers.api_requests.children import descendants

ROOT = Path(__file__).resolve().parents[2]
NOWHERE = "nsq://127.0.0.1:9"  # there are no suspects here to be published


@dataclass
class Source:
    """As much of a connection as a landed message is asked for."""

    node: str = "127.0.0.1:4150"
    topic: str = "api_requests"
    channel: str = "archive"


def land(folder: Path, first: int, last: int) -> None:
    """Requests ``first`` to ``last`` in the spools of the three channels."""
    lines = [
        b'10.0.0.%d - - [%d/May/2024:06:07:08 +0000] "GET /%d HTTP/1.1" 200 1' % (n % 9, 12 + n % 3, n)
        if n % 5
        else b"bad %d" % n
        for n in range(first, last)
    ]
    messages = [Message(b"%016x" % n, 1_700_000_000_000_000_000, 1, line, Source()) for n, line in enumerate(lines, first)]
    for channel in ("archive", "growth", "spam"):
        with Spool(folder / channel) as spool:
            spool.land(Batch(messages))


def job(folder: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "workers.api_requests.job", f"--spool={folder}/spool", f"--output={folder}/out",
               f"--state={folder}/state", f"--log={folder}/spark.log", f"--broker={NOWHERE}", "--events", *more]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def events(process: subprocess.Popen[str], name: str) -> Any:
    """The next event of this name."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{") and (event := json.loads(line))["event"] == name:
            return event
    pytest.fail(f"no {name}: {process.communicate()}")


def kill(process: subprocess.Popen[str]) -> None:
    """kill -9 of the job and of all below it."""
    for pid in [process.pid, *descendants(process.pid)]:
        os.kill(pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_killed_in_the_middle_of_its_batches_it_counts_every_line_once(tmp_path: Path, java: None) -> None:
    land(tmp_path / "spool", 0, 1000)
    running = job(tmp_path, "--follow", "--every=0")
    events(running, "lines")
    while not any(sum(counts.values()) >= 1000 for counts in events(running, "lines")["done"].values()):
        pass  # one channel has done all, the others are in the middle of it
    land(tmp_path / "spool", 1000, 2000)
    time.sleep(0.7)  # not to wait for anything: only so that the kill falls into the next batch
    kill(running)
    ended = job(tmp_path, "--until=2000")
    out, err = ended.communicate(timeout=500)
    assert (ended.returncode, err) == (0, "")
    assert json.loads(out.splitlines()[-1])["event"] == "done"
    paths = ds.dataset(tmp_path / "out" / "archive").to_table(["path"])["path"].to_pylist()
    assert Counter(paths) == Counter(f"/{n}" for n in range(2000) if n % 5)
    raw = ds.dataset(tmp_path / "out" / "rejected").to_table(["raw"])["raw"].to_pylist()
    assert Counter(raw) == Counter(b"bad %d" % n for n in range(0, 2000, 5))
    days = pq.read_table(tmp_path / "out" / "growth" / "by_day.parquet").to_pylist()
    assert (sum(day["requests"] for day in days), sum(day["new_addresses"] for day in days)) == (1600, 9)
    tallies = [json.loads((tmp_path / "state" / "tally" / f"{name}.json").read_text()) for name in ("archive", "growth", "spam")]
    assert [Counter(tally["before"]) + Counter(tally["last"]) for tally in tallies] == [{"parsed": 1600, "rejected": 400}] * 3


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("moment", ["starting", "ready"])
def test_a_signal_ends_it_within_a_few_seconds_and_nothing_is_left(tmp_path: Path, java: None, moment: str) -> None:
    land(tmp_path / "spool", 0, 1000)
    running = job(tmp_path, "--follow", "--every=0")
    events(running, moment)
    time.sleep(1.0)  # not to wait for anything: only so that the signal comes in the middle of something
    below = descendants(running.pid)
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate(timeout=10)
    assert (running.returncode, err) == (0, "")
    until = time.monotonic() + 5
    while alive(below) and time.monotonic() < until:
        time.sleep(0.05)
    assert alive(below) == []


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "say one of --follow, --until N and --until-summary FILE"),
        (["--follow", "--until=3"], "say one of"),
        (["--until=-3"], "not in the range"),
        (["--follow", "--broker=amqp://x"], "the scheme must be one of nsq://"),
        (["--folow"], "No such option"),
    ],
)
def test_wrong_use_is_one_sentence_and_starts_nothing(tmp_path: Path, arguments: list[str], words: str) -> None:
    ended = job(tmp_path, *arguments)
    out, err = ended.communicate(timeout=60)
    assert (ended.returncode, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "state").exists()


def test_two_jobs_in_one_folder_are_refused(tmp_path: Path) -> None:
    from workers.api_requests.job import _lock

    held = _lock(tmp_path / "state")
    ended = job(tmp_path, "--follow")
    _, err = ended.communicate(timeout=60)
    assert ended.returncode == 2
    assert "another job works in this folder" in err
    os.close(held)

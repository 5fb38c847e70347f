"""The Spark job: killed at any moment it goes on where it was, with every line counted once; wrong use is one sentence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from framework import Batch, Message, Spool
from framework.testing import servers
from framework.testing.processes import left_after
from tests.conftest import AT_LENGTH
from tests.origins import Source
from workers.api_requests import processes
from workers.api_requests.processes import descendants
from workers.api_requests.stream import command as module
from workers.api_requests.stream.folders import Folders, Gone, take
from workers.api_requests.stream.outbox import Outbox
from workers.api_requests.stream.output import LocalOutput
from workers.api_requests.stream.streams import Stream, most

ROOT = Path(__file__).resolve().parents[2]
NOWHERE = "nsq://127.0.0.1:9"
TAKEN = 1_720_000_000_000_000_000  # in July 2024


def path(n: int) -> str:
    return f"/{n}/.env" if n % 50 == 7 else f"/{n}"


def line(n: int) -> bytes:
    """One in five is no request, and one in fifty a suspect's."""
    if n % 5 == 0:
        return b"bad %d" % n
    who, status = ("66.0.0.1", 404) if n % 50 == 7 else (f"10.0.0.{n % 9}", 200)
    return f'{who} - - [{12 + n % 3}/May/2024:06:07:08 +0000] "GET {path(n)} HTTP/1.1" {status} 1'.encode()


def land(folder: Path, first: int, last: int, taken: Callable[[int], int] = lambda n: TAKEN) -> None:
    """Lines ``first`` to ``last`` in the spools of the three channels."""
    messages = [Message(b"%016x" % n, taken(n), 1, line(n), Source(topic="api_requests")) for n in range(first, last)]
    for channel in ("archive", "growth", "spam"):
        with Spool(folder / channel) as spool:
            spool.land(Batch(messages))


def job(folder: Path, *more: str, broker: str = NOWHERE) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "workers.api_requests.stream", f"--spool={folder}/spool", f"--output={folder}/out",
               f"--state={folder}/state", f"--log={folder}/spark.log", f"--broker={broker}", "--events", *more]  # fmt: skip
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
    processes.kill([process.pid, *descendants(process.pid)])
    process.communicate()


def test_the_end_waits_for_a_batch_that_still_talks_to_the_jvm(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work(rows: Any, batch: int) -> dict[str, int]:
        begun.set()
        assert go_on.wait(10)
        return {"good": 1}

    os.close(take(folders := Folders(tmp_path / "spool", LocalOutput(tmp_path / "out"), tmp_path / "state")))
    stream = Stream("growth", work, folders)
    batch = threading.Thread(target=stream._batch, args=(None, 0))
    batch.start()
    assert begun.wait(10)
    assert not stream.idle(0.05)
    go_on.set()
    assert stream.idle(10)
    batch.join()
    assert stream.tally.total() == 1


def test_a_batch_has_an_end_whatever_waits_and_leaves_nothing_of_what_comes_until_the_next() -> None:
    assert [most(None), most(0), most(10), most(30)] == [200_000, 200_000, 200_000, 600_000]


@pytest.mark.parametrize("moment", ["before", "within"])
def test_a_batch_whose_output_was_moved_runs_again_when_it_is_back(tmp_path: Path, moment: str) -> None:
    os.close(take(folders := Folders(tmp_path, LocalOutput(out := tmp_path / "out"), tmp_path / "state")))
    away = tmp_path / "away"

    def work(rows: Any, batch: int) -> dict[str, int]:
        if moment == "within" and not away.exists():
            out.rename(away)
        (out / "archive").mkdir()
        return {"good": 1}

    stream = Stream("archive", work, folders)
    if moment == "before":
        out.rename(away)
    with pytest.raises(Gone, match="put it back"):
        stream._batch(None, 0)  # type: ignore[arg-type]
    assert not out.exists()
    away.rename(out)
    away.mkdir()
    stream._batch(None, 0)  # type: ignore[arg-type]
    assert stream.tally.total() == 1


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.long_run
def test_without_a_broker_only_the_suspects_wait_and_killed_and_stopped_in_its_batches_it_counts_every_line_once(
    tmp_path: Path, java: None
) -> None:
    land(tmp_path / "spool", 0, 1000)
    running = job(tmp_path, "--follow", "--every=0")
    done = 0
    while done < 1000:  # all three have, although there is nobody to publish to
        said = events(running, "lines")
        done = min(sum(counts.values()) for counts in said["done"].values())
        assert bool(said["waiting"]) == (done < 1000)
    outbox = Outbox(tmp_path / "state" / "outbox.sqlite")
    assert [json.loads(letter.body)["address"] for letter in outbox.waiting()] == ["66.0.0.1"]
    land(tmp_path / "spool", 1000, 2000)
    while not any(sum(counts.values()) >= 2000 for counts in events(running, "lines")["done"].values()):
        pass  # one channel has done all, the others are in the middle of it
    kill(running)
    if AT_LENGTH:  # test_procfile.py stops one as well
        restarted = job(tmp_path, "--follow", "--trigger=0")
        events(restarted, "ready")
        time.sleep(1.0)  # not to wait for anything: only so that the signal comes in the middle of something
        ends_by_a_signal(restarted)
    with servers.running(servers.own_nsqd(tmp_path / "nsqd")) as nsqd:
        nsqd.http("/topic/create?topic=spam_suspects", b"")
        nsqd.http("/channel/create?topic=spam_suspects&channel=blocklist", b"")
        ended = job(tmp_path, "--available-now", broker=f"nsq://{nsqd.address}")
        out, err = ended.communicate(timeout=300)
        assert (ended.returncode, err) == (0, "")
        assert nsqd.channel_stats("spam_suspects", "blocklist")["depth"] >= 1, "told of before the kill, and after it"
    told = [json.loads(line) for line in out.splitlines()]
    assert told[-1]["event"] == "done"
    waited = [one["waiting"] for one in told if one["event"] == "lines"]
    assert max((one["rows"] for one in waited[0].values()), default=0) <= 1000, "what is kept for its ids does not wait"
    assert waited[-1] == {}
    paths = ds.dataset(tmp_path / "out" / "archive").to_table(["path"])["path"].to_pylist()
    assert Counter(paths) == Counter(path(n) for n in range(2000) if n % 5)
    raw = ds.dataset(tmp_path / "out" / "rejected").to_table(["raw"])["raw"].to_pylist()
    assert Counter(raw) == Counter(b"bad %d" % n for n in range(0, 2000, 5))
    days = pq.read_table(tmp_path / "out" / "growth" / "by_day.parquet").to_pylist()
    assert (sum(day["requests"] for day in days), sum(day["new_addresses"] for day in days)) == (1600, 10)
    tallies = [json.loads((tmp_path / "state" / "tally" / f"{name}.json").read_text()) for name in ("archive", "growth", "spam")]
    assert [Counter(tally["before"]) + Counter(tally["last"]) for tally in tallies] == [{"parsed": 1600, "rejected": 400}] * 3


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.long_run
def test_it_begins_where_it_is_told_to_and_leaves_what_the_spools_keep(tmp_path: Path, java: None) -> None:
    """The second of two segments has lines of before as well, after others."""
    land(tmp_path / "spool", 0, 300, lambda n: TAKEN + n * 10**9)
    land(tmp_path / "spool", 300, 500, lambda n: TAKEN + (n if n % 2 else n - 200) * 10**9)
    begin = datetime.fromtimestamp(TAKEN // 10**9 + 280, UTC).isoformat()
    with servers.running(servers.own_nsqd(tmp_path / "nsqd")) as nsqd:
        for more in (0, 1):  # and a restart goes on
            land(tmp_path / "spool", 500, 500 + more, lambda n: TAKEN + n * 10**9)
            where = ("--master=local[2]", "--time-zone=-07:00")
            ended = job(tmp_path, "--available-now", f"--from={begin}", *where, broker=f"nsq://{nsqd.address}")
            said = ended.communicate(timeout=300)
            assert ended.returncode == 0, said
        refused = job(tmp_path, "--available-now", "--master=local[2]", "--time-zone=UTC")
        assert "the dates of --output are those of -07:00" in refused.communicate(timeout=300)[1]
        assert refused.returncode == 2
    expected = [n for n in range(501) if (n if n < 300 or n % 2 or n == 500 else n - 200) >= 280]
    paths = ds.dataset(tmp_path / "out" / "archive").to_table(["path"])["path"].to_pylist()
    assert Counter(paths) == Counter(path(n) for n in expected if n % 5)
    dates = {folder.name for folder in (tmp_path / "out" / "archive").glob("date=*")}
    assert dates == {"date=2024-05-11", "date=2024-05-12", "date=2024-05-13"}, "the days of the time zone"
    tallies = [json.loads((tmp_path / "state" / "tally" / f"{name}.json").read_text()) for name in ("archive", "growth", "spam")]
    sums = {sum((Counter(tally["before"]) + Counter(tally["last"])).values()) for tally in tallies}
    assert sums == {len(expected)}
    assert [len(list((tmp_path / "spool" / name / "main").glob("*.arrow"))) for name in ("archive", "growth", "spam")] == [3] * 3


@pytest.mark.slow
@pytest.mark.spark
def test_a_signal_ends_it_within_a_few_seconds_and_nothing_is_left_while_spark_starts(tmp_path: Path, java: None) -> None:
    land(tmp_path / "spool", 0, 1)
    running = job(tmp_path, "--follow")
    events(running, "starting")
    time.sleep(1.0)  # not to wait for anything: only so that the signal comes in the middle of something
    ends_by_a_signal(running)


@pytest.mark.slow
@pytest.mark.spark
def test_ctrl_c_ends_it_too_although_pyspark_has_a_handler_of_its_own(tmp_path: Path, java: None) -> None:
    land(tmp_path / "spool", 0, 1)
    running = job(tmp_path, "--follow")
    events(running, "ready")
    ends_by_a_signal(running, signal.SIGINT)


def ends_by_a_signal(running: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM) -> None:
    below = descendants(running.pid)
    running.send_signal(number)
    _, err = running.communicate(timeout=10)
    said = [line for line in err.splitlines() if NOWHERE.removeprefix("nsq://") not in line]  # which cannot be reached
    assert (running.returncode, said) == (0, [])
    assert left_after(below, 5) == []


def test_a_spark_home_that_others_start_from_is_left_as_it_is_and_another_installations_is_not(tmp_path: Path) -> None:
    links = [module.sessions.home_without_zip(tmp_path) / part for part in ("bin", "jars")]
    before = [link.lstat().st_ctime_ns for link in links]
    module.sessions.home_without_zip(tmp_path)
    assert [link.lstat().st_ctime_ns for link in links] == before
    links[1].unlink()
    links[1].symlink_to(tmp_path / "gone")
    module.sessions.home_without_zip(tmp_path)
    assert links[1].is_dir()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "say one of --follow, --available-now, --until N and --until-summary FILE"),
        (["--follow", "--until=3"], "say one of"),
        (["--until=-3"], "not in the range"),
        (["--follow", "--state=s3://bucket/x"], "s3://bucket/x is a URL: name a folder of a mounted file system"),
        (["--follow", "--spool=~/x"], "~/x: no shell has replaced its beginning: name the whole path"),
        (["--follow", "--output=$HOME/x"], "$HOME/x: no shell has replaced its beginning"),
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
    held = take(Folders(tmp_path / "spool", LocalOutput(tmp_path / "another"), tmp_path / "state"))
    ended = job(tmp_path, "--follow")
    _, err = ended.communicate(timeout=60)
    assert ended.returncode == 2
    assert "another job works in this folder" in err
    os.close(held)

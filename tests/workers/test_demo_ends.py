"""What the demo does before Spark is up, and how it ends, whoever ends it: the words, the exit code, and that nothing is left.

The JVM that these demos start is one that never gets ready, as on a machine that is too busy.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from framework.spool import segment
from framework.transports import open_transports
from tests.workers.demos import ROOT, Run, demos
from tests.workers.leftovers import CHANNELS, LEFTOVERS, MIXED, half_a_gzip, readable_part
from workers.api_requests.collect import feed
from workers.api_requests.demo import command
from workers.api_requests.demo.run import Demo

pytest.importorskip("pyspark")
JVM = "sleep 300"


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Run]]:
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\nexec {JVM}\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    with demos() as start:
        yield start


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["broker: ...", "workers: ...", "publish: ...", "Spark: ..."])
def test_ctrl_c_leaves_nothing_running(tmp_path: Path, demo: Callable[..., Run], moment: str) -> None:
    run = demo("--output", str(tmp_path / "out"))
    run.wait_for(moment)
    if moment == "Spark: ...":
        run.wait_until_it_runs(JVM)
    os.killpg(run.process.pid, signal.SIGINT)  # as a terminal does
    code, out, err = run.finish(90)
    assert (code, err) == (0, "")
    assert "nothing is left running" in out
    assert run.none_is_left()


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("broker", ["nsqd", pytest.param("beanstalkd", marks=pytest.mark.long_run)])
def test_every_channel_has_each_line_for_spark_and_no_leftovers_over_a_broker_that_was_there_before(
    tmp_path: Path, demo: Callable[..., Run], request: pytest.FixtureRequest, broker: str
) -> None:
    packed, out = half_a_gzip(), tmp_path / "out"
    assert readable_part(packed) == MIXED
    (tmp_path / "log.gz").write_bytes(packed)
    held = LEFTOVERS[broker](request.getfixturevalue(broker))
    run = demo("--input", str(tmp_path / "log.gz"), "--output", str(out), "--broker", held)
    run.wait_for("leftovers: 40 messages of an earlier run set aside")
    run.wait_for(f"publish: 633 of {len(MIXED) + 1} lines")
    told = json.loads((out / "work" / "published.json").read_text())
    assert (told["published"], told["oversized"], told["empty"]) == (633, 1, 2), told
    wanted = dict.fromkeys(CHANNELS, sorted(line.removesuffix(b"\r") for line in MIXED if 0 < len(line) < 1_000_000))
    deadline = time.monotonic() + 60
    while (landed := {name: _bodies(out / "work" / "spool" / name) for name in CHANNELS}) != wanted:
        assert time.monotonic() < deadline, {name: len(found) for name, found in landed.items()}
        time.sleep(0.1)
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.finish(90)[0] == 0
    assert run.none_is_left()


@pytest.mark.slow
@pytest.mark.real
def test_leftovers_that_take_their_time_are_set_aside_as_well(tmp_path: Path, demo: Callable[..., Run], beanstalkd: Any) -> None:
    """On a busy machine none had landed when the demo stopped to wait for them, and it counted them as its own."""
    url = LEFTOVERS["beanstalkd"](beanstalkd)
    (transport,) = open_transports([feed.broker_of(url)])
    for channel in CHANNELS:
        assert transport.pause("api_requests", channel, paused=True)
    (tmp_path / "log.gz").write_bytes(half_a_gzip())
    run = demo("--input", str(tmp_path / "log.gz"), "--output", str(tmp_path / "out"), "--broker", url)
    run.wait_for("leftovers: subscribed")
    time.sleep(3.0)  # twice as long as it waits for nothing
    for channel in CHANNELS:
        transport.pause("api_requests", channel, paused=False)
    transport.close()
    assert "40 messages of an earlier run" in run.wait_for("leftovers: ")
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.finish(90)[0] == 0


def _bodies(spool: Path) -> list[bytes]:
    """Of all that has landed, sorted."""
    folders = spool.glob("*/") if spool.exists() else ()
    segments = [one.path for folder in folders for one in segment.listing(folder)]
    return sorted(body for path in segments for body in segment.read(path, ["value"])["value"].to_pylist())


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["broker: ...", "workers: ...", "publish: ...", "Spark: ..."])
def test_a_kill_leaves_nothing_running(tmp_path: Path, demo: Callable[..., Run], moment: str) -> None:
    """The demo can do nothing any more: each process is told by the system."""
    run = demo("--output", str(tmp_path / "out"))
    run.wait_for(moment)
    if moment == "Spark: ...":
        run.wait_until_it_runs(JVM)
    run.process.kill()
    run.process.wait()
    assert run.none_is_left()


@pytest.mark.slow
def test_a_reader_of_its_output_that_goes_leaves_nothing_running(tmp_path: Path, demo: Callable[..., Run]) -> None:
    """As in ``make demo | head -1``."""
    run = demo("--output", str(tmp_path / "out"))
    run.wait_for("broker: ...")
    assert run.process.stdout is not None
    run.process.stdout.close()
    _, err = run.process.communicate(timeout=90)
    assert (run.process.returncode, err) == (1, "demo: [Errno 32] Broken pipe\n")
    assert run.none_is_left()


@pytest.mark.slow
def test_a_part_that_dies_ends_the_run_with_a_sentence(tmp_path: Path, demo: Callable[..., Run]) -> None:
    run = demo("--output", str(tmp_path / "out"))
    run.wait_for("publish: ...")
    os.kill(run.pid_of("workers.api_requests.handlers"), signal.SIGKILL)
    code, _, err = run.finish(90)
    assert code == 1
    assert err.startswith("demo: workers ended with code -9")
    assert run.none_is_left()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--input", "none.log"], 2, "No such file"),
        (["--input", "data"], 2, "is a folder"),
        (["--input", sys.executable], 2, "binary"),
        (["--broker", "127.0.0.1:4150"], 2, "the scheme must be one of nsq://"),
        (["--output", "tests"], 2, "holds files that no demo made"),
        pytest.param(["--broker", "nsq://127.0.0.1:1"], 3, "127.0.0.1:1", marks=pytest.mark.slow),
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


@pytest.mark.parametrize("part", ["demo", "stream"])
def test_ctrl_c_while_it_is_still_being_imported_is_no_traceback(part: str) -> None:
    code = f"""
import os, runpy, signal, sys
class CtrlC:
    def find_spec(self, name, *_):
        if name == "workers.api_requests.{part}.command":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, CtrlC())
runpy.run_module("workers.api_requests.{part}", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (sqlite3.OperationalError("database or disk is full"), "--output {}: database or disk is full"),
        (OSError(28, "No space left on device"), "--output {}: [Errno 28] No space left on device"),
        (OSError(28, "No space left on device", "a.png"), "[Errno 28] No space left on device: 'a.png'"),
    ],
)
def test_a_disk_that_is_full_at_its_end_is_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, words: str
) -> None:
    def fail(_: Demo) -> None:
        raise error

    monkeypatch.setattr(Demo, "run", fail)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert command.main([f"--output={tmp_path / 'out'}"]) == 1
    assert capsys.readouterr().err == f"demo: {words.format(tmp_path / 'out')}\n"

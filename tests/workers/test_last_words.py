"""The last words of the Spark job, whatever ends it: one line, also where its JVM has died."""

from __future__ import annotations

import logging
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from py4j.java_gateway import GatewayClient
from py4j.protocol import ERROR, ERROR_ON_RECEIVE, Py4JNetworkError
from pyspark.errors import PySparkException

from workers.api_requests.collect.topics import CHANNELS
from workers.api_requests.stream import command as module
from workers.api_requests.stream.queries import Failed, words_of

NOWHERE = "nsq://127.0.0.1:9"


class Refusing(PySparkException):
    """An error of Spark's, which asks the JVM for its words."""

    has_gone = False

    def __str__(self) -> str:
        if self.has_gone:
            raise ConnectionRefusedError(111, "Connection refused")
        return "pyspark.errors.AnalysisException: no such column\nJVM stacktrace: ..."


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs the command without Spark, where the job raises; its exit code."""
    for name in CHANNELS:
        (tmp_path / "spool" / name / "main").mkdir(parents=True)

    def run(error: BaseException, died: str = "", output: str = str(tmp_path / "output")) -> int:
        def fail(*_: object, **__: object) -> None:
            raise error

        def stop() -> None:
            if isinstance(error, Refusing):
                error.has_gone = True

        spark = SimpleNamespace(streams=SimpleNamespace(active=[]))
        session = SimpleNamespace(stop=stop, death=lambda: died, spark=spark, zone="UTC")
        monkeypatch.setattr(module.sessions, "start", lambda *_, **__: session)
        monkeypatch.setattr(module, "Job", fail)
        monkeypatch.setattr(module, "HadoopOutput", fail)
        monkeypatch.setattr(module, "Stopping", lambda **_: SimpleNamespace(listen=lambda: None, give_back=lambda: None))
        folders = [f"--spool={tmp_path / 'spool'}", f"--state={tmp_path / 'state'}", f"--output={output}"]
        monkeypatch.setattr(sys, "argv", ["job", "--follow", f"--broker={NOWHERE}", *folders])
        return module.main()

    return run


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(28, "No space left on device", "/state/tally/spam.new"), "No space left on device: '/state/tally/spam.new'"),
        (sqlite3.OperationalError("database or disk is full"), "database or disk is full"),
        (pa.ArrowInvalid("Could not open Parquet input source"), "Could not open Parquet input source"),
    ],
)
def test_a_disk_that_refuses_ends_it_with_one_line(
    failing: Callable[[BaseException], int], capsys: pytest.CaptureFixture[str], error: Exception, words: str
) -> None:
    assert failing(error) == 1
    said = capsys.readouterr().err
    assert words in said
    assert len(said.splitlines()) == 1


def test_what_fails_before_the_job_begins_ends_it_with_one_line_too(
    failing: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is published by then, and what publishes has no thread yet to be waited for."""
    refused = Failed('No FileSystem for scheme "gopher"')
    assert failing(refused, output="gopher://host/x") == 1
    assert capsys.readouterr().err == f"job: {refused}\n"


def test_another_time_zone_than_before_is_refused(
    failing: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A line of one hour would be in one date of the archive before, and in another after."""
    assert failing(Failed("it got as far as the job")) == 1
    assert (tmp_path / "state" / "zone").read_text() == "UTC"
    (tmp_path / "state" / "zone").write_text("Europe/Paris")
    capsys.readouterr()
    assert failing(Failed("it got as far as the job")) == 2
    said = capsys.readouterr().err
    assert "the time zone is UTC, and the dates of --output are those of Europe/Paris: say --time-zone Europe/Paris" in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("error", [ConnectionRefusedError(111, "Connection refused"), Failed("channel of Spark: it ended")])
def test_where_the_jvm_has_died_that_is_what_is_said(
    failing: Callable[..., int], capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    assert failing(error, died="Spark's JVM was killed by signal 9") == 1
    assert capsys.readouterr().err == "job: Spark's JVM was killed by signal 9\n"


def test_words_to_a_jvm_that_died_are_no_tracebacks(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    class Connection:
        def send_command(self, _: str) -> str:
            raise Py4JNetworkError("Error while sending or receiving", when=ERROR_ON_RECEIVE)

        def close(self, _: bool) -> None: ...

    gateway = GatewayClient()
    monkeypatch.setattr(gateway, "_get_connection", Connection)
    logging.getLogger().addFilter(module.sessions.is_news)
    try:
        assert gateway.send_command("x") == ERROR
        logging.warning("other words")
    finally:
        logging.getLogger().removeFilter(module.sessions.is_news)
    assert [record.message for record in caplog.records if record.name == "root"] == ["other words"]


@pytest.mark.parametrize(
    ("command", "words"),
    [("kill -9 $$", "was killed by signal 9, as where there is too little memory"), ("exit 3", "ended with code 3")],
)
def test_how_a_jvm_died_is_known(command: str, words: str) -> None:
    with subprocess.Popen(["sh", "-c", command]) as jvm:
        assert module.sessions._death(jvm) == f"Spark's JVM {words}; its log may say more"


def test_a_jvm_that_lives_has_not_died() -> None:
    with subprocess.Popen(["sleep", "60"]) as jvm:
        assert module.sessions._death(jvm) == ""
        jvm.kill()


def test_a_jvm_that_dies_before_there_is_a_session_is_told_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jvm = subprocess.Popen([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])

    def die(**_: Any) -> None:
        raise Py4JNetworkError("Error while sending or receiving")

    monkeypatch.setattr(module.sessions, "launch_gateway", lambda *_: SimpleNamespace(proc=jvm))
    monkeypatch.setattr(module.sessions, "SparkContext", SimpleNamespace(_ensure_initialized=die))
    monkeypatch.setattr(module.sessions.SparkSession, "getActiveSession", lambda: None)  # another test's
    for name in ("SPARK_HOME", "PYSPARK_PYTHON", *module.sessions._SMALL_MEMORY):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # so that what the job sets ends with the test
    with subprocess.Popen(["sleep", "60"]) as of_another:
        with pytest.raises(Failed, match="Spark's JVM was killed by signal 9"):
            module.sessions.start("test", tmp_path)
        with pytest.raises(subprocess.TimeoutExpired):
            of_another.wait(0.3)
        of_another.kill()


def test_what_spark_says_is_said_in_one_line_although_its_jvm_has_gone(
    failing: Callable[[BaseException], int], capsys: pytest.CaptureFixture[str]
) -> None:
    error = Refusing("x")
    assert failing(error) == 1
    assert capsys.readouterr().err == "job: pyspark.errors.AnalysisException: no such column\n"
    assert error.has_gone
    assert words_of(error) == "Refusing", "all that can be said then"

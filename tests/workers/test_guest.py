"""The job in a session that it is given: what is a notebook's stays so."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from framework import WrongUse
from tests.workers.test_job import NOWHERE, land
from workers.api_requests.stream.command import command
from workers.api_requests.stream.stopping import Stopping

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def handlers() -> list[Any]:
    return [signal.getsignal(number) for number in SIGNALS]


@pytest.mark.slow
@pytest.mark.spark
def test_a_session_and_its_process_are_as_they_were_and_the_job_can_be_run_there_again(tmp_path: Path, spark: Any) -> None:
    land(tmp_path / "spool", 0, 7)  # no suspect among them
    spark.range(1).createOrReplaceTempView("users_own")
    before = handlers()
    folders = [f"--spool={tmp_path}/spool", f"--output={tmp_path}/out", f"--state={tmp_path}/state", f"--broker={NOWHERE}"]
    for _ in range(2):
        assert command(["--available-now", *folders], standalone_mode=False) == 0
        active: Any = SparkSession.getActiveSession()
        assert active._jsparkSession.equals(spark._jsparkSession), "and not what a query had made of it for its batches"
        assert (active.table("users_own").count(), active.streams.active) == (1, [])
        assert handlers() == before


@pytest.mark.slow
@pytest.mark.spark
def test_a_query_of_the_session_with_the_name_of_one_of_the_jobs_is_refused_and_goes_on(tmp_path: Path, spark: Any) -> None:
    folders = [f"--spool={tmp_path}/spool", f"--output={tmp_path}/out", f"--state={tmp_path}/state", f"--broker={NOWHERE}"]
    theirs = spark.readStream.format("rate").load().writeStream.format("noop").queryName("growth").start()
    try:
        for _ in range(2):  # the second time it would meet what the first one left
            with pytest.raises(
                WrongUse, match=r"^a query named growth runs in this session, and the job has one of that name: stop"
            ):
                command(["--follow", *folders], standalone_mode=False)
        assert [query.name for query in spark.streams.active if query.isActive] == ["growth"]
    finally:
        theirs.stop()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_asks_for_the_end_and_does_not_end_the_process_of_others(number: signal.Signals) -> None:
    before, threads = handlers(), threading.active_count()
    stopping = Stopping(guest=True)
    os.kill(os.getpid(), number)
    assert (stopping.asked, threading.active_count()) == (True, threads)
    stopping.give_back()
    assert handlers() == before

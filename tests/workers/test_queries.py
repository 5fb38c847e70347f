"""Queries that end: what only came too late is started again, anything else fails the job."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from framework.spool.storage import StorageError
from workers.api_requests.collect.topics import CHANNELS
from workers.api_requests.stream import streams
from workers.api_requests.stream.folders import Folders
from workers.api_requests.stream.output import LocalOutput
from workers.api_requests.stream.queries import Failed, Queries
from workers.api_requests.stream.streams import Stream


class Query:
    """A streaming query that ends when it is told to."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.isActive = True
        self.error = ""
        self.stopped = False

    def exception(self) -> Exception | None:
        return Exception(self.error) if self.error else None

    def end(self, error: str) -> None:
        self.isActive, self.error = False, error

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def started() -> list[Any]:
    return []


@pytest.fixture
def queries(started: list[Any]) -> Queries:
    def start(name: str) -> Any:
        started.append(Query(name))
        return started[-1]

    return Queries(start)


def test_where_one_cannot_be_started_none_goes_on(started: list[Any]) -> None:
    """In a notebook's session, which the job does not end."""

    def start(name: str) -> Any:
        if name == CHANNELS[-1]:
            raise ValueError(name)
        started.append(Query(name))
        return started[-1]

    with pytest.raises(ValueError, match=CHANNELS[-1]):
        Queries(start)
    assert [query.stopped for query in started] == [True, True]


IN_A_WORKER = """An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "job.py", line 97, in _batch
    counts = self._process(rows, batch)
pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "segment.py", line 120, in read
framework.spool.segment.SpoolError: spool segment 1.arrow is damaged: Not an Arrow file
"""
OF_JAVA = """An error occurred while calling o66.start.
: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
"""
OF_A_TASK = """An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "store.py", line 97, in add
    rows.write.parquet(folder)
py4j.protocol.Py4JJavaError: An error occurred while calling o131.parquet.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/state/scratch/0.
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.taskFailedWhileWritingRowsError(QueryExecutionErrors.scala:776)
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
"""
IN_A_BATCH = """An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "outbox.py", line 45, in put
    database.executemany(_PUT, bodies.items())
sqlite3.OperationalError: database or disk is full
"""
UNREADABLE = """org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 3.0 failed 1 times, most \
recent failure: Lost task 1.0 in stage 3.0 (TID 5) (192.0.2.2 executor driver): java.io.OptionalDataException
\tat java.base/java.io.ObjectInputStream.readObject0(ObjectInputStream.java:1756)
"""
TOO_SLOW = "org.apache.spark.SparkException: Python worker failed to connect back.\n at org.apache"


@pytest.mark.parametrize("error", [TOO_SLOW, UNREADABLE])
def test_what_ended_by_no_fault_of_the_job_is_started_again(
    queries: Queries, started: list[Any], capsys: Any, error: str
) -> None:
    started[1].end(error)
    queries.revive()
    assert [query.name for query in started] == [*CHANNELS, CHANNELS[1]]
    assert [query.isActive for query in queries.running()] == [True, True, True]
    assert "started again (1 of 10)" in capsys.readouterr().err


def test_what_ends_so_again_and_again_fails_the_job(queries: Queries, started: list[Any]) -> None:
    for _ in range(10):
        started[-1].end(TOO_SLOW)
        queries.revive()
    started[-1].end(TOO_SLOW)
    with pytest.raises(Failed, match=r"channel spam: .*failed to connect back"):
        queries.revive()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("OSError: disk full", "OSError: disk full"),
        ("", ""),
        (IN_A_WORKER, "framework.spool.segment.SpoolError: spool segment 1.arrow is damaged: Not an Arrow file"),
        (OF_JAVA, "java.io.IOException: No space left on device$"),
        (OF_A_TASK, r"TASK_WRITE_FAILED\] Task failed while writing rows to file:/state/scratch/0: No space left on device$"),
        (IN_A_BATCH, "sqlite3.OperationalError: database or disk is full"),
    ],
)
def test_what_ends_otherwise_fails_the_job(queries: Queries, started: list[Any], error: str, words: str) -> None:
    started[0].end(error)
    with pytest.raises(Failed, match=f"channel archive: .*{words}"):
        queries.revive()


def test_those_that_take_what_is_there_have_ended_when_each_has_and_none_by_an_error(started: list[Any]) -> None:
    def start(name: str) -> Any:
        started.append(Query(name))
        return started[-1]

    taking = Queries(start, may_end=True)
    for query in started[:2]:
        query.end("")
    taking.revive()
    assert (len(started), taking.ended()) == (3, False), "one is still at work, and none was started again"
    started[2].end(TOO_SLOW)
    assert not taking.ended()
    taking.revive()
    assert [query.name for query in started[3:]] == [CHANNELS[2]]
    started[3].end("")
    assert taking.ended()
    started[0].end("OSError: disk full")
    with pytest.raises(Failed, match="channel archive: OSError: disk full"):
        taking.revive()


def test_all_are_stopped_whatever_one_of_them_says(queries: Queries, started: list[Any]) -> None:
    def fail() -> None:
        raise RuntimeError("the session is gone")

    started[0].stop = fail
    queries.stop()
    assert [query.stopped for query in started[1:]] == [True, True]


def test_stopping_says_nothing_of_a_jvm_that_has_died(queries: Queries, started: list[Any], capsys: Any) -> None:
    def fail() -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    for query in started:
        query.stop = fail
    queries.stop()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("ails", ["a storage that is down", "two segments of one number"])
def test_how_far_a_query_is_behind_cannot_always_be_told_and_that_ends_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ails: str
) -> None:
    """The query waits for its spool meanwhile, or ends and says why."""
    stream = Stream("archive", lambda rows, batch: {}, Folders(tmp_path / "spool", LocalOutput(tmp_path / "out"), tmp_path))
    there = tmp_path / "spool" / "archive" / "main"
    there.mkdir(parents=True)
    (there / f"{1:020d}-7.arrow").touch()
    behind = stream.behind()
    assert behind is not None
    assert behind.rows == 7
    if ails == "two segments of one number":
        (there / f"{1:020d}-8.arrow").touch()
    else:
        monkeypatch.setattr(streams, "lag", lambda *_: raised(StorageError(errno.EIO, "s3://bucket does not answer")))
    assert stream.behind() is None


def raised(error: Exception) -> None:
    raise error

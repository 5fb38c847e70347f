"""A batch that is killed before any of its writes and runs again: every line counted once, by whatever counts lines.

The kills are exceptions here, each before another write, in one session of Spark: what lies on the disk then is what a kill -9
leaves. That the whole job stands real ones is tested in test_job.py.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from tests.workers.test_job import line, path
from workers.api_requests.detect.growth import history
from workers.api_requests.detect.growth import state as counts
from workers.api_requests.detect.spam import state as evidence
from workers.api_requests.detect.spam import suspects
from workers.api_requests.stream import hadoop
from workers.api_requests.stream.folders import Folders, take
from workers.api_requests.stream.outbox import Outbox
from workers.api_requests.stream.output import LocalOutput
from workers.api_requests.stream.session import Session

pytestmark = [pytest.mark.slow, pytest.mark.spark]
A_BATCH = 60  # lines
STEPS = (1, 1, 1) if os.environ.get("AT_LENGTH") else (26, 22, 10)
"""How many writes lie between two kills, for each stream: the archive's are the same for each of three days, growth's for both of
its files, and what comes after a kill between two that follow one another is mostly the same. At length: before every write."""


class Killed(BaseException):
    """Nothing catches it."""


class Kill:
    """Kills before the write of a number; then no more."""

    def __init__(self) -> None:
        self.left = 0

    def before(self, owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        real = getattr(owner, name)

        def write(*arguments: Any, **more: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise Killed(f"{name} {arguments}")
            return real(*arguments, **more)

        monkeypatch.setattr(owner, name, write)


@pytest.fixture
def kill(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kill]:
    kill = Kill()
    for name in ("replace", "fsync", "unlink", "link"):
        kill.before(os, name, monkeypatch)
    for name in ("_fill", "_rename"):
        kill.before(hadoop, name, monkeypatch)
    kill.before(LocalOutput, "rows", monkeypatch)  # Spark has committed
    kill.before(Outbox, "put", monkeypatch)
    for state in (counts, evidence):
        kill.before(state, "mark", monkeypatch)  # within its transaction
    yield kill
    kill.left = 0


@pytest.fixture
def joins_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Growth's files are joined in each batch."""
    monkeypatch.setattr(history, "_MANY", 2)


class Told:
    """As much of a sender as a job asks for."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def put(self, bodies: Mapping[str, str]) -> None:
        self._outbox.put(bodies)


@pytest.mark.long_run
@pytest.mark.timeout(3000 if os.environ.get("AT_LENGTH") else 600)
def test_a_batch_that_is_killed_before_any_write_counts_every_line_once(
    tmp_path: Path, spark: Any, as_lines: Callable[..., Any], kill: Kill, joins_often: None
) -> None:
    from workers.api_requests.stream.streams import Job

    outbox = Outbox(tmp_path / "state" / "outbox.sqlite")
    os.close(take(folders := Folders(tmp_path / "spool", LocalOutput(tmp_path / "out"), tmp_path / "state")))

    def run(stream: int, batch: int, rows: Any) -> None:
        job = Job(Session(spark), folders, Told(outbox), follows=True)  # type: ignore[arg-type]
        job._streams[stream]._batch(rows, batch)
        if stream == 2:
            job.evidence.tend()

    kills = 0
    for batch in range(2):
        rows = as_lines(line(n) for n in range(batch * A_BATCH, (batch + 1) * A_BATCH)).cache()
        for stream in range(3):
            while batch == 1:  # which merges and joins what the first one wrote
                kill.left = kills + 1
                try:
                    run(stream, batch, rows)
                except Killed:
                    kills += STEPS[stream]
                else:
                    break
            kill.left = kills = 0
            run(stream, batch, rows)
    lines = range(2 * A_BATCH)
    job = Job(Session(spark), folders, Told(outbox), follows=True)  # type: ignore[arg-type]
    assert set(map(tuple, (counts.items() for counts in job.done().values()))) == {(("parsed", 96), ("rejected", 24))}
    paths = ds.dataset(tmp_path / "out" / "archive").to_table(["path"])["path"].to_pylist()
    assert Counter(paths) == Counter(path(n) for n in lines if n % 5)
    raw = ds.dataset(tmp_path / "out" / "rejected").to_table(["raw"])["raw"].to_pylist()
    assert Counter(raw) == Counter(line(n) for n in lines if n % 5 == 0)
    days = pq.read_table(tmp_path / "out" / "growth" / "by_day.parquet").to_pylist()
    assert (sum(day["requests"] for day in days), sum(day["new_addresses"] for day in days)) == (96, 10)
    (suspect,) = job.evidence.known()
    assert suspects.read(tmp_path / "out" / "spam" / "suspects.parquet") == [suspect]
    assert (suspect.address, suspect.requests) == ("66.0.0.1", sum(1 for n in lines if n % 50 == 7))
    assert f'"requests": {suspect.requests}' in outbox.waiting()[-1].body

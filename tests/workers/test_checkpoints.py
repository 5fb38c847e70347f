"""What a kill or a full disk leaves in a checkpoint of Spark's: the job goes on from it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from tests.workers.test_job import land
from workers.api_requests.stream.folders import CHECKPOINTS, Folders, take
from workers.api_requests.stream.output import LocalOutput
from workers.api_requests.stream.session import Session
from workers.api_requests.stream.streams import Stream

pytestmark = [pytest.mark.slow, pytest.mark.spark]
HALF = "e1aa02b9-5c16-4bd5-aced-358071cc692e.tmp"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("batch", [0, 1], ids=["its first batch", "another one"])
def test_half_a_file_of_the_log_of_batches_is_no_obstacle(tmp_path: Path, spark: Any, batch: int) -> None:
    """Spark writes a file beside the log, closes it and renames it. It refuses to begin where one is left of the first batch."""
    os.close(take(folders := Folders(tmp_path / "spool", LocalOutput(tmp_path / "out"), tmp_path / "state")))
    seen: list[int] = []

    def work(rows: Any, _: int) -> dict[str, int]:
        seen.append(rows.count())
        return {"parsed": seen[-1]}

    def run(lines: int) -> None:
        query = Stream("growth", work, folders).start(Session(spark), 0.0)
        try:
            while sum(seen) < lines:
                assert query.isActive, query.exception()
        finally:
            query.stop()

    for n in range(batch):
        land(tmp_path / "spool", 100 * n, 100 * n + 100)
        run(100 * n + 100)
    for log in ("offsets", "commits"):
        folder = folders.state / CHECKPOINTS / "growth" / log
        folder.mkdir(parents=True, exist_ok=True)
        for name in (f".{batch}.{HALF}", f"..{batch}.{HALF}.crc"):
            (folder / name).touch()
    land(tmp_path / "spool", 100 * batch, 100 * batch + 100)
    run(100 * batch + 100)
    assert seen == [100] * (batch + 1)

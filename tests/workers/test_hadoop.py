"""An output on a file system of Hadoop's that is no folder to Python: here ``viewfs``, which comes with Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from framework import WrongUse
from tests.workers.test_job import line
from workers.api_requests.job.folders import Folders, Gone, check_output, take
from workers.api_requests.job.hadoop import HadoopOutput

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@pytest.fixture
def output(tmp_path: Path, spark: Any) -> HadoopOutput:
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    conf.set("fs.viewfs.mounttable.away.link./data", (tmp_path / "away").as_uri())
    conf.set("fs.viewfs.impl.disable.cache", "true")
    (tmp_path / "away").mkdir()
    return HadoopOutput("viewfs://away/data/requests/", spark)


def test_small_files_are_whole_and_claimed_once(output: HadoopOutput, tmp_path: Path) -> None:
    assert output.read("growth/x") is None
    for content in (b"one", bytes(range(256)) * 300):
        output.write("growth/x", content)
        assert output.read("growth/x") == content
    assert [output.claim(".job", name) for name in ("a", "b")] == ["a", "a"]
    assert sorted(path.name for path in (tmp_path / "away" / "requests" / "growth").iterdir() if ".crc" not in path.name) == ["x"]


def test_it_is_owned_and_missed_as_a_folder_is(output: HadoopOutput, tmp_path: Path) -> None:
    take(folders := Folders(tmp_path / "spool", output, tmp_path / "state"))
    check_output(folders)
    output.write("archive/date=2024-05-12/x.parquet", b"rows")
    with pytest.raises(WrongUse, match=r"--output viewfs://away/data/requests holds what a job with another state wrote"):
        take(Folders(tmp_path / "spool", output, tmp_path / "another"))
    (tmp_path / "away" / "requests").rename(tmp_path / "gone")
    with pytest.raises(Gone, match="put it back"):
        check_output(folders)


def test_a_batch_that_runs_again_leaves_every_line_once(output: HadoopOutput, tmp_path: Path, spark: Any, as_lines: Any) -> None:
    from workers.api_requests.job.archive import archive
    from workers.api_requests.job.store import Store

    for batch, some in ((0, range(60)), (1, range(60, 100)), (1, range(60, 100))):
        stores = Store(output, "archive", by="date"), Store(output, "rejected")
        archive(as_lines(line(n) for n in some), batch, archived=stores[0], rejected=stores[1])
    archived, rejected = (spark.read.parquet(output.url_of(name)).select("raw") for name in ("archive", "rejected"))
    found = [bytes(row.raw) for row in archived.union(rejected).collect()]
    assert sorted(found) == sorted(line(n) for n in range(100))


def test_a_url_of_which_spark_knows_nothing_is_refused_in_a_sentence(spark: Any) -> None:
    with pytest.raises(WrongUse, match=r"--output gopher://host/x: Spark has no such file system: .*gopher"):
        HadoopOutput("gopher://host/x", spark)

"""An output on a file system of Hadoop's: one that is no folder to Python, here ``viewfs``, which comes with Spark; and a local
one, which is written through Hadoop too."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from framework import WrongUse
from tests.workers.test_job import line
from workers.api_requests.stream import hadoop
from workers.api_requests.stream.folders import Folders, Gone, check_output, take
from workers.api_requests.stream.hadoop import HadoopOutput
from workers.api_requests.stream.output import LocalOutput
from workers.api_requests.stream.session import Session

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


@pytest.mark.long_run
def test_a_batch_that_runs_again_leaves_every_line_once(output: HadoopOutput, tmp_path: Path, spark: Any, as_lines: Any) -> None:
    from workers.api_requests.stream.archive import archive
    from workers.api_requests.stream.store import Store

    for batch, some in ((0, range(60)), (1, range(60, 100)), (1, range(60, 100))):
        stores = Store(output, "archive", by="date"), Store(output, "rejected")
        archive(as_lines(line(n) for n in some), batch, archived=stores[0], rejected=stores[1])
    archived, rejected = (spark.read.parquet(output.url_of(name)).select("raw") for name in ("archive", "rejected"))
    found = [bytes(row.raw) for row in archived.union(rejected).collect()]
    assert sorted(found) == sorted(line(n) for n in range(100))


def test_a_url_of_which_spark_knows_nothing_is_refused_in_a_sentence(spark: Any) -> None:
    with pytest.raises(WrongUse, match=r"--output gopher://host/x: Spark has no such file system: .*gopher"):
        HadoopOutput("gopher://host/x", spark)


def test_a_local_file_is_replaced_whole_whoever_reads_and_whatever_dies(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = LocalOutput(tmp_path)
    contents = [bytes([n]) * (n * 70_000 + 1) for n in range(8)]
    monkeypatch.setattr(hadoop, "_PIECE", 100_000)
    output.write("growth/x", contents[0])
    seen: set[bytes] = set()
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.add((tmp_path / "growth" / "x").read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for content in contents * 3:
            output.write("growth/x", content)
    finally:
        done.set()
        reader.join()
    assert seen <= set(contents)
    assert len(seen) > 1
    with monkeypatch.context() as killed:
        killed.setattr(hadoop, "_rename", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            output.write("growth/x", b"never")
    assert output.read("growth/x") == contents[-1]
    output.write("growth/x", b"last")
    assert [(path.name, path.read_bytes()) for path in (tmp_path / "growth").iterdir()] == [("x", b"last")]


def test_what_the_file_system_refuses_is_said_and_leaves_the_file_as_it_was(tmp_path: Path, spark: Any) -> None:
    output = LocalOutput(tmp_path / "out")
    with pytest.raises(OSError, match="out"):
        output.write("growth/x", b"an output that was moved away is not begun anew")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "out").mkdir()
    output.write("growth/x", b"one")
    (tmp_path / "out" / "growth" / ".x.new").mkdir()
    with pytest.raises(OSError, match=r"growth/x: java.*\.x\.new"):
        output.write("growth/x", b"two")
    assert output.read("growth/x") == b"one"


@pytest.mark.long_run
def test_no_output_gets_its_name_by_hand(tmp_path: Path, spark: Any, as_lines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """But by Spark's own file systems, as on a cluster."""
    from workers.api_requests.stream.streams import Job

    named: list[str] = []
    for name in ("replace", "rename", "link", "renames", "symlink"):
        monkeypatch.setattr(os, name, noting(getattr(os, name), named))
    os.close(take(folders := Folders(tmp_path / "spool", LocalOutput(tmp_path / "out"), tmp_path / "state")))
    job = Job(Session(spark), folders, SimpleNamespace(put=lambda bodies: None), follows=True)  # type: ignore[arg-type]
    for stream in job._streams:
        for batch in range(2):
            stream._batch(as_lines(line(n) for n in range(60 * batch, 60 * batch + 60)), batch)
    job.evidence.tend()
    files = {path.parent.name.partition("=")[0] for path in (tmp_path / "out").rglob("*.parquet")}
    assert files == {"batch", "growth", "spam"}
    assert [name for name in named if name.startswith(f"{tmp_path}/out/")] == [f"{tmp_path}/out/.job"]
    assert any(name.startswith(f"{tmp_path}/state/") for name in named), "the state, which is the driver's own"


def noting(real: Callable[..., None], named: list[str]) -> Callable[..., None]:
    """``real``, which gives a file another name, and notes which."""

    def name(old: Any, new: Any, **how: Any) -> None:
        named.append(str(new))
        real(old, new, **how)

    return name

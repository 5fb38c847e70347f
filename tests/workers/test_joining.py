"""Small files of the archive's days that are over: joined where a reader sees them before or after, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from workers.api_requests.job import joining
from workers.api_requests.job.joining import Joiner


def put(day: Path, batch: int, table: pa.Table) -> None:
    (day / f"batch={batch}").mkdir(parents=True)
    pq.write_table(table, day / f"batch={batch}" / "part.parquet")


@pytest.fixture
def archive(tmp_path: Path) -> Joiner:
    for day in ("date=2024-05-12", "date=2024-05-13"):
        for batch in range(12):
            put(tmp_path / "a" / day, batch, pa.table({"n": [batch]}))
    return Joiner(tmp_path / "a", by="date")


def read(tmp_path: Path, day: str) -> list[int]:
    return sorted(ds.dataset(tmp_path / "a" / day).to_table()["n"].to_pylist())


def test_joins_the_small_files_of_days_that_are_over(tmp_path: Path, archive: Joiner) -> None:
    assert archive.join(11) == 1
    names = [path.name for path in sorted((tmp_path / "a" / "date=2024-05-12").iterdir())]
    assert names == ["batch=10", "batch=11"]  # 11 may yet run again
    assert read(tmp_path, "date=2024-05-12") == read(tmp_path, "date=2024-05-13") == list(range(12))


def test_joins_nothing_where_folders_cannot_be_exchanged(
    tmp_path: Path, archive: Joiner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "exchange", lambda *_: False)
    monkeypatch.setattr(joining, "_write", lambda *_: pytest.fail("rewritten in vain"))
    assert [archive.join(11), archive.join(11)] == [0, 0]
    assert len(list((tmp_path / "a" / "date=2024-05-12").iterdir())) == 12
    assert read(tmp_path, "date=2024-05-12") == list(range(12))


def test_does_not_try_again_where_only_the_folders_themselves_cannot_be_exchanged(
    tmp_path: Path, archive: Joiner, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, joins = joining._write, []
    monkeypatch.setattr(joining, "_write", lambda files, target: (joins.append(target), real(files, target)))
    monkeypatch.setattr(joining, "exchange", lambda one, other: "exchange" in one.name)
    assert [archive.join(11), archive.join(11)] == [0, 0]
    assert len(joins) == 1
    assert read(tmp_path, "date=2024-05-12") == list(range(12))


def test_leaves_the_day_alone_that_is_not_over_whatever_a_line_dates_itself(tmp_path: Path, archive: Joiner) -> None:
    assert archive.join(11, until="2024-05-12") == 0
    assert archive.join(11, until="2024-05-13") == 1


@pytest.mark.parametrize(("limit", "most"), [("_GROUP_ROWS", 4), ("_GROUP_BYTES", 4 * 8)])
def test_joins_into_row_groups_of_a_good_size(
    tmp_path: Path, archive: Joiner, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(joining, limit, most)
    assert archive.join(11) == 1
    joined = pq.ParquetFile(tmp_path / "a" / "date=2024-05-12" / "batch=10" / "joined.parquet")
    assert [joined.metadata.row_group(n).num_rows for n in range(joined.num_row_groups)] == [4, 4, 3]


def test_joins_files_whose_columns_became_more_and_wider(tmp_path: Path, archive: Joiner) -> None:
    day = tmp_path / "a" / "date=2024-05-12"
    put(day, 12, pa.table({"n": pa.array([12.5]), "new": ["x"]}))
    put(day, 13, pa.table({"n": pa.array([13], pa.int32())}))
    assert archive.join(14) == 1
    rows = pq.read_table(day / "batch=13" / "joined.parquet", partitioning=None).to_pylist()
    assert [(row["n"], row["new"]) for row in rows[10:]] == [(10.0, None), (11.0, None), (12.5, "x"), (13.0, None)]


def test_leaves_files_alone_that_do_not_fit_together_and_joins_the_others(
    tmp_path: Path, archive: Joiner, caplog: pytest.LogCaptureFixture
) -> None:
    for batch in range(12):
        put(tmp_path / "a" / "date=2024-05-11", batch, pa.table({"n": [1] if batch != 9 else [[1]]}))
    assert archive.join(11) == 1
    assert archive.join(11) == 0
    assert len(list((tmp_path / "a" / "date=2024-05-11").iterdir())) == 12
    assert caplog.text.count("its small files stay as they are") == 1
    assert read(tmp_path, "date=2024-05-12") == list(range(12))
    assert not list((tmp_path / ".joining" / "a").glob("date=*"))


def test_what_goes_wrong_fails_no_batch(tmp_path: Path, archive: Joiner, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / ".joining").write_text("no folder, and none can be made in it")
    assert archive.join(11) == 0
    assert "small files stay as they are: [Errno 20] Not a directory" in caplog.text
    assert read(tmp_path, "date=2024-05-12") == list(range(12))


def test_leaves_a_few_files_alone(tmp_path: Path, archive: Joiner) -> None:
    assert archive.join(8) == 0

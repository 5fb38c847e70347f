"""Parquet files that a streaming batch writes: a batch that runs again leaves the same files, so a glob reads each row once.

Spark's own file sink is exact only for readers that know its log; these files are exact for every reader.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

_BATCH = re.compile(r"(?P<kind>batch|upto)-(?P<number>\d{9})(?:-\d+)?\.parquet")


class Store:
    """A folder of Parquet files, ``batch-<number>.parquet``, in sub-folders when ``by`` names a column to part it by.

    ``scratch`` is a folder on the same file system for what is not complete yet.
    """

    def __init__(self, folder: Path, scratch: Path, *, by: str | None = None) -> None:
        self.folder = folder
        self._scratch = scratch / folder.name
        self._by = by

    def write(self, rows: DataFrame, batch: int) -> int:
        """Write the rows of one batch, in place of what an earlier try of the same batch wrote; returns their number."""
        fresh = self._scratch / f"{batch:09d}"
        shutil.rmtree(fresh, ignore_errors=True)
        writer = (rows.repartition(self._by) if self._by else rows.coalesce(1)).write
        (writer.partitionBy(self._by) if self._by else writer).parquet(str(fresh))
        written = [self._publish(part, fresh, batch) for part in sorted(fresh.rglob("*.parquet"))]
        shutil.rmtree(fresh)
        return sum(written)

    def _publish(self, part: Path, fresh: Path, batch: int) -> int:
        rows = int(pq.read_metadata(part).num_rows)
        if rows:
            folder = self.folder / part.parent.relative_to(fresh)
            folder.mkdir(parents=True, exist_ok=True)
            _sync(part)
            os.replace(part, folder / f"batch-{batch:09d}.parquet")
            _sync(folder)
        return rows

    def read(self, spark: SparkSession) -> DataFrame | None:
        """All rows; None while there are none. Only for a store that is not parted."""
        files = [str(path) for path in self._files()]
        return spark.read.parquet(*files) if files else None

    def _files(self) -> list[Path]:
        """Those that count: the newest ``upto``, and the batches after it."""
        found = [(match["kind"], int(match["number"]), path) for match, path in _matches(self.folder)]
        last = max((number for kind, number, _ in found if kind == "upto"), default=-1)
        return [path for kind, number, path in sorted(found) if number > last or (kind == "upto" and number == last)]

    def merge(self, rows: DataFrame, batch: int) -> None:
        """Let ``rows`` stand for everything up to ``batch``, this one included. A crash anywhere inside loses nothing."""
        write_file(self.folder / f"upto-{batch:09d}.parquet", rows.toArrow())
        keep = set(self._files())
        for _, path in _matches(self.folder):
            if path not in keep:
                path.unlink()

    def count_files(self) -> int:
        return len(self._files())


def write_file(path: Path, table: pa.Table) -> None:
    """One complete Parquet file, or the one that was there before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    pq.write_table(table, fresh, compression="zstd")
    _sync(fresh)
    os.replace(fresh, path)
    _sync(path.parent)


def _matches(folder: Path) -> Iterator[tuple[re.Match[str], Path]]:
    if folder.is_dir():
        for path in folder.iterdir():
            if match := _BATCH.fullmatch(path.name):
                yield match, path


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

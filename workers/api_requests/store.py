"""Parquet files that a streaming batch writes: a batch that runs again leaves the same files, so a glob reads each row once.

Spark's own file sink is exact only for readers that know its log; these files are exact for every reader.
"""

from __future__ import annotations

import ctypes
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
        if rows or not any(self.folder.rglob("*.parquet")):  # one empty file has at least the columns
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

    def tidy(self, batch: int, *, most: int = 8) -> int:
        """In every sub-folder but the newest, join files of batches before ``batch`` when there are more than ``most``.

        Returns how many sub-folders it joined. A reader sees the files before or the file after, at every moment: the
        folders are exchanged in one step, and where the file system cannot do that, nothing is joined.
        """
        folders = sorted(path for path in self.folder.glob(f"{self._by}=*") if path.is_dir())[:-1]
        return sum(self._tidy(folder, batch) for folder in folders if len(_before(folder, batch)) > most)

    def _tidy(self, folder: Path, batch: int) -> bool:
        fresh = self._scratch / folder.name
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        old = _before(folder, batch)
        _join(old, fresh / f"upto-{batch - 1:09d}.parquet")
        for path in set(folder.iterdir()) - set(old):
            os.link(path, fresh / path.name)
        _sync(fresh)
        exchanged = exchange(fresh, folder)
        shutil.rmtree(fresh)
        return exchanged


def write_file(path: Path, table: pa.Table) -> None:
    """One complete Parquet file, or the one that was there before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    pq.write_table(table, fresh, compression="zstd")
    _sync(fresh)
    os.replace(fresh, path)
    _sync(path.parent)


def _before(folder: Path, batch: int) -> list[Path]:
    return sorted(path for match, path in _matches(folder) if int(match["number"]) < batch)


def _join(files: list[Path], target: Path) -> None:
    with pq.ParquetWriter(target, pq.read_schema(files[0]), compression="zstd") as writer:
        for path in files:
            for some in pq.ParquetFile(path).iter_batches():
                writer.write_batch(some)
    _sync(target)


def exchange(one: Path, other: Path) -> bool:
    """Give two folders each other's names in one step; False, and nothing done, where that cannot be had.

    Source: renameat2(2), RENAME_EXCHANGE.
    """
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    done: int = rename(here, os.fsencode(one), here, os.fsencode(other), swap)
    return done == 0


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

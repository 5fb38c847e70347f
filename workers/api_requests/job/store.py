"""Parquet files that a streaming batch writes: a batch that runs again leaves the same files, so a glob reads each row once.

Spark's own file sink is exact only for readers that know its log; these files are exact for every reader.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as f

from framework import FrameworkError
from workers.api_requests.job import durable

_log = logging.getLogger(__name__)
_GROUP_ROWS = 128 * 1024
_GROUP_BYTES = 64 * 1024 * 1024
_BATCH = re.compile(r"(?P<kind>batch|upto)-(?P<number>\d{9})(?:-\d+)?\.parquet")


class NotShared(FrameworkError):
    """What the executors wrote is not where the driver looks."""


class Store:
    """A folder of Parquet files, ``batch-<number>.parquet``, in sub-folders when ``by`` names a column to part it by.

    ``scratch`` is a folder on the same file system for what is not complete yet; the executors write there.
    """

    def __init__(self, folder: Path, scratch: Path, *, by: str | None = None) -> None:
        self.folder = folder
        self._scratch = scratch / folder.name
        self._by = by
        self._joins = True
        self._left_alone: set[Path] = set()

    def write(self, rows: DataFrame, batch: int) -> int:
        """Write the rows of one batch, in place of what an earlier try of the same batch wrote; returns their number.

        Raises NotShared, having published nothing, when the files do not hold the rows that Spark has counted.
        """
        fresh = self._scratch / f"{batch:09d}"
        shutil.rmtree(fresh, ignore_errors=True)
        counted = self._spark_writes(rows, fresh)
        parts = {part: int(pq.read_metadata(part).num_rows) for part in sorted(fresh.rglob("*.parquet"))}
        if sum(parts.values()) != counted:
            raise NotShared(
                f"batch {batch}: Spark has written {counted:,} rows into {fresh}, and {sum(parts.values()):,} are there: this "
                "folder must be one that the driver and every executor share (--state)"
            )
        for part, count in parts.items():
            self._publish(part, count, fresh, batch)
        shutil.rmtree(fresh)
        return counted

    def _spark_writes(self, rows: DataFrame, fresh: Path) -> int:
        """Returns how many rows went into files, by Spark's own count: on a cluster the files may be on another disk."""
        observed = Observation()
        arranged = rows.repartition(self._by) if self._by else rows.coalesce(1)
        # One file in a folder, whatever Spark's settings are: a second would take the first one's name.
        writer = arranged.observe(observed, f.count(f.lit(1)).alias("rows")).write.option("maxRecordsPerFile", 0)
        (writer.partitionBy(self._by) if self._by else writer).parquet(str(fresh))
        return int(observed.get["rows"])

    def _publish(self, part: Path, rows: int, fresh: Path, batch: int) -> None:
        if rows or not any(self.folder.rglob("*.parquet")):  # one empty file has at least the columns
            folder = self.folder / part.parent.relative_to(fresh)
            for made in (self.folder, folder):  # and none above: an output that was moved away is not begun anew
                made.mkdir(exist_ok=True)
            durable.replace(part, folder / f"batch-{batch:09d}.parquet")

    def _files(self) -> list[Path]:
        """Those that count: the newest ``upto``, and the batches after it."""
        found = [(match["kind"], int(match["number"]), path) for match, path in _matches(self.folder)]
        last = max((number for kind, number, _ in found if kind == "upto"), default=-1)
        return [path for kind, number, path in sorted(found) if number > last or (kind == "upto" and number == last)]

    def after(self, batch: int) -> list[tuple[int, Path]]:
        """The files of batches after ``batch``, in order, and their numbers. Only for a store that is not parted."""
        files = [(int(match["number"]), path) for path in self._files() if (match := _BATCH.fullmatch(path.name))]
        return sorted(one for one in files if one[0] > batch)

    def drop(self, batch: int) -> None:
        """Let go of all up to ``batch``, this one included: what they hold is kept elsewhere, durably."""
        for match, path in list(_matches(self.folder)):
            if int(match["number"]) <= batch:
                path.unlink()

    def tidy(self, batch: int, *, most: int = 8, until: str | None = None) -> int:
        """In every sub-folder but the newest, join files of batches before ``batch`` when there are more than ``most``.

        ``until``: a value of the column from which on sub-folders are left alone, too: today, whatever a line dates itself.
        Returns how many sub-folders it joined. A reader sees the files before or the file after, at every moment: the
        folders are exchanged in one step, and where the file system cannot do that, or the files do not fit together,
        nothing is joined. What goes wrong here fails no batch.
        """
        if not self._joins:
            return 0
        folders = sorted(path for path in self.folder.glob(f"{self._by}=*") if path.is_dir())[:-1]
        over = [path for path in folders if until is None or path.name < f"{self._by}={until}"]
        many = [path for path in over if path not in self._left_alone and len(_before(path, batch)) > most]
        self._joins = not many or self._can_exchange()  # asked before anything is rewritten in vain
        return sum(self._tidy(folder, batch) for folder in many if self._joins)

    def _can_exchange(self) -> bool:
        pair = [self._scratch / name for name in ("exchange-a", "exchange-b")]
        try:
            for path in pair:
                path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            _log.warning("%s: small files stay as they are: %s", self.folder, error)
            return False
        return exchange(*pair)

    def _tidy(self, folder: Path, batch: int) -> bool:
        fresh = self._scratch / folder.name
        shutil.rmtree(fresh, ignore_errors=True)
        old = _before(folder, batch)
        try:
            fresh.mkdir(parents=True)
            _join(old, fresh / f"upto-{batch - 1:09d}.parquet")
            for path in set(folder.iterdir()) - set(old):
                os.link(path, fresh / path.name)
            durable.sync(fresh)
            self._joins = exchange(fresh, folder)
        except (OSError, pa.ArrowException) as error:
            _log.warning("%s: its small files stay as they are: %s", folder, error)
            self._left_alone.add(folder)  # not tried again with every batch
            return False
        finally:
            shutil.rmtree(fresh, ignore_errors=True)  # else the next try does it
        return self._joins


def write_file(path: Path, table: pa.Table) -> None:
    """One complete Parquet file, or the one that was there before."""
    path.parent.mkdir(exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    pq.write_table(table, fresh, compression="zstd")
    durable.replace(fresh, path)


def _before(folder: Path, batch: int) -> list[Path]:
    return sorted(path for match, path in _matches(folder) if int(match["number"]) < batch)


def _join(files: list[Path], target: Path) -> None:
    """All rows in one file, in row groups of a size that is good to read; columns that some files lack are null there.

    Raises ArrowException where a column has types that do not fit together.
    """
    # Without the metadata: Spark's own there tells the columns of one file, not of all.
    schema = pa.unify_schemas([pq.read_schema(path).remove_metadata() for path in files], promote_options="permissive")
    rows = ds.dataset(files, schema=schema, format="parquet").to_batches(batch_readahead=1, fragment_readahead=1)
    with pq.ParquetWriter(target, schema, compression="zstd") as writer:
        for group in _groups(rows):
            writer.write_table(group, row_group_size=group.num_rows)
    durable.sync(target)


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _GROUP_ROWS or size >= _GROUP_BYTES:
            yield pa.Table.from_batches(held)
            held, rows, size = [], 0, 0
    if rows:
        yield pa.Table.from_batches(held)


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

"""What a channel keeps of each batch beside the driver until it is counted: a Parquet file ``batch-<number>.parquet``."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from workers.api_requests import durable

_BATCH = re.compile(r"(?:batch|upto)-(?P<number>\d{9})\.parquet")  # upto: an earlier version's, of all before


class Kept:
    """The files in ``folder``, which is this machine's: executors send rows, and write none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, rows: DataFrame, batch: int) -> int:
        """Keep the rows of one batch, in place of what an earlier try kept of it, durably; returns their number."""
        table = rows.toArrow()
        write_file(self.folder / f"batch-{batch:09d}.parquet", table)
        return int(table.num_rows)

    def after(self, batch: int) -> list[tuple[int, Path]]:
        """The files of batches after ``batch``, in order, and their numbers; none that an earlier version's ``upto`` holds as
        well, beside which a crash may have left it."""
        found = self._all()
        joined = max((number for number, path in found if path.name.startswith("upto")), default=-1)
        counts = [one for one in found if one[0] > joined or one[1].name == f"upto-{joined:09d}.parquet"]
        return [one for one in counts if one[0] > batch]

    def drop(self, batch: int) -> None:
        """Let go of all up to ``batch``, this one included: what they hold is counted, durably."""
        for number, path in self._all():
            if number <= batch:
                path.unlink()

    def _all(self) -> list[tuple[int, Path]]:
        paths = list(self.folder.iterdir()) if self.folder.is_dir() else []
        return sorted((int(match["number"]), path) for path in paths if (match := _BATCH.fullmatch(path.name)))


def write_file(path: Path, table: pa.Table) -> None:
    """One complete Parquet file, or the one that was there before."""
    path.parent.mkdir(exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    pq.write_table(table, fresh, compression="zstd")
    durable.replace(fresh, path)

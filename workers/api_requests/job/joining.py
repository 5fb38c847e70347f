"""Small files of the archive's days that are over, joined in an output that is a folder of this machine.

Elsewhere they stay as they are: no other file system gives two folders each other's names in one step, and without that a reader
would find rows twice or not at all.
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

from workers.api_requests.job import durable

_log = logging.getLogger(__name__)
_GROUP_ROWS = 128 * 1024
_GROUP_BYTES = 64 * 1024 * 1024
_BATCH = re.compile(r"batch=(?P<number>\d+)")


class Joiner:
    """Joins in ``folder``, a table parted by the column ``by``. What is not complete yet lies in a hidden folder beside it."""

    def __init__(self, folder: Path, *, by: str) -> None:
        self._folder = folder
        self._scratch = folder.parent / ".joining" / folder.name
        self._by = by
        self._joins = True
        self._left_alone: set[Path] = set()

    def join(self, batch: int, *, most: int = 8, until: str | None = None) -> int:
        """In every sub-folder but the newest, join files of batches before ``batch`` when there are more than ``most``.

        ``until``: a value of the column from which on sub-folders are left alone, too: today, whatever a line dates itself.
        Returns how many sub-folders it joined. A reader sees the files before or the file after, at every moment: the
        folders are exchanged in one step, and where the file system cannot do that, or the files do not fit together,
        nothing is joined. What goes wrong here fails no batch.
        """
        if not self._joins:
            return 0
        folders = sorted(path for path in self._folder.glob(f"{self._by}=*") if path.is_dir())[:-1]
        over = [path for path in folders if until is None or path.name < f"{self._by}={until}"]
        many = [path for path in over if path not in self._left_alone and len(_before(path, batch)) > most]
        self._joins = not many or self._can_exchange()  # asked before anything is rewritten in vain
        return sum(self._join(folder, batch) for folder in many if self._joins)

    def _can_exchange(self) -> bool:
        pair = [self._scratch / name for name in ("exchange-a", "exchange-b")]
        try:
            for path in pair:
                path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            _log.warning("%s: small files stay as they are: %s", self._folder, error)
            return False
        return exchange(*pair)

    def _join(self, folder: Path, batch: int) -> bool:
        fresh = self._scratch / folder.name
        shutil.rmtree(fresh, ignore_errors=True)
        old = _before(folder, batch)
        try:
            target = fresh / f"batch={batch - 1}"
            target.mkdir(parents=True)
            _write([path for one in old for path in sorted(one.glob("*.parquet"))], target / "joined.parquet")
            for path in set(folder.iterdir()) - set(old):
                shutil.copytree(path, fresh / path.name, copy_function=os.link)
            for made in (*fresh.iterdir(), fresh):
                durable.sync(made)
            self._joins = exchange(fresh, folder)
        except (OSError, pa.ArrowException) as error:
            _log.warning("%s: its small files stay as they are: %s", folder, error)
            self._left_alone.add(folder)  # not tried again with every batch
            return False
        finally:
            shutil.rmtree(fresh, ignore_errors=True)  # else the next try does it
        return self._joins


def _before(folder: Path, batch: int) -> list[Path]:
    """The folders of batches before ``batch``, in order."""
    found = [(int(match["number"]), path) for path in folder.iterdir() if (match := _BATCH.fullmatch(path.name))]
    return [path for number, path in sorted(found) if number < batch]


def _write(files: list[Path], target: Path) -> None:
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

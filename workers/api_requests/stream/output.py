"""Where the results lie: a local folder, or a folder of any file system that Spark writes to.

Tables are Spark's to write (`store`). Here are what they need besides that, and the few small files that lie beside them, which
go through Spark's file systems too.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Protocol

import pyarrow.parquet as pq

from workers.api_requests import durable
from workers.api_requests.detect.tables import Files
from workers.api_requests.stream.hadoop import write_local

URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:/")


class Output(Files, Protocol):
    """Names are relative to the output, with slashes."""

    def url_of(self, name: str) -> str:
        """What Spark is told."""

    def claim(self, name: str, text: str) -> str:
        """Write ``text`` unless the file is there already; returns what it holds."""

    def make(self, name: str) -> None:
        """A folder in the output."""

    def remove(self, pattern: str) -> None:
        """All files and folders that match the pattern of a glob, with what they hold."""

    def has_tables(self) -> bool:
        """Whether there is any Parquet file."""

    def rows(self, pattern: str) -> int | None:
        """In the Parquet files of the folders that match, as this machine sees them, which are durable then; None where all
        machines see the same, and a file that is closed is kept."""


class LocalOutput:
    """A folder of this machine, or one that is mounted on it and on all executors."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __str__(self) -> str:
        return str(self.folder)

    def url_of(self, name: str) -> str:
        return (self.folder.absolute() / name).as_uri()  # whatever file system Spark takes for its own

    def read(self, name: str) -> bytes | None:
        try:
            return (self.folder / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, name: str, content: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)  # and none above: an output that was moved away is not begun anew
        write_local(path.absolute(), content)
        durable.sync(path.parent)

    def claim(self, name: str, text: str) -> str:
        return durable.write_first(self.folder / name, text)

    def make(self, name: str) -> None:
        (self.folder / name).mkdir(parents=True, exist_ok=True)

    def remove(self, pattern: str) -> None:
        for path in list(self.folder.glob(pattern)):
            shutil.rmtree(path)

    def has_tables(self) -> bool:
        return any(self.folder.rglob("*.parquet"))

    def rows(self, pattern: str) -> int | None:
        """Spark closes what it writes, and no more: after a power cut its checkpoint could be there, and the rows not."""
        count = 0
        for folder in self.folder.glob(pattern):
            for path in folder.iterdir():
                durable.sync(path)
                count += pq.read_metadata(path).num_rows if path.suffix == ".parquet" else 0
            for path in (folder, *folder.parents[: len(folder.relative_to(self.folder).parts)]):
                durable.sync(path)
        return count

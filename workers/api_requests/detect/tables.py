"""The tables that are found out, growth and spam: small Parquet files that readers see whole, wherever the output lies."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq


class Files(Protocol):
    """Where the tables go. Names are relative to the output, with slashes."""

    def read(self, name: str) -> bytes | None:
        """None where there is no such file."""

    def write(self, name: str, content: bytes) -> None:
        """Readers see the file whole, or as it was before; after a crash too. Folders are made, but not the output itself."""


def write_table(files: Files, name: str, table: pa.Table) -> None:
    """One complete Parquet file, or the one that was there before."""
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, compression="zstd")
    files.write(name, buffer.getvalue().to_pybytes())

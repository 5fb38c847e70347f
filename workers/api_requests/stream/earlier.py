"""An output that an earlier version wrote: its files get folders for their batches, as they have now."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

_BATCH = re.compile(r"(?:batch|upto)-(?P<number>\d{9})(?:-\d+)?\.parquet")


def adopt(output: Path) -> None:
    """Move what lies beside the folders of batches into them. A crash anywhere inside loses nothing: the next start goes on."""
    shutil.rmtree(output / ".joining", ignore_errors=True)  # days that were being rewritten, which are as they were
    for path in (*output.glob("archive/date=*/*.parquet"), *output.glob("rejected/*.parquet")):
        if match := _BATCH.fullmatch(path.name):
            folder = path.parent / f"batch={int(match['number'])}"
            folder.mkdir(exist_ok=True)
            path.rename(folder / path.name)

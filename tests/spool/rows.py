"""What lies in a spool."""

from __future__ import annotations

from collections.abc import Callable

from framework.message import Batch
from framework.spool import Spool, segment

MakeBatch = Callable[..., Batch]
NOTED = f"times-{0:020d}"
"""Where it is noted when the rows of the segments under 1000 were taken."""


def landed(spool: Spool) -> list[dict[str, object]]:
    return [row for one in segment.listing(spool.folder) for row in segment.read(one.path).to_pylist()]


def ids(spool: Spool) -> list[object]:
    return [row["message_id"] for row in landed(spool)]

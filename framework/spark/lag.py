"""How far a query is behind its spool, told by the offset that Spark keeps of it. It needs no session."""

from __future__ import annotations

import json
import os
import time
from typing import NamedTuple

from framework.spark.offsets import Offset, end_of, spans, start_of
from framework.spool.root import collectors, epoch, lives_of, root_of
from framework.spool.segment import cut, landed_at, steady


class Lag(NamedTuple):
    """What a query has not read."""

    rows: int
    seconds: float
    """Since the first of the rows was landed; 0 where none waits."""


def lag(spool_dir: str | os.PathLike[str], offset: str | None) -> Lag:
    """How far a query is behind the spool in ``spool_dir``.

    ``offset``: how far it is, in JSON as ``lastProgress`` and a query listener have it (``sources[0].endOffset``); None before
    its first batch. An offset of another spool counts as none. Raises WrongUse for a URL that no spool can lie in, OSError where
    its storage does not answer, and SpoolError for a spool that is not as it was left.
    """
    root = root_of(spool_dir)
    known = None if offset is None else Offset.of(json.loads(offset))
    cursors = known.cursors if known is not None and known.epoch == epoch(root) else {}
    lives = lives_of(root)
    rows, landed = 0, []
    for name in collectors(root):
        segments = steady(root / name)
        begin = cursors.get(name) or start_of(segments)
        if known is not None and known.began_anew(name, lives):
            begin = min(begin, start_of(segments))
        waiting = spans(name, cut(segments, begin.segment), begin, end_of(segments))
        rows += sum(span.rows for span in waiting)
        landed += [at for span in waiting[:1] if (at := landed_at(span.segment))]  # 0: a query has read and deleted it
    return Lag(rows, max(0.0, time.time() - min(landed)) if landed else 0.0)

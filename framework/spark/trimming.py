"""Deletes what a query has read, where its retention says so. A storage that refuses it, as one that is full may, keeps no row
from being read."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from framework.spark.offsets import Cursor, Offset
from framework.spark.options import ReadOptions
from framework.spool.limit import to_keep
from framework.spool.root import lives_of
from framework.spool.segment import trim
from framework.spool.storage import StorageError
from framework.spool.told import REMEMBER, told

_log = logging.getLogger(__name__)
_AGAIN = 10.0
"""Seconds until what was refused is tried again, and ten times as long as the try took: Spark asks every 14 ms when idle."""


class Trimming:
    """Of one query."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self.done: Mapping[str, Cursor] = {}
        """Up to where all is deleted that may be, as of the last try."""
        self._again_at = 0.0
        self._refused = False

    def up_to(self, offset: Offset) -> None:
        """Delete what is before ``offset`` and nobody needs. Raises OSError for a folder, and SpoolError.

        Of a folder that was emptied since, nothing is before it: its numbers began anew."""
        began = time.monotonic()
        if not self._options.trim or began < self._again_at:
            return
        root = self._options.spool_dir
        try:
            lives = lives_of(root)
            for name, cursor in offset.cursors.items():
                if offset.began_anew(name, lives):
                    continue
                folder = root / name
                trim(folder, cursor.segment, self._options.dedupe_window, to_keep(folder), told(folder, REMEMBER) or 0.0)
        except StorageError as error:
            ended = time.monotonic()
            self._again_at = ended + max(_AGAIN, 10 * (ended - began))
            if not self._refused:
                _log.warning("spool %s: %s; until then what was read stays there", root, error)
            self._refused = True
        else:
            self.done, self._again_at, self._refused = dict(offset.cursors), 0.0, False

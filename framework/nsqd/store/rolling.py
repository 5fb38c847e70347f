"""Begins a segment of the log, with a head from which the log alone could be read, when older segments are gone."""

from __future__ import annotations

from framework.nsqd.store.catalog import Catalog
from framework.nsqd.store.segments import Segments


def roll(log: Segments, catalog: Catalog) -> None:
    """Its head says again all that a rebuild needs, as older segments will be removed. Raises OSError."""
    # After a failed sync the old segment may lack what was confirmed before it. The heads have what it declares.
    rewritten = [batch for batch in log.unsynced() if batch.count] if log.suspect else []
    start = log.roll(catalog.heads(), rewritten)
    catalog.accept(rewritten, log.active, start)

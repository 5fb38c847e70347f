"""What Spark's Python workers collect after each task: not what they have loaded."""

from __future__ import annotations

import gc
import sys


def spare_what_is_loaded() -> None:
    """What this process holds by now is left out of its collections of garbage. Once in a process, and only under Spark's daemon.

    The daemon collects all garbage after each task, and goes through all modules for it, pandas among them: half of the CPU that
    Python takes for a task of 2,500 rows (docs/spark-upstream.md, 6). Garbage of before is collected first.
    """
    daemon = getattr(sys.modules["__main__"], "__spec__", None)
    if daemon is None or daemon.name != "pyspark.daemon" or gc.get_freeze_count():
        return
    gc.collect()
    gc.freeze()

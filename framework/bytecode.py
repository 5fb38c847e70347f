"""Keeps Python from running a former version of a module that was changed twice within a second.

Python takes ``__pycache__/shop.pyc`` for what ``shop.py`` holds where size and time of change agree, and it notes the
time in whole seconds (`PEP 3147`_ and the format of `.pyc` files). A second release within that second, of the same
size, would not be run by any process.

.. _PEP 3147: https://peps.python.org/pep-3147/
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

RACY = 2.0
"""Seconds: bytecode of a file that was changed so shortly before cannot be told from that of its next version."""


@contextmanager
def not_kept_while_fresh() -> Iterator[None]:
    """Around imports: what they compiled from files that were just changed is not left for other processes."""
    before, began = set(sys.modules), time.time()
    try:
        yield
    finally:
        if not sys.dont_write_bytecode:
            for name in sys.modules.keys() - before:
                _forget(getattr(sys.modules[name], "__spec__", None), began - RACY)


def _forget(spec: object, fresh: float) -> None:
    source, cached = getattr(spec, "origin", None), getattr(spec, "cached", None)
    if isinstance(source, str) and isinstance(cached, str):
        with suppress(OSError):
            if os.stat(source).st_mtime > fresh:
                os.unlink(cached)

"""What the Spark tests share: spools filled without a broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from framework.message import Batch, Message
from framework.spool import Spool
from tests.origins import Source
from tests.storages import _gateway, s3, spool_url

__all__ = ["_gateway", "s3", "spool_url"]


def messages(first: int, last: int, body: Callable[[int], bytes] = lambda n: b"m%d" % n, **source: str) -> Batch:
    """The messages ``first`` to ``last``, as a connection would have delivered them."""
    origin = Source(**source)
    return Batch([Message(b"%016x" % n, 1_700_000_000_123_456_789 + n, 1, body(n), origin) for n in range(first, last)])


@pytest.fixture
def land(tmp_path: Path) -> Callable[..., Path]:
    """``land(0, 100, "a")``: a segment with the messages 0 to 99 of collector "a"; returns the spool's folder."""
    spools: dict[str, Spool] = {}

    def make(first: int, last: int, collector: str = "a", **more: Any) -> Path:
        folder = tmp_path / "spool"
        spool = spools.setdefault(collector, Spool(folder, collector, remember=0))
        spool.land(messages(first, last, **more))
        return folder

    return make

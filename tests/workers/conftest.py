"""What the pipeline's tests share: the lines of the log that comes with the project."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOG = ROOT / "data" / "erddap_access_2024-05.log.gz"
TAKEN = datetime(2024, 6, 1, tzinfo=UTC)
"""When the queue took the lines of these tests."""


@pytest.fixture(scope="session")
def as_lines(spark: Any) -> Callable[[Iterable[bytes]], Any]:
    """Lines as the source ``nsq`` gives them, as far as the pipeline looks."""

    def make(lines: Iterable[bytes], taken: datetime = TAKEN) -> Any:
        rows = [(bytearray(line), f"{number:016x}", taken) for number, line in enumerate(lines)]
        return spark.createDataFrame(rows, "value binary, message_id string, timestamp timestamp")

    return make


@pytest.fixture(scope="session")
def log_lines() -> list[bytes]:
    """The 16,275 lines of the shipped log."""
    return gzip.decompress(LOG.read_bytes()).splitlines()


@pytest.fixture(scope="session")
def shipped(as_lines: Callable[[Iterable[bytes]], Any], log_lines: list[bytes]) -> Any:
    """The shipped log, parsed once."""
    from workers.api_requests.stream.parse import parse

    return parse(as_lines(log_lines)).localCheckpoint()

"""Sizes and counts as people write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from framework import amounts


@pytest.mark.parametrize(
    ("written", "bytes_"),
    [(1000, 1000), ("1000", 1000), ("1k", 1024), ("500MB", 500 << 20), ("500 MiB", 500 << 20), ("1.5g", 3 << 29), ("7b", 7)],
)
def test_a_size_has_many_spellings(written: Any, bytes_: int) -> None:
    assert amounts.size(written) == bytes_


@pytest.mark.parametrize("written", ["", "much", "-1", 0, "0MB", True, None, "1 TB", "1e9", "0.5", "9" * 400, "9000000000GB"])
def test_what_is_no_size_is_refused(written: Any) -> None:
    with pytest.raises(ValueError, match="is not a size: write bytes, or 500MB"):
        amounts.size(written)


@pytest.mark.parametrize("written", ["", "0", "-1", 1.5, True, "all", "4097", "9" * 5000])
def test_what_is_no_number_of_processes_is_refused(written: Any) -> None:
    with pytest.raises(ValueError, match="is neither a whole number from 1 to 4096 nor auto"):
        amounts.processes(written)


@pytest.mark.parametrize("written", ["", "0", "-1", 1.5, True, "9" * 17, "9" * 5000])
def test_what_is_no_number_of_messages_is_refused(written: Any) -> None:
    with pytest.raises(ValueError, match="is not a whole number from 1 up"):
        amounts.count(written)


@pytest.mark.parametrize(("quota", "most"), [("150000 100000\n", 2), ("20000 100000\n", 1), ("max 100000\n", 1 << 20)])
def test_a_container_gets_no_more_processes_than_it_has_cores_paid_for(
    quota: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(amounts, "_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    assert amounts.processes("auto") == min(8, most)

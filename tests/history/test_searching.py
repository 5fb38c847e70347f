"""What is found in a history by the moments between which it started."""

from __future__ import annotations

from pathlib import Path

import pytest

from framework.history.rows import NONE
from framework.history.searching import search
from framework.history.store import Store

NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("since", "before", "numbers"),
    [(None, None, range(10)), (3, None, range(3, 10)), (None, 7, range(7)), (3, 7, range(3, 7)), (7, 3, range(0))],
)
def test_what_started_since_a_moment_and_before_another_is_found(
    since: int | None, before: int | None, numbers: range, tmp_path: Path
) -> None:
    """The first moment is in it, the other is not."""
    one = Store(file := tmp_path / "db", age=1e10, size=1 << 30)
    one.write([(b"%016x" % number, "a/b", "n:1", 1, "finished", NONE, NOW + number, NOW + number + 0.5) for number in range(10)])
    one.close()
    limits = {name: NOW + at for name, at in (("since", since), ("before", before)) if at is not None}
    assert [row["id"] for row in search(file, **limits)] == [f"{number:016x}" for number in reversed(numbers)]

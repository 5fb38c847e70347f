"""What is taken for a Timeout that an earlier call left running."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from framework.middleware.strays import is_stray

LIMIT = 10.0


@pytest.mark.parametrize(
    ("error", "stray"),
    [
        (gevent.Timeout(5), True), (gevent.Timeout(2), False), (gevent.Timeout(), False), (TimeoutError(), False),
    ],
    ids=["longer than the call has run", "as long", "for ever", "no Timeout of gevent's"],
)  # fmt: skip
def test_a_timeout_for_longer_than_the_call_has_run_was_not_started_in_it(error: BaseException, stray: bool) -> None:
    message: Any = SimpleNamespace(seconds_left=LIMIT - 2.0)
    assert is_stray(message, LIMIT, error) is stray

"""Delays: they grow, they are capped, they spread."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.engine import backoff
from framework.engine.ledger import Ledger

chances = st.floats(0.0, 1.0, exclude_max=True)


@pytest.mark.parametrize(("attempts", "most"), [(1, 1), (2, 2), (5, 16), (11, 600), (65535, 600)])
def test_retries_grow_exponentially_up_to_the_cap(attempts: int, most: float) -> None:
    assert backoff.retry_delay(attempts, chance=lambda: 1.0) == most


@given(attempts=st.integers(0, 70000), chance=chances)
def test_a_retry_waits_anything_between_nothing_and_its_bound(attempts: int, chance: float) -> None:
    assert 0 <= backoff.retry_delay(attempts, chance=lambda: chance) <= backoff.RETRY_CAP


@given(failures=st.integers(1, 10**6), chance=chances)
def test_a_node_is_dialled_again_within_the_cap_but_never_at_once(failures: int, chance: float) -> None:
    delay = backoff.reconnect_delay(failures, chance=lambda: chance)
    assert backoff.RECONNECT_BASE / 2 <= delay <= backoff.RECONNECT_CAP


def test_polls_spread_by_thirty_per_cent_and_are_never_later_than_asked() -> None:
    assert backoff.spread(10, chance=lambda: 0.0) == 7
    assert backoff.spread(10, chance=lambda: 1.0) == pytest.approx(10)


def test_a_buried_message_is_dead_and_not_finished_once_its_finish_has_gone_out() -> None:
    ledger = Ledger(received=1)
    ledger.buried()
    assert ledger.balance(in_flight=1) == 0
    ledger.finished += 1
    assert ledger.as_dict() == {"received": 1, "finished": 0, "requeued": 0, "dead": 1, "lease_lost": 0}
    assert ledger.balance(in_flight=0) == 0

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


def failing(restraint: backoff.Restraint, count: int, now: float = 0.0) -> bool:
    """``count`` different messages fail; whether a pause begins with any of them."""
    return sum(restraint.failed(object(), now) for _ in range(count)) > 0


def test_one_poison_message_pauses_nobody() -> None:
    restraint = backoff.Restraint()
    assert not any(restraint.failed("poison", now) for now in range(1000))
    assert restraint.allowance(1000) is None


def test_a_minority_of_failures_pauses_nobody() -> None:
    restraint = backoff.Restraint()
    for now in range(1000):
        restraint.went_well(6, now)
        assert not failing(restraint, 4, now)


@pytest.mark.parametrize("before", [0, 30, 10**6])
def test_when_most_of_the_last_messages_fail_a_pause_begins(before: int) -> None:
    restraint = backoff.Restraint(chance=lambda: 1.0)
    restraint.went_well(before, 0.0)
    assert failing(restraint, backoff.HISTORY)
    assert restraint.allowance(0.5) == 0


def test_a_pause_is_followed_by_a_probe_for_as_long_as_it_takes() -> None:
    restraint = backoff.Restraint(chance=lambda: 1.0)
    assert restraint.is_down(100.0)
    assert [restraint.allowance(now) for now in (100.0, 100.9, 101.0, 10**6)] == [0, 0, 1, 1]


def test_each_probe_that_fails_makes_the_pause_longer_up_to_the_cap() -> None:
    restraint, now, pauses = backoff.Restraint(chance=lambda: 1.0), 0.0, []
    for _ in range(10):
        assert restraint.failed("probe", now) if pauses else restraint.is_down(now)
        pauses.append(restraint.until - now)
        now = restraint.until
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]


def test_the_first_that_goes_well_ends_it_at_once_whatever_its_level() -> None:
    restraint = backoff.Restraint()
    for _ in range(20):
        restraint.is_down(restraint.until)
    assert not restraint.went_well(0, restraint.until)
    assert restraint.went_well(1, restraint.until)
    assert restraint.allowance(restraint.until) is None
    assert not failing(restraint, backoff.FEWEST_FAILURES - 1), "what failed before the pause is forgotten"


def test_what_ends_during_a_pause_began_before_it_and_changes_nothing() -> None:
    restraint = backoff.Restraint(chance=lambda: 1.0)
    restraint.is_down(0.0)
    assert not restraint.is_down(0.5)
    assert not failing(restraint, 100, 0.5)
    assert not restraint.went_well(5, 0.5)
    assert (restraint.level, restraint.until) == (1, 1.0)


def test_a_handler_may_ask_for_a_longer_pause() -> None:
    restraint = backoff.Restraint(chance=lambda: 1.0)
    restraint.is_down(0.0, at_least=30.0)
    assert restraint.until == 30.0


events = st.lists(st.tuples(st.sampled_from(["well", "failed", "down", "nothing"]), st.floats(0.0, 5.0)), max_size=200)


@given(events=events, chance=chances)
def test_whatever_happens_it_is_never_longer_than_the_cap_from_a_probe_and_one_success_from_its_end(
    events: list[tuple[str, float]], chance: float
) -> None:
    restraint, now = backoff.Restraint(chance=lambda: chance), 0.0
    for event, elapsed in events:
        now += elapsed
        if event == "well":
            restraint.went_well(1, now)
        elif event == "failed":
            restraint.failed(object(), now)
        elif event == "down":
            restraint.is_down(now)
        assert restraint.until - now <= backoff.PAUSE_CAP
        assert (restraint.allowance(now) is None) == (restraint.level == 0)
    now = max(now, restraint.until)
    assert restraint.allowance(now) in (1, None)
    restraint.went_well(1, now)
    assert restraint.allowance(now) is None

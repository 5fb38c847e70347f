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


@pytest.mark.parametrize(
    ("failures", "often", "least", "most"),
    [
        (1, False, 0.05, 0.1),
        (1, True, 0.05, 0.1),
        (3, True, 0.2, 0.4),
        (4, True, 0.25, 0.5),
        (4, False, 0.4, 0.8),
        (50, False, 7.5, 15),
    ],
)
def test_a_node_that_was_there_a_moment_ago_is_dialled_more_often(failures: int, often: bool, least: float, most: float) -> None:
    assert backoff.reconnect_delay(failures, often=often, chance=lambda: 0.0) == pytest.approx(least)
    assert backoff.reconnect_delay(failures, often=often, chance=lambda: 1.0) == pytest.approx(most)


@given(level=st.integers(1, 10**6), longest=st.none() | st.floats(0.5, 1000.0), chance=chances)
def test_a_pause_grows_to_its_longest_and_at_least_half_of_it_is_waited(level: int, longest: float | None, chance: float) -> None:
    bound = min(backoff.PAUSE_CAP if longest is None else longest, backoff.PAUSE_BASE * 2.0 ** min(level - 1, 100))
    assert bound / 2 <= backoff.pause_delay(level, longest=longest, chance=lambda: chance) <= bound


def test_polls_spread_by_thirty_per_cent_and_are_never_later_than_asked() -> None:
    assert backoff.spread(10, chance=lambda: 0.0) == 7
    assert backoff.spread(10, chance=lambda: 1.0) == pytest.approx(10)


def test_a_dead_lettered_message_is_dead_and_not_finished_once_its_finish_has_gone_out() -> None:
    ledger = Ledger(received=1)
    ledger.dead_lettered()
    assert ledger.balance(in_flight=1) == 0
    ledger.finished += 1
    assert ledger.as_dict() == {"received": 1, "finished": 0, "requeued": 0, "dead": 1, "lease_lost": 0}
    assert ledger.balance(in_flight=0) == 0


def failing(state: backoff.BreakerState, count: int, now: float = 0.0) -> bool:
    """``count`` different messages fail; whether a pause begins with any of them."""
    return sum(state.failed(object(), now) for _ in range(count)) > 0


def test_one_poison_message_pauses_nobody() -> None:
    state = backoff.BreakerState()
    assert not any(state.failed("poison", now) for now in range(1000))
    assert state.allowance(1000) is None


def test_a_thousand_poison_messages_that_come_again_when_the_others_are_done_pause_nobody() -> None:
    state = backoff.BreakerState()
    for number in range(1_000):
        assert not state.went_well(10, 0.0)
        assert not state.failed(number, 0.0)
    for _ in range(5):
        assert not any(state.failed(number, 0.0) for number in range(1_000))
    assert failing(state, 50), "what never failed before does so now"


def test_what_others_have_tried_is_news_to_a_worker_for_which_nothing_has_gone_well() -> None:
    """It may have been started while the dependency is down, and all that comes has met that before."""
    state = backoff.BreakerState()
    assert any(state.failed(number, 0.0, before=True) for number in range(backoff.FEWEST_FAILURES))
    now = state.until
    assert [state.failed(object(), now, before=True) for _ in range(backoff.VOTES)] == [False, True]
    state.went_well(backoff.VOTES, now := state.until)
    assert not any(state.failed(object(), now, before=True) for _ in range(1_000))
    assert failing(state, backoff.FEWEST_FAILURES, now)


def test_of_what_has_failed_only_so_much_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "KNOWN", 20)
    state = backoff.BreakerState()
    state.went_well(50, 0.0)
    assert not any(state.failed(number % 20, 0.0) for number in range(200))
    assert any(state.failed(number % 60, 0.0) for number in range(200))


def test_a_minority_of_failures_pauses_nobody() -> None:
    state = backoff.BreakerState()
    for now in range(1000):
        state.went_well(6, now)
        assert not failing(state, 4, now)


@pytest.mark.parametrize("before", [0, 30, 10**6])
def test_when_most_of_the_last_messages_fail_a_pause_begins(before: int) -> None:
    state = backoff.BreakerState(chance=lambda: 1.0)
    state.went_well(before, 0.0)
    assert failing(state, backoff.HISTORY)
    assert state.allowance(0.5) == 0


def test_a_pause_is_followed_by_a_probe_for_as_long_as_it_takes() -> None:
    state = backoff.BreakerState(chance=lambda: 1.0)
    assert state.is_down(100.0)
    assert [state.allowance(now) for now in (100.0, 100.9, 101.0, 10**6)] == [0, 0, 1, 1]


def fail_tries(state: backoff.BreakerState, now: float, *, by_word: bool = False) -> list[bool]:
    """As many tries as decide fail; for each whether a pause begins with it."""
    return [state.is_down(now) if by_word else state.failed(object(), now) for _ in range(backoff.VOTES)]


@pytest.mark.parametrize("by_word", [True, False])
def test_tries_that_fail_make_the_pause_longer_up_to_the_cap(by_word: bool) -> None:
    state, now, pauses = backoff.BreakerState(chance=lambda: 1.0), 0.0, []
    assert state.is_down(now)
    for _ in range(9):
        pauses.append(state.until - now)
        now = state.until
        assert fail_tries(state, now, by_word=by_word) == [False, True]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_the_longest_pause_can_be_set() -> None:
    state = backoff.BreakerState(longest=3.0, chance=lambda: 1.0)
    state.is_down(0.0)
    for _ in range(5):
        fail_tries(state, state.until)
        now = state.until
    fail_tries(state, now)
    assert state.until - now == 3.0


def test_one_try_that_fails_decides_nothing_when_the_next_ones_go_well() -> None:
    """A service that is back may still be flaky."""
    state = backoff.BreakerState()
    state.is_down(0.0)
    now = state.until
    assert not state.went_well(1, now)
    assert not state.is_down(now)
    assert state.allowance(now) == 1, "no pause between the tries"
    assert state.went_well(1, now)
    assert state.allowance(now) is None


def test_tries_that_disagree_begin_with_a_short_pause_again() -> None:
    state = backoff.BreakerState(chance=lambda: 1.0)
    state.is_down(0.0)
    for _ in range(5):
        fail_tries(state, state.until)
    now = state.until
    state.went_well(1, now)
    fail_tries(state, now)
    assert state.until - now == backoff.PAUSE_BASE


def test_the_same_message_failing_again_is_one_try() -> None:
    state = backoff.BreakerState()
    assert failing(state, backoff.HISTORY)
    now = state.until
    assert not any(state.failed("poison", now) for _ in range(10))


def test_tries_that_go_well_end_it_whatever_its_level() -> None:
    state = backoff.BreakerState()
    state.is_down(0.0)
    for _ in range(20):
        fail_tries(state, state.until)
    assert not state.went_well(0, state.until)
    assert not state.went_well(1, state.until)
    assert state.went_well(1, state.until)
    assert state.allowance(state.until) is None
    assert not failing(state, backoff.FEWEST_FAILURES - 1), "what failed before the pause is forgotten"


def test_what_ends_during_a_pause_began_before_it_and_changes_nothing() -> None:
    state = backoff.BreakerState(chance=lambda: 1.0)
    state.is_down(0.0)
    assert not state.is_down(0.5)
    assert not failing(state, 100, 0.5)
    assert not state.went_well(5, 0.5)
    assert (state.level, state.until) == (1, 1.0)


def test_a_handler_may_ask_for_a_longer_pause() -> None:
    state = backoff.BreakerState(chance=lambda: 1.0)
    state.is_down(0.0, at_least=30.0)
    assert state.until == 30.0


def test_a_handler_that_asks_for_none_in_particular_has_the_usual_pause() -> None:
    state = backoff.BreakerState(chance=lambda: 0.0)
    state.is_down(0.0)
    assert state.until == backoff.PAUSE_BASE / 2


def test_the_first_pause_after_one_that_is_over_is_as_short_as_any_first() -> None:
    state = backoff.BreakerState(chance=lambda: 1.0)
    state.is_down(0.0)
    fail_tries(state, state.until)
    now = state.until
    assert not state.is_down(now)  # one vote against, which has no say later
    state.went_well(backoff.VOTES, now)
    assert state.is_down(now)
    assert state.until - now == backoff.PAUSE_BASE
    now = state.until
    assert fail_tries(state, now) == [False, True]
    assert state.until - now == 2 * backoff.PAUSE_BASE


events = st.lists(st.tuples(st.sampled_from(["well", "failed", "down", "nothing"]), st.floats(0.0, 5.0)), max_size=200)


@given(events=events, chance=chances)
def test_whatever_happens_it_is_never_longer_than_the_cap_from_a_try_and_few_successes_from_its_end(
    events: list[tuple[str, float]], chance: float
) -> None:
    state, now = backoff.BreakerState(chance=lambda: chance), 0.0
    for event, elapsed in events:
        now += elapsed
        if event == "well":
            state.went_well(1, now)
        elif event == "failed":
            state.failed(object(), now)
        elif event == "down":
            state.is_down(now)
        assert state.until - now <= backoff.PAUSE_CAP
        assert (state.allowance(now) is None) == (state.level == 0)
    now = max(now, state.until)
    assert state.allowance(now) in (1, None)
    state.went_well(backoff.VOTES, now)
    assert state.allowance(now) is None

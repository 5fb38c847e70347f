"""For how long something has failed on end."""

from __future__ import annotations

import pytest

from framework.middleware.on_end import APART, OnEnd


@pytest.mark.parametrize(("apart", "on_end"), [(1.0, True), (APART, True), (APART + 0.1, False)])
def test_failures_that_are_far_apart_are_two_matters(apart: float, on_end: bool) -> None:
    failures = OnEnd()
    assert failures.failed(100.0, 103.0) == 3.0
    assert failures.failed(103.0 + apart, 104.0 + apart) == (4.0 + apart if on_end else 1.0)


def test_one_that_took_long_is_no_pause_and_one_that_was_over_before_another_changes_nothing() -> None:
    failures = OnEnd()
    failures.failed(100.0, 170.0)
    assert failures.failed(101.0, 102.0) == 2.0
    assert failures.failed(230.0, 231.0) == 131.0


def test_what_has_worked_meanwhile_begins_anew() -> None:
    failures = OnEnd()
    failures.failed(100.0, 101.0)
    failures.worked()
    assert failures.failed(102.0, 103.0) == 1.0

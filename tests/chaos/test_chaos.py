"""Every fault in short. ``make chaos`` does each many times more."""

from __future__ import annotations

from pathlib import Path

import pytest

from framework.testing.servers import ServerMissing
from tests.chaos.__main__ import line
from tests.chaos.scenarios import ALL
from tests.chaos.trial import Fault, Trial
from tests.conftest import missing

pytestmark = pytest.mark.slow


ALWAYS = ("worker", "nsqd", "embedded", "cut", "nats-server", "route-worker")
"""What the suite runs besides: one fault of each kind. CI runs all."""


def marks(name: str) -> list[pytest.MarkDecorator]:
    if name.startswith("spark"):
        return [pytest.mark.spark, pytest.mark.long_run]
    return [] if name in ALWAYS else [pytest.mark.long_run]


SHORT = [pytest.param(name, marks=marks(name)) for name, (_, _, times) in ALL.items() if times]


@pytest.mark.parametrize("name", SHORT)
def test_nothing_is_lost_and_every_duplicate_is_explained(name: str, tmp_path: Path) -> None:
    scenario, _, times = ALL[name]
    try:
        verdict = scenario(tmp_path, times)
    except ServerMissing as error:
        missing(str(error))
        raise
    print(line(verdict))
    assert verdict.good, line(verdict)
    assert verdict.sent > 100
    assert verdict.handled >= verdict.sent - verdict.allowed


def test_the_books_see_a_loss_a_duplicate_and_what_explains_it(tmp_path: Path) -> None:
    second = 1_000_000_000
    lines = [(1, 10), (2, 10), (2, 20), (3, 10), (3, 40)]
    cut_short = "\n4 5"
    (tmp_path / "handled").write_text("".join(f"\n{number} {at * second} ." for number, at in lines) + cut_short)
    trial = Trial(tmp_path, "", "", faults=[Fault("kill", 15 * second, 16 * second)], confirmed={1, 2, 3, 4})
    trial.landed = lambda: {1, 2, 3, 4}  # type: ignore[method-assign]
    verdict = trial.verdict("by hand")
    assert (verdict.handled, verdict.duplicates, verdict.unexplained, verdict.lost) == (3, 2, 0, 1)
    assert not verdict.good
    trial.faults = [Fault("kill", 30 * second, 31 * second)]
    assert trial.verdict("by hand").unexplained == 1
    trial.faults = [Fault("kill", second, 2 * second, losses=1, repeats=1, sent=3), Fault("kill", 6 * second, 7 * second)]
    assert (trial.verdict("by hand").unexplained, trial.verdict("by hand").allowed) == (1, 1)


def test_a_fault_repeats_only_what_was_sent_before_it_and_handled_after_it(tmp_path: Path) -> None:
    second = 1_000_000_000
    (tmp_path / "handled").write_text("".join(f"\n{number} {at * second} ." for number in (1, 2) for at in (10, 20)))
    trial = Trial(tmp_path, "", "", confirmed={1, 2})
    trial.landed = lambda: {1, 2}  # type: ignore[method-assign]

    def unexplained(*faults: tuple[int, int]) -> int:
        trial.faults = [Fault("kill", at * second, at * second, repeats=1, sent=sent) for at, sent in faults]
        return trial.verdict("by hand").unexplained

    assert unexplained((1, 3), (2, 3)) == 0
    assert unexplained((1, 2), (2, 3)) == 0
    assert unexplained((1, 2), (2, 2)) == 1
    assert unexplained((1, 3)) == 1
    assert unexplained((30, 3), (31, 3)) == 2

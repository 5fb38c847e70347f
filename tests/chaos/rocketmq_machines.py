"""The faults of the machine that a broker of RocketMQ runs on."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.chaos.rocketmq_faults import running, trying, until_handled
from tests.chaos.trial import BURST, Scenario, Trial, Verdict

STILL = (1.0, 3.0, 8.0, 15.0, 40.0)
"""Seconds: less than a lease, and more than an answer is waited for."""


def stands_still(folder: Path, times: int, mode: str) -> Verdict:
    """The broker, by SIGSTOP."""
    with running(folder, mode) as server, trying(folder, server.address, mode) as trial:
        for n in range(times):
            _busy(trial)
            with trial.fault("broker stands still"), server.broker.frozen():
                time.sleep(STILL[n % len(STILL)])
        until_handled(trial)
    return trial.verdict(f"rocketmq by {mode}: broker stands still")


def _busy(trial: Trial) -> None:
    trial.until_published(3 * BURST)
    until_handled(trial)


_FAULTS: dict[str, tuple[Callable[[Path, int, str], Verdict], int]] = {"still": (stands_still, len(STILL))}
ALL: dict[str, tuple[Scenario, int, int]] = {
    f"rocketmq-{name}-{mode}": (partial(scenario, mode=mode), times, 0)
    for name, (scenario, times) in _FAULTS.items()
    for mode in ("pop", "pull")
}
"""As ``scenarios.ALL``. None of them in CI."""

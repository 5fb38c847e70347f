"""The faults of the machine that a broker of RocketMQ runs on: it stands still, its clock is set, its disk is slow, or full."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from framework.testing.rocketmq import RocketMQ, real_rocketmq
from tests.chaos.rocketmq_faults import AGAIN, MODES, trying, until_handled
from tests.chaos.trial import BURST, Scenario, Trial, Verdict
from tests.clocks import Clock
from tests.disks import Disk, library, tmpfs

DAY = 86_400.0
STILL = (1.0, 3.0, 8.0, 15.0, 40.0)
"""Seconds: less than a lease, and more than an answer is waited for."""
SET = (300.0, 0.0, -300.0, 0.0, DAY, 0.0, -DAY, 0.0)
"""Seconds by which a clock is ahead."""
SET_BY_POP = (60.0, 0.0, -60.0, 0.0)
SYNCS = (0.2, 1.0, 6.0)
"""Seconds that a sync takes. After five a broker answers that it has stored a message, and could not sync it."""
STORE = 1024 * 1024 * 1024
"""Bytes of the disk that is full."""
LEFT = {"pull": STORE // 50, "pop": STORE * 9 // 100, "kv": STORE * 9 // 100}
"""What is left of it: a broker stores nothing where 90 % are in use, for which it looks every ten seconds, and for the first time
a minute after its start. Where nothing is left, what it has mapped and not written yet cannot be written, and it loses what it
had stored. By POP it writes much of its own meanwhile."""


def stands_still(folder: Path, times: int, mode: str) -> Verdict:
    """The broker, by SIGSTOP."""
    with _server(folder, mode) as server, trying(folder, server.address, mode) as trial:
        for n in range(times):
            _busy(trial)
            with trial.fault("broker stands still"), server.broker.frozen():
                time.sleep(STILL[n % len(STILL)])
        until_handled(trial)
    return trial.verdict(f"rocketmq by {mode}: broker stands still")


def clock_set(folder: Path, times: int, mode: str) -> Verdict:
    """That of the broker. By POP it goes by it for all that is in flight: what a connection held that ended meanwhile comes again
    when the clock is where it was, and what was acknowledged may. So it is set by no more than can be waited for, while messages
    go on, and all that is one fault."""
    clock = Clock(folder)
    with (
        _server(folder, mode, lambda server: clock.under(server.broker)) as server,
        trying(folder, server.address, mode) as trial,
    ):
        if mode == "pull":
            for n in range(times):
                _busy(trial)
                with trial.fault("clock set"):
                    clock.ahead(SET[n % len(SET)])
                    trial.between(1.0, 3.0)
        else:
            with trial.fault("clock set again and again"):
                for n in range(times):
                    _busy(trial)
                    clock.ahead(SET_BY_POP[n % len(SET_BY_POP)])
                    trial.between(1.0, 3.0)
                clock.ahead(0.0)
                time.sleep(max(SET_BY_POP) + AGAIN)
            trial.harmless += times - 1
        until_handled(trial)
    return trial.verdict(f"rocketmq by {mode}: clock of the broker set")


def disk_slow(folder: Path, times: int, mode: str) -> Verdict:
    """A broker that syncs each message before it answers."""
    disk = Disk(library(folder), folder / "faults")
    with (
        _server(folder, mode, lambda server: disk.under(server.broker), {"flushDiskType": "SYNC_FLUSH"}) as server,
        trying(folder, server.address, mode) as trial,
    ):
        for n in range(times):
            _busy(trial)
            with trial.fault("slow disk"):
                disk.sync_takes(SYNCS[n % len(SYNCS)])
                trial.between(8.0, 10.0)
                disk.sync_takes(0.0)
        until_handled(trial)
    return trial.verdict(f"rocketmq by {mode}: slow disk")


def disk_full(folder: Path, times: int, mode: str) -> Verdict:
    """It stores nothing, and says so, until there is room again, for which it looks every ten seconds.

    No handler fails here: what a broker is to deliver anew by POP while it stores nothing, it loses (docs/rocketmq.md)."""
    store = folder / "store"
    settings = {"storePathRootDir": str(store), "storePathCommitLog": str(store / "commitlog")}
    with tmpfs(store, STORE), _server(folder, mode, None, settings) as server, trying(folder, server.address, mode) as trial:
        for _ in range(times):
            _busy(trial)
            with trial.fault("full disk"):
                _until(trial, lambda: _filled(store, LEFT[mode]), stored=False)
                trial.between(1.0, 3.0)
                (store / "ballast").unlink()
                _until(trial, lambda: None, stored=True)
        until_handled(trial)
    return trial.verdict(f"rocketmq by {mode}: full disk")


def _filled(store: Path, left: int) -> None:
    """But for ``left`` bytes."""
    space = os.statvfs(store)
    room = space.f_bavail * space.f_frsize - left
    with (store / "ballast").open("ab") as file:
        file.write(bytes(max(0, room)))


def _until(trial: Trial, work: Callable[[], None], *, stored: bool) -> None:
    until = time.monotonic() + 90.0
    while True:
        work()
        before = len(trial.confirmed)
        time.sleep(1.0)
        if (len(trial.confirmed) > before) is stored:
            return
        assert time.monotonic() < until, f"it still {'refuses' if stored else 'takes'} what is published"


def _busy(trial: Trial) -> None:
    trial.until_published(3 * BURST)
    until_handled(trial)


@contextmanager
def _server(
    folder: Path, mode: str, prepare: Callable[[RocketMQ], object] | None = None, settings: dict[str, str] | None = None
) -> Iterator[RocketMQ]:
    data = folder / "rocketmq"
    data.mkdir()
    server = real_rocketmq(data, {**MODES[mode][0], **(settings or {})})
    if prepare is not None:
        prepare(server)
    server.start()
    try:
        yield server
    finally:
        server.kill()


_FAULTS: dict[str, tuple[Callable[[Path, int, str], Verdict], int, tuple[str, ...]]] = {
    "still": (stands_still, len(STILL), ("pop", "pull")), "clock": (clock_set, len(SET), ("pop", "kv", "pull")),
    "slow-disk": (disk_slow, len(SYNCS), ("pop", "pull")), "full-disk": (disk_full, 1, ("pop", "kv", "pull")),
}  # fmt: skip
ALL: dict[str, tuple[Scenario, int, int]] = {
    f"rocketmq-{name}-{mode}": (partial(scenario, mode=mode), times, 0)
    for name, (scenario, times, modes) in _FAULTS.items()
    for mode in modes
}
"""As ``scenarios.ALL``. None of them in CI."""

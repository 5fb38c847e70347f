"""Faults of several processes under a master: reloaded, killed one by one, and their master killed."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from framework.testing import servers
from framework.testing.processes import left_after
from framework.testing.servers import ROOT
from tests.chaos.trial import BURST, Scenario, Trial, Verdict
from tests.master.conftest import ALL_READY, Master

_LEASE = "--msg-timeout=5s"
_ENDS = ("finished", "requeued", "dead", "lease_lost")
_PATIENCE = 90.0
_RANDOM = random.Random(20260102)


class Led(Trial):
    """A trial whose worker is a master with two processes. They have no spool."""

    processes = 2

    def start_worker(self) -> None:
        """Returns when all have subscribed."""
        environ = {"CHAOS_FOLDER": str(self.folder), "PYTHONPATH": str(ROOT)}
        flags = ("--processes", str(self.processes), "--ledger", "ledger.json", "--connect-deadline=60s")
        self.worker = master = Master(
            "run", "tests.chaos.recorder", "--broker", self.broker, *flags, cwd=self.folder, env=environ
        )
        master.wait_for(ALL_READY, deadline=_PATIENCE)

    @property
    def master(self) -> Master:
        assert isinstance(self.worker, Master)
        return self.worker

    def landed(self) -> set[int]:
        return self.confirmed

    def settle(self, empty: Callable[[], bool] = lambda: False, *, patience: float = 60.0) -> None:
        """The ledger of all of them adds up as well, and no process is left."""
        super().settle(empty, patience=patience)
        counts = json.loads((self.folder / "ledger.json").read_text())["chaos/record"]
        assert counts["received"] == sum(counts[end] for end in _ENDS), counts
        assert left_after(self.master.started, 10) == []


def reloaded(folder: Path, times: int) -> Verdict:
    """No message may come twice for it, and no process may stay."""
    with _nsqd(folder) as nsqd:
        with _led(folder, nsqd).running() as trial:
            for done in range(1, times + 1):
                trial.between(0.0, 0.3)
                before, trial.harmless = trial.master.alive, done
                trial.master.signal(signal.SIGHUP)
                trial.master.wait_until(lambda n=done: len(trial.master.told("(reloaded): all 2 ")) == n, deadline=_PATIENCE)
                assert left_after(before, 30) == []
        trial.settle()
        return trial.verdict("rolling reload of 2 processes")


def process_killed(folder: Path, times: int) -> Verdict:
    with _nsqd(folder) as nsqd:
        with _led(folder, nsqd).running() as trial:
            for done in range(1, times + 1):
                trial.until_published(3 * BURST)
                with trial.fault("process killed"):
                    os.kill(_RANDOM.choice(trial.master.alive), signal.SIGKILL)
                    trial.master.until_started(2 + done, deadline=_PATIENCE)
                    time.sleep(0.2)
        trial.settle()
        return trial.verdict("one of 2 processes kill -9")


def master_killed(folder: Path, times: int) -> Verdict:
    """Its processes finish what runs, so that no message comes twice, and none is left over."""
    with _nsqd(folder) as nsqd:
        with _led(folder, nsqd).running() as trial:
            for done in range(1, times + 1):
                trial.until_published(3 * BURST)
                trial.between(0.0, 0.3)
                started, trial.harmless = trial.master.started, done
                trial.master.process.kill()
                trial.master.wait()
                assert left_after(started, 30) == []
                trial.start_worker()
        trial.settle()
        return trial.verdict("master of 2 processes kill -9")


def _led(folder: Path, nsqd: servers.Server) -> Led:
    url = f"nsq://{nsqd.address}?heartbeat=1s"
    return Led(folder, url, url)


def _nsqd(folder: Path) -> AbstractContextManager[servers.Server]:
    data = folder / "nsqd"
    data.mkdir()
    return servers.running(servers.real_nsqd(data, _LEASE))


ALL: dict[str, tuple[Scenario, int, int]] = {
    "reload": (reloaded, 100, 3),
    "process": (process_killed, 20, 2),
    "master": (master_killed, 20, 2),
}
"""As in scenarios."""

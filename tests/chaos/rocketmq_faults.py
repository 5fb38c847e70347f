"""The faults of RocketMQ, one function each: by POP with checkpoints in files, as a broker is configured by default, by POP in KV
mode, and by PULL, which is all that 4.9 has."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from framework.testing.detour import through
from framework.testing.proxies import Proxies
from framework.testing.rocketmq import OLDER, PROMPT, VERSION, RocketMQ, real_rocketmq
from tests.chaos.network import cut_again_and_again
from tests.chaos.trial import BURST, Scenario, Trial, Verdict

MODES = {"pop": ({}, ""), "kv": (PROMPT, ""), "pull": ({}, "&mode=pull"), f"pull-{OLDER}": ({}, "")}
"""Settings of the broker, and options of the URL."""
AGAIN = 11.0
"""Seconds after a start by which a broker has delivered anew what was in flight when it was killed: the lease, and 5.3 more."""
IN_FLIGHT = 50
"""Messages of ``app.record``, at most."""
PATIENCE = 120.0
"""Seconds in which something must come. What a killed worker held has a lease of 5 s, and in files comes 5 s after that."""


def worker_killed(folder: Path, times: int, mode: str) -> Verdict:
    with running(folder, mode) as server, trying(folder, server.address, mode) as trial:
        for _ in range(times):
            trial.between(0.1, 0.5)
            trial.kill_worker()
    return trial.verdict(f"rocketmq by {mode}: worker kill -9")


def worker_stopped(folder: Path, times: int, mode: str) -> Verdict:
    """SIGTERM in the middle, with leases of a minute: nobody waits for them, and nothing is handled twice."""
    with running(folder, mode) as server, trying(folder, server.address, mode, "&lease=60s", patience=40.0) as trial:
        for _ in range(times):
            trial.between(0.2, 0.6)
            assert trial.worker is not None
            code = trial.worker.stop()
            assert code == 0, f"a worker that was told to stop ended with {code}: {trial.worker.err[-5:]}"
            trial.harmless += 1
            trial.start_worker()
    return trial.verdict(f"rocketmq by {mode}: worker drained")


def broker_killed(folder: Path, times: int, mode: str) -> Verdict:
    """While messages come and go. A broker saves every five seconds how far its groups are, for the first time ten seconds after
    its start. What was finished since comes again at once; by POP what was in flight does too, and once more when its lease is
    over. Killed before it has saved anything it repeats all that again, copies included, and so in each of its lives: no
    bound is known for what it may double then. So it is killed after it has saved what it did anew."""
    repeats = 0 if mode.startswith("pull") else IN_FLIGHT
    with running(folder, mode) as server, trying(folder, server.address, mode) as trial:
        for _ in range(times):
            started = time.monotonic()
            trial.until_published(3 * BURST)
            until_handled(trial)
            time.sleep(max(0.0, started + AGAIN - time.monotonic()))
            _until_saved(server)
            trial.between(0.0, 5.0)
            with trial.fault("broker kill -9", repeats=repeats):
                server.broker.kill()
                time.sleep(0.2)
                server.broker.start()
        until_handled(trial)
    return trial.verdict(f"rocketmq by {mode}: broker kill -9")


def _until_saved(server: RocketMQ) -> None:
    """How far its groups are by now."""
    now, file = time.time(), server.data / f"store-{server.name}" / "config" / "consumerOffset.json"
    until = time.monotonic() + PATIENCE
    while not (file.exists() and file.stat().st_mtime > now):
        assert time.monotonic() < until, "the broker does not save how far its groups are"
        time.sleep(0.05)


def name_server_killed(folder: Path, times: int, mode: str) -> Verdict:
    """Nobody who has a route needs it. Where a broker has registered again is learned after that."""
    with running(folder, mode) as server, trying(folder, server.address, mode) as trial:
        for _ in range(times):
            trial.until_published(3 * BURST)
            until_handled(trial)
            with trial.fault("name server kill -9"):
                server.name_server.kill()
                trial.between(0.5, 1.5)
                server.name_server.start(deadline=60.0)
        until_handled(trial)
    return trial.verdict(f"rocketmq by {mode}: name server kill -9")


def connections_cut(folder: Path, times: int, mode: str) -> Verdict:
    """Of the worker and of the publisher, to the name server and to the broker."""
    with (
        running(folder, mode) as server,
        _proxies(server) as (proxies, address),
        trying(folder, address, mode) as trial,
    ):
        cut_again_and_again(trial, proxies, times)
    return trial.verdict(f"rocketmq by {mode}: connections cut")


def silent(folder: Path, times: int, mode: str) -> Verdict:
    """In turns nothing passes, although both sides are there, and the broker stands still."""
    with (
        running(folder, mode) as server,
        _proxies(server) as (proxies, address),
        trying(folder, address, mode, "&lease=5s&answer_timeout=2s") as trial,
    ):
        for n in range(times):
            trial.until_published(3 * BURST)
            until_handled(trial)
            with trial.fault("silence"):
                if n % 2 == 0:
                    proxies.swallow()
                    time.sleep(6.0)
                    proxies.restore()
                else:
                    with server.broker.frozen():
                        time.sleep(6.0)
        until_handled(trial)
    return trial.verdict(f"rocketmq by {mode}: a broker that answers nothing")


def until_handled(trial: Trial) -> None:
    """A fault that hits nobody shows nothing."""
    before, until = len(trial.handled()), time.monotonic() + PATIENCE
    while len(trial.handled()) < before + BURST:
        assert time.monotonic() < until, "the worker does not come back"
        time.sleep(0.1)


@contextmanager
def running(folder: Path, mode: str) -> Iterator[RocketMQ]:
    data = folder / "rocketmq"
    data.mkdir()
    server = real_rocketmq(data, MODES[mode][0], version=OLDER if mode.endswith(OLDER) else VERSION)
    server.start()
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def trying(folder: Path, address: str, mode: str, more: str = "&lease=5s", *, patience: float = PATIENCE) -> Iterator[Trial]:
    """What is done in the block is done while messages are published and handled; at its end all of them are accounted for."""
    url = f"rocketmq://{address}?poll=500ms{MODES[mode][1]}{more}"
    trial = Trial(folder, url, url)
    with trial.running():
        yield trial
    trial.settle(patience=patience)


@contextmanager
def _proxies(server: RocketMQ) -> Iterator[tuple[Proxies, str]]:
    proxies, address, detour = through(server.address, [server.broker.address])
    try:
        yield proxies, address
    finally:
        proxies.stop()
        detour.stop()


_FAULTS: dict[str, tuple[Callable[[Path, int, str], Verdict], int]] = {
    "worker": (worker_killed, 50), "drain": (worker_stopped, 50), "broker": (broker_killed, 10),
    "names": (name_server_killed, 10), "cut": (connections_cut, 60), "silent": (silent, 6),
}  # fmt: skip
ALL: dict[str, tuple[Scenario, int, int]] = {
    f"rocketmq-{name}-{mode}": (partial(scenario, mode=mode), times, 0)
    for name, (scenario, times) in _FAULTS.items()
    for mode in MODES
}
"""As ``scenarios.ALL``. None of them in CI: each has a Java machine to start."""

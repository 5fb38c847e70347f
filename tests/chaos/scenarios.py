"""The faults, one function each: what is started, what is done to it and how often."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from framework.testing import servers
from framework.testing.proxy import Proxy
from tests.chaos.trial import Scenario, Trial, Verdict

_LEASE = "--msg-timeout=5s"
_HEARTBEAT = "?heartbeat=1s"
_IN_FLIGHT = 550
"""Of both handlers: what a real nsqd holds in memory alone, whatever its flags."""


def worker_killed(folder: Path, times: int) -> Verdict:
    with _nsqd(folder) as nsqd:
        with _directly(folder, nsqd) as trial:
            for _ in range(times):
                trial.between(0.1, 0.5)
                trial.kill_worker()
        return _end(trial, "worker kill -9")


def embedded_nsqd_killed(folder: Path, times: int) -> Verdict:
    """Durable: what it confirmed it still has."""
    with servers.running(servers.own_nsqd(folder / "nsqd", _LEASE)) as nsqd:
        return _kill(nsqd, folder, times, "embedded nsqd kill -9")


def real_nsqd_killed(folder: Path, times: int) -> Verdict:
    """Everything on disk, but for what is in flight, which nsqd keeps in memory alone."""
    with _nsqd(folder, "--mem-queue-size=0", "--sync-every=1") as nsqd:
        return _kill(nsqd, folder, times, "real nsqd kill -9", allowed=_IN_FLIGHT * times)


def _kill(nsqd: servers.Server, folder: Path, times: int, name: str, *, allowed: int = 0) -> Verdict:
    with _directly(folder, nsqd) as trial:
        for _ in range(times):
            trial.between(0.3, 1.0)
            with trial.fault(name):
                nsqd.kill()
                time.sleep(0.2)
                nsqd.start()
    return _end(trial, name, allowed=allowed)


def lookupd_gone_and_back(folder: Path, times: int) -> Verdict:
    """Nothing at all may happen to the messages."""
    lookupd = servers.real_nsqlookupd()
    with servers.running(lookupd), _nsqd(folder, f"--lookupd-tcp-address={lookupd.address}") as nsqd:
        nsqd.http("/topic/create?topic=chaos", b"")  # nsqlookupd knows of no other
        with Trial(folder, f"nsq+lookupd://{lookupd.http_address}", _url(nsqd)).running() as trial:
            for _ in range(times):
                trial.between(0.5, 1.0)
                lookupd.kill()
                trial.between(1.0, 2.0)
                lookupd.start()
                trial.between(0.5, 1.0)
        trial.settle()
        return trial.verdict("nsqlookupd gone and back")


def connections_cut(folder: Path, times: int) -> Verdict:
    """In the middle of a frame, in either direction, and with a reset."""
    with _nsqd(folder) as nsqd, Proxy(nsqd.address) as proxy:
        with _through(folder, proxy, nsqd) as trial:
            for n in range(times):
                trial.between(0.1, 0.4)
                with trial.fault("connection cut"):
                    if n % 3 == 0:
                        proxy.cut(reset=n % 2 == 0)
                    else:
                        (proxy.to_client if n % 3 == 1 else proxy.to_server).cut_after(1 + n * 37 % 500)
                        time.sleep(0.3)
        proxy.restore()
        return _end(trial, "connections cut in the middle of frames")


def half_open(folder: Path, times: int) -> Verdict:
    """The other side is gone and nobody says so: heartbeats find out."""
    with _nsqd(folder) as nsqd, Proxy(nsqd.address) as proxy:
        with _through(folder, proxy, nsqd) as trial:
            for _ in range(times):
                trial.between(0.3, 0.6)
                with trial.fault("half-open"):
                    proxy.swallow()
                    time.sleep(3.0)
                    proxy.restore()
        return _end(trial, "half-open connections")


def finishes_dropped(folder: Path, times: int) -> Verdict:
    """Messages come and what is said of them does not arrive."""
    with _nsqd(folder) as nsqd, Proxy(nsqd.address) as proxy:
        with Trial(folder, _through_url(proxy, nsqd), _url(nsqd)).running() as trial:
            for _ in range(times):
                trial.between(0.3, 0.6)
                with trial.fault("FINs dropped"):
                    proxy.to_server.swallow()
                    time.sleep(0.5)
                    proxy.restore()
        return _end(trial, "FINs dropped")


def slow_network(folder: Path, times: int) -> Verdict:
    """Delays, a byte at a time, and a partition that heals: late is not lost, and nothing may come twice for it."""
    with _nsqd(folder) as nsqd, Proxy(nsqd.address) as proxy:
        with _through(folder, proxy, nsqd) as trial:
            for _ in range(times):
                proxy.delay(0.05)
                trial.between(0.5, 1.0)
                proxy.restore()
                proxy.to_server.trickle()
                trial.between(0.5, 1.0)
                proxy.restore()
                proxy.hold()
                time.sleep(0.8)
                proxy.restore()
        return _end(trial, "delays, trickles, partitions")


def full_disk_under_the_spool(folder: Path, times: int) -> Verdict:
    """A limit on the size of files stands in for the full disk: a write ends half way, as with ENOSPC."""
    with _nsqd(folder) as nsqd:
        with _directly(folder, nsqd) as trial:
            assert trial.worker is not None
            pid = trial.worker.process.pid
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            for _ in range(times):
                trial.between(0.3, 0.6)
                with trial.fault("disk full"):
                    resource.prlimit(pid, resource.RLIMIT_FSIZE, (100, hard))
                    time.sleep(0.5)
                    resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, hard))
        return _end(trial, "full disk under the spool")


@contextmanager
def _directly(folder: Path, nsqd: servers.Server) -> Iterator[Trial]:
    with Trial(folder, _url(nsqd), _url(nsqd)).running() as trial:
        yield trial


@contextmanager
def _through(folder: Path, proxy: Proxy, nsqd: servers.Server) -> Iterator[Trial]:
    """Worker and publisher behind the proxy."""
    url = _through_url(proxy, nsqd)
    with Trial(folder, url, url).running() as trial:
        yield trial


@contextmanager
def _nsqd(folder: Path, *flags: str) -> Iterator[servers.Server]:
    data = folder / "nsqd"
    data.mkdir()
    with servers.running(servers.real_nsqd(data, _LEASE, *flags)) as nsqd:
        yield nsqd


def _through_url(proxy: Proxy, nsqd: servers.Server) -> str:
    return f"nsq://{proxy.address}{_HEARTBEAT}&http_port={nsqd.http_port}"


def _url(nsqd: servers.Server) -> str:
    return f"nsq://{nsqd.address}{_HEARTBEAT}"


def _end(trial: Trial, name: str, *, allowed: int = 0) -> Verdict:
    trial.settle(allowed=allowed)
    return trial.verdict(name, allowed=allowed)


ALL: dict[str, tuple[Scenario, int, int]] = {
    "worker": (worker_killed, 100, 4),
    "embedded": (embedded_nsqd_killed, 20, 4),
    "nsqd": (real_nsqd_killed, 20, 4),
    "lookupd": (lookupd_gone_and_back, 10, 1),
    "cut": (connections_cut, 60, 9),
    "half-open": (half_open, 10, 1),
    "finishes": (finishes_dropped, 20, 3),
    "slow": (slow_network, 10, 1),
    "disk": (full_disk_under_the_spool, 20, 3),
}
"""Name -> what to do, how often at length, how often in CI."""

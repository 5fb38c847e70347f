"""The faults, one function each: what is started, what is done to it and how often."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from framework.testing import servers
from framework.testing.proxy import Proxy
from tests.chaos import (
    collector_faults,
    driver_faults,
    master_faults,
    nats_faults,
    rocketmq_faults,
    rocketmq_machines,
    route_faults,
    spark_faults,
)
from tests.chaos.network import cut_again_and_again, drop_what_is_settled
from tests.chaos.trial import BURST, Scenario, Trial, Verdict

_LEASE = "--msg-timeout=5s"
_HEARTBEAT = "?heartbeat=1s"
_CHANNELS = ("record", "land")


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
        with _directly(folder, nsqd) as trial:
            for _ in range(times):
                _until_subscribed(nsqd)
                trial.until_published(3 * BURST)
                trial.between(0.0, 0.5)
                with trial.fault("embedded nsqd kill -9"):
                    _kill(nsqd)
        return _end(trial, "embedded nsqd kill -9")


def real_nsqd_killed(folder: Path, times: int) -> Verdict:
    """Everything on disk but what nsqd keeps in memory alone, which is counted before each kill.

    Messages come on during the kill; the worker is held, so that no more can be in flight than nsqd says just before. By its
    source, with ``--sync-every=1``, nsqd notes how far each queue is written and read before it does the next thing to it: a
    kill in between leaves that note one message behind. Of the topic's, a message that has been copied to the channels
    already is copied once more.
    """
    with _nsqd(folder, "--mem-queue-size=0", "--sync-every=1") as nsqd:
        with _directly(folder, nsqd) as trial:
            for _ in range(times):
                _until_subscribed(nsqd)
                trial.until_published(3 * BURST)
                trial.between(0.0, 0.5)
                with trial.worker_held(), trial.fault("real nsqd kill -9", losses=_only_in_memory(nsqd), repeats=1):
                    _kill(nsqd)
            _until_subscribed(nsqd)
        trial.settle(lambda: _holds_nothing(nsqd))
        return trial.verdict("real nsqd kill -9")


def _kill(nsqd: servers.Server) -> None:
    nsqd.kill()
    time.sleep(0.2)
    nsqd.start()


def _until_subscribed(nsqd: servers.Server) -> None:
    """A kill that hits nobody shows nothing."""
    deadline = time.monotonic() + 60
    while not all(nsqd.channel_stats("chaos", channel).get("clients") for channel in _CHANNELS):
        assert time.monotonic() < deadline, "the worker does not come back"
        time.sleep(0.02)


def _only_in_memory(nsqd: servers.Server) -> int:
    """How many messages a kill of ``nsqd`` may lose, the worker being held.

    For each channel: what is in flight, or may be yet by what its clients are granted; what is deferred; one on its way
    from the topic's queue to the channel's; and one in each of these two queues that is written and not noted yet, which
    is lost when its file was begun after the last kill (the next message is written over it).
    """
    before, channels = [], _channels(nsqd)
    while channels != before:  # what the worker had said is still being read
        time.sleep(0.02)
        before, channels = channels, _channels(nsqd)
    return sum(held + 3 for held, _ in channels)


def _channels(nsqd: servers.Server) -> list[tuple[int, int]]:
    """Of each channel: what it holds in memory at most, and what its clients have finished, by which one sees it at rest."""
    found = []
    for channel in _CHANNELS:
        stats = nsqd.channel_stats("chaos", channel)
        room = sum(max(0, client["ready_count"] - client["in_flight_count"]) for client in stats["clients"])
        finished = sum(client["finish_count"] for client in stats["clients"])
        found.append((stats["in_flight_count"] + stats["deferred_count"] + room, finished))
    return found


def _holds_nothing(nsqd: servers.Server) -> bool:
    """Asked twice, because a message may be between two queues."""
    if _holds(nsqd):
        return False
    time.sleep(0.5)
    return not _holds(nsqd)


def _holds(nsqd: servers.Server) -> int:
    [topic] = nsqd.http("/stats?format=json&topic=chaos")["topics"]
    counts = ("depth", "in_flight_count", "deferred_count")
    return int(topic["depth"]) + sum(channel[count] for channel in topic["channels"] for count in counts)


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
        return _end(trial, "nsqlookupd gone and back")


def connections_cut(folder: Path, times: int) -> Verdict:
    """In the middle of a frame, in either direction, and with a reset."""
    with _nsqd(folder) as nsqd, Proxy(nsqd.address) as proxy:
        with _through(folder, proxy, nsqd) as trial:
            cut_again_and_again(trial, proxy, times)
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
            drop_what_is_settled(trial, proxy, times, "FINs dropped")
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


def _end(trial: Trial, name: str) -> Verdict:
    trial.settle()
    return trial.verdict(name)


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
    **master_faults.ALL,
    **nats_faults.ALL,
    **route_faults.ALL,
    **rocketmq_faults.ALL,
    **rocketmq_machines.ALL,
    **spark_faults.ALL,
    **driver_faults.ALL,
    **collector_faults.ALL,
}
"""Name -> what to do, how often at length, how often in CI; 0: not there."""

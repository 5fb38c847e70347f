"""The faults of NATS JetStream, one function each: a server by itself, and a cluster of three. All storage is synced always."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from framework.testing import servers
from framework.testing.proxies import Proxies
from framework.testing.proxy import Proxy
from tests.chaos.network import cut_again_and_again, drop_what_is_settled
from tests.chaos.trial import BURST, Scenario, Trial, Verdict

_OPTIONS = "?ack_wait=5s&ping_interval=1s"
NEWEST, OLDER = "2.15", "2.9"
_CONSUMERS = ("record", "land")
_STREAMS = "/jsz?accounts=true&streams=true&consumers=true"


def worker_killed(folder: Path, times: int, version: str = NEWEST) -> Verdict:
    """What it held comes again when its leases are over."""
    with _server(folder, version) as server:
        with _trial(folder, server.address) as trial:
            for _ in range(times):
                trial.between(0.1, 0.5)
                trial.kill_worker()
        return _end(trial, f"nats {version}: worker kill -9")


def server_killed(folder: Path, times: int, version: str = NEWEST) -> Verdict:
    """While messages come and go: what it confirmed it still has, and nothing is stored twice."""
    with _server(folder, version) as server:
        with _trial(folder, server.address) as trial:
            for _ in range(times):
                _until(lambda: _pulled_from([server]), "the worker does not come back")
                trial.until_published(3 * BURST)
                trial.between(0.0, 0.5)
                with trial.fault("nats-server kill -9"):
                    server.kill()
                    time.sleep(0.2)
                    server.start()
        return _end(trial, f"nats {version}: server kill -9")


def connections_cut(folder: Path, times: int, version: str = NEWEST) -> Verdict:
    """In the middle of a message, in either direction, and with a reset."""
    with _server(folder, version) as server, Proxy(server.address) as proxy:
        with _trial(folder, proxy.address) as trial:
            cut_again_and_again(trial, proxy, times)
        return _end(trial, f"nats {version}: connections cut")


def silent(folder: Path, times: int, version: str = NEWEST) -> Verdict:
    """The server answers nothing: in turns nothing passes, although both sides are there, and the server stands still."""
    with _server(folder, version) as server, Proxy(server.address) as proxy:
        with _trial(folder, proxy.address) as trial:
            for n in range(times):
                trial.between(0.3, 0.6)
                with trial.fault("silence"):
                    if n % 2 == 0:
                        proxy.swallow()
                        time.sleep(3.0)
                        proxy.restore()
                    else:
                        with server.frozen():
                            time.sleep(3.0)
        return _end(trial, f"nats {version}: a server that answers nothing")


def acks_dropped(folder: Path, times: int, version: str = NEWEST) -> Verdict:
    """Messages come and what is said of them does not arrive."""
    with _server(folder, version) as server, Proxy(server.address) as proxy:
        with _trial(folder, proxy.address, publish_to=server.address) as trial:
            drop_what_is_settled(trial, proxy, times, "ACKs dropped")
        return _end(trial, f"nats {version}: ACKs dropped")


def member_killed(folder: Path, times: int, version: str = NEWEST) -> Verdict:
    """One of three after the other, every few seconds, and brought back before the next one goes."""
    with _cluster(folder, version) as members:
        with _trial(folder, ",".join(one.address for one in members), "&replicas=3") as trial:
            for n in range(times):
                trial.between(1.0, 2.0)
                _kill_and_bring_back(trial, members, members[n % 3])
        return _end(trial, f"nats {version}: member of a cluster kill -9")


def leader_killed(folder: Path, times: int, version: str = NEWEST, *, half: int = 5000) -> Verdict:
    """That of the stream, in the middle of twice ``half`` messages each time."""
    with _cluster(folder, version) as members:
        with _trial(folder, ",".join(one.address for one in members), "&replicas=3") as trial:
            for _ in range(times):
                _publish(trial, half)
                _kill_and_bring_back(trial, members, _leader(members))
                _publish(trial, half)
        return _end(trial, f"nats {version}: leader of the stream kill -9")


def route_leader_killed(folder: Path, times: int, half: int = 5000) -> Verdict:
    """As ``leader_killed``, with the worker and the publisher as peers of the cluster."""
    with _cluster(folder, NEWEST) as members:
        ports = ",".join(f"127.0.0.1:{_route_port(one)}" for one in members)
        url = f"nats-route://{ports}{_OPTIONS}&jetstream=true&replicas=3"
        with Trial(folder, url, url).running() as trial:
            for _ in range(times):
                _publish(trial, half)
                _kill_and_bring_back(trial, members, _leader(members))
                _publish(trial, half)
        return _end(trial, "nats route: leader of the stream kill -9")


def route_worker_killed(folder: Path, times: int) -> Verdict:
    """As ``worker_killed``, with the worker and the publisher as peers of the cluster."""
    with _cluster(folder, NEWEST) as members:
        ports = ",".join(f"127.0.0.1:{_route_port(one)}" for one in members)
        url = f"nats-route://{ports}{_OPTIONS}&jetstream=true&replicas=3"
        with Trial(folder, url, url).running() as trial:
            for _ in range(times):
                trial.between(0.1, 0.5)
                trial.kill_worker()
        return _end(trial, "nats route: worker kill -9")


def route_connections_cut(folder: Path, times: int, version: str = NEWEST) -> Verdict:
    """As ``connections_cut``, with the worker and the publisher as peers of a cluster of three, whose routes lead through
    proxies."""
    with _cluster(folder, version) as members:
        proxies = Proxies([f"127.0.0.1:{_route_port(one)}" for one in members])
        url = f"nats-route://{proxies.address}{_OPTIONS}&jetstream=true&replicas=3&advertise=127.0.0.1:1"
        with Trial(folder, url, url).running() as trial:
            cut_again_and_again(trial, proxies, times)
        try:
            return _end(trial, f"nats route {version}: connections cut")
        finally:
            proxies.stop()


def _route_port(member: servers.Server) -> int:
    return int(member.data.name.rpartition("-")[2])


def _kill_and_bring_back(trial: Trial, members: list[servers.Server], one: servers.Server) -> None:
    with trial.fault("member kill -9"):
        one.kill()
        time.sleep(2.0)
        one.start()
        _until(lambda: _all_current(members), "the replicas do not catch up")
        _until(lambda: _pulled_from(members), "the worker does not come back")


def _publish(trial: Trial, count: int) -> None:
    for _ in range(count // 250):
        trial.until_published(250)


# --- what the servers say ----------------------------------------------------------------------------------


def _pulled_from(members: list[servers.Server]) -> bool:
    """Each consumer has a pull waiting at the server that leads it. What others say of it, and what was in flight, is of before:
    while nobody leads, what is acknowledged goes nowhere, and comes twice for this fault."""
    busy = {
        consumer["name"]
        for one in members
        for stream in _streams([one])
        for consumer in stream.get("consumer_detail") or ()
        if (consumer.get("cluster") or {}).get("leader") in (None, one.data.name) and consumer.get("num_waiting")
    }
    return busy == set(_CONSUMERS)


def _leader(members: list[servers.Server]) -> servers.Server:
    """Whom all say that the stream follows."""

    def named() -> set[str]:
        return {(stream.get("cluster") or {}).get("leader") or "" for stream in _streams(members)}

    _until(lambda: len(named()) == 1 and "" not in named(), "the stream has no leader")
    (name,) = named()
    return next(one for one in members if one.data.name == name)


def _all_current(members: list[servers.Server]) -> bool:
    """The leader of the stream says that its two followers have all."""
    for stream in _streams(members):
        replicas = (stream.get("cluster") or {}).get("replicas") or []
        if len(replicas) == 2 and all(each.get("current") and not each.get("offline") for each in replicas):
            return True
    return False


def _streams(members: list[servers.Server]) -> list[dict[str, Any]]:
    """The stream as each of ``members`` sees it."""
    found = []
    for one in members:
        try:
            accounts = one.http(_STREAMS).get("account_details") or []
        except OSError:  # it is starting
            continue
        found += [stream for account in accounts for stream in account.get("stream_detail") or ()]
    return found


def _until(condition: Callable[[], bool], failure: str, patience: float = 60.0) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, failure
        time.sleep(0.05)


# --- what is started ---------------------------------------------------------------------------------------


@contextmanager
def _trial(folder: Path, addresses: str, more: str = "", *, publish_to: str = "") -> Iterator[Trial]:
    url = f"nats://{addresses}{_OPTIONS}{more}"
    with Trial(folder, url, f"nats://{publish_to}{_OPTIONS}" if publish_to else url).running() as trial:
        yield trial


@contextmanager
def _server(folder: Path, version: str) -> Iterator[servers.Server]:
    with servers.running(_made(folder / "nats", version)) as server:
        yield server


@contextmanager
def _cluster(folder: Path, version: str) -> Iterator[list[servers.Server]]:
    """Three that keep the same streams, and that have found a leader."""
    ports = [servers.free_port() for _ in range(3)]
    routes = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in ports)
    members = [
        _made(folder / f"nats-{port}", version, f'cluster {{ name: chaos, listen: "127.0.0.1:{port}", routes: [{routes}] }}')
        for port in ports
    ]
    with ExitStack() as stack:
        for one in members:
            stack.enter_context(servers.running(one))
        _until(lambda: all(_meta_leader(one) for one in members), "the cluster finds no leader")
        yield members


def _meta_leader(one: servers.Server) -> str:
    return str((one.http("/jsz").get("meta_cluster") or {}).get("leader") or "")


def _made(data: Path, version: str, config: str = "") -> servers.Server:
    """A server, not started yet, whose name is that of its folder, and that syncs each message before it confirms it: 2.9 cannot,
    and what it has written a kill of it alone does not take."""
    data.mkdir()
    http = servers.free_port()
    sync = ", sync_interval: always" if version == NEWEST else ""
    store = f'jetstream {{ store_dir: "{data}"{sync} }}'
    server = servers.real_nats(
        data, f"server_name: {data.name}\nhttp: 127.0.0.1:{http}\n{store}\n{config}", version=version, jetstream=False
    )
    server.http_port = http
    return server


def _end(trial: Trial, name: str) -> Verdict:
    trial.settle()
    return trial.verdict(name)


ALL: dict[str, tuple[Scenario, int, int]] = {
    "nats-worker": (worker_killed, 50, 3),
    "nats-server": (server_killed, 20, 3),
    "nats-cut": (connections_cut, 60, 9),
    "nats-silent": (silent, 10, 2),
    "nats-acks": (acks_dropped, 20, 3),
    "nats-member": (member_killed, 20, 0),  # in CI the leader alone, which is the harder one
    "nats-leader": (leader_killed, 3, 0),
    "nats-leader-500": (partial(leader_killed, half=250), 0, 1),
    "nats-route-worker": (route_worker_killed, 50, 0),  # in CI that of a client, whose leases and settlements are the same code
    "nats-route-leader": (route_leader_killed, 3, 0),
    "nats-route-cut": (route_connections_cut, 60, 0),  # in CI by the conformance suite
    "nats-route-cut-2.9": (partial(route_connections_cut, version=OLDER), 30, 0),
    "nats-route-leader-500": (partial(route_leader_killed, half=250), 0, 1),
    **{
        f"nats-{name}-{OLDER}": (partial(scenario, version=OLDER), times, 0)
        for name, scenario, times in (
            ("worker", worker_killed, 20), ("server", server_killed, 20), ("cut", connections_cut, 30), ("silent", silent, 10),
            ("acks", acks_dropped, 20), ("member", member_killed, 10), ("leader", leader_killed, 1),
        )
    },
}  # fmt: skip
"""As ``scenarios.ALL``."""

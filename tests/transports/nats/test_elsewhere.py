"""The servers that a URL does not name: those of the cluster tell of one another, and one of them is used when ours is gone."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from framework.testing.certificates import Authority
from framework.testing.servers import Server, ServerMissing, await_port, free_port
from framework.transports import open_transports
from framework.transports.nats.wire import Info
from tests.conftest import missing

from .conftest import until

pytestmark = pytest.mark.real
VERSIONS = pytest.mark.parametrize("version", ["2.9", "2.15"])


@pytest.fixture
def join(start_nats: Callable[..., Server]) -> Callable[..., Server]:
    """``join(version)``: one more server of a cluster, which keeps no streams."""
    routes: list[int] = []

    def add(version: str, config: str = "") -> Server:
        port = free_port()
        known = ", ".join(f'"nats-route://127.0.0.1:{one}"' for one in routes)
        block = f'cluster {{ name: C1, listen: "127.0.0.1:{port}", routes: [{known}] }}'
        server = start_nats(f"{block}\n{config}", version=version, jetstream=False)
        await_port(port)
        routes.append(port)
        return server

    return add


def knows(session: Any, server: Server) -> bool:
    return server.address in (session.info.connect_urls or ())


@VERSIONS
def test_a_server_that_joined_later_is_used_when_the_one_of_the_url_is_gone(join, version: str):
    only = join(version)
    (transport,) = open_transports([f"nats://{only.address}"])
    first = transport._sessions.take(only.address)
    late = join(version)
    until(lambda: knows(first, late))
    only.kill()
    until(lambda: first.error)
    second = transport._sessions.take(only.address)
    assert second.server == late.address
    second.close()


@VERSIONS
def test_a_server_in_lame_duck_mode_is_left_for_another_before_it_closes(join, version: str):
    leaves, stays = join(version), join(version)
    (transport,) = open_transports([f"nats://{leaves.address}"])
    first = transport._sessions.take(leaves.address)
    until(lambda: knows(first, stays))
    leaves.process.send_signal(signal.SIGUSR2)
    until(lambda: first.leaving)
    second = transport._sessions.take(leaves.address)
    assert (first.error, second.server) == (None, stays.address)
    first.close()
    second.close()


def test_a_server_that_is_told_of_by_its_number_shows_the_certificate_of_the_one_that_told(join, tmp_path: Path):
    """Servers tell of one another by IP addresses, and certificates are for names."""
    try:
        authority = Authority(tmp_path)
    except ServerMissing as error:
        missing(str(error))
        raise
    pair = authority.sign("server", names=["DNS:localhost"])
    tls = f'tls {{ cert_file: "{pair.cert}", key_file: "{pair.key}" }}'
    named, told = join("2.15", tls), join("2.15", tls)
    node = f"localhost:{named.tcp_port}"
    (transport,) = open_transports([f"tls://{node}?tls_ca={authority.cert}"])
    first = transport._sessions.take(node)
    until(lambda: knows(first, told))
    named.kill()
    until(lambda: first.error)
    second = transport._sessions.take(node)
    assert second.server == told.address
    second.close()


def test_what_a_server_tells_that_is_no_address_is_passed_over():
    (transport,) = open_transports(["nats://queue1"])
    servers = transport._sessions.servers["queue1:4222"]
    told = ["nonsense", "host:", ":4222", "host:0", "a b:4222", "10.0.0.7:4222", "[::1]:4222"]
    servers.told("queue1:4222", Info(connect_urls=told))
    assert sorted(servers._order("")) == ["10.0.0.7:4222", "[::1]:4222", "queue1:4222"]
    servers.told("queue1:4222", Info())
    assert len(servers._order("")) == 3, "it told nothing new"

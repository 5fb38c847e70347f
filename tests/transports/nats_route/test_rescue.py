"""A handler that blocks the hub costs no route: PINGs are answered in the hub's place, and what came is handled after it."""

from __future__ import annotations

import os
import time

import pytest

from framework.message import Message

from .conftest import VERSIONS, peer_of, until
from .workers import Worker

pytestmark = pytest.mark.real

BLOCK = float(os.environ.get("BLOCK_SECONDS", "4"))
"""Seconds. The server gives up a peer that answers no PING for three quarters of it."""


@pytest.mark.parametrize("version", VERSIONS)
def test_while_a_handler_blocks_the_hub_the_server_keeps_the_route_and_nothing_is_lost(make_cluster, version):
    cluster = make_cluster()
    cluster.add(version, config=f'ping_interval: "{BLOCK * 250:.0f}ms"\nping_max: 1')
    seen: list[bytes] = []

    def handle(message: Message) -> None:
        end = time.monotonic() + (BLOCK if message.body == b"block" else 0)
        seen.append(message.body)
        while time.monotonic() < end:  # the hub stands still
            pass

    worker = Worker(transport := cluster.open(), handle)
    (before,) = peer_of(transport).routes
    client = cluster.client()
    client.publish("orders", b"block", *[b"%d" % number for number in range(10)])
    until(lambda: len(seen) == 11, BLOCK + 20)
    assert list(peer_of(transport).routes) == [before]
    assert before.error is None
    client.session.close()
    late = cluster.client()
    late.publish("orders", b"after")
    until(lambda: b"after" in seen)
    assert worker.stop().lost == 0
    log = cluster.servers[0].log
    assert [line for line in log if "Stale" in line and "rid:" in line] == []

"""The embedded nsqd registers with nsqlookupds, real ones and ours: clients find it, and a dead one delays nothing."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from framework.testing import servers
from framework.testing.servers import Server
from framework.transports.nsq.discovery import Discovery


def wait_for(what: Callable[[], bool], seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.fixture
def own_lookupd() -> Iterator[Server]:
    with servers.running(servers.own_nsqlookupd()) as server:
        yield server


@pytest.fixture(params=["real", "ours"])
def lookupd(request: pytest.FixtureRequest) -> Server:
    """A real nsqlookupd, and ours."""
    if request.param == "ours":
        return request.getfixturevalue("own_lookupd")
    return request.getfixturevalue("start_nsqlookupd")()


def names(lookupd: Server, path: str) -> list[str]:
    return sorted(next(iter(lookupd.http(path).values())))


def found(lookupd: Server, topic: str) -> set[str]:
    return Discovery([lookupd.http_address]).lookup(topic)


def at(*lookupds: Server) -> list[str]:
    return [f"--lookupd-tcp-address={one.address}" for one in lookupds]


def test_what_it_has_is_found_and_what_it_deletes_is_not(lookupd: Server, start_embedded: Callable[..., Server]) -> None:
    nsqd = start_embedded(*at(lookupd))
    nsqd.http("/topic/create?topic=t", b"")
    nsqd.http("/channel/create?topic=t&channel=c", b"")
    nsqd.http("/pub?topic=u", b"x")
    wait_for(lambda: found(lookupd, "t") == found(lookupd, "u") == {nsqd.address})
    wait_for(lambda: names(lookupd, "/channels?topic=t") == ["c"])
    (node,) = lookupd.http("/nodes")["producers"]
    assert (node["broadcast_address"], node["http_port"], node["version"]) == ("127.0.0.1", nsqd.http_port, "1.3.0")
    nsqd.http("/channel/delete?topic=t&channel=c", b"")
    nsqd.http("/topic/delete?topic=t", b"")
    wait_for(lambda: found(lookupd, "t") == set())
    assert found(lookupd, "u") == {nsqd.address}


def test_it_is_gone_with_its_process_and_back_with_all_it_kept(lookupd: Server, start_embedded: Callable[..., Server]) -> None:
    nsqd = start_embedded(*at(lookupd))
    nsqd.http("/topic/create?topic=t", b"")
    nsqd.http("/channel/create?topic=t&channel=c", b"")
    wait_for(lambda: found(lookupd, "t") == {nsqd.address})
    nsqd.kill()
    wait_for(lambda: found(lookupd, "t") == set())
    lookupd.http("/topic/delete?topic=t", b"")
    nsqd.start()
    wait_for(lambda: found(lookupd, "t") == {nsqd.address} and names(lookupd, "/channels?topic=t") == ["c"])


def test_a_lookupd_that_restarts_is_told_everything_again(lookupd: Server, start_embedded: Callable[..., Server]) -> None:
    nsqd = start_embedded(*at(lookupd))
    nsqd.http("/topic/create?topic=before", b"")
    wait_for(lambda: found(lookupd, "before") == {nsqd.address})
    lookupd.kill()
    nsqd.http("/topic/create?topic=meanwhile", b"")
    nsqd.http("/topic/delete?topic=before", b"")
    lookupd.start()
    wait_for(lambda: found(lookupd, "meanwhile") == {nsqd.address})
    nsqd.http("/topic/create?topic=after", b"")
    wait_for(lambda: names(lookupd, "/topics") == ["after", "meanwhile"])


def test_every_lookupd_is_told(start_nsqlookupd: Callable[..., Server], own_lookupd: Server, start_embedded: Any) -> None:
    real = start_nsqlookupd()
    nsqd = start_embedded(*at(real, own_lookupd))
    nsqd.http("/topic/create?topic=t", b"")
    wait_for(lambda: found(real, "t") == found(own_lookupd, "t") == {nsqd.address})


def test_a_new_topic_has_the_channels_that_it_has_elsewhere(
    lookupd: Server, own_lookupd: Server, start_embedded: Any, talk: Any
) -> None:
    for one in (lookupd, own_lookupd):
        one.http(f"/channel/create?topic=t&channel=from-{one.tcp_port}", b"")
        one.http("/channel/create?topic=t&channel=gone%23ephemeral", b"")
    nsqd = start_embedded(*at(lookupd, own_lookupd))
    wait_for(lambda: len(lookupd.http("/nodes")["producers"]) == len(own_lookupd.http("/nodes")["producers"]) == 1)
    client = talk(nsqd)
    client.send(b"PUB t\n\x00\x00\x00\x01x")
    assert client.reply(1) == [b"OK"]
    for one in {lookupd.tcp_port, own_lookupd.tcp_port}:
        wait_for(lambda one=one: nsqd.channel_stats("t", f"from-{one}").get("depth") == 1)
    assert nsqd.channel_stats("t", "gone#ephemeral") == {}


def test_a_topic_that_is_asked_for_has_its_channels_when_the_answer_comes(lookupd: Server, start_embedded: Any) -> None:
    lookupd.http("/channel/create?topic=t&channel=c", b"")
    nsqd = start_embedded(*at(lookupd))
    wait_for(lambda: len(lookupd.http("/nodes")["producers"]) == 1)
    nsqd.http("/topic/create?topic=t", b"")
    assert nsqd.channel_stats("t", "c")["depth"] == 0


@contextmanager
def silence() -> Iterator[str]:
    """The address of one that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_one_that_is_away_and_one_that_hangs_delay_nothing(own_lookupd: Server, start_embedded: Any, talk: Any) -> None:
    with silence() as hanging:
        nobody = f"127.0.0.1:{servers.free_port()}"
        nsqd = start_embedded(f"--lookupd-tcp-address={hanging}", f"--lookupd-tcp-address={nobody}", *at(own_lookupd))
        wait_for(lambda: len(own_lookupd.http("/nodes")["producers"]) == 1)
        began = time.monotonic()
        client = talk(nsqd)
        client.send(b"SUB t c\nRDY 1\nPUB t\n\x00\x00\x00\x01x")
        client.get(1)
        assert time.monotonic() - began < 4  # a reply is waited for for 5 s
        wait_for(lambda: found(own_lookupd, "t") == {nsqd.address})
        assert sum(nobody in line for line in nsqd.log if "ERROR" in line) == 1


def test_clients_are_told_the_ports_that_are_broadcast(own_lookupd: Server, start_embedded: Callable[..., Server]) -> None:
    nsqd = start_embedded(
        *at(own_lookupd), "--broadcast-address=queue.example", "--broadcast-tcp-port=1", "--broadcast-http-port=2"
    )
    wait_for(lambda: len(own_lookupd.http("/nodes")["producers"]) == 1)
    for said in (own_lookupd.http("/nodes")["producers"][0], nsqd.http("/info")):
        assert (said["broadcast_address"], said["tcp_port"], said["http_port"]) == ("queue.example", 1, 2)


def test_many_topics_are_registered_at_once(lookupd: Server, start_embedded: Callable[..., Server]) -> None:
    nsqd = start_embedded()
    for number in range(600):
        nsqd.http(f"/topic/create?topic=t{number}", b"")
    nsqd.stop()
    nsqd.command += at(lookupd)
    nsqd.start()
    wait_for(lambda: len(names(lookupd, "/topics")) == 600)

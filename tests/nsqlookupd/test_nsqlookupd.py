"""What time does to registrations, what bad clients cannot do, and who uses it: real nsqds and our own client."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from framework.nsqlookupd import options
from framework.testing.servers import Server
from framework.transports.nsq.discovery import Discovery


def wait_for(what: Callable[[], bool], seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until
        time.sleep(0.02)


def asked(lookupd: Server, topic: str) -> set[str]:
    """What our client is told that has no memory of it."""
    return Discovery([lookupd.http_address]).lookup(topic)


def nodes(server: Server, topic: str) -> list[int]:
    return sorted(one["tcp_port"] for one in server.http(f"/lookup?topic={topic}")["producers"])


def test_a_silent_nsqd_is_named_no_more_until_it_pings(start_own: Callable[..., Server], register: Callable[..., Any]) -> None:
    server = start_own("--inactive-producer-timeout=300ms")
    nsqd = register(server)
    nsqd.identify()
    nsqd.ask(b"REGISTER t\n")
    wait_for(lambda: nodes(server, "t") == [])
    assert server.http("/nodes")["producers"] == []
    wait_for(lambda: nsqd.ask(b"PING\n") == b"OK" and nodes(server, "t") == [4150])


def test_a_tombstone_ends(start_own: Callable[..., Server], register: Callable[..., Any]) -> None:
    server = start_own("--tombstone-lifetime=500ms")
    nsqd = register(server)
    nsqd.identify()
    nsqd.ask(b"REGISTER t\n")
    nsqd.ask(b"REGISTER u\n")
    server.http("/topic/tombstone?topic=t&node=10.0.0.1:4151", b"")
    began = time.monotonic()
    assert nodes(server, "t") == [] or time.monotonic() - began > 0.5
    assert nodes(server, "u") == [4150]
    wait_for(lambda: nodes(server, "t") == [4150])


@pytest.mark.parametrize("bad", [b"IDENTIFY\n\xff\xff\xff\xff", b"IDENTIFY\n\x7f\xff\xff\xff{", b"A" * 100_000])
def test_no_size_or_line_brings_it_down(start_own: Callable[..., Server], register: Callable[..., Any], bad: bytes) -> None:
    """The first of these ends the real one, with all that it knew."""
    server = start_own()
    good, evil = register(server), register(server)
    good.identify()
    evil.send(bad)
    evil.rest()
    assert good.ask(b"PING\n") == b"OK"
    assert len(server.http("/nodes")["producers"]) == 1


def test_it_says_where_it_listens_and_ends_cleanly(start_own: Callable[..., Server], register: Callable[..., Any]) -> None:
    server = start_own()
    nsqd = register(server)
    nsqd.identify()
    stamp = r"\[nsqlookupd\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} INFO: "
    for line in (f"TCP: listening on {server.address}", f"HTTP: listening on {server.http_address}"):
        wait_for(lambda line=line: any(re.fullmatch(stamp + re.escape(line), one) for one in server.log))
    assert server.process is not None
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(10) == 0


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_a_port_in_use_is_one_sentence_and_exit_1(start_own: Callable[..., Server]) -> None:
    server = start_own()
    done = run("-m", "framework.nsqlookupd", f"--tcp-address=127.0.0.1:{server.tcp_port}", "--http-address=127.0.0.1:0")
    words = f"cannot listen on 127.0.0.1:{server.tcp_port}: Address already in use; name another address"
    assert (done.returncode, done.stderr) == (1, f"nsqlookupd: {words}\n")


def test_workers_nsqlookupd_takes_nsqlookupds_flags() -> None:
    done = run("-m", "framework.cli", "nsqlookupd", "--version")
    assert re.fullmatch(r"nsqlookupd v1\.3\.0 \(built w/.+\)\n", done.stdout)
    wrong = run("-m", "framework.cli", "nsqlookupd", "--data-path=x")
    assert (wrong.returncode, wrong.stderr) == (
        2, "nsqlookupd: flag provided but not defined: -data-path (--help lists the flags)\n"
    )  # fmt: skip


def test_its_flags_are_read_in_all_of_gos_forms() -> None:
    got = options.parse(["-inactive-producer-timeout", "1m", "--tombstone-lifetime=2s", "--verbose", "-http-address", "[::1]:1"])
    assert (got.inactive_producer_timeout, got.tombstone_lifetime, got.http_address) == (60, 2, "[::1]:1")
    assert (got.tcp_address, options.Options().http_address) == ("127.0.0.1:4160", "127.0.0.1:4161")


@pytest.mark.real
def test_a_real_nsqd_registers_and_our_client_finds_it(
    start_own: Callable[..., Server], start_nsqd: Callable[..., Server]
) -> None:
    lookupd = start_own()
    flag = f"--lookupd-tcp-address={lookupd.address}"
    first, second = start_nsqd(flag), start_nsqd(flag)
    first.http("/topic/create?topic=t", b"")
    first.http("/channel/create?topic=t&channel=c", b"")
    discovery = Discovery([lookupd.http_address])
    wait_for(lambda: discovery.lookup("t") == {first.address} and discovery.nodes() == {first.address, second.address})
    assert lookupd.http("/channels?topic=t") == {"channels": ["c"]}
    # An nsqd that learns of a topic makes the channels that others have.
    second.http("/pub?topic=t", b"x")
    wait_for(lambda: second.channel_stats("t", "c")["depth"] == 1)  # a topic hands over when it has answered
    wait_for(lambda: discovery.lookup("t") == {first.address, second.address})
    first.stop()
    wait_for(lambda: asked(lookupd, "t") == {second.address})
    second.http("/channel/delete?topic=t&channel=c", b"")
    second.http("/topic/delete?topic=t", b"")
    wait_for(lambda: asked(lookupd, "t") == set())
    assert discovery.lookup("t") == {first.address}, "who knew it goes on looking for one that may be restarted"
    assert lookupd.http("/topics") == {"topics": ["t"]}

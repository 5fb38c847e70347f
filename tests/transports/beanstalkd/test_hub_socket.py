"""What one socket to a beanstalkd keeps for the hub while that does not turn, and since when the jobs in it are kept."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from types import SimpleNamespace

import gevent
import pytest

from framework.transports.beanstalkd import hub_socket, wire
from framework.transports.beanstalkd.hub_socket import HubSocket

RESERVED = b"RESERVED %d 1\r\nx\r\n"


@pytest.fixture
def ends():
    """Ours, which writes down since when each job is kept; and the server's."""
    here, server = socket.socketpair()
    here.setblocking(False)
    kept: dict[int, float] = {}
    line = SimpleNamespace(node="b:11300", decoder=wire.Decoder(), release=lambda: here)
    ours = HubSocket(line, lambda replies: kept.update((one.number, ours.came) for one in replies), kept.setdefault)
    yield SimpleNamespace(ours=ours, server=server, kept=kept)
    ours.close()
    server.close()


def test_jobs_that_cannot_be_touched_in_the_hubs_place_are_kept_since_the_first_of_them_came(ends, monkeypatch):
    """The server reads nothing, so no touch reaches it. Their leases would be taken for over, or for longer than they are."""
    ends.ours.send(b"x" * 10_000_000)
    assert ends.ours.unsent
    monkeypatch.setattr(hub_socket, "RECV_SIZE", len(RESERVED % 1))
    before = time.monotonic()
    for number in (1, 2, 3):
        ends.server.sendall(RESERVED % number)
    ends.ours.rescue(lambda: [])
    after = time.monotonic()
    time.sleep(0.01)
    ends.server.sendall(RESERVED % 4)
    ends.ours.rescue(lambda: [])
    ends.ours.resume()
    assert list(ends.kept) == [1, 2, 3, 4]
    assert all(before <= since <= after for since in ends.kept.values())


def test_jobs_that_are_touched_in_the_hubs_place_are_kept_since_the_last_touch(ends):
    for number in (1, 2):
        ends.server.sendall(RESERVED % number)
        before = time.monotonic()
        ends.ours.rescue(lambda: [])
    ends.ours.resume()
    assert all(before <= since <= time.monotonic() for since in ends.kept.values())
    assert ends.server.recv(1000) == b"touch 1\r\ntouch 1\r\ntouch 2\r\n"


def test_at_first_nothing_waits_for_the_socket(ends):
    assert (ends.ours.unsent, ends.ours.cut(), ends.ours.sent, ends.ours.open) == (0, [], 0, True)
    ends.ours.close()
    assert not ends.ours.open


def test_jobs_that_the_hub_reads_itself_are_kept_since_then(ends):
    time.sleep(0.01)
    before = time.monotonic()
    ends.server.sendall(RESERVED % 1)
    ends.ours.poll()
    assert before <= ends.kept[1] <= time.monotonic()


def test_what_the_socket_does_not_take_at_once_goes_when_it_does_and_then_nothing_is_watched_for(ends):
    sent, got = b"x" * 5_000_000 + b"end", []
    ends.server.settimeout(0.0)
    ends.ours.send(sent)
    assert ends.ours.unsent
    assert ends.ours._writer.active
    until = time.monotonic() + 20
    while sum(map(len, got)) < len(sent):
        assert time.monotonic() < until
        with suppress(BlockingIOError):
            got.append(ends.server.recv(1 << 20))
        gevent.sleep(0)
    assert b"".join(got) == sent
    assert (ends.ours.unsent, ends.ours.sent) == (0, len(sent))
    gevent.sleep(0.01)
    assert not ends.ours._writer.active, "the hub would turn for ever"

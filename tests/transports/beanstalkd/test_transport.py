"""What the transport says of its servers without a handler: who they are, which tubes they have, and how much is in one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from framework.errors import SomeUnreachable
from framework.testing.servers import free_port
from framework.transports import open_transports
from framework.transports.beanstalkd import Client, transport, wire
from framework.transports.beanstalkd.dial import _KEEPALIVE, dial
from framework.transports.beanstalkd.producer import ttr_of
from framework.transports.contract import Transport
from framework.transports.kept import Kept

from .conftest import url

pytestmark = pytest.mark.real


def opened(*servers, options: str = "") -> Transport:
    return open_transports([url(servers, options)])[0]


def test_every_server_says_who_it_is(start_beanstalkd):
    servers = [start_beanstalkd("-F"), start_beanstalkd("-F")]
    transport = opened(*servers, options="?ttr=90s")
    assert transport.discover("orders") == {server.address for server in servers}
    probed = transport.probe()
    assert {info.node for info in probed} == {server.address for server in servers}
    assert all(info.server.startswith("beanstalkd 1.") and info.limits.lease == 90 for info in probed)


def test_topics_and_what_is_kept_of_each(start_beanstalkd):
    first, second = start_beanstalkd("-F"), start_beanstalkd("-F")
    transport = opened(first, second, options="?fanout=copies/a,copies/b")
    with Client(first.address, use="orders", watch="orders") as client:
        client.put_many([b"ready", b"reserved", b"buried"])
        client.put(b"late", delay=60)
        client.reserve(timeout=5)
        client.bury(client.reserve(timeout=5))
        client.use("copies/a")
        client.put_many([b"1", b"2"])
        assert transport.topics() == {"orders", "copies"}
        assert transport.backlog("orders", "billing") == {first.address: 3}  # who buries a job means it to wait
        assert transport.backlog("copies", "a") == {first.address: 2}
        assert transport.backlog("copies", "b") == transport.backlog("nothing", "x") == {}
    assert transport.channels("copies") == {"a", "b"}
    assert transport.channels("orders") == set()


def test_a_server_that_does_not_answer_is_named_beside_what_the_others_say(start_beanstalkd):
    server, away = start_beanstalkd("-F"), f"127.0.0.1:{free_port()}"
    with Client(server.address, use="orders") as client:
        client.put(b"1")
    transport = open_transports([f"beanstalkd://{server.address},{away}"])[0]
    answers = []
    for question in (transport.probe, transport.topics, lambda: transport.backlog("orders", "billing")):
        with pytest.raises(SomeUnreachable, match=f"beanstalkd {away} cannot be reached") as caught:
            question()
        assert caught.value.down == {away}
        answers.append(caught.value.answers)
    assert [info.node for info in answers[0]] == [server.address]
    assert answers[1:] == [{"orders"}, {server.address: 1}]


def test_a_pause_is_seen_until_its_last_second():
    kept = {}
    for left in (0, 1, 2):
        stats = (
            b"---\ncurrent-jobs-ready: 1\ncurrent-jobs-reserved: 2\ncurrent-jobs-delayed: 3\ntotal-jobs: 4\ncurrent-watching: 5\n"
        )
        line = SimpleNamespace(ask=lambda *_: wire.Reply("OK", 0, stats + b"pause-time-left: %d\n" % left))  # noqa: B023
        kept[left] = transport._kept(line, "orders")
    assert {left: one.paused for left, one in kept.items()} == {0: False, 1: True, 2: True}
    assert kept[0] == Kept(1, 2, 3, 4, 5)


def test_what_a_line_has_asked_its_system_for(start_beanstalkd):
    """A peer that is gone without a word is noticed after a minute, and a command is not held back for others."""
    with dial(start_beanstalkd("-F").address) as line:
        options = [line._sock.getsockopt(level, option) for level, option, _ in _KEEPALIVE]
    assert options == [1, 30, 10, 3, 1]


@pytest.mark.parametrize(("lease", "ttr"), [(0.2, 6), (1.0, 6), (299.5, 305), (604_800.0, 604_805), (2.0**33, 4_294_967_295)])
def test_a_job_has_some_seconds_more_than_its_handler(lease, ttr):
    assert ttr_of(lease) == ttr

"""What the transport says of its servers without a handler: who they are, which tubes they have, and how much is in one."""

from __future__ import annotations

import pytest

from framework.errors import SomeUnreachable
from framework.testing.servers import free_port
from framework.transports import open_transports
from framework.transports.beanstalkd import Client
from framework.transports.contract import Transport

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

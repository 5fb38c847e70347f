"""Which topics there are and how much each nsqd keeps of one, asked of real servers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import gevent
import pytest

from framework.errors import BrokerUnreachable, SomeUnreachable
from framework.testing import servers
from framework.testing.proxy import Proxy
from framework.testing.servers import Server, free_port, running
from framework.transports import open_transports
from framework.transports.contract import Transport
from framework.transports.nsq import backlog
from tests.transports.nsq.lookups import registered

pytestmark = pytest.mark.real


def transport(*nsqds: Server) -> Transport:
    [made] = open_transports([f"nsq://{one.address}?http_port={one.http_port}" for one in nsqds])
    return made


def test_what_waits_counts_for_the_channel_that_will_get_it(nsqd: Server) -> None:
    broker = transport(nsqd)
    assert broker.topics() == set()
    assert broker.backlog("news", "archive") == {}
    nsqd.http("/mpub?topic=news", b"one\ntwo\nthree")
    assert broker.topics() == {"news"}
    assert broker.backlog("news", "archive") == {nsqd.address: 3}
    nsqd.http("/channel/create?topic=news&channel=archive", b"")
    nsqd.http("/pub?topic=news&defer=60000", b"later")
    deadline = time.monotonic() + 10
    while broker.backlog("news", "archive") != {nsqd.address: 4}:
        assert time.monotonic() < deadline
    assert broker.backlog("news", "late to the party") == {nsqd.address: 0}


def test_a_node_without_the_topic_is_not_named(
    start_nsqd: Callable[..., Server], start_nsqlookupd: Callable[..., Server]
) -> None:
    lookupd = start_nsqlookupd()
    first, second = (start_nsqd(f"--lookupd-tcp-address={lookupd.address}") for _ in range(2))
    first.http("/pub?topic=news", b"one")
    second.http("/pub?topic=weather", b"one")
    silent = f"127.0.0.1:{free_port()}"
    [broker] = open_transports([f"nsq+lookupd://{lookupd.http_address},{silent}"])
    deadline = time.monotonic() + 20
    while broker.topics() != {"news", "weather"}:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert broker.backlog("news", "archive") == {first.address: 1}


def test_one_that_cannot_be_asked_is_an_error_and_not_a_smaller_number(nsqd: Server) -> None:
    [broker] = open_transports([f"nsq://{nsqd.address}?http_port={free_port()}"])
    for question in (broker.topics, lambda: broker.backlog("news", "archive"), lambda: broker.ensure("news", ["archive"])):
        with pytest.raises(BrokerUnreachable, match="cannot be reached"):
            question()


def test_where_some_are_down_altogether_the_error_says_so_and_has_what_the_others_said(nsqd: Server) -> None:
    nsqd.http("/pub?topic=news", b"one")
    down = f"127.0.0.2:{free_port()}"
    [broker] = open_transports([f"nsq://{nsqd.address}?http_port={nsqd.http_port}", f"nsq://{down}"])
    for question, answer in (
        (broker.topics, {"news"}),
        (lambda: broker.backlog("news", "archive"), {nsqd.address: 1}),
        (lambda: broker.ensure("news", ["archive"]), {nsqd.address: None}),
    ):
        with pytest.raises(SomeUnreachable, match="cannot be reached") as caught:
            question()
        assert (caught.value.down, caught.value.answers) == ({down}, answer)
    assert nsqd.channel_stats("news", "archive")


def test_one_of_which_only_the_http_does_not_answer_is_not_down(tmp_path: Path) -> None:
    nsqd = servers.real_nsqd(tmp_path)
    nsqd.command = [flag.replace("--tcp-address=127.0.0.1:", "--tcp-address=0.0.0.0:") for flag in nsqd.command]
    with running(nsqd):
        [broker] = open_transports([f"nsq://{nsqd.address}?http_port={nsqd.http_port}", f"nsq://127.0.0.2:{nsqd.tcp_port}"])
        with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.2:\d+ cannot be reached") as caught:
            broker.topics()
        assert not isinstance(caught.value, SomeUnreachable)


class Two(NamedTuple):
    """Two nsqds that an nsqlookupd names; the HTTP of the slow one is behind a proxy."""

    broker: Transport
    lookupd: Server
    there: Server
    slow: Server
    way: Proxy


@pytest.fixture
def two(start_nsqd: Callable[..., Server], start_nsqlookupd: Callable[..., Server], tmp_path: Path) -> Iterator[Two]:
    lookupd = start_nsqlookupd()
    named = f"--lookupd-tcp-address={lookupd.address}"
    slow = servers.real_nsqd(tmp_path, named)
    with Proxy(slow.http_address) as way:
        slow.command.append(f"--broadcast-http-port={way.address.rpartition(':')[2]}")
        with running(slow):
            there = start_nsqd(named)
            for one in (slow, there):
                one.http("/pub?topic=news", b"one")
            registered(lookupd, "news", 2)
            [broker] = open_transports([f"nsq+lookupd://{lookupd.http_address}"])
            yield Two(broker, lookupd, there, slow, way)


def test_one_whose_http_has_answered_before_is_down_for_the_moment(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is slow, or its disk is: what is stored there meanwhile is found as soon as it answers again."""
    monkeypatch.setattr(backlog, "PATIENCE", 0.4)
    monkeypatch.setattr(backlog, "BRIEF", 0.2)
    assert two.broker.topics() == {"news"}
    two.way.hold()
    for within in ("0.4 s", "0.2 s"):  # the second question waits for less
        with pytest.raises(SomeUnreachable, match=within) as caught:
            two.broker.backlog("news", "archive")
        assert (caught.value.down, caught.value.answers) == ({two.slow.address}, {two.there.address: 1})


def test_one_that_is_silent_is_dialled_while_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes as long as there is patience, and a handler may wait for it."""
    monkeypatch.setattr(backlog, "A_MOMENT", 0.01)
    events: list[str] = []

    def stats(*_: object, **__: object) -> None:
        gevent.sleep(0.3)
        events.append("given up")
        raise BrokerUnreachable("no answer")

    def dial(*_: object, **__: object) -> None:
        events.append("dialled")
        raise BrokerUnreachable("no answer by TCP")

    monkeypatch.setattr(backlog.Nsqd, "stats", stats)
    monkeypatch.setattr(backlog, "dial", dial)
    [broker] = open_transports(["nsq://127.0.0.1:4150"])
    with pytest.raises(BrokerUnreachable):
        broker.topics()
    assert events == ["dialled", "given up"]


def test_while_no_nsqlookupd_answers_those_that_it_named_are_asked_and_published_to(two: Two) -> None:
    both = {two.there.address: 1, two.slow.address: 1}
    assert two.broker.discover("news") == both.keys()
    two.lookupd.kill()
    with pytest.raises(SomeUnreachable, match=two.lookupd.http_address) as caught:
        two.broker.backlog("news", "archive")
    assert (caught.value.down, caught.value.answers) == (frozenset(), both)  # an error: there may be others
    producer = two.broker.producer()
    producer.publish("news", [b"two"], timeout=10.0)  # of a process that has never asked for all nodes
    producer.close()
    assert sum(one.http("/stats?format=json")["topics"][0]["message_count"] for one in (two.there, two.slow)) == 3

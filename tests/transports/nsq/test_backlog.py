"""Which topics there are and how much each nsqd keeps of one, asked of real servers."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from framework.errors import BrokerUnreachable, SomeUnreachable
from framework.testing import servers
from framework.testing.servers import Server, free_port, running
from framework.transports import open_transports
from framework.transports.contract import Transport

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

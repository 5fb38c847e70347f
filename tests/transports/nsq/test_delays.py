"""How long a delay each nsqd takes: asked, told or learned from a refusal; nsqd's IDENTIFY is silent about it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from framework.errors import BadMessage, BadSetting, PublishError, WrongUse
from framework.publisher import Publisher
from framework.testing.servers import Server, free_port
from framework.transports import open_transports
from framework.transports.nsq.delays import LongestDelays
from framework.transports.nsq.urls import Options, read

from .conftest import Recorder, stored

pytestmark = pytest.mark.real


@pytest.fixture
def brief(start_nsqd: Callable[..., Server]) -> Server:
    """An nsqd that takes delays of up to 4 seconds."""
    return start_nsqd("--max-req-timeout=4s")


def test_a_node_that_is_connected_to_has_said_it_by_http(brief: Server) -> None:
    [transport] = open_transports([f"nsq://{brief.address}?http_port={brief.http_port}"])
    assert transport.capabilities.max_defer == 3600
    connection = transport.connect(brief.address, "orders", "billing", Recorder())
    assert (connection.limits.max_requeue, connection.limits.max_defer) == (4, 4)
    assert transport.capabilities.max_defer == 4
    connection.close()


def test_a_probe_asks_as_well(brief: Server) -> None:
    [transport] = open_transports([f"nsq://{brief.address}?http_port={brief.http_port}"])
    [node] = transport.probe()
    assert node.limits.max_defer == 4
    assert transport.capabilities.max_defer == 4


def test_each_node_that_answers_describes_its_own_and_one_that_does_not_is_left_out(brief: Server) -> None:
    gone = f"127.0.0.1:{free_port()}"
    [transport] = open_transports([f"nsq://{brief.address},{gone}?http_port={brief.http_port}"])
    [node] = transport.describe("orders", "billing")
    assert (node.node, node.limits.max_requeue) == (brief.address, 4)
    assert (node.capabilities.max_requeue, node.capabilities.max_defer, transport.capabilities.max_defer) == (4, 4, 4)
    assert brief.http("/stats?format=json")["topics"] == []


def test_of_several_nodes_the_shortest_is_that_of_a_publish(brief: Server, nsqd: Server) -> None:
    delays = LongestDelays(Options())
    assert (delays.of(nsqd.address, nsqd.http_address), delays.longest) == (3600, 3600)
    assert (delays.of(brief.address, brief.http_address), delays.longest) == (4, 4)
    assert delays.of(nsqd.address, nsqd.http_address) == 3600


def test_where_nothing_answers_it_is_what_the_url_says_and_else_an_hour() -> None:
    nowhere = f"127.0.0.1:{free_port(2)}"
    assert LongestDelays(Options()).of(nowhere) == 3600
    told = LongestDelays(read([f"nsq://{nowhere}?max_req_timeout=30m"]).options)
    assert (told.of(nowhere), told.longest) == (1800, 1800)
    with pytest.raises(BadSetting, match="max_req_timeout='soon' in a broker URL"):
        read([f"nsq://{nowhere}?max_req_timeout=soon"])


def test_a_node_that_comes_back_with_another_limit_is_asked_again(
    start_nsqd: Callable[..., Server], brief: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("framework.transports.nsq.delays.FRESH", 0.0)
    delays = LongestDelays(Options())
    assert delays.of(brief.address, brief.http_address) == 4
    assert delays.of(brief.address, start_nsqd("--max-req-timeout=2h").http_address) == 7200
    assert delays.longest == 7200


def test_a_delay_that_nsqd_refuses_is_a_sentence_that_is_remembered_and_nothing_is_stored(brief: Server) -> None:
    publisher = Publisher([f"nsq://{brief.address}"])  # nobody has asked this nsqd yet
    publisher.publish("orders", b"soon", delay=2)
    with pytest.raises(PublishError, match=r"takes a delay of 0 to 4 seconds \(its --max-req-timeout\), not 60;") as refused:
        publisher.publish("orders", b"later", delay=60)
    assert isinstance(refused.value, BadMessage)
    assert refused.value.stored is False
    with pytest.raises(WrongUse, match="delay=60: this broker takes a delay of 0 to 4 seconds"):
        publisher.publish("orders", b"later", delay=60)
    publisher.publish("orders", b"soon", delay=4)
    publisher.close()
    assert stored(brief) == 2

"""What servers say in a well-formed answer that cannot be, or that is a refusal: each ends or holds up no more than it must.

An exception of another kind would end the greenlet that reads the answer, and a handler with it."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from framework.errors import BadSetting, BrokerUnreachable, ProtocolError, PublishError
from framework.transports import open_transports
from framework.transports.rocketmq import requests, routes
from framework.transports.rocketmq.dial import dial
from framework.transports.rocketmq.wire.codes import Answer, Request
from framework.transports.rocketmq.wire.errors import error_of
from framework.transports.rocketmq.wire.frames import Frame
from framework.transports.rocketmq.wire.handles import Popped
from tests.transports.rocketmq.canned import NAME, Canned
from tests.transports.rocketmq.kit import Sink, until

DEEP = b'{"a":' * 50_000
FAR = "9" * 400
"""More than a float can be."""


@pytest.mark.parametrize("body", [DEEP, b"[" * 50_000])
def test_a_body_that_is_nested_too_deeply_cannot_be_read(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="cannot be read"):
        routes.read_json(Frame(0, body=body), dict)


def test_a_body_that_does_not_end_is_read_once() -> None:
    """Not from each quotation mark to its end: 16 KB took most of a second, and twice as much four times as long."""
    body = b'{"a":"' + b'\\"' * 1_000_000
    assert routes.standard(body) == body
    assert routes.standard(b'{0:"a{1:", -1:{2:3}, "x":"y') == b'{"0":"a{1:", -1:{"2":3}, "x":"y'


@pytest.mark.parametrize("said", [FAR, "-1", ""])
def test_a_time_that_is_none_is_refused(said: str) -> None:
    fields = {"popTime": said, "invisibleTime": "60000", "reviveQid": "0"}
    with pytest.raises(ProtocolError, match="popTime is no time"):
        Popped(fields, "broker-a")
    with pytest.raises(ProtocolError):
        requests.Changed.of(fields)


@pytest.mark.parametrize("address", ["a:b:c", "", ":0", "127.0.0.1:x", "127.0.0.1:99999999", "\0:5"])
def test_a_broker_at_an_address_that_is_none_cannot_be_reached(address: str) -> None:
    with pytest.raises(BrokerUnreachable, match="RocketMQ at "):
        dial(address)


class Lying(Canned):
    """``instead``: code of a request -> the body of its answer."""

    def __init__(self, messages: int) -> None:
        super().__init__(messages)
        self.instead: dict[int, bytes] = {}

    def _said(self, asked: Frame) -> Any:
        body = self.instead.get(asked.code)
        return super()._said(asked) if body is None else (Answer.SUCCESS, {}, body)


def test_more_queues_than_a_topic_can_have_are_not_counted_up() -> None:
    server = Lying(10)
    queues = b'{"brokerName":"canned","perm":6,"readQueueNums":2000000000,"writeQueueNums":2000000000}'
    server.instead[Request.GET_ROUTEINFO_BY_TOPIC] = b'{"queueDatas":[%b],"brokerDatas":[]}' % queues
    (transport,) = open_transports([f"rocketmq://{server.address}?mode=pull"])
    with pytest.raises(BrokerUnreachable, match="cannot be read"):
        transport.discover(server.topic, "billing")
    transport.close()
    server.close()


def test_nor_are_those_of_many_brokers_that_have_too_many_together() -> None:
    """16 MiB of a route can name as many as no memory holds."""
    server = Lying(10)
    queues = b'{"brokerName":"canned","perm":6,"readQueueNums":65536,"writeQueueNums":65536}'
    server.instead[Request.GET_ROUTEINFO_BY_TOPIC] = b'{"queueDatas":[%b],"brokerDatas":[]}' % b",".join([queues] * 100)
    (transport,) = open_transports([f"rocketmq://{server.address}?mode=pull"])
    with pytest.raises(ProtocolError, match="has 6553600 queues"):
        transport._servers.queues(server.topic)
    transport.close()
    server.close()


@pytest.mark.parametrize("code", [Request.GET_CONSUMER_LIST_BY_GROUP, Request.LOCK_BATCH_MQ])
def test_a_member_of_a_group_looks_again_after_an_answer_that_it_cannot_read(code: Request) -> None:
    server = Lying(10)
    server.instead[code] = DEEP
    (transport,) = open_transports([f"rocketmq://{server.address}?mode=pull"])
    sink = Sink()
    connection = transport.connect(NAME, server.topic, "billing", sink)
    connection.grant(10)
    server.instead.clear()
    until(lambda: sum(sink.bodies.values()) == 40)
    connection.close()
    until(lambda: sink.closings)
    transport.close()
    server.close()


class Refusing(Lying):
    """It lets nobody read some of the queues."""

    refused = ("2", "3")

    def _pulled(self, asked: Any) -> Any:
        if asked["queueId"] in self.refused and not asked["topic"].startswith("%RETRY%"):
            return Answer.INVALID_PARAMETER, {}, b""
        return super()._pulled(asked)


def test_a_queue_that_nobody_may_read_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """As one that was taken from its topic: until that is known it is asked for."""
    server = Refusing(1000)
    (transport,) = open_transports([f"rocketmq://{server.address}?mode=pull"])
    sink = Sink()
    connection = transport.connect(NAME, server.topic, "billing", sink)
    connection.grant(100)
    until(lambda: sum(sink.bodies.values()) == 2000, 10.0)
    server.refused = ()
    until(lambda: sum(sink.bodies.values()) == 4000, 10.0)
    connection.close()
    until(lambda: sink.closings)
    transport.close()
    server.close()
    assert len([record for record in caplog.records if "refuses a PULL" in record.getMessage()]) == 1


def test_a_broker_that_is_taken_for_a_name_server_is_called_one() -> None:
    server = Lying(1)
    server.refuses = {Request.GET_ROUTEINFO_BY_TOPIC, Request.GET_BROKER_CLUSTER_INFO}
    (transport,) = open_transports([f"rocketmq://{server.address}"])
    for ask in (transport.probe, partial(transport.discover, server.topic, "billing")):
        with pytest.raises(BadSetting, match=f"RocketMQ at {server.address} is no name server"):
            ask()
    producer = transport.producer()
    with pytest.raises(PublishError, match="is no name server") as caught:
        producer.publish(server.topic, [b"x"], timeout=600)  # which it does not wait for
    assert caught.value.stored is False
    producer.close()
    transport.close()
    server.close()


class Unable(Canned):
    """It answers every question of a name server's with an error."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(1)

    def _said(self, asked: Frame) -> Any:
        return (self.code, {}, b"") if asked.code in (105, 106) else super()._said(asked)


@pytest.mark.parametrize("code", [Answer.SYSTEM_ERROR, Answer.SYSTEM_BUSY, Answer.GO_AWAY, 9999])
def test_a_name_server_that_cannot_answer_is_named_and_another_is_asked(code: int) -> None:
    unable, able = Unable(code), Canned(1)
    (alone,) = open_transports([f"rocketmq://{unable.address}"])
    for ask in (alone.probe, partial(alone.discover, able.topic, "billing")):
        with pytest.raises(BrokerUnreachable, match=unable.address):
            ask()
    (both,) = open_transports([f"rocketmq://{unable.address},{able.address}"])
    assert [info.node for info in both.probe()] == [NAME]
    for transport in (alone, both):
        transport.close()
    for server in (unable, able):
        server.close()


@pytest.mark.parametrize("remark", ["a\nb\r\n\tc d ", "a b c d" + " " * 10_000_000, "a b c d " + "z" * 10_000_000],
                         ids=["lines", "spaces", "letters"])  # fmt: skip
def test_the_words_of_an_error_are_one_line_and_not_a_frame_of_them(remark: str) -> None:
    error = error_of(Frame(Answer.SYSTEM_ERROR, remark=remark))
    assert error.words.startswith("a b c d")
    assert len(str(error)) < 700
    assert "\n" not in str(error)


@pytest.mark.parametrize("said", [b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_a_server_of_another_kind_cannot_be_reached_and_is_named(said: bytes) -> None:
    """As with the other brokers: `workers check` and `stats` end with 3, where 1 is for faults of ours."""
    held = []

    def say(listener: socket.socket) -> None:
        with suppress(OSError):  # it was closed
            while True:
                held.append(listener.accept()[0])
                held[-1].sendall(said)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=say, args=[listener], daemon=True).start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        (transport,) = open_transports([f"rocketmq://{address}"])
        with pytest.raises(BrokerUnreachable, match=address):
            transport.probe()
        transport.close()
        listener.shutdown(socket.SHUT_RDWR)
    for one in held:
        one.close()


def test_what_no_broker_can_have_said_is_not_said() -> None:
    """A name server forgets a broker in the moment that it ends: no broker is not the same as no topic, and nothing waiting."""
    server = Lying(1)
    server.instead[Request.GET_BROKER_CLUSTER_INFO] = b'{"brokerAddrTable":{}}'
    (transport,) = open_transports([f"rocketmq://{server.address}"])
    for ask in (transport.probe, transport.topics, partial(transport.describe, "other", "billing")):
        with pytest.raises(BrokerUnreachable, match="the name server knows no broker"):
            ask()
    transport.close()
    server.close()

"""The HTTP APIs of nsqd and nsqlookupd, over TLS and Unix sockets too."""

from __future__ import annotations

import json
import ssl
import time

import gevent
import gevent.event
import pytest
from gevent.ssl import SSLContext

from framework.errors import BadSetting, BrokerError, BrokerUnreachable, ProtocolError, TlsFailed
from framework.testing import servers
from framework.testing.certificates import Authority
from framework.testing.servers import ServerMissing, free_port
from framework.transports import open_transports
from framework.transports.nsq.http import Lookupd, Nsqd
from framework.transports.nsq.urls import Options
from tests.conftest import missing, starting
from tests.transports.nsq.lookups import http, producers, registered

pytestmark = pytest.mark.real


def test_nsqds_api(nsqd):
    api = Nsqd(nsqd.http_address)
    api.ping()
    assert (api.info().version, api.info().tcp_port) == ("1.3.0", nsqd.tcp_port)
    assert not api.stats("orders").topics
    api.create_topic("orders")
    api.create_channel("orders", "billing")
    nsqd.http("/mpub?topic=orders", b"a\nb\nc")
    api.pause_topic("orders")
    api.pause_channel("orders", "billing")
    (topic,) = api.stats().topics
    (channel,) = topic.channels
    assert (topic.topic_name, topic.paused, channel.channel_name, channel.paused) == ("orders", True, "billing", True)
    assert topic.message_count == 3
    assert channel.clients == []
    assert api.stats(clients=False).topics[0].channels[0].clients is None
    api.empty_topic("orders")
    api.empty_channel("orders", "billing")
    api.pause_topic("orders", paused=False)
    api.pause_channel("orders", "billing", paused=False)
    (topic,) = api.stats("orders", "billing").topics
    assert (topic.paused, topic.channels[0].paused, topic.depth + topic.channels[0].depth) == (False, False, 0)
    api.delete_channel("orders", "billing")
    api.delete_topic("orders")
    assert not api.stats().topics


def test_publishing_over_http(nsqd, kit):
    api = Nsqd(nsqd.http_address)
    api.publish("orders", b"\x00 a\nb")
    api.publish_many("orders", [b"c\nd", b"\xff"])
    receiver = kit.Recorder(kit.finish_all)
    kit.subscribe(nsqd.address, receiver).grant(5)
    kit.until(lambda: receiver.tally.finished == 3)
    assert sorted(m.body for m in receiver.messages) == [b"\x00 a\nb", b"c\nd", b"\xff"]
    api.publish("orders", b"later", delay=3600)
    kit.until(lambda: api.stats("orders").topics[0].channels[0].deferred_count == 1)  # nsqd hands it to the channel after its OK
    with pytest.raises(BrokerError, match="MSG_EMPTY"):
        api.publish("orders", b"")
    with pytest.raises(BrokerError, match="INVALID_TOPIC"):
        api.publish("o:s", b"x")


def test_stats_in_full(nsqd, kit):
    kit.subscribe(nsqd.address, kit.Recorder(), client_id="billing-7").grant(5)
    kit.producer(nsqd.address).publish("orders", [b"x"])
    stats = Nsqd(nsqd.http_address).stats(memory=True)
    assert (stats.version, stats.health) == ("1.3.0", "OK")
    assert stats.memory.heap_in_use_bytes > 0
    assert abs(stats.start_time - time.time()) < 60
    (client,) = kit.until(lambda: Nsqd(nsqd.http_address).stats("orders", "billing").topics[0].channels[0].clients)
    assert (client.client_id, client.version, client.state, client.ready_count) == ("billing-7", "V2", 3, 5)
    assert [count.topic for producer in stats.producers for count in producer.pub_counts] == ["orders"]


def test_what_nsqd_can_be_told_while_it_runs(nsqd, start_nsqlookupd):
    lookupd = start_nsqlookupd()
    api = Nsqd(nsqd.http_address)
    assert api.config("nsqlookupd_tcp_addresses") == []
    api.configure("nsqlookupd_tcp_addresses", [lookupd.address])
    api.configure("log_level", "debug")
    assert api.config("nsqlookupd_tcp_addresses") == [lookupd.address]
    api.create_topic("orders")
    registered(lookupd, "orders", 1)
    with pytest.raises(BrokerError, match="INVALID_OPTION"):
        api.configure("no_such", "x")


@pytest.fixture
def authority(tmp_path):
    try:
        return Authority(tmp_path)
    except ServerMissing as error:
        missing(str(error))


def test_the_api_over_https_verifies_whom_it_speaks_to(start_nsqd, authority):
    pair, port = authority.sign("nsqd"), free_port()
    nsqd = start_nsqd(f"--tls-cert={pair.cert}", f"--tls-key={pair.key}", f"--https-address=127.0.0.1:{port}")
    address = f"https://127.0.0.1:{port}"
    assert Nsqd(address, options=Options(tls_ca=str(authority.cert))).info().version == "1.3.0"
    assert Nsqd(address, options=Options(tls_insecure_skip_verify=True)).info().version == "1.3.0"
    with pytest.raises(TlsFailed, match=f"nsqd {address} shows a certificate that is not trusted"):
        Nsqd(address).info()
    with pytest.raises(TlsFailed, match="what answers there does not speak TLS"):
        Nsqd(f"https://{nsqd.http_address}").info()


def test_an_nsqd_that_takes_https_only_is_asked_where_it_says(start_nsqd, authority):
    pair, port = authority.sign("nsqd"), free_port()
    flags = [f"--tls-cert={pair.cert}", f"--tls-key={pair.key}", f"--https-address=127.0.0.1:{port}", "--tls-required=true"]
    nsqd = start_nsqd(*flags)
    Nsqd(f"https://127.0.0.1:{port}", options=Options(tls_ca=str(authority.cert))).create_topic("orders")
    with pytest.raises(BrokerError, match="TLS_REQUIRED"):
        Nsqd(nsqd.http_address).stats()
    [transport] = open_transports([f"nsq+tls://{nsqd.address}?tls_ca={authority.cert}&http_port={nsqd.http_port}"])
    assert transport.channels("orders") == set()
    assert transport.topics() == {"orders"}


def test_a_lookupd_behind_https(authority, listening):
    pair = authority.sign("proxy")
    context = SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)

    def serve(sock) -> None:
        sock.recv(65536)
        sock.sendall(http(json.dumps(producers(("h", 1))).encode()))

    address = listening(serve, ssl_context=context)
    [transport] = open_transports([f"nsq+lookupd+https://{address}?tls_ca={authority.cert}"])
    assert transport.discover("orders") == {"h:1"}


def test_a_refusal_carries_the_servers_words(nsqd):
    with pytest.raises(BrokerError, match="TOPIC_NOT_FOUND") as caught:
        Nsqd(nsqd.http_address).create_channel("orders", "billing")
    assert (caught.value.code, caught.value.fatal) == ("TOPIC_NOT_FOUND", False)
    assert nsqd.http_address in str(caught.value)


def test_lookupds_api(start_nsqd, start_nsqlookupd, tools):
    lookupd = start_nsqlookupd()
    nsqd = start_nsqd(f"--lookupd-tcp-address={lookupd.address}")
    api = Lookupd(lookupd.http_address)
    api.ping()
    assert api.info().version == "1.3.0"
    nsqd.http("/topic/create?topic=orders", b"")
    nsqd.http("/channel/create?topic=orders&channel=billing", b"")
    registered(lookupd, "orders", 1)
    (node,) = api.nodes()
    assert (node.node, node.http_port, node.topics) == (nsqd.address, nsqd.http_port, ["orders"])
    tools.until(lambda: api.lookup("orders").channels == ["billing"])  # nsqd tells of each by itself
    assert (api.topics(), api.channels("orders"), api.channels("unknown")) == (["orders"], ["billing"], [])
    api.create_topic("new")
    api.create_channel("new", "c")
    assert (api.lookup("new").producers, api.channels("new")) == ([], ["c"])
    api.delete_channel("new", "c")
    api.delete_topic("new")
    assert api.topics() == ["orders"]
    api.tombstone("orders", nsqd.http_address)
    (node,) = api.nodes()
    assert (node.tombstones, node.tombstoned, api.lookup("orders").producers) == ([True], True, [])


def test_an_nsqd_in_place_of_an_nsqlookupd_is_no_unknown_topic(nsqd):
    """Both answer 404. A worker that took it for an unknown topic waited for ever for a node that has it."""
    for ask in (lambda api: api.lookup("orders"), lambda api: api.nodes()):
        with pytest.raises(ProtocolError, match="is no nsqlookupd: name nsqlookupd's HTTP port, 4161 unless told otherwise"):
            ask(Lookupd(nsqd.http_address))


def test_a_server_that_is_not_there_is_named():
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(BrokerUnreachable, match=address):
        Nsqd(address).ping()


def test_the_api_over_a_unix_socket(tmp_path):
    path = tmp_path / "http.sock"

    def make():
        nsqd = servers.real_nsqd(tmp_path, f"--http-address={path}")
        nsqd.http_port = 0  # not to be waited for
        return nsqd

    with starting(make) as start:
        start()
        while not path.exists():
            gevent.sleep(0.01)
        api = Nsqd(str(path))
        api.publish("orders", b"x")
        assert (api.info().version, api.stats().topics[0].message_count) == ("1.3.0", 1)
    with pytest.raises(BrokerUnreachable, match=str(path)):
        api.ping()


@pytest.mark.parametrize("address", ["127.0.0.1", "host:", "::1", "nsq://a:4151", "http://a:1/stats", ""])
def test_what_is_no_address_is_refused_with_one_that_is(address):
    with pytest.raises(BadSetting, match=r"as 127\.0\.0\.1:4151"):
        Nsqd(address)


DEEP = b'{"x":' + b"[" * 50_000


@pytest.mark.parametrize("answer", [b"<html>It works!</html>", pytest.param(DEEP, id="deep")])
def test_an_answer_of_another_server_is_a_protocol_error(fake_http, answer):
    with pytest.raises(ProtocolError, match="answered /info with") as raised:
        Nsqd(fake_http(http(answer))).info()
    assert repr(answer[:80]) in str(raised.value)


def test_a_refusal_of_another_server_is_one_too(fake_http):
    with pytest.raises(ProtocolError, match="with HTTP 500"):
        Nsqd(fake_http(http(DEEP, status="500 No"))).info()


def test_what_a_server_without_http_says_stays_in_one_short_line(fake_http):
    with pytest.raises(ProtocolError, match="does not speak HTTP") as refused:
        Lookupd(fake_http(b'INFO {"server_id":"' + b"N" * 1000 + b'"} \r\n')).nodes()
    assert len(str(refused.value)) < 200
    assert str(refused.value).isprintable()

"""Broker URLs of NSQ: what they mean, and the sentence for one that means nothing."""

from __future__ import annotations

import pytest

from framework.errors import BadSetting
from framework.transports import open_transports
from framework.transports.nsq.urls import Options, join_address, read, split_address


@pytest.mark.parametrize(
    ("urls", "nsqds", "lookupds"),
    [
        (["nsq://host"], ("host:4150",), ()),
        (["nsq://host:5000/"], ("host:5000",), ()),
        (["nsq://[::1]"], ("[::1]:4150",), ()),
        (["nsq://[fe80::1%eth0]:5000"], ("[fe80::1%eth0]:5000",), ()),
        (["nsq://a:1,b,[::1]:3"], ("a:1", "b:4150", "[::1]:3"), ()),
        (["nsq+lookupd://l1,l2:4171"], (), ("l1:4161", "l2:4171")),
        (["nsq://a", "nsq+lookupd://l", "nsq://a:4150", "nsq://b?heartbeat=5s"], ("a:4150", "b:4150"), ("l:4161",)),
    ],
)
def test_addresses(urls, nsqds, lookupds):
    found = read(urls)
    assert (found.nsqds, found.lookupds) == (nsqds, lookupds)


def test_options():
    assert read(["nsq://a"]).options == Options()
    url = "nsq://a?heartbeat=1500ms&max_msg_size=10485760&max_body_size=20971520&http_port=4251"
    assert read([url]).options == Options(1.5, 10485760, 20971520, 4251)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nsq://user:hunter2@host", "leave out what is before the @"),
        ("nsq://host/orders", "topics are named by handlers"),
        ("nsq://host#x", r"nothing may follow the address but \?options"),
        ("nsq://host?heartbeet=1s", "did you mean heartbeat"),
        ("nsq://host?max_message_size=1", "did you mean max_msg_size"),
        ("nsq://host?zzz=1", "did you mean heartbeat, max_msg_size, max_body_size, http_port, client_id, "),
        ("nsq://host?heartbeat=500ms", "1s to 60s"),
        ("nsq://host?heartbeat=fast", "1s to 60s"),
        ("nsq://host?heartbeat=", "1s to 60s"),
        ("nsq://host?max_msg_size=1MB", "number of bytes"),
        ("nsq://host?http_port=0", "a port from 1 to 65535, such as http_port=4151"),
        ("nsq://", "is not an address; write host:4150"),
        ("nsq+lookupd://", "write host:4161"),
        ("nsq://a,,b", "'' is not an address"),
        ("nsq://::1", "port from 1 to 65535|not an address"),
        ("nsq://[::1", "not an address"),
        ("nsq://host:0", "port from 1 to 65535"),
        ("nsq://host:70000", "port from 1 to 65535"),
        ("nsq://host:nsq", "port from 1 to 65535"),
        ("nsq://two words", "port from|not an address"),
        ("NSQ://host", "the scheme must be one of nsq://"),
        ("host:4150", "the scheme must be one of nsq://"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_by_one_sentence(url, words):
    with pytest.raises(BadSetting, match=words) as caught:
        open_transports([url])
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_two_urls_may_not_disagree():
    with pytest.raises(BadSetting, match="heartbeat is '1s' in another URL"):
        read(["nsq://a?heartbeat=1s", "nsq://b?heartbeat=2s"])


@pytest.mark.parametrize(("host", "port", "address"), [("h", 1, "h:1"), ("::1", 4150, "[::1]:4150")])
def test_addresses_of_hosts(host, port, address):
    assert join_address(host, port) == address
    assert split_address(address) == (host, port)

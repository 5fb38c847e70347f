"""Finding nsqds: every nsqlookupd is asked, one that fails takes nothing away, and strange answers harm nobody."""

from __future__ import annotations

import json
import logging
import time

import gevent
import gevent.event
import pytest

from framework.errors import BrokerUnreachable
from framework.testing.servers import free_port
from framework.transports import open_transports
from framework.transports.nsq.discovery import Discovery
from framework.transports.nsq.http import Lookupd, Nsqd
from tests.transports.nsq.lookups import http, producers, registered

pytestmark = pytest.mark.real


# --- real servers ------------------------------------------------------------------------------------------


def test_the_nodes_of_a_topic_are_the_union_of_all_lookupds_and_of_those_named(start_nsqd, start_nsqlookupd):
    l1, l2 = start_nsqlookupd(), start_nsqlookupd()
    a = start_nsqd(f"--lookupd-tcp-address={l1.address}")
    b = start_nsqd(f"--lookupd-tcp-address={l2.address}", f"--lookupd-tcp-address={l1.address}")
    other = start_nsqd(f"--lookupd-tcp-address={l2.address}")
    for nsqd in (a, b):
        nsqd.http("/topic/create?topic=orders", b"")
    other.http("/topic/create?topic=elsewhere", b"")
    registered(l1, "orders", 2)
    registered(l2, "orders", 1)
    (transport,) = open_transports([f"nsq+lookupd://{l1.http_address},{l2.http_address}", "nsq://named:4150"])
    assert transport.discover("orders") == {a.address, b.address, "named:4150"}
    assert transport.discover("unknown") == {"named:4150"}
    assert transport.nodes() == {a.address, b.address, other.address, "named:4150"}


def test_a_lookupd_that_goes_away_takes_no_node_with_it(start_nsqd, start_nsqlookupd, caplog):
    l1, l2 = start_nsqlookupd(), start_nsqlookupd()
    a = start_nsqd(f"--lookupd-tcp-address={l1.address}")
    b = start_nsqd(f"--lookupd-tcp-address={l2.address}")
    for nsqd, lookupd in ((a, l1), (b, l2)):
        nsqd.http("/topic/create?topic=orders", b"")
        registered(lookupd, "orders", 1)
    (transport,) = open_transports([f"nsq+lookupd://{l1.http_address},{l2.http_address}"])
    assert transport.discover("orders") == {a.address, b.address}
    l1.kill()
    with caplog.at_level(logging.WARNING):
        assert transport.discover("orders") == {a.address, b.address}
    assert [l1.http_address in r.getMessage() for r in caplog.records] == [True]
    l2.kill()
    with pytest.raises(BrokerUnreachable, match=l2.http_address):
        transport.discover("orders")


@pytest.mark.real
def test_the_clock_of_a_node_is_never_behind_and_at_most_a_second_ahead(nsqd):
    """It tells whole seconds: what it is taken for may have been reached and never passed."""
    (transport,) = open_transports([f"nsq://{nsqd.address}?http_port={nsqd.http_port}"])
    before, after = 0.0, 1.0
    while int(before) != int(after):
        before, clock, after = time.time(), transport.clock_of(nsqd.address), time.time()
    assert before <= clock <= after + 1.0


@pytest.mark.parametrize("topics", [1, 40], ids=["topic by topic", "all at once"])
def test_a_node_that_is_lost_is_named_for_a_while_longer_and_then_is_gone(start_nsqd, start_nsqlookupd, monkeypatch, topics):
    """Most that are lost are being restarted."""
    lookupd = start_nsqlookupd()
    nsqd, other = (start_nsqd(f"--lookupd-tcp-address={lookupd.address}") for _ in range(2))
    for one in (nsqd, other):
        one.http("/topic/create?topic=orders", b"")
    registered(lookupd, "orders", 2)
    (transport,) = open_transports([f"nsq+lookupd://{lookupd.http_address}"])
    for number in range(topics):
        transport.discover(f"unknown{number}")
    assert transport.discover("orders") == {nsqd.address, other.address}
    nsqd.kill()
    registered(lookupd, "orders", 1)
    monkeypatch.setattr("framework.transports.nsq.register.FRESH", 0.0)
    monkeypatch.setattr("framework.transports.nsq.discovery.LOST", 3.0)
    assert transport.discover("orders") == {nsqd.address, other.address}
    deadline = time.monotonic() + 40
    while transport.discover("orders") != {other.address}:
        assert time.monotonic() < deadline
        gevent.sleep(0.1)
    nsqd.start()
    nsqd.http("/topic/create?topic=orders", b"")  # the kill may have come before it had written down which topics it has
    registered(lookupd, "orders", 2)
    assert transport.discover("orders") == {nsqd.address, other.address}


def test_a_node_on_which_the_topic_was_deleted_is_gone_at_once(start_nsqd, start_nsqlookupd):
    """To subscribe there would make the topic anew."""
    lookupd = start_nsqlookupd()
    nsqd = start_nsqd(f"--lookupd-tcp-address={lookupd.address}")
    for topic in ("orders", "invoices"):
        nsqd.http(f"/topic/create?topic={topic}", b"")
        registered(lookupd, topic, 1)
    (transport,) = open_transports([f"nsq+lookupd://{lookupd.http_address}"])
    assert transport.discover("orders") == transport.discover("invoices") == {nsqd.address}
    nsqd.http("/topic/delete?topic=orders", b"")
    registered(lookupd, "orders", 0)
    assert transport.discover("orders") == set()
    lookupd.http(f"/topic/tombstone?topic=invoices&node={nsqd.http_address}", b"")
    assert transport.discover("invoices") == set()


def test_many_topics_are_asked_for_at_once(start_nsqd, start_nsqlookupd, monkeypatch):
    lookupd = start_nsqlookupd()
    nsqd = start_nsqd(f"--lookupd-tcp-address={lookupd.address}")
    for number in range(40):
        nsqd.http(f"/topic/create?topic=t{number}", b"")
    for number in range(40):
        registered(lookupd, f"t{number}", 1)
    asked = []
    request = Lookupd._request
    monkeypatch.setattr(Lookupd, "_request", lambda self, *question: asked.append(question) or request(self, *question))
    expected = [{nsqd.address}] * 38 + [set(), {nsqd.address}]
    deadline = time.monotonic() + 20
    while True:
        # Each time anew: where the machine stands still for a second nsqd takes its nsqlookupd for dead, and registers all again.
        lookupd.http(f"/topic/tombstone?topic=t38&node={nsqd.http_address}", b"")
        if ask_for_forty(lookupd, asked) == expected:
            break
        assert time.monotonic() < deadline
    assert len(asked) < 40


def ask_for_forty(lookupd, asked):
    (transport,) = open_transports([f"nsq+lookupd://{lookupd.http_address}"])
    asked.clear()
    return [one.get() for one in gevent.joinall([gevent.spawn(transport.discover, f"t{number}") for number in range(40)])]


def test_a_crash_of_a_query_is_no_answer(start_nsqd, start_nsqlookupd, monkeypatch, caplog):
    lookupd = start_nsqlookupd()
    nsqd = start_nsqd(f"--lookupd-tcp-address={lookupd.address}")
    nsqd.http("/topic/create?topic=orders", b"")
    registered(lookupd, "orders", 1)
    (transport,) = open_transports([f"nsq+lookupd://{lookupd.http_address}"])
    assert transport.discover("orders") == {nsqd.address}
    monkeypatch.setattr(Lookupd, "lookup", lambda self, topic: {}["a bug"])
    with pytest.raises(BrokerUnreachable, match=r"no nsqlookupd answered: .*KeyError"):
        transport.discover("orders")
    assert "which is a bug" in caplog.text


def test_nodes_named_directly_do_not_depend_on_lookupds():
    (transport,) = open_transports([f"nsq+lookupd://127.0.0.1:{free_port()}", "nsq://named"])
    assert transport.discover("orders") == {"named:4150"}
    assert transport.nodes() == {"named:4150"}


def test_a_tombstoned_node_is_left_alone_until_it_is_none_any_more(start_nsqd, start_nsqlookupd):
    lookupd = start_nsqlookupd("--tombstone-lifetime=1500ms")
    doomed = start_nsqd(f"--lookupd-tcp-address={lookupd.address}")
    other = start_nsqd(f"--lookupd-tcp-address={lookupd.address}")
    for nsqd in (doomed, other):
        nsqd.http("/topic/create?topic=orders", b"")
    registered(lookupd, "orders", 2)
    (transport,) = open_transports([f"nsq+lookupd://{lookupd.http_address}"])
    assert transport.discover("orders") == {doomed.address, other.address}
    Lookupd(lookupd.http_address).tombstone("orders", doomed.http_address)
    assert transport.discover("orders") == {other.address}
    assert transport.nodes() == {other.address}
    registered(lookupd, "orders", 2)
    assert transport.discover("orders") == transport.nodes() == {doomed.address, other.address}


def test_a_node_with_another_topic_is_still_a_node_to_publish_to(start_nsqd, start_nsqlookupd):
    lookupd = start_nsqlookupd()
    nsqd = start_nsqd(f"--lookupd-tcp-address={lookupd.address}")
    for topic in ("orders", "news"):
        nsqd.http(f"/topic/create?topic={topic}", b"")
        registered(lookupd, topic, 1)
    Lookupd(lookupd.http_address).tombstone("orders", nsqd.http_address)
    (transport,) = open_transports([f"nsq+lookupd://{lookupd.http_address}"])
    assert (transport.discover("orders"), transport.discover("news")) == (set(), {nsqd.address})
    assert transport.nodes() == {nsqd.address}


def test_publishing_by_a_lookupd_reaches_an_nsqd(start_nsqd, start_nsqlookupd):
    lookupd = start_nsqlookupd()
    nsqd = start_nsqd(f"--lookupd-tcp-address={lookupd.address}")
    (transport,) = open_transports([f"nsq+lookupd://{lookupd.http_address}"])
    producer = transport.producer()
    producer.publish("orders", [b"x"])
    producer.close()
    assert Nsqd(nsqd.http_address).stats("orders").topics[0].message_count == 1


def test_the_channels_of_a_topic_are_those_on_any_server(start_nsqd, start_nsqlookupd):
    lookupd = start_nsqlookupd()
    known = start_nsqd(f"--lookupd-tcp-address=127.0.0.1:{lookupd.tcp_port}")
    named = start_nsqd()
    for nsqd, channel in ((known, "by-lookupd"), (named, "by-nsqd")):
        nsqd.http("/topic/create?topic=orders", b"")
        nsqd.http(f"/channel/create?topic=orders&channel={channel}", b"")
    registered(lookupd, "orders", 1)
    urls = [f"nsq+lookupd://{lookupd.http_address}", f"nsq://{named.address}?http_port={named.http_port}"]
    [transport] = open_transports(urls)
    assert transport.channels("orders") == {"by-lookupd", "by-nsqd"}
    assert transport.channels("news") == set()
    named.kill()
    assert transport.channels("orders") == {"by-lookupd"}
    with pytest.raises(BrokerUnreachable, match=named.http_address):
        transport.channels("news")


def test_probing_says_who_is_there_and_names_who_is_not(start_nsqd):
    nsqd = start_nsqd("--msg-timeout=7s", "--max-msg-timeout=70s", "--max-rdy-count=11")
    (info,) = open_transports([f"nsq://{nsqd.address}"])[0].probe()
    assert (info.node, info.server) == (nsqd.address, "nsqd 1.3.0")
    assert (info.limits.lease, info.limits.max_lease, info.limits.max_grant) == (7, 70, 11)
    gone = f"127.0.0.1:{free_port()}"
    with pytest.raises(BrokerUnreachable, match=gone):
        open_transports([f"nsq://{nsqd.address},{gone}"])[0].probe()


def test_probing_a_lookupd_without_nodes_says_so(start_nsqlookupd):
    with pytest.raises(BrokerUnreachable, match="no nsqd yet"):
        open_transports([f"nsq+lookupd://{start_nsqlookupd().http_address}"])[0].probe()


# --- strange answers ---------------------------------------------------------------------------------------

STRANGE = {
    "html": http(b"<html>It works!</html>"),
    "an error page": http(b"<html>oops</html>", "500 Internal Server Error"),
    "an error": http(b'{"message":"INTERNAL_ERROR"}', "500 Internal Server Error"),
    "another json": http(b'{"producers": 7}'),
    "a list": http(b"[]"),
    "not utf-8": http(b"\xff\xfe"),
    "not http": b"  V2 or what\r\n\r\n",
    "nothing": b"",
    "half": b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{",
    "a port of text": http(b'{"producers":[{"broadcast_address":"h","tcp_port":"x"}]}'),
}


@pytest.mark.parametrize("answer", STRANGE.values(), ids=STRANGE.keys())
def test_a_strange_answer_is_a_failure_of_that_lookupd_alone(fake_http, answer, caplog):
    good = fake_http(http(json.dumps(producers(("h", 1))).encode()))
    strange = fake_http(answer)
    with caplog.at_level(logging.WARNING):
        assert Discovery([strange, good]).lookup("orders") == {"h:1"}
    assert [strange in r.getMessage() for r in caplog.records] == [True]
    with pytest.raises(BrokerUnreachable, match=strange):
        Discovery([strange]).lookup("orders")


NO_ADDRESS = {
    "nothing": ("", 1), "two lines": ("a b\n", 1), "an empty label": ("nsqd..internal", 1), "too long": ("x" * 100_000, 1),
    "a zero": ("\0", 1), "half a bracket": ("[::1", 1), "no character of names": ("\u2028", 1), "port 0": ("h", 0),
    "a negative port": ("h", -1), "port 65536": ("h", 1 << 16),
}  # fmt: skip


@pytest.mark.parametrize(("host", "port"), NO_ADDRESS.values(), ids=NO_ADDRESS.keys())
def test_a_node_at_no_address_is_left_out_and_named_once(fake_http, host, port, caplog):
    """It was dialled for ever, with a traceback each time, and could write lines of its own into the log."""
    lookupd = fake_http(http(json.dumps(producers(("h", 1), (host, port), ("::1", 2))).encode()))
    discovery = Discovery([lookupd])
    with caplog.at_level(logging.WARNING):
        for topic in ("orders", "orders", "others"):
            assert discovery.lookup(topic) == {"h:1", "[::1]:2"}
    (said,) = [record.getMessage() for record in caplog.records]
    assert f"nsqlookupd {lookupd} names an nsqd at no address" in said
    assert said.isprintable()
    assert len(said) < 300


def test_no_more_than_a_hundred_nodes_at_no_address_are_named_in_the_life_of_a_process(fake_http, caplog):
    lookupd = fake_http(http(json.dumps(producers(("h", 1), *((f"{n} is none", 1) for n in range(150)))).encode()))
    discovery = Discovery([lookupd])
    with caplog.at_level(logging.WARNING):
        for topic in ("orders", "others"):
            assert discovery.lookup(topic) == {"h:1"}
    assert len({record.getMessage() for record in caplog.records}) == len(caplog.records) == 100


def test_a_lookupd_that_stays_away_is_named_once_and_again_when_it_is_back(start_nsqlookupd, caplog):
    lookupd = start_nsqlookupd()
    discovery = Discovery([lookupd.http_address])
    lookupd.stop()
    with caplog.at_level(logging.INFO):
        for topic in ("orders", "news", "orders"):
            with pytest.raises(BrokerUnreachable):
                discovery.lookup(topic)
        lookupd.start()
        discovery.lookup("orders")
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "its nodes stay as they were" in said[0]
    assert said[1] == f"nsqlookupd {lookupd.http_address} answers again"


def test_a_silent_lookupd_costs_no_more_than_its_timeout(fake_http):
    good, silent = fake_http(http(json.dumps(producers(("h", 1))).encode())), fake_http(None)
    started = time.monotonic()
    assert Discovery([silent, silent, good], timeout=2).lookup("orders") == {"h:1"}
    assert time.monotonic() - started < 4  # one after the other


def test_a_dead_lookupd_delays_nothing_and_what_it_says_later_is_not_forgotten(listening):
    held, answer = gevent.event.Event(), http(json.dumps(producers(("late", 1))).encode())

    def serve_late(sock) -> None:
        sock.recv(65536)
        held.wait()
        sock.sendall(answer)

    def serve_at_once(sock) -> None:
        sock.recv(65536)
        sock.sendall(http(json.dumps(producers(("early", 1))).encode()))

    discovery = Discovery([listening(serve_late), listening(serve_at_once)], timeout=30)
    started = time.monotonic()
    assert discovery.lookup("orders") == {"early:1"}
    assert time.monotonic() - started < 10  # and not 30
    held.set()
    gevent.sleep(0.1)
    assert discovery.known("orders") == discovery.lookup("orders") == {"early:1", "late:1"}


def test_a_lookupd_that_answers_by_the_byte_costs_no_more_than_its_timeout(listening):
    def dribble(sock) -> None:
        for byte in http(b" " * 1000):
            sock.sendall(bytes([byte]))
            gevent.sleep(0.05)

    address = listening(dribble)
    started = time.monotonic()
    with pytest.raises(BrokerUnreachable, match=r"did not answer .* within 0\.3 s"):
        Discovery([address], timeout=0.3).lookup("orders")
    assert time.monotonic() - started < 1


def test_servers_before_1_0_are_understood(fake_http):
    wrapped = {"status_code": 200, "status_txt": "OK", "data": producers(("::1", 4150))}
    assert Discovery([fake_http(http(json.dumps(wrapped).encode()))]).lookup("orders") == {"[::1]:4150"}
    unknown = http(b'{"status_code":500,"status_txt":"INVALID_ARG_TOPIC","data":null}', "500 Internal Server Error")
    assert Discovery([fake_http(unknown)]).lookup("orders") == set()

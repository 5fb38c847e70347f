"""The engine among real nsqds and nsqlookupds that come, go and break: each new one is used soon, and a bad one stops nothing."""

from __future__ import annotations

import logging
import time

import gevent
import pytest
from gevent.server import StreamServer

from framework.transports.nsq import wire
from framework.transports.nsq.http import Lookupd
from tests.engine.real import publish, spec

pytestmark = pytest.mark.real

IDENTITY = b'{"version":"1.3.0","max_rdy_count":2500,"msg_timeout":60000,"max_msg_timeout":900000}'


def ready_count(server) -> int:
    channel = gevent.get_hub().threadpool.apply(server.channel_stats, ("orders", "billing"))
    return sum(client["ready_count"] for client in channel.get("clients", []))


@pytest.mark.slow
def test_a_new_nsqd_gets_its_first_rdy_within_a_poll_and_a_second_though_the_others_hold_all_there_is(
    start_nsqd, start_nsqlookupd, run_real
):
    lookupd = start_nsqlookupd()
    first = [start_nsqd(f"--lookupd-tcp-address={lookupd.address}") for _ in range(2)]
    done = []

    def function(message):
        gevent.sleep(0.02)
        done.append(message.body)

    for server in first:
        publish(server, [b"%d" % i for i in range(2000)])
    poll = 2.0
    worker = run_real([], spec(function, max_in_flight=2), urls=[f"nsq+lookupd://{lookupd.http_address}"], poll_interval=poll)
    worker.until(lambda: len(done) > 50)
    late = start_nsqd(f"--lookupd-tcp-address={lookupd.address}")
    publish(late, [b"late"])
    worker.until(lambda: len(Lookupd(lookupd.http_address).lookup("orders").producers) == 3)
    began = time.monotonic()
    worker.until(lambda: ready_count(late) or b"late" in done)
    assert time.monotonic() - began < poll + 1
    worker.until(lambda: b"late" in done)
    worker.supervisor.stop(now=True)
    worker.end()


@pytest.mark.slow
def test_nsqlookupds_that_answer_nonsense_or_never_stop_nothing(start_nsqd, start_nsqlookupd, run_real, caplog):
    answers = {
        "html": b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>",
        "error": b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n",
        "never": None,
    }

    def serving(answer):
        def serve(sock, _address):
            sock.recv(65536)
            if answer is None:
                gevent.sleep(60)
            sock.sendall(answer)

        server = StreamServer(("127.0.0.1", 0), serve)
        server.start()
        return server

    bad = {name: serving(answer) for name, answer in answers.items()}
    good = start_nsqlookupd()
    server = start_nsqd(f"--lookupd-tcp-address={good.address}")
    publish(server, [b"%d" % i for i in range(100)])
    places = [f"127.0.0.1:{one.server_port}" for one in bad.values()]
    done = []
    with caplog.at_level(logging.WARNING):
        urls = ["nsq+lookupd://" + ",".join([*places, good.http_address])]
        worker = run_real([], spec(lambda message: done.append(message.body)), urls=urls, poll_interval=0.2)
        worker.until(lambda: len(done) == 100)
        late = start_nsqd(f"--lookupd-tcp-address={good.address}")
        publish(late, [b"late"])
        worker.until(lambda: b"late" in done)
        worker.until(lambda: all(place in caplog.text for place in places))
        gevent.sleep(1)
    for one in bad.values():
        one.stop(0)
    for place in places:
        assert [place in record.getMessage() for record in caplog.records].count(True) == 1
    worker.stop()


GARBAGE = {
    "text": b"HTTP/1.1 200 OK\r\n\r\n",
    "a frame of 2 GiB": b"\x7f\xff\xff\xff\x00\x00\x00\x02",
    "a negative size": b"\xff\xff\xff\xff\x00\x00\x00\x00",
    "a frame type of no kind": wire.encode_frame(7, b"x"),
    "a message too short": wire.encode_frame(2, b"short"),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
def test_a_peer_that_sends_garbage_is_named_with_its_bytes_and_dialled_less_and_less_and_the_others_go_on(
    nsqd, run_real, caplog, garbage
):
    dials = []

    def serve(sock, _address):
        dials.append(time.monotonic())
        file = sock.makefile("rb")
        file.read(4)
        file.readline()
        file.read(int.from_bytes(file.read(4)))
        sock.sendall(wire.encode_frame(0, IDENTITY))
        file.readline()
        sock.sendall(wire.encode_frame(0, wire.OK))
        file.readline()
        sock.sendall(garbage)
        file.read()

    peer = StreamServer(("127.0.0.1", 0), serve)
    peer.start()
    done = []
    publish(nsqd, [b"%d" % i for i in range(500)])
    address = f"127.0.0.1:{peer.server_port}"
    with caplog.at_level(logging.WARNING):
        worker = run_real(
            [], spec(lambda message: done.append(message.body)), urls=[f"nsq://{nsqd.address},{address}?heartbeat=1s"]
        )
        worker.until(lambda: len(done) == 500)
        worker.until(lambda: len(dials) >= 6)
    said = [record.getMessage() for record in caplog.records if address in record.getMessage()]
    assert "not an nsqd's bytes" in said[0]
    assert repr(garbage[:8])[2:-1] in said[0]
    assert len(said) <= 3
    assert dials[5] - dials[0] >= 0.05 + 0.1 + 0.2 + 0.25, "the shortest that pauses which grow to half a second may be"
    peer.stop(0)
    assert worker.stop()["finished"] == 500


@pytest.mark.parametrize("fault", ["half-open", "does not read", "killed"])
def test_a_dead_connection_does_not_hold_the_stop(start_nsqd, start_proxy, run_real, fault):
    """Neither what runs, which ends, nor what has not started, which cannot be given back."""
    server, silent = start_nsqd(), StreamServer(("127.0.0.1", 0), lambda sock, _: sock.recv(1) and gevent.sleep(60))
    silent.start()  # where a dial hangs
    proxy = start_proxy(server.address)
    release, running = gevent.event.Event(), []

    def function(message):
        running.append(message)
        release.wait()

    urls = [f"nsq://{proxy.address},127.0.0.1:{silent.server_port}?heartbeat=30s"]
    worker = run_real([], spec(function, concurrency=5), urls=urls, drain=60.0)
    publish(server, [b"%d" % i for i in range(100)])
    worker.until(lambda: len(running) == 5)
    {"half-open": proxy.swallow, "does not read": proxy.hold, "killed": server.kill}[fault]()
    began = time.monotonic()
    worker.supervisor.stop()
    gevent.sleep(0.1)
    release.set()
    ledger = worker.end()
    assert time.monotonic() - began < 15  # of the 60 that a handler might have taken
    assert ledger["received"] == ledger["finished"] + ledger["requeued"] + ledger["lease_lost"]
    silent.stop(0)

"""TLS, compression and what else IDENTIFY asks for, of real nsqds: what arrives is what was sent, and never in clear unasked."""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys

import gevent
import pytest

from framework.errors import BrokerUnreachable, NegotiationRefused, PublishError
from framework.testing import servers
from framework.testing.proxy import Proxy
from framework.testing.servers import free_port
from framework.transports import open_transports
from framework.transports.nsq.dial import dial
from framework.transports.nsq.urls import Options
from tests.conftest import starting
from tests.transports.nsq.conftest import tls_flags

pytestmark = pytest.mark.real


LAYERS = {
    "plain": {},
    "tls": {"tls": True},
    "tls 1.3": {"tls": True, "tls_min_version": "1.3"},
    "snappy": {"snappy": True},
    "deflate": {"deflate": True},
    "deflate 1": {"deflate": True, "deflate_level": 1},
    "tls and snappy": {"tls": True, "snappy": True},
    "tls and deflate": {"tls": True, "deflate": True, "deflate_level": 9},
}


def trusted(authority, options):
    return options | ({"tls_ca": str(authority.cert)} if options.get("tls") else {})


def client(nsqd):
    return nsqd.channel_stats("orders", "billing")["clients"][0]


@pytest.fixture
def start_nsqd_at(tmp_path):
    """``start_nsqd_at(address, port)``; port 0: it has none."""

    def make(address, port, *flags):
        nsqd = servers.real_nsqd(tmp_path, f"--tcp-address={address}", *flags)
        nsqd.tcp_port = port
        return nsqd

    with starting(make) as start:
        yield start


@pytest.mark.parametrize("options", LAYERS.values(), ids=LAYERS.keys())
def test_large_random_bodies_go_both_ways_unharmed(start_tls_nsqd, kit, authority, options):
    nsqd = start_tls_nsqd()
    options = trusted(authority, options)
    bodies = [os.urandom(1 << 20) for _ in range(6)] + [b"a" * (1 << 20), b"x", os.urandom(65536), os.urandom(65537)]
    producer = kit.producer(nsqd.address, **options)
    for body in bodies[::2]:
        producer.publish("orders", [body])
    producer.publish("orders", bodies[1::2])
    receiver = kit.Recorder(kit.finish_all)
    kit.subscribe(nsqd.address, receiver, **options).grant(3)
    kit.until(lambda: receiver.tally.finished == len(bodies), 60)
    assert sorted(m.body for m in receiver.messages) == sorted(bodies)
    kit.until(lambda: client(nsqd)["finish_count"] == len(bodies))
    seen = client(nsqd)
    assert (seen["tls"], seen["snappy"], seen["deflate"]) == tuple(options.get(k, False) for k in ("tls", "snappy", "deflate"))


@pytest.mark.parametrize("options", LAYERS.values(), ids=LAYERS.keys())
def test_many_small_messages_go_both_ways_from_many_greenlets(start_tls_nsqd, kit, authority, options):
    nsqd = start_tls_nsqd()
    options = trusted(authority, options)
    producer = kit.producer(nsqd.address, **options)
    jobs = [gevent.spawn(lambda i=i: [producer.publish("orders", [b"%d.%d" % (i, k)]) for k in range(20)]) for i in range(50)]
    gevent.joinall(jobs, raise_error=True)
    producer.publish_each("orders", [b"each %d" % i for i in range(500)])
    receiver = kit.Recorder(kit.finish_all)
    connection = kit.subscribe(nsqd.address, receiver, **options)
    connection.grant(200)
    kit.until(lambda: receiver.tally.finished == 1500, 30)
    assert len({m.body for m in receiver.messages}) == 1500
    kit.until(lambda: client(nsqd)["finish_count"] == 1500)
    connection.drain()
    kit.until(lambda: receiver.drained_calls)
    connection.close()
    assert (receiver.ends, receiver.tally.lease_lost) == ([None], 0)


@pytest.mark.parametrize("options", LAYERS.values(), ids=LAYERS.keys())
def test_a_peer_that_does_not_read_for_a_while_gets_every_byte(start_tls_nsqd, kit, authority, options):
    nsqd = start_tls_nsqd()
    with Proxy(nsqd.address) as proxy:
        producer = kit.producer(proxy.address, **trusted(authority, options))
        producer.publish("orders", [b"dial"])
        proxy.hold()
        jobs = [gevent.spawn(producer.publish, "orders", [os.urandom(1 << 20)]) for _ in range(12)]
        gevent.sleep(0.3)
        assert not any(job.ready() for job in jobs)
        proxy.restore()
        gevent.joinall(jobs, raise_error=True)
    assert kit.stored(nsqd) == 13


@pytest.mark.parametrize("options", LAYERS.values(), ids=LAYERS.keys())
def test_bytes_that_come_one_by_one_are_as_good(start_tls_nsqd, kit, authority, options):
    nsqd = start_tls_nsqd()
    with Proxy(nsqd.address) as proxy:
        proxy.trickle()
        options = trusted(authority, options)
        kit.producer(proxy.address, **options).publish("orders", [b"%d" % i for i in range(50)])
        receiver = kit.Recorder(kit.finish_all)
        kit.subscribe(proxy.address, receiver, **options).grant(7)
        kit.until(lambda: receiver.tally.finished == 50, 60)


@pytest.mark.parametrize("name", ["tls", "snappy", "deflate", "tls and deflate"])
def test_over_connections_cut_anywhere_what_was_confirmed_is_stored_and_no_more_than_is_in_doubt(
    start_tls_nsqd, kit, authority, name
):
    nsqd = start_tls_nsqd()
    sent, doubtful, wrong, stopped = [0], [0], [], []
    with Proxy(nsqd.address) as proxy:
        producer = kit.producer(proxy.address, **trusted(authority, LAYERS[name]))

        def work() -> None:
            while not stopped:
                try:
                    producer.publish("orders", [os.urandom(random.randrange(1, 60_000))])
                    sent[0] += 1
                except PublishError as error:
                    doubtful[0] += 1
                    wrong.extend([error] if error.stored is not None else [])

        jobs = [gevent.spawn(work) for _ in range(10)]
        for _ in range(15):
            before = proxy.accepted
            proxy.to_server.cut_after(random.randrange(1, 400_000))
            kit.until(lambda before=before: proxy.accepted > before, 30)
        stopped.append(True)
        gevent.joinall(jobs, raise_error=True)
    assert wrong == []
    assert 0 < doubtful[0] <= 150
    assert sent[0] <= kit.stored(nsqd) <= sent[0] + doubtful[0]


def test_a_command_of_which_the_socket_took_all_but_the_end_of_its_encoding_is_in_doubt(nsqd, kit):
    """nsqd can read the whole of it without the last bytes of a deflate block: sending it again might double it."""
    producer = kit.producer(nsqd.address, deflate=True)
    producer.publish("orders", [b"dial"])
    link = producer._publishing.here()._link

    class Miser:
        taken = 0

        def send(self, data) -> int:
            if self.taken or len(data) <= 4:
                raise BlockingIOError
            self.taken = real.send(data[:-4])
            return self.taken

        def __getattr__(self, name: str):
            return getattr(real, name)

    real, link._sock._below = link._sock._below, Miser()
    job = gevent.spawn(producer.publish, "orders", [b"x"])
    kit.until(lambda: link._sock.begun)
    link.close()
    job.join(5)
    assert isinstance(job.exception, PublishError)
    assert job.exception.stored is None


@pytest.mark.parametrize("options", [LAYERS["tls and snappy"], LAYERS["tls and deflate"]], ids=["snappy", "deflate"])
def test_heartbeats_are_answered(start_tls_nsqd, kit, authority, options):
    nsqd = start_tls_nsqd()
    options = trusted(authority, options) | {"heartbeat": 1.0}
    receiver = kit.Recorder(kit.finish_all)
    kit.subscribe(nsqd.address, receiver, **options).grant(1)
    producer = kit.producer(nsqd.address, **options)
    producer.publish("orders", [b"x"])
    gevent.sleep(2.6)
    producer.publish("orders", [b"y"])
    kit.until(lambda: receiver.tally.finished == 2)
    assert receiver.ends == []
    assert len(nsqd.http("/stats?format=json")["producers"]) == 1


def test_it_works_in_a_patched_process_too(start_tls_nsqd, authority, kit):
    nsqd = start_tls_nsqd()
    code = f"""
from gevent import monkey; monkey.patch_all()
from framework.transports import open_transports
url = "nsq+tls://{nsqd.address}?tls_ca={authority.cert}&deflate=true"
open_transports([url])[0].producer().publish("orders", [b"x"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert kit.stored(nsqd) == 1


@pytest.mark.parametrize("what", ["snappy", "deflate"])
def test_an_nsqd_without_compression_is_used_without_and_the_log_says_so(start_nsqd, kit, what, caplog):
    caplog.set_level(logging.INFO)
    nsqd = start_nsqd("--snappy=false", "--deflate=false")
    kit.producer(nsqd.address, **{what: True}).publish("orders", [b"x"])
    receiver = kit.Recorder(kit.finish_all)
    kit.subscribe(nsqd.address, receiver, **{what: True}).grant(1)
    kit.until(lambda: receiver.tally.finished == 1)
    assert not client(nsqd)[what]
    assert f"nsqd {nsqd.address} grants no {what}: it goes on uncompressed" in caplog.text


def test_compression_saves_bytes(nsqd, kit, caplog):
    caplog.set_level(logging.INFO)
    sizes = {}
    for name, options in (("plain", {}), ("snappy", {"snappy": True}), ("deflate", {"deflate": True})):
        with Proxy(nsqd.address) as proxy:
            kit.producer(proxy.address, **options).publish("orders", [b"the same again " * 10000])
            sizes[name] = proxy.to_server.passed
    assert sizes["snappy"] < sizes["plain"] / 5
    assert sizes["deflate"] < sizes["plain"] / 50
    assert "uncompressed" not in caplog.text


def test_nsqd_shows_what_it_was_told(nsqd, kit):
    said = {"client_id": "billing-7", "hostname": "web1.example", "user_agent": "shop/2.1", "sample_rate": 42}
    connection = kit.subscribe(nsqd.address, kit.Recorder(), **said, msg_timeout=2.5)
    seen = client(nsqd)
    assert {name: seen[name] for name in said} == said
    assert connection.limits.lease == 2.5


def test_what_is_not_told_has_good_defaults(nsqd, kit):
    kit.subscribe(nsqd.address, kit.Recorder())
    seen = client(nsqd)
    assert seen["client_id"].endswith(f":{os.getpid()}")
    assert seen["hostname"] == os.uname().nodename
    assert seen["user_agent"].startswith("nsq-workers/")
    assert seen["sample_rate"] == 0


def test_a_sample_is_a_part_of_the_messages(nsqd, kit):
    kit.producer(nsqd.address).publish("orders", [b"%d" % i for i in range(2000)])
    receiver = kit.Recorder(kit.finish_all)
    kit.subscribe(nsqd.address, receiver, sample_rate=10).grant(100)

    def over() -> bool:
        stats = nsqd.channel_stats("orders", "billing")
        return (stats["message_count"], stats["depth"], stats["in_flight_count"]) == (2000, 0, 0)

    kit.until(over)
    assert 100 < receiver.tally.received < 400


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"heartbeat": 0.5}, "heartbeat interval"),
        ({"msg_timeout": 3600.0}, "msg timeout"),
        ({"output_buffer_size": 10**9}, "output buffer size"),
        ({"output_buffer_timeout": 60.0}, "output buffer timeout"),
        ({"sample_rate": 100}, "sample rate"),
    ],
)
def test_what_this_nsqd_does_not_take_is_said_in_its_words(nsqd, options, words):
    with (
        pytest.raises(NegotiationRefused, match=rf"E_BAD_BODY IDENTIFY {words} .* is invalid: change that option"),
        dial(nsqd.address, Options(**options)),
    ):
        pass


def test_a_messages_buffer_can_be_switched_off(nsqd, kit):
    receiver = kit.Recorder(kit.finish_all)
    kit.subscribe(nsqd.address, receiver, output_buffer_size=-1).grant(100)
    kit.producer(nsqd.address).publish("orders", [b"x"])
    kit.until(lambda: receiver.tally.finished == 1)


def exchange(node, kit, **options):
    """Some messages there and back."""
    assert not any(kit.producer(node, **options).publish_each("orders", [b"%d" % i for i in range(300)]))
    receiver = kit.Recorder(kit.finish_all)
    kit.subscribe(node, receiver, **options).grant(50)
    kit.until(lambda: receiver.tally.finished == 300)


def test_an_nsqd_on_ipv6(start_nsqd_at, kit):
    port = free_port()
    start_nsqd_at(f"[::]:{port}", port)
    [transport] = open_transports([f"nsq://[::1]:{port}"])
    assert transport.discover("orders") == {f"[::1]:{port}"}
    assert [one.node for one in transport.probe()] == [f"[::1]:{port}"]
    exchange(f"[::1]:{port}", kit)


def test_tls_on_ipv6(start_nsqd_at, authority, pair, kit):
    port = free_port()
    start_nsqd_at(f"[::]:{port}", port, *tls_flags(pair))
    exchange(f"[::1]:{port}", kit, tls=True, tls_ca=str(authority.cert))


def test_an_nsqd_on_a_unix_socket(start_nsqd_at, tmp_path, kit):
    path = tmp_path / "nsqd.sock"
    nsqd = start_nsqd_at(path, 0)
    [transport] = open_transports([f"nsq+unix://{path}?http_port={nsqd.http_port}"])
    assert transport.discover("orders") == {str(path)}
    assert [one.node for one in transport.probe()] == [str(path)]
    exchange(str(path), kit)
    assert transport.channels("orders") == {"billing"}


def test_a_unix_socket_where_nobody_listens_is_named(tmp_path):
    with pytest.raises(BrokerUnreachable, match=str(tmp_path)), dial(f"{tmp_path}/none.sock"):
        pass

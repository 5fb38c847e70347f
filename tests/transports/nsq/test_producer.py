"""Publishing to real nsqds: an OK means stored, a refusal names its message, and a broken node is left for another."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from itertools import pairwise

import gevent
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.errors import BadMessage, BadName, PublishError
from framework.testing.servers import Server, free_port
from framework.transports import open_transports
from framework.transports.nsq import wire
from framework.transports.nsq.producer import split

pytestmark = pytest.mark.real


def received(nsqd: Server, subscribe, tools, n: int) -> list[bytes]:
    receiver = tools.Recorder(tools.finish_all)
    subscribe(nsqd.address, receiver).grant(100)
    tools.until(lambda: receiver.tally.finished == n)
    return [m.body for m in receiver.messages]


# --- what is sent ------------------------------------------------------------------------------------------


def test_one_body_is_stored_when_publish_returns(nsqd, make_producer, subscribe, tools):
    make_producer(nsqd.address).publish("orders", [b"\x00\xff\n one"])
    assert tools.stored(nsqd) == 1
    assert received(nsqd, subscribe, tools, 1) == [b"\x00\xff\n one"]


def test_many_bodies_go_as_mpub_and_arrive_as_they_were(nsqd, make_producer, subscribe, tools):
    bodies = [b"%d" % i for i in range(1000)]
    make_producer(nsqd.address).publish("orders", bodies)
    assert tools.stored(nsqd) == 1000
    assert sorted(received(nsqd, subscribe, tools, 1000)) == sorted(bodies)


def test_what_exceeds_one_mpub_is_split(start_nsqd, make_producer, subscribe, tools):
    nsqd = start_nsqd("--max-body-size=1000")
    bodies = [bytes([i]) * 300 for i in range(1, 11)]
    make_producer(nsqd.address, max_body_size=1000).publish("orders", bodies)
    assert sorted(received(nsqd, subscribe, tools, 10)) == sorted(bodies)


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=30), st.integers(50, 200))
def test_splitting_keeps_order_and_stays_under_the_limit(bodies, limit):
    parts = [bodies[part] for part in split([len(b) for b in bodies], limit)]
    assert [b for part in parts for b in part] == bodies
    assert all(wire.mpub_size([len(b) for b in part]) <= limit for part in parts)
    joined = [wire.mpub_size([len(b) for b in [*a, b[0]]]) for a, b in pairwise(parts)]
    assert all(size > limit for size in joined)


def test_the_largest_messages_that_nsqd_takes_are_taken(nsqd, make_producer, tools):
    largest = b"x" * wire.MAX_MESSAGE
    producer = make_producer(nsqd.address)
    producer.publish("orders", [largest])
    producer.publish("orders", [largest] * 11)
    assert tools.stored(nsqd) == 12


def test_a_delay_makes_it_deferred(nsqd, make_producer, tools):
    nsqd.http("/topic/create?topic=orders", b"")
    nsqd.http("/channel/create?topic=orders&channel=billing", b"")
    make_producer(nsqd.address).publish("orders", [b"a", b"b"], delay=3600)
    tools.until(lambda: nsqd.channel_stats("orders", "billing")["deferred_count"] == 2)  # from the topic it goes after the OK
    assert nsqd.channel_stats("orders", "billing")["depth"] == 0


def test_nothing_is_published_by_an_empty_list(nsqd, make_producer, tools):
    make_producer(nsqd.address).publish("orders", [])
    assert tools.stored(nsqd) == 0


@pytest.mark.parametrize(
    ("bodies", "delay", "words"),
    [
        ([b"a", b"", b"c"], 0, "message 2 of 3 is empty"),
        ([b""], 0, "message 1 of 1 is empty"),
        ([b"a", b"x" * (wire.MAX_MESSAGE + 1)], 0, "message 2 of 2 has 1048577 bytes"),
        ([b"a", "text"], 0, "message 2 of 2 is str"),
        (b"abc", 0, r"write \[body\]"),
        ([b"a"], -1, "delay of -1"),
        ([b"a"], 3600.5, r"delay of 3600\.5"),
        ([b"a"], float("nan"), "delay of nan"),
    ],
)
def test_what_nsqd_would_refuse_is_refused_before_anything_is_sent(  # noqa: PLR0917
    nsqd, make_producer, tools, bodies, delay, words
):
    producer = make_producer(nsqd.address)
    producer.publish("orders", [b"first"])
    with pytest.raises(BadMessage, match=words):
        producer.publish("orders", bodies, delay=delay)
    with pytest.raises(BadName, match="not a topic"):
        producer.publish("not a topic", [b"x"])
    assert tools.stored(nsqd) == 1


# --- many publishers ---------------------------------------------------------------------------------------


def test_greenlets_share_one_connection_and_each_gets_its_own_answer(nsqd, make_producer, tools):
    producer = make_producer(nsqd.address)
    jobs = [gevent.spawn(lambda i=i: [producer.publish("orders", [b"%d.%d" % (i, k)]) for k in range(20)]) for i in range(100)]
    gevent.joinall(jobs, raise_error=True)
    assert tools.stored(nsqd) == 2000
    assert len(nsqd.http("/stats?format=json")["producers"]) == 1


def test_native_threads_may_share_a_producer(nsqd, make_producer, tools):
    producer = make_producer(nsqd.address)
    failures: list[Exception] = []

    def work() -> None:
        try:
            for k in range(100):
                producer.publish("orders", [b"%d" % k])
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert tools.stored(nsqd) == 400
    producer.publish("orders", [b"and here"])
    deadline = time.monotonic() + 10
    while len(nsqd.http("/stats?format=json")["producers"]) > 1:  # the threads' connections went with them
        assert time.monotonic() < deadline


def test_it_works_in_a_patched_process_and_shares_one_connection_there(nsqd, tools):
    code = f"""
from gevent import monkey; monkey.patch_all()
import gevent
from framework.transports import open_transports
producer = open_transports(["nsq://{nsqd.address}"])[0].producer()
gevent.joinall([gevent.spawn(producer.publish, "orders", [b"x"]) for _ in range(50)], raise_error=True)
from framework.transports.nsq.http import Nsqd
import msgspec, urllib.request
print(len(msgspec.json.decode(urllib.request.urlopen("http://{nsqd.http_address}/stats?format=json").read())["producers"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout.strip() == "1", done.stderr
    assert tools.stored(nsqd) == 50


FORKING = """
import os, threading
from framework import Publisher
publisher = Publisher("nsq://ADDRESS")
def publish():
    for _ in range(100):
        publisher.publish("orders", b"x")
publish()
thread = threading.Thread(target=publish)
thread.start()
thread.join()
children = []
for _ in range(3):
    child = os.fork()
    if not child:
        publish()
        os._exit(0)
    children.append(child)
publish()
print([os.waitpid(child, 0)[1] for child in children])
"""


@pytest.mark.parametrize("patched", ["", "from gevent import monkey; monkey.patch_all()"], ids=["plain", "patched"])
def test_after_a_fork_parent_and_children_publish_each_over_a_connection_of_its_own(nsqd, tools, patched):
    code = patched + FORKING.replace("ADDRESS", nsqd.address)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[0, 0, 0]", "")
    assert tools.stored(nsqd) == 600


def test_a_publisher_that_gives_up_does_not_shift_the_answers_of_the_others(nsqd, make_producer, tools):
    producer = make_producer(nsqd.address)
    producer.publish("orders", [b"dial"])

    def hasty() -> None:
        with gevent.Timeout(0, False):
            producer.publish("orders", [b"hasty"])

    jobs = [
        gevent.spawn(hasty if i % 3 == 0 else producer.publish, *([] if i % 3 == 0 else ["orders", [b"calm"]])) for i in range(30)
    ]
    gevent.joinall(jobs, raise_error=True)
    producer.publish("orders", [b"last"])
    assert tools.stored(nsqd) >= 22


def test_a_connection_that_lay_idle_is_looked_at_before_it_is_used(nsqd, make_producer, tools):
    producer = make_producer(nsqd.address, heartbeat=1.0)
    producer.publish("orders", [b"x"])
    time.sleep(3.5)  # a plain thread: no hub turns, no heartbeat is answered, nsqd closes
    producer.publish("orders", [b"y"])
    assert tools.stored(nsqd) == 2


@pytest.mark.slow
def test_a_hub_that_was_blocked_past_two_heartbeats_costs_a_connection_and_no_publish(nsqd, kit):
    """What was under way had its answer before nsqd gave the connection up; the guardian need not keep it."""
    publisher = kit.producer(nsqd.address, heartbeat=1.0)
    publisher.publish("orders", [b"before"])
    under_way = gevent.spawn(publisher.publish, "orders", [b"under way"])
    gevent.sleep(0)
    time.sleep(4)
    publisher.publish("orders", [b"after"])
    under_way.get()
    assert kit.stored(nsqd) == 3


def test_heartbeats_are_answered_while_the_hub_turns(nsqd, make_producer):
    producer = make_producer(nsqd.address, heartbeat=1.0)
    producer.publish("orders", [b"x"])
    before = nsqd.http("/stats?format=json")["producers"][0]["remote_address"]
    gevent.sleep(3.2)
    producer.publish("orders", [b"y"])
    assert [p["remote_address"] for p in nsqd.http("/stats?format=json")["producers"]] == [before]


# --- nodes that fail ---------------------------------------------------------------------------------------


def test_a_node_that_is_gone_is_left_for_another(start_nsqd, make_producer, tools):
    one, two = start_nsqd(), start_nsqd()
    producer = make_producer(one.address, two.address)
    producer.publish("orders", [b"x"])
    first, second = (one, two) if tools.stored(one) else (two, one)
    first.kill()
    gevent.sleep(0.1)
    producer.publish("orders", [b"y"])
    assert tools.stored(second) == 1


def test_publishing_waits_for_a_node_that_starts_again(nsqd, make_producer, tools):
    producer = make_producer(nsqd.address)
    producer.publish("orders", [b"x"])
    nsqd.kill()
    time.sleep(0.02)
    jobs = [gevent.spawn(producer.publish, "orders", [b"y"]) for _ in range(10)]
    gevent.sleep(0.3)
    nsqd.start()
    gevent.joinall(jobs, raise_error=True)
    assert tools.stored(nsqd) == 10


def test_without_any_node_it_gives_up_at_the_deadline_and_nothing_is_stored(make_producer):
    node = f"127.0.0.1:{free_port()}"
    started = time.monotonic()
    with pytest.raises(PublishError, match=node) as caught:
        make_producer(node, deadline=2.0).publish("orders", [b"x"])
    assert caught.value.stored is False
    assert time.monotonic() - started < 6


def test_a_refused_command_fails_its_own_publisher_only(start_nsqd, make_producer, tools):
    nsqd = start_nsqd("--max-msg-size=100")
    producer = make_producer(nsqd.address)
    producer.publish("orders", [b"dial"])
    bodies = [b"x" * (500 if i == 10 else 50) for i in range(30)]
    jobs = [gevent.spawn(producer.publish, "orders", [body]) for body in bodies]
    gevent.joinall(jobs)
    assert [i for i, job in enumerate(jobs) if job.exception] == [10]
    assert "PUB message too big" in str(jobs[10].exception)
    assert jobs[10].exception.stored is False
    assert tools.stored(nsqd) == 30


def test_over_connections_that_break_all_that_was_confirmed_is_stored_and_no_more_than_is_unknown(
    nsqd, cutting_proxy, make_producer, tools
):
    address, cut = cutting_proxy(nsqd)
    producer = make_producer(address)
    sent, unknown, stopped = [0], [0], []

    def work(i: int) -> None:
        while not stopped:
            try:
                producer.publish("orders", [b"%d" % i])
                sent[0] += 1
            except PublishError as error:
                unknown[0] += 1 if error.stored is None else 1_000_000

    jobs = [gevent.spawn(work, i) for i in range(10)]
    for _ in range(15):
        gevent.sleep(0.05)
        cut()
    stopped.append(True)
    gevent.joinall(jobs, raise_error=True)
    assert sent[0] > 100
    assert 0 < unknown[0] <= 150
    assert sent[0] <= tools.stored(nsqd) <= sent[0] + unknown[0]


# --- its end -----------------------------------------------------------------------------------------------


def test_a_closed_producer_says_so_and_lets_go_of_its_connection(nsqd, make_producer):
    producer = make_producer(nsqd.address)
    producer.publish("orders", [b"x"])
    producer.close()
    producer.close()
    with pytest.raises(PublishError, match="closed"):
        producer.publish("orders", [b"y"])
    deadline = time.monotonic() + 5
    while nsqd.http("/stats?format=json")["producers"]:
        assert time.monotonic() < deadline


def test_closing_fails_those_who_wait(fake_nsqd, make_producer):
    producer = make_producer(fake_nsqd(lambda sock, file: file.read()))
    job = gevent.spawn(producer.publish, "orders", [b"x"])
    gevent.sleep(0.1)
    producer.close()
    job.join(2)
    assert isinstance(job.exception, PublishError)


def test_a_transport_makes_one(nsqd, tools):
    producer = open_transports([f"nsq://{nsqd.address}"])[0].producer()
    producer.publish("orders", [b"x"])
    producer.close()
    assert tools.stored(nsqd) == 1

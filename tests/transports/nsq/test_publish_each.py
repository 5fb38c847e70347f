"""Many publishes under way at once from one greenlet: an answer for each, whatever happens to the connection."""

from __future__ import annotations

import socket
import time

import gevent
import pytest
from gevent.event import Event

from framework.errors import BadMessage, PublishError
from framework.transports.nsq import publish_link, wire
from framework.transports.nsq.asking import WINDOW

pytestmark = pytest.mark.real


def test_each_is_stored_when_it_returns(nsqd, make_producer, tools):
    assert make_producer(nsqd.address).publish_each("orders", [b"%d" % i for i in range(2500)]) == [None] * 2500
    assert tools.stored(nsqd) == 2500
    assert len(nsqd.http("/stats?format=json")["producers"]) == 1


def test_the_last_answers_are_not_slept_over(nsqd, make_producer):
    producer = make_producer(nsqd.address)
    began = time.monotonic()
    for count in range(1, 11):
        assert producer.publish_each("orders", [b"x"] * count) == [None] * count
    assert time.monotonic() - began < 5  # the ticker, which would find them, comes once a second


def test_several_deferred_messages_are_under_way_at_once(nsqd, make_producer, tools):
    producer = make_producer(nsqd.address)
    nsqd.http("/topic/create?topic=orders", b"")
    nsqd.http("/channel/create?topic=orders&channel=billing", b"")
    producer.publish("orders", [b"%d" % i for i in range(500)], delay=60)
    tools.until(lambda: nsqd.channel_stats("orders", "billing")["deferred_count"] == 500)


def test_none_is_sent_when_one_is_wrong(nsqd, make_producer, tools):
    producer = make_producer(nsqd.address)
    producer.publish("orders", [b"first"])
    with pytest.raises(BadMessage, match="message 2 of 3 is empty"):
        producer.publish_each("orders", [b"a", b"", b"c"])
    assert tools.stored(nsqd) == 1
    assert producer.publish_each("orders", []) == []


def test_a_refused_one_fails_alone_and_those_behind_it_are_stored(start_nsqd, make_producer, tools):
    nsqd = start_nsqd("--max-msg-size=100")
    bodies = [b"x" * (500 if i in (10, 700) else 50) for i in range(1000)]
    answers = make_producer(nsqd.address).publish_each("orders", bodies)
    # nsqd resets the connection over what it has not read, and some OKs before the refused one may be lost with it
    assert [i for i, error in enumerate(answers) if error and error.stored is False and "too big" in str(error)] in (
        [10, 700],
        [10],
    )
    assert all(error is None or error.stored is None for i, error in enumerate(answers) if i not in {10, 700})
    assert None not in {answers[10], answers[700]}
    assert answers[711:] == [None] * 289
    assert answers.count(None) <= tools.stored(nsqd) <= 998


def test_a_request_for_several_says_how_many_are_stored(start_nsqd, make_producer):
    nsqd = start_nsqd("--max-msg-size=100")
    with pytest.raises(PublishError, match=r"9 of 10 messages are stored; of the others: .*too big") as caught:
        make_producer(nsqd.address).publish("orders", [b"x" * (500 if i == 3 else 50) for i in range(10)], delay=1)
    assert caught.value.stored is None


def test_over_connections_that_break_every_answer_is_true(nsqd, cutting_proxy, make_producer, tools):
    address, cut = cutting_proxy(nsqd)
    producer = make_producer(address)
    answers: list[PublishError | None] = []
    stopped: list[bool] = []

    def work() -> None:
        while not stopped:
            answers.extend(producer.publish_each("orders", [b"x" * 100] * 400))

    job = gevent.spawn(work)
    for _ in range(15):
        gevent.sleep(0.05)
        cut()
    stopped.append(True)
    job.get()
    unknown = sum(error is not None for error in answers)
    assert all(error is None or error.stored is None for error in answers)
    assert answers.count(None) <= tools.stored(nsqd) <= len(answers)
    assert 0 < unknown <= 15 * 100


def test_without_any_node_each_gets_its_answer_at_the_deadline(make_producer):
    answers = make_producer("127.0.0.1:1", deadline=0.3).publish_each("orders", [b"x"] * 3)
    assert [error.stored for error in answers] == [False] * 3


def test_whoever_gives_up_has_no_more_of_them_sent(nsqd, fake_nsqd, make_producer, tools):
    seen: list[bytes] = []

    def slow(sock, file) -> None:
        while body := tools.read_pub(file):
            seen.append(body)
            gevent.sleep(0.01)
            sock.sendall(wire.encode_frame(wire.FRAME_RESPONSE, wire.OK))

    producer = make_producer(fake_nsqd(slow))
    with gevent.Timeout(0.1, False):
        producer.publish_each("orders", [b"x"] * 1000)
    producer.publish("orders", [b"last"])
    assert seen[-1] == b"last"
    assert len(seen) < 200


def test_once_all_are_answered_other_publishers_hear_of_each_answer_at_once(fake_nsqd, make_producer, tools, monkeypatch):
    """While many are under way the socket wakes for several answers together, and not for one."""
    monkeypatch.setattr(publish_link, "_TICK", 60.0)
    heard = Event()
    ok = wire.encode_frame(wire.FRAME_RESPONSE, wire.OK)

    def script(sock, file) -> None:
        for _ in range(3):
            tools.read_pub(file)
            sock.sendall(ok)
        tools.read_pub(file)
        tools.read_pub(file)
        sock.sendall(ok)
        heard.wait()
        sock.sendall(ok)

    producer = make_producer(fake_nsqd(script), deadline=30.0)
    assert producer.publish_each("orders", [b"x"] * 3) == [None] * 3
    first, second = (gevent.spawn(producer.publish, "orders", [b"x"]) for _ in range(2))
    first.get(timeout=10)
    heard.set()
    second.get(timeout=10)


def test_while_many_are_under_way_the_socket_wakes_for_several_answers_together(fake_nsqd, make_producer, tools, monkeypatch):
    """nsqd sends each by itself; to wake up for each is most of what publishing them costs."""
    reads: list[int] = []
    read = publish_link.PublishLink._read
    monkeypatch.setattr(publish_link.PublishLink, "_read", lambda self: reads.append(1) or read(self))

    def script(sock, file) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(WINDOW):
            tools.read_pub(file)
        for _ in range(WINDOW):
            sock.sendall(wire.encode_frame(wire.FRAME_RESPONSE, wire.OK))
            gevent.sleep(0.001)

    assert make_producer(fake_nsqd(script)).publish_each("orders", [b"x"] * WINDOW) == [None] * WINDOW
    assert len(reads) < WINDOW // 4


def test_closing_answers_each_of_those_that_wait(fake_nsqd, make_producer):
    producer = make_producer(fake_nsqd(lambda sock, file: file.read()))
    job = gevent.spawn(producer.publish_each, "orders", [b"x"] * 300)
    gevent.sleep(0.2)
    producer.close()
    answers = job.get(timeout=10)
    assert len(answers) == 300
    assert all(isinstance(one, PublishError) for one in answers)

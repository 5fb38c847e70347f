"""Publishing to peers that misbehave: what is unknown is said, and nothing waits past its deadline."""

from __future__ import annotations

import itertools
import socket
import struct
import threading
import time

import gevent
import pytest

from framework.errors import PublishError
from framework.transports.nsq import publish_link, wire
from framework.transports.nsq.publish_link import PublishLink
from framework.transports.nsq.urls import Options

pytestmark = pytest.mark.real


def test_a_connection_cut_before_the_answer_leaves_it_unknown_and_is_not_repeated(fake_nsqd, make_producer, tools):
    seen: list[bytes] = []
    node = fake_nsqd(lambda sock, file: seen.append(tools.read_pub(file)))
    with pytest.raises(PublishError, match="not known") as caught:
        make_producer(node).publish("orders", [b"x"])
    assert caught.value.stored is None
    assert seen == [b"x"]


def test_a_list_that_changes_while_it_is_sent_is_sent_as_it_was(fake_nsqd, make_producer, tools):
    bodies = [bytes([i]) * 300 for i in range(1, 8)]
    expected = [b"".join(struct.pack(">i", 300) + b for b in bodies[at : at + 3]) for at in (0, 3, 6)]
    seen: list[bytes] = []

    def change(sock, file) -> None:
        while part := tools.read_pub(file):
            seen.append(part[4:])  # without the count
            bodies[:] = [b"of another size"] * 7
            sock.sendall(wire.encode_frame(wire.FRAME_RESPONSE, wire.OK))

    make_producer(fake_nsqd(change), max_body_size=1000).publish("orders", bodies)
    assert seen == expected


def test_an_nsqd_that_is_exiting_is_left_for_another(fake_nsqd, nsqd, make_producer, tools):
    def exiting(sock, file) -> None:
        tools.read_pub(file)
        sock.sendall(wire.encode_frame(wire.FRAME_ERROR, b"E_PUB_FAILED PUB failed exiting"))

    producer = make_producer(fake_nsqd(exiting), nsqd.address)
    for _ in range(5):
        producer.publish("orders", [b"x"])
    assert tools.stored(nsqd) == 5


class Mute:
    """An nsqd that lets everybody in, sends heartbeats, and answers no publish while it is ``mute``."""

    def __init__(self) -> None:
        self.mute = True
        self.heard: list[bytes] = []

    def __call__(self, sock, file) -> None:
        while file.readline():
            body = file.read(int.from_bytes(file.read(4)))
            if body:
                self.heard.append(body)
            if self.mute:
                sock.sendall(wire.encode_frame(wire.FRAME_RESPONSE, wire.HEARTBEAT))
            elif body:
                sock.sendall(wire.encode_frame(wire.FRAME_RESPONSE, wire.OK))
            else:
                sock.sendall(wire.encode_frame(wire.FRAME_ERROR, b"E_BAD_MESSAGE PUB invalid message body size 0"))
                return


@pytest.mark.parametrize("each", [False, True], ids=["publish", "publish_each"])
def test_an_nsqd_that_lets_us_in_and_answers_no_publish_costs_one_timeout_and_then_nothing(fake_nsqd, make_producer, each):
    server = Mute()
    producer = make_producer(fake_nsqd(server))

    def publish(body):
        errors = [] if each else None
        if each:
            errors = producer.publish_each("orders", [body], timeout=0.4)
        else:
            producer.publish("orders", [body], timeout=0.4)
        for error in filter(None, errors or ()):
            raise error

    with pytest.raises(PublishError, match="not known") as first:
        publish(b"1")
    assert first.value.stored is None
    took = []
    for number in range(25):
        gevent.sleep(0.1)
        start = time.monotonic()
        with pytest.raises(PublishError) as other:
            publish(b"again %d" % number)
        took.append(time.monotonic() - start)
        assert other.value.stored is False
    assert server.heard == [b"1"], "nothing is sent that would not be answered"
    assert sorted(took)[12] < 0.05
    server.mute = False
    start = time.monotonic()
    while True:
        gevent.sleep(0.05)
        try:
            publish(b"back")
            break
        except PublishError:
            assert time.monotonic() - start < 5
    assert server.heard == [b"1", b"back"]


def test_a_publish_that_is_answered_ends_the_doubt_at_once(fake_nsqd, make_producer):
    """Whoever waits for longer than others have waited in vain tries for all."""
    server = Mute()
    producer = make_producer(fake_nsqd(server))
    with pytest.raises(PublishError):
        producer.publish("orders", [b"1"], timeout=0.2)
    circuit = producer._publishing._circuit
    assert circuit.mute
    circuit.probe = lambda everything: 10.0  # nobody else finds out
    server.mute = False
    producer.publish("orders", [b"2"], timeout=5.0)
    assert not circuit.mute
    producer.publish("orders", [b"3"], timeout=0.2)


def test_a_real_nsqd_answers_what_asks_whether_it_answers_and_keeps_nothing_of_it(nsqd):
    link = PublishLink.to(nsqd.address, Options(), timeout=5)
    assert link.prove(time.monotonic() + 5) is None
    assert not nsqd.http("/stats?format=json")["topics"]


def test_commands_behind_a_refused_one_are_sent_again(fake_nsqd, make_producer, tools):
    connections: list[list[bytes]] = []

    def refuse_first(sock, file) -> None:
        mine: list[bytes] = []
        connections.append(mine)
        while body := tools.read_pub(file):
            mine.append(body)
            if body == b"bad":
                sock.sendall(wire.encode_frame(wire.FRAME_ERROR, b"E_BAD_MESSAGE because"))
                return
            sock.sendall(wire.encode_frame(wire.FRAME_RESPONSE, wire.OK))

    producer = make_producer(fake_nsqd(refuse_first))
    producer.publish("orders", [b"dial"])
    jobs = [gevent.spawn(producer.publish, "orders", [body]) for body in (b"1", b"bad", b"2", b"3")]
    gevent.joinall(jobs)
    assert [bool(job.exception) for job in jobs] == [False, True, False, False]
    assert jobs[1].exception.stored is False
    assert (connections[0], sorted(connections[1])) == ([b"dial", b"1", b"bad"], [b"2", b"3"])


NONSENSE = {
    "text": b"HTTP/1.1 400",
    "a word": wire.encode_frame(0, b"WHAT"),
    "a message": wire.encode_message(1, 1, b"0" * 16, b"x"),
    "a frame of 2 GiB": b"\x7f\xff\xff\xff\x00\x00\x00\x00",
    "a negative size": b"\xff\xff\xff\xf0\x00\x00\x00\x00",
    "a frame type of no kind": wire.encode_frame(9, b"OK"),
}


@pytest.mark.parametrize("answer", NONSENSE.values(), ids=NONSENSE.keys())
def test_nonsense_in_place_of_an_answer_ends_the_wait(fake_nsqd, make_producer, answer, tools):
    def nonsense(sock, file) -> None:
        tools.read_pub(file)
        sock.sendall(answer)
        file.read()

    with pytest.raises(PublishError) as caught:
        make_producer(fake_nsqd(nonsense)).publish("orders", [b"x"])
    assert caught.value.stored is None


def test_no_answer_at_all_ends_the_wait_at_the_deadline(fake_nsqd, make_producer):
    with pytest.raises(PublishError, match="gave no answer") as caught:
        make_producer(fake_nsqd(lambda sock, file: file.read()), deadline=0.5).publish("orders", [b"x"])
    assert caught.value.stored is None


def test_the_wait_ends_at_its_deadline_and_not_when_the_connection_is_looked_at_next(fake_nsqd, make_producer, monkeypatch):
    monkeypatch.setattr("framework.transports.nsq.publish_link._TICK", 60.0)
    producer = make_producer(fake_nsqd(lambda sock, file: file.read()))
    began = time.monotonic()
    for timeout in (2.0, 0.2):  # the later one is waited for first
        gevent.spawn(producer.publish, "orders", [b"x"], timeout=timeout)
    with pytest.raises(PublishError, match="gave no answer"):
        producer.publish("orders", [b"x"], timeout=0.5)
    assert 0.5 <= time.monotonic() - began < 10


def test_whoever_waits_for_an_answer_leaves_the_hub_at_rest(fake_nsqd, make_producer):
    """The wait is longer than the time after which the silence is looked into."""
    producer = make_producer(fake_nsqd(lambda sock, file: file.read()), deadline=2.5)
    waiting = gevent.spawn(producer.publish, "orders", [b"x"])
    turns = itertools.count()
    watcher = gevent.get_hub().loop.prepare()
    watcher.start(lambda: next(turns))
    try:
        gevent.sleep(2.2)
    finally:
        watcher.stop()
    assert not waiting.ready()
    assert next(turns) < 500, "some ten a second are enough to look after the connection"
    with pytest.raises(PublishError, match="gave no answer"):
        waiting.get(timeout=10)


def test_a_peer_that_does_not_read_gets_all_when_it_does(fake_nsqd, make_producer, tools):
    resume = gevent.event.Event()
    seen: list[int] = []

    def slow(sock, file) -> None:
        resume.wait()
        while body := tools.read_pub(file):
            seen.append(len(body))
            sock.sendall(wire.encode_frame(wire.FRAME_RESPONSE, wire.OK))

    producer = make_producer(fake_nsqd(slow))
    jobs = [gevent.spawn(producer.publish, "orders", [b"x" * 1_000_000]) for _ in range(12)]
    gevent.sleep(0.2)
    assert not any(job.ready() for job in jobs)
    resume.set()
    gevent.joinall(jobs, raise_error=True)
    assert seen == [1_000_000] * 12


@pytest.mark.parametrize("how", ["reset", "closed"])
def test_a_connection_that_ended_while_the_hub_stood_still_is_seen_to_be_at_its_end_before_it_is_used(how, monkeypatch):
    monkeypatch.setattr(publish_link, "_IDLE", 0.0)
    go, gone = threading.Event(), threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        sock, _ = listener.accept()
        with sock, sock.makefile("rb") as file:
            assert file.read(4) == wire.MAGIC
            file.readline()
            file.read(int.from_bytes(file.read(4)))
            sock.sendall(wire.encode_frame(0, b'{"version":"1","max_rdy_count":1,"msg_timeout":1,"max_msg_timeout":1}'))
            go.wait(20)
            if how == "reset":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.set()

    threading.Thread(target=serve, daemon=True).start()
    link = PublishLink.to(f"127.0.0.1:{listener.getsockname()[1]}", Options(), timeout=10.0)
    assert link.usable()
    go.set()
    gone.wait(20)
    time.sleep(0.1)
    assert not link.usable()
    listener.close()

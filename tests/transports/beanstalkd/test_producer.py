"""Publishing to beanstalkd: what is stored, what is refused and by whom, and what is known when a server goes away."""

from __future__ import annotations

import contextlib
import importlib
import signal
import socket
import threading
import time

import gevent
import pytest

from framework import Message, Publisher, handler
from framework.errors import MessageRefused, PublishError, WrongUse
from framework.transports import failover
from framework.transports.beanstalkd import Client, publish_link, urls
from framework.transports.beanstalkd.producer import BeanstalkdProducer
from framework.transports.beanstalkd.publish_link import PublishLink

from .conftest import job_stats, server_stats, tube_stats, url

pytestmark = pytest.mark.real


@pytest.fixture
def server(start_beanstalkd):
    return start_beanstalkd("-F", "-z", "100000")


def producer(*nodes: str, deadline: float = 5.0, **options) -> BeanstalkdProducer:
    return BeanstalkdProducer(nodes, urls.Options(**options), deadline=deadline)


def bodies(server, tube: str = "orders") -> list[bytes]:
    """All that ``tube`` has, in order."""
    with Client(server.address, watch=tube) as one:
        return [one.reserve(timeout=5).body for _ in range(tube_stats(server, tube).get("current-jobs-ready", 0))]


def drain(server) -> None:
    """Have it answer DRAINING to every put, for ever."""
    server.process.send_signal(signal.SIGUSR1)
    with Client(server.address) as one:
        deadline = time.monotonic() + 10
        while one.stats()["draining"] != "true":
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_many_bodies_are_stored_in_order(server):
    sent = [b"%d" % i for i in range(3000)]
    producer(server.address).publish("orders", sent)
    assert bodies(server) == sent


def test_any_bytes_are_stored(server):
    sent = [b"\r\n", b"put 1 0 1 1\r\nx\r\n", bytes(range(256)), b"x" * 65535]
    producer(server.address).publish("orders", sent)
    assert bodies(server) == sent


def test_delay_priority_and_lease_are_the_jobs(server):
    one = producer(server.address, ttr=90)
    one.publish("orders", [b"1"])
    one.publish("orders", [b"2"], delay=0.1, priority=0, lease=299.5)
    one.publish("orders", [b"3"], priority=2**32 - 1, lease=0.2)
    plain, late, last = (job_stats(server, number) for number in (1, 2, 3))
    assert (plain["pri"], plain["delay"], plain["ttr"]) == ("1024", "0", "90")
    assert (late["pri"], late["delay"], late["ttr"]) == ("0", "1", "305")  # rounded up, and some seconds more than the handler
    assert (last["pri"], last["ttr"]) == ("4294967295", "6")


def test_a_job_may_run_as_long_as_its_handler_says(server, monkeypatch):
    registry = importlib.import_module("framework.handler")._registry
    monkeypatch.setattr(registry, "entries", {})

    @handler("orders", "billing", timeout=300)
    def bill(message: Message) -> None: ...

    publisher = Publisher(url(server, "?ttr=90s"))
    publisher.publish("orders", "of a handler that is known here")
    publisher.publish("parcels", "of one that is not")
    publisher.close()
    assert [job_stats(server, number)["ttr"] for number in (1, 2)] == ["305", "90"]


def test_a_topic_that_fans_out_has_a_copy_in_the_tube_of_each_channel(server):
    one = producer(server.address, fanout={"orders": ("billing", "shipping")})
    one.publish("orders", [b"a", b"b"])
    one.publish("other", [b"c"])
    assert bodies(server, "orders/billing") == bodies(server, "orders/shipping") == [b"a", b"b"]
    assert bodies(server, "other") == [b"c"]
    assert tube_stats(server, "orders") == {}


@pytest.mark.parametrize(
    ("topic", "sent", "options", "words"),
    [
        ("orders", [b"ok", b"x" * 65536], {}, r"message 2 of 2 has 65536 bytes; beanstalkd takes up to 65535 \(its -z"),
        ("orders", [b"ok", "text"], {}, "message 2 of 2 is str, not bytes"),
        ("orders", [b"ok", b""], {}, "message 2 of 2 is empty"),
        ("orders", b"ok", {}, r"write \[body\]"),
        ("orders", [b"ok"], {"delay": -1.0}, "delay of -1.0 s is out of range"),
        ("orders", [b"ok"], {"delay": 2.0**32}, "out of range"),
        ("orders", [b"ok"], {"delay": float("nan")}, "out of range"),
        ("orders", [b"ok"], {"priority": -1}, "priority -1 is out of range"),
        ("orders", [b"ok"], {"priority": 2**32}, "is out of range"),
        ("a:b", [b"ok"], {}, "is no name for beanstalkd"),
        ("orders#ephemeral", [b"ok"], {}, "is no name for beanstalkd"),
    ],
)
def test_what_is_wrong_is_refused_in_one_sentence_before_anything_is_sent(server, topic, sent, options, words):
    with pytest.raises(WrongUse, match=words) as caught:
        producer(server.address).publish(topic, sent, **options)
    assert "\n" not in str(caught.value)
    assert tube_stats(server) == {}


def test_a_body_over_the_servers_own_limit_is_refused_by_it_and_the_others_are_stored(server):
    one = producer(server.address, max_job_size=1_000_000)
    answers = one.publish_each("orders", [b"a", b"x" * 100_001, b"b"])
    assert answers[0] is answers[2] is None
    assert isinstance(answers[1], MessageRefused)
    assert answers[1].stored is False
    with pytest.raises(MessageRefused, match="over its -z"):
        one.publish("orders", [b"x" * 100_001])
    with pytest.raises(PublishError, match=r"1 of 2 messages are stored; of the others: .*-z") as caught:
        one.publish("orders", [b"c", b"x" * 100_001])
    assert caught.value.stored is None
    assert bodies(server) == [b"a", b"b", b"c"]


def test_a_server_that_drains_is_a_definite_answer_at_once_and_another_takes_over(start_beanstalkd):
    draining, other = start_beanstalkd("-F"), start_beanstalkd("-F")
    drain(draining)
    began = time.monotonic()
    with pytest.raises(PublishError, match="DRAINING: it takes no more jobs until it is started again") as caught:
        producer(draining.address, deadline=60).publish("orders", [b"x"])
    assert caught.value.stored is False
    both = producer(draining.address, other.address, deadline=60)
    for i in range(20):
        both.publish("orders", [b"%d" % i])
    assert time.monotonic() - began < 30
    assert tube_stats(other)["total-jobs"] == 20
    drain(other)
    with pytest.raises(PublishError, match="DRAINING") as caught:
        both.publish("orders", [b"x"])
    assert caught.value.stored is False


def test_the_only_server_is_not_dialled_anew_for_each_job_that_it_refuses(server, monkeypatch):
    monkeypatch.setattr(failover, "_LOOK_AGAIN", 60.0)
    one = producer(server.address)
    one.publish("orders", [b"x"])
    drain(server)
    with Client(server.address) as client:
        before = client.stats()["total-connections"]
        for _ in range(5):
            with pytest.raises(PublishError, match="DRAINING"):
                one.publish("orders", [b"x"])
        assert client.stats()["total-connections"] == before


def test_many_greenlets_share_a_connection_and_each_gets_its_own_answers(server):
    one = producer(server.address, max_job_size=200_000)

    def work(number: int) -> list[PublishError | None]:
        answers = []
        for i in range(20):
            big = b"x" * 100_001 if (number + i) % 5 == 0 else b"ok"
            answers += one.publish_each(f"orders{number % 3}", [b"%d" % i, big])
        return answers

    workers = [gevent.spawn(work, number) for number in range(20)]
    for number, worker in enumerate(workers):
        refused = [isinstance(answer, MessageRefused) for answer in worker.get(timeout=30)]
        assert refused == [bool(second) and (number + i) % 5 == 0 for i in range(20) for second in (0, 1)]
    with Client(server.address) as look:
        assert look.stats()["total-jobs"] == str(20 * 40 - 80)
        assert int(look.stats()["current-producers"]) == 1


def test_threads_have_connections_of_their_own(server):
    one = producer(server.address)
    threads = [threading.Thread(target=one.publish, args=("orders", [b"%d" % i for i in range(50)])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert tube_stats(server)["total-jobs"] == 200


def test_a_server_that_was_started_again_gets_the_next_publish(server):
    one = producer(server.address, deadline=20)
    one.publish("orders", [b"a"])
    server.kill()
    server.start()
    one.publish("orders", [b"b"])
    assert b"b" in bodies(server)


def test_while_one_server_is_away_the_other_one_takes_all(start_beanstalkd):
    away, there = start_beanstalkd("-F"), start_beanstalkd("-F")
    one = producer(away.address, there.address, deadline=20)
    away.kill()
    one.publish("orders", [b"%d" % i for i in range(10)])
    assert tube_stats(there)["total-jobs"] == 10


def test_where_there_is_no_server_the_deadline_ends_it(start_beanstalkd):
    server = start_beanstalkd("-F")
    server.kill()
    words = r"no beanstalkd (took the messages within 0\.5 s|could be reached for \d\.\d s): .*cannot be reached"  # or a bit late
    with pytest.raises(PublishError, match=words) as caught:
        producer(server.address, deadline=0.5).publish("orders", [b"x"])
    assert caught.value.stored is False


def test_a_producer_at_rest_asks_now_and_then_whether_its_server_is_there_and_not_all_the_time(server, monkeypatch):
    monkeypatch.setattr(publish_link, "_TICK", 0.02)
    monkeypatch.setattr(publish_link, "_QUIET", 0.4)
    one = producer(server.address)
    one.publish("orders", [b"x"])
    before = int(server_stats(server)["cmd-list-tube-used"])
    gevent.sleep(1.0)
    assert 1 <= int(server_stats(server)["cmd-list-tube-used"]) - before <= 2
    one.close()


def test_a_server_that_does_not_read_gets_all_when_it_does(server):
    one = producer(server.address, deadline=30.0)
    sent = [b"%03d" % number + b"x" * 60_000 for number in range(200)]
    with server.frozen():
        job = gevent.spawn(one.publish, "orders", sent)
        gevent.sleep(0.3)  # the socket takes a part, and no more
        assert not job.ready()
    job.get(timeout=30)
    assert bodies(server) == sent
    one.close()


def test_closed_is_closed(server):
    one = producer(server.address)
    one.publish("orders", [b"x"])
    one.close()
    with pytest.raises(PublishError, match="closed"):
        one.publish("orders", [b"x"])


class Scripted:
    """A server for what a real one cannot be made to say: it answers each line that it gets with what the script has next."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.lines: list[bytes] = []
        self.address = ""

    def __call__(self, sock: socket.socket) -> None:
        stream = sock.makefile("rb")
        for line in stream:
            if line == b"list-tube-used\r\n":  # whether it is there
                sock.sendall(b"USING default\r\n")
                continue
            self.lines.append(line)
            if line.startswith(b"put "):
                stream.read(int(line.split()[4]) + 2)
            answer = b"USING orders\r\n" if line.startswith(b"use ") else self.answers.pop(0)
            if not answer:
                break
            sock.sendall(answer)


@pytest.fixture
def scripted(listening):
    def start(*answers: bytes) -> Scripted:
        server = Scripted(*answers)
        server.address = listening(server)
        return server

    return start


def test_a_job_that_the_server_buried_for_want_of_memory_is_an_answer_of_its_own(scripted):
    server = scripted(b"INSERTED 1\r\n", b"BURIED 7\r\n", b"INSERTED 2\r\n")
    answers = producer(server.address).publish_each("orders", [b"a", b"b", b"c"])
    assert (answers[0], answers[2]) == (None, None)
    assert "BURIED 7: it had no memory to queue the job, kick it" in str(answers[1])
    assert answers[1].stored is True


def test_out_of_memory_is_a_definite_answer_at_once(scripted):
    server = scripted(b"OUT_OF_MEMORY\r\n")
    with pytest.raises(PublishError, match="OUT_OF_MEMORY") as caught:
        producer(server.address, deadline=60).publish("orders", [b"a"])
    assert caught.value.stored is False


def test_what_has_no_answer_when_the_connection_ends_is_unknown_and_never_sent_again(scripted):
    server = scripted(b"INSERTED 1\r\n", b"")
    answers = producer(server.address).publish_each("orders", [b"a", b"b", b"c"])
    assert answers[0] is None
    assert [answer.stored for answer in answers[1:]] == [None, None]
    assert "whether the messages are stored is not known" in str(answers[1])
    assert sum(line.startswith(b"put") for line in server.lines) == 2


def test_a_put_that_the_server_could_not_read_ends_the_connection(scripted):
    """What follows it may be a body that was read as commands."""
    server = scripted(b"EXPECTED_CRLF\r\n", b"INSERTED 1\r\n")
    one = producer(server.address)
    with pytest.raises(PublishError, match="EXPECTED_CRLF") as caught:
        one.publish("orders", [b"a"])
    assert caught.value.stored is False
    one.publish("orders", [b"b"])
    assert [line.split()[0] for line in server.lines] == [b"use", b"put", b"use", b"put"]


class Mute:
    """A beanstalkd that lets everybody in and answers no put while it is ``mute``."""

    def __init__(self) -> None:
        self.mute = True
        self.heard: list[bytes] = []

    def __call__(self, sock) -> None:
        file = sock.makefile("rb")
        while line := file.readline():
            if line.startswith(b"list-tube-used"):
                sock.sendall(b"USING default\r\n")
            elif line.startswith(b"use "):
                sock.sendall(b"USING " + line.split()[1] + b"\r\n")
            elif line.startswith(b"put "):
                body = file.read(int(line.split()[4]) + 2)
                if body.endswith(b"\r\n"):
                    self.heard.append(body[:-2])
                if not self.mute:
                    sock.sendall(b"INSERTED 1\r\n" if body.endswith(b"\r\n") else b"EXPECTED_CRLF\r\n")


def test_a_server_that_lets_us_in_and_answers_no_put_costs_one_timeout_and_then_nothing(listening):
    server = Mute()
    one = producer(listening(server))
    with pytest.raises(PublishError, match="not known"):
        one.publish("orders", [b"1"], timeout=0.4)
    took = []
    for number in range(25):
        gevent.sleep(0.1)
        start = time.monotonic()
        with pytest.raises(PublishError) as other:
            one.publish("orders", [b"again %d" % number], timeout=0.4)
        took.append(time.monotonic() - start)
        assert other.value.stored is False
    assert server.heard == [b"1"], "nothing is sent that would not be answered"
    assert sorted(took)[12] < 0.05
    server.mute = False
    deadline = time.monotonic() + 5
    while server.heard == [b"1"]:
        assert time.monotonic() < deadline
        gevent.sleep(0.05)
        with contextlib.suppress(PublishError):
            one.publish("orders", [b"back"], timeout=0.4)
    one.close()


def test_a_real_server_answers_what_asks_whether_it_answers_and_keeps_nothing_of_it(server):
    for _ in range(2):
        link = PublishLink.to(server.address, timeout=5)
        assert link.prove(time.monotonic() + 5) is None
        assert int(server_stats(server)["total-jobs"]) == int(server_stats(server)["current-jobs-ready"]) == 0
        drain(server)

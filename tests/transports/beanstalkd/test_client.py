"""The client of beanstalkd against a real one: every command, every error, pipelining, and no wait without an end."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time

import gevent
import pytest

from framework.errors import BadMessage, BadName, BrokerUnreachable, WrongUse
from framework.testing.servers import free_port
from framework.transports.beanstalkd import Client, Job, client, wire

pytestmark = pytest.mark.real


@pytest.fixture
def one(server):
    with Client(server.address, use="orders", watch="orders") as connected:
        yield connected


def test_one_that_cannot_use_its_tube_leaves_no_connection(listening):
    ended = gevent.event.Event()

    def serve(sock):
        sock.recv(1000)
        sock.sendall(b"INTERNAL_ERROR\r\n")
        while sock.recv(1000):
            pass
        ended.set()

    address = listening(serve)
    with pytest.raises(client.InternalError) as kept:
        Client(address, use="orders")
    assert ended.wait(20), kept


def test_a_job_is_put_reserved_and_deleted(one):
    first = one.put(b"a\r\nb\x00\xff")
    assert one.put("häuser", priority=0, delay=0, ttr=90) == first + 1
    assert one.reserve(timeout=5) == Job(first + 1, "häuser".encode())  # more urgent
    job = one.reserve()
    assert job == Job(first, b"a\r\nb\x00\xff")
    assert one.stats_job(first + 1)["ttr"] == "90"
    one.delete(job)
    one.delete(first + 1)
    with pytest.raises(client.NotFound):
        one.delete(job)
    with pytest.raises(client.TimedOut):
        one.reserve(timeout=0)


def usual(one, job):
    stats = one.stats_job(job)
    return stats["pri"], stats["delay"], stats["ttr"]


def test_what_is_not_said_of_a_job_that_is_put_is_the_usual(one):
    with one.pipeline() as pipeline:
        pipeline.put(b"3")
    for job in [one.put(b"1"), *one.put_many([b"2"]), *pipeline.results]:
        assert usual(one, job) == ("1024", "0", "60")


@pytest.mark.parametrize("piped", [False, True])
@pytest.mark.parametrize("verb", ["release", "bury"])
def test_a_job_that_is_given_back_without_a_word_is_as_urgent_as_usual(one, verb, piped):
    number = one.put(b"1", priority=5, ttr=90)
    job = one.reserve(timeout=5)
    with one.pipeline() as pipeline:
        getattr(pipeline if piped else one, verb)(job)
    assert usual(one, number) == ("1024", "0", "90")


def test_an_empty_body_is_a_job(one):
    one.put(b"")
    assert one.reserve(timeout=5).body == b""


def test_tubes_are_used_watched_and_ignored(one, server):
    assert (one.using(), one.watching()) == ("orders", ["orders"])
    assert one.watch("more") == 2
    assert one.ignore("orders") == 1
    with pytest.raises(client.NotIgnored):
        one.ignore("more")
    one.use("other")
    assert sorted(one.tubes()) == ["default", "more", "other"]
    with Client(f"beanstalkd://{server.address}", watch=["a", "default"]) as second:
        assert sorted(second.watching()) == ["a", "default"]


def test_a_job_is_released_with_a_delay_and_touched_and_buried_and_kicked(one):
    number = one.put(b"x", ttr=2)
    job = one.reserve(timeout=5)
    one.touch(job)
    one.release(job, priority=5, delay=0.2)  # a second: not none
    assert one.peek_delayed() == job
    assert one.stats_job(job)["pri"] == "5"
    assert one.reserve(timeout=5) == job
    one.bury(job, priority=7)
    assert one.peek_buried() == job
    assert one.kick(10) == 1
    assert one.peek_ready() == job
    assert one.reserve_job(number) == job
    one.bury(job)
    one.kick_job(number)
    assert one.peek(number) == job
    assert one.stats_tube("orders")["current-jobs-ready"] == "1"
    assert one.stats()["current-jobs-ready"] == "1"
    for command in (one.touch, one.release, one.bury):
        with pytest.raises(client.NotFound):
            command(job)
    for missing in (one.peek_delayed, one.peek_buried):
        with pytest.raises(client.NotFound):
            missing()


def test_a_paused_tube_gives_no_job(one):
    one.put(b"x")
    one.pause_tube("orders", 60)
    with pytest.raises(client.TimedOut):
        one.reserve(timeout=0)
    one.pause_tube("orders", 0)
    assert one.reserve(timeout=5).body == b"x"
    with pytest.raises(client.NotFound):
        one.pause_tube("nowhere", 1)


def test_a_job_that_is_about_to_run_out_says_so(one):
    one.put(b"x", ttr=1)
    one.reserve(timeout=5)
    with pytest.raises(client.DeadlineSoon):
        one.reserve(timeout=5)


def test_a_body_over_the_servers_limit_and_a_drained_server_are_errors_of_their_own(start_beanstalkd):
    server = start_beanstalkd("-F", "-z", "100")
    with Client(server.address) as one:
        with pytest.raises(client.JobTooBig):
            one.put(b"x" * 101)
        one.put(b"x" * 100)  # in step all the same
        server.process.send_signal(10)  # SIGUSR1
        deadline = time.monotonic() + 10
        with pytest.raises(client.Draining):
            while time.monotonic() < deadline:
                one.put(b"x")
        assert one.reserve(timeout=5).body == b"x" * 100


@pytest.mark.parametrize("word", sorted(wire.ERRORS))
def test_every_error_is_an_exception_of_its_own(word, listening):
    """Some of them no real server can be made to say."""

    def serve(sock):
        for _line in sock.makefile("rb"):
            sock.sendall(word.encode() + b"\r\n")

    with Client(listening(serve)) as one, pytest.raises(client.BeanstalkdError) as error:
        one.touch(1)
    assert type(error.value).__name__.lower() == word.replace("_", "").lower()
    assert error.value.code == word


def test_many_are_put_without_waiting_for_each_answer(one):
    ids = one.put_many(b"%d" % i for i in range(1000))
    assert ids == list(range(ids[0], ids[0] + 1000))
    jobs = [one.reserve(timeout=5) for _ in range(300)]
    with one.pipeline() as pipeline:
        for job in jobs[:298]:
            pipeline.delete(job)
        pipeline.release(jobs[298], delay=60)
        pipeline.bury(jobs[299])
        pipeline.touch(jobs[0])
        pipeline.kick_job(jobs[299])
        pipeline.use("other")
        pipeline.put(b"last")
    assert pipeline.results[:300] == [0] * 300
    assert isinstance(pipeline.results[300], client.NotFound)
    assert pipeline.results[301:303] == [0, 0]
    assert one.peek_ready().id == pipeline.results[303]
    assert int(one.stats()["current-jobs-delayed"]) == 1


def test_what_no_server_would_take_is_refused_before_anything_is_sent(one):
    for command, error in [
        (lambda: one.put(b"x", priority=2**32), WrongUse), (lambda: one.put(b"x", delay=2**32), WrongUse),
        (lambda: one.put(7), BadMessage), (lambda: one.use("a b"), BadName), (lambda: one.delete(-1), WrongUse),
        (lambda: one.reserve(timeout=2**31), WrongUse), (lambda: Client("host", use="a:b"), BadName),
    ]:  # fmt: skip
        with pytest.raises(error):
            command()
    assert one.stats()["current-jobs-ready"] == "0"
    assert one.using() == "orders"  # and still in step


def test_it_works_in_plain_threads(server):
    got = []

    def work() -> None:
        with Client(server.address, watch="orders") as mine:
            job = mine.reserve(timeout=20)
            mine.delete(job)
            got.append(job.body)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    with Client(server.address, use="orders") as one:
        one.put_many([b"a", b"b", b"c", b"d"])
    for thread in threads:
        thread.join(30)
    assert sorted(got) == [b"a", b"b", b"c", b"d"]


def test_in_gevent_a_reserve_blocks_only_its_greenlet(one, server):
    waiting = gevent.spawn(one.reserve)
    gevent.sleep(0.01)
    with Client(server.address, use="orders") as second:
        second.put(b"x")
    assert waiting.get(timeout=10).body == b"x"


def test_a_server_that_goes_away_is_an_error_and_not_a_wait(one, server):
    waiting = gevent.spawn(one.reserve)
    gevent.sleep(0.01)
    server.kill()
    with pytest.raises(BrokerUnreachable):
        waiting.get(timeout=10)
    with pytest.raises(BrokerUnreachable, match="closed: make a new one"):
        one.stats()
    with pytest.raises(BrokerUnreachable, match="cannot be reached"):
        Client(f"127.0.0.1:{free_port()}", timeout=2)


def test_a_server_that_says_nothing_is_given_up():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        one = Client(f"127.0.0.1:{silent.getsockname()[1]}", timeout=0.3)
        with pytest.raises(BrokerUnreachable, match=r"did not answer within 0\.3 s"):
            one.put(b"x")


def test_another_greenlet_is_refused_and_the_first_one_goes_on(one, server):
    waiting = gevent.spawn(one.reserve)
    gevent.sleep(0.05)
    for use in (one.stats, lambda: one.put(b"x"), lambda: one.put_many([b"x"])):
        with pytest.raises(WrongUse, match="another greenlet"):
            use()
    with Client(server.address, use="orders") as second:
        second.put(b"first")
    assert waiting.get(timeout=10).body == b"first"
    assert one.using() == "orders"


def test_another_thread_is_refused_and_the_own_one_goes_on(one):
    errors = []

    def use() -> None:
        for work in (one.stats, one.close, lambda: one.put_many([b"x"])):
            try:
                work()
            except Exception as error:
                errors.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join(10)
    assert [type(error) for error in errors] == [WrongUse] * 3
    assert all("another thread" in str(error) for error in errors)
    assert one.using() == "orders"


_FORKING = """
import os, sys
from framework.errors import WrongUse
from framework.transports.beanstalkd import Client

one = Client(sys.argv[1], use="orders", watch="orders")
one.put(b"first")
job = one.reserve(timeout=5)
hold, held = os.pipe()
if (child := os.fork()) == 0:
    os.close(held)
    refused = 0
    for work in (one.stats, lambda: one.put(b"x"), lambda: one.delete(job)):
        try:
            work()
        except WrongUse as error:
            refused += "before a fork" in str(error)
    print(f"{refused}\\n", end="", flush=True)  # in one write: two processes have this output
    os.read(hold, 1)  # until the parent has closed its client
    one.close()
    os._exit(0)
one.touch(job)
one.close()  # and with that the job is ready, although a child has all the files of its parent
with Client(sys.argv[1], watch="orders") as another:
    print(another.reserve(timeout=5).body.decode() + "\\n", end="", flush=True)
os.close(held)
sys.exit(os.waitpid(child, 0)[1])
"""


def test_after_a_fork_the_child_is_refused_and_the_parent_goes_on(server):
    done = subprocess.run(
        [sys.executable, "-c", _FORKING, server.address], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == ["3", "first"]


def test_closing_ends_what_another_greenlet_waits_for(one):
    waiting = gevent.spawn(one.reserve)
    gevent.sleep(0.05)
    one.close()
    with pytest.raises(BrokerUnreachable):
        waiting.get(timeout=10)


@pytest.fixture
def short_of_memory(listening):
    """A server that has no memory to queue what is released."""

    def serve(sock):
        file = sock.makefile("rwb")
        while line := file.readline():
            file.write(b"BURIED\r\n" if line.startswith(b"release") else b"USING orders\r\n")
            file.flush()

    return listening(serve)


def test_a_job_that_was_buried_on_release_is_named(short_of_memory):
    with Client(short_of_memory, use="orders") as one:
        with pytest.raises(client.Buried) as error:
            one.release(7)
        with one.pipeline() as pipeline:
            pipeline.release(8)
    assert (error.value.id, pipeline.results[0].id) == (7, 8)


def test_for_ever_is_a_timeout_and_no_delay(one):
    one.put(b"x")
    assert one.reserve(timeout=float("inf")).body == b"x"
    for use in (
        lambda: one.put(b"x", delay=float("inf")), lambda: one.put(b"x", ttr=float("inf")),
        lambda: one.reserve(timeout=float("nan")), lambda: one.pause_tube("orders", float("inf")),
    ):  # fmt: skip
        with pytest.raises(WrongUse, match="takes a number of them"):
            use()
    assert one.using() == "orders"

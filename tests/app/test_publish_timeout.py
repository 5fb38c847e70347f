"""A publish ends within its timeout whatever becomes of the broker, and at once while the broker is known to be down."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest

from framework import Publisher, PublishError, WrongUse
from framework.testing.proxy import Proxy
from framework.testing.servers import Server
from framework.transports.memory import MemoryBroker, add, forget

pytestmark = pytest.mark.real

TIMEOUT = 0.6
AT_ONCE = 0.05
LATE = 2.0  # seconds that a busy machine may add
DEADLINE = 15.0


@pytest.fixture(params=["nsq", "beanstalkd"])
def server(request: pytest.FixtureRequest) -> Server:
    start = request.getfixturevalue("start_nsqd" if request.param == "nsq" else "start_beanstalkd")
    started: Server = start()
    started.scheme = request.param  # type: ignore[attr-defined]
    return started


def url(server: Any, address: str = "") -> str:
    return f"{server.scheme}://{address or server.address}"


@pytest.fixture
def publisher(server: Server) -> Iterator[Publisher]:
    with closing(Publisher(url(server), timeout=TIMEOUT)) as made:
        yield made


class closing:
    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher

    def __enter__(self) -> Publisher:
        return self.publisher

    def __exit__(self, *_: object) -> None:
        self.publisher.close()
        gevent.sleep(0)


def failing(publish: Callable[[], object]) -> tuple[float, PublishError]:
    """How long it took, and what it raised."""
    start = time.monotonic()
    with pytest.raises(PublishError) as caught:
        publish()
    return time.monotonic() - start, caught.value


def quickest(publish: Callable[[], object], tries: int = 5) -> float:
    """Seconds of the quickest of several failures: one of them may have met a busy machine."""
    return min(failing(publish)[0] for _ in range(tries))


def recovered(publisher: Publisher) -> float:
    """Seconds until a publish was stored again."""
    start = time.monotonic()
    while True:
        try:
            publisher.publish("orders", "again")
        except PublishError:
            assert time.monotonic() - start < DEADLINE
            time.sleep(0.02)  # a plain thread: nothing turns its hub meanwhile
        else:
            return time.monotonic() - start


def test_a_broker_that_is_killed_costs_one_timeout_and_then_nothing(server: Server, publisher: Publisher) -> None:
    publisher.publish("orders", "before")
    server.kill()
    time.sleep(0.05)  # so that the end of the connection is seen before anything is sent on it
    took, error = failing(lambda: publisher.publish("orders", "x"))
    assert error.stored is False
    assert TIMEOUT / 2 < took < TIMEOUT + LATE
    assert quickest(lambda: publisher.publish("orders", "x")) < AT_ONCE
    assert quickest(lambda: publisher.publish_many("orders", ["x"] * 2000)) < AT_ONCE
    start = time.monotonic()
    assert [answer.stored for answer in publisher.publish_each("orders", ["x"] * 100) if answer] == [False] * 100
    assert time.monotonic() - start < LATE
    server.start()
    assert recovered(publisher) < 5


@pytest.mark.parametrize("how", ["publish", "publish_many", "publish_each"])
def test_a_broker_that_hangs_costs_one_timeout_and_the_answer_is_unknown(server: Any, publisher: Publisher, how: str) -> None:
    def publish() -> None:
        if how != "publish_each":
            getattr(publisher, how)("orders", ["x"])
            return
        for answer in publisher.publish_each("orders", ["x"] * 300):
            if answer is not None:
                raise answer

    publish()
    server.freeze()
    try:
        took, error = failing(publish)
        assert error.stored is None
        assert "not known" in str(error)
        assert TIMEOUT / 2 < took < TIMEOUT + LATE
        took, error = failing(publish)
        assert error.stored is False  # for it was not even sent
        assert took < TIMEOUT / 2, "one timeout, and not another one to find out that nothing can be dialled"
        assert quickest(publish) < AT_ONCE
    finally:
        server.thaw()
    assert recovered(publisher) < 5


def test_a_broker_that_hangs_before_the_first_publish(server: Any, publisher: Publisher) -> None:
    server.freeze()
    try:
        took, error = failing(lambda: publisher.publish("orders", "x"))
        assert error.stored is False
        assert TIMEOUT / 2 < took < TIMEOUT + LATE
        assert quickest(lambda: publisher.publish("orders", "x")) < AT_ONCE
    finally:
        server.thaw()
    assert recovered(publisher) < 5


def test_a_network_that_swallows_everything(server: Server, start_proxy: Callable[[str], Proxy]) -> None:
    proxy = start_proxy(server.address)
    with closing(Publisher(url(server, proxy.address), timeout=TIMEOUT)) as publisher:
        publisher.publish("orders", "before")
        proxy.to_server.swallow()
        took, error = failing(lambda: publisher.publish("orders", "x" * 60_000))
        assert error.stored is None
        assert took < TIMEOUT + LATE
        assert quickest(lambda: publisher.publish("orders", "x")) < AT_ONCE
        proxy.restore()
        assert recovered(publisher) < 8


def test_greenlets_that_come_while_it_is_down_are_not_held_either(server: Server, publisher: Publisher) -> None:
    publisher.publish("orders", "before")
    server.kill()
    gevent.sleep(0.05)
    start = time.monotonic()
    jobs = [gevent.spawn_later(i * TIMEOUT / 10, failing, lambda: publisher.publish("orders", "x")) for i in range(30)]
    gevent.joinall(jobs, timeout=DEADLINE)
    assert all(job.value[1].stored is False for job in jobs)
    assert time.monotonic() - start < 3 * TIMEOUT + TIMEOUT + LATE
    assert sum(job.value[0] < AT_ONCE for job in jobs[-15:]) >= 10


def test_a_caller_of_little_patience_does_not_cut_off_the_others(server: Any) -> None:
    """The broker only pauses: who waits longer gets an OK, and who had enough knows nothing."""
    with closing(Publisher(url(server), timeout=10.0)) as publisher:
        publisher.publish("orders", "before")
        server.freeze()
        patient = [gevent.spawn(publisher.publish, "orders", f"patient {i}") for i in range(5)]
        gevent.sleep(0.01)
        _, error = failing(lambda: publisher.publish("orders", "hasty", timeout=0.2))
        assert error.stored is None
        late = gevent.spawn(publisher.publish, "orders", "late but patient")
        gevent.sleep(0.2)
        assert not any(job.ready() for job in [*patient, late])
        server.thaw()
        gevent.joinall([*patient, late], timeout=DEADLINE, raise_error=True)
        assert all(job.successful() for job in [*patient, late])


def test_a_frozen_node_among_healthy_ones_fails_over(start_nsqd: Callable[..., Server]) -> None:
    nodes: list[Any] = [start_nsqd() for _ in range(3)]
    with closing(Publisher([f"nsq://{node.address}" for node in nodes], timeout=4.0)) as publisher:
        publisher.publish("orders", "before")
        used = next(node for node in nodes if node.http("/stats?format=json&topic=orders")["topics"])
        used.freeze()
        _, error = failing(lambda: publisher.publish("orders", "x"))
        assert error.stored is None
        for number in range(50):
            start = time.monotonic()
            publisher.publish("orders", f"{number}")
            assert time.monotonic() - start < LATE
        used.thaw()


def test_in_a_patched_process_and_in_plain_threads(server: Server) -> None:
    """Threads share what one of them has found out, whether their hubs turn or not; and the process ends as it should."""
    code = f"""
import sys, threading, time
if "patched" in sys.argv:
    from gevent import monkey; monkey.patch_all()
from framework import Publisher, PublishError
publisher = Publisher("{url(server)}", timeout={TIMEOUT})
publisher.publish("orders", "x", timeout=30)  # a machine may be busy
print("up", flush=True)
sys.stdin.readline()
took = []
def fail():
    start = time.monotonic()
    try:
        publisher.publish("orders", "x")
    except PublishError as error:
        took.append(time.monotonic() - start)
fail()
for _ in range(3):
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
print(len(took), took[0] > {TIMEOUT / 2}, min(took[1:]) < {AT_ONCE}, flush=True)
"""
    running = [
        subprocess.Popen([sys.executable, "-c", code, *how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for how in ([], ["patched"])
    ]
    for one in running:
        assert one.stdout
        assert one.stdout.readline() == "up\n"
    server.kill()
    time.sleep(0.05)  # so that the end of the connection is seen before anything is sent on it
    for one in running:
        out, _ = one.communicate("\n", timeout=60)
        assert (out, one.returncode) == ("4 True True\n", 0)


def test_the_memory_broker_never_holds_anybody() -> None:
    broker = MemoryBroker("hold")
    add(broker)
    try:
        publisher = Publisher(broker.url, timeout=TIMEOUT)
        broker.stop()
        took, error = failing(lambda: publisher.publish("orders", "x", timeout=30))
        assert (error.stored, took < AT_ONCE) == (False, True)
        broker.start()
        publisher.publish("orders", "x")
        broker.lose_answers()
        assert failing(lambda: publisher.publish("orders", "x"))[1].stored is None
    finally:
        forget("hold")


def test_the_setting_is_by_the_environment_and_short_enough_for_a_web_server(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Publisher("nsq://127.0.0.1:1")._plain == {"timeout": 5.0}
    monkeypatch.setenv("WORKERS_PUBLISH_TIMEOUT", "300ms")
    publisher = Publisher("nsq://127.0.0.1:1")
    took, error = failing(lambda: publisher.publish("orders", "x"))
    assert (error.stored, 0.15 < took < 0.3 + LATE) == (False, True)
    publisher.close()


@pytest.mark.parametrize("timeout", [0, -1, True, "5", float("inf"), float("nan")])
def test_a_timeout_is_a_number_of_seconds(timeout: Any) -> None:
    publisher = Publisher("nsq://127.0.0.1:1")
    with pytest.raises(WrongUse, match="the seconds that a publish may take"):
        publisher.publish("orders", "x", timeout=timeout)
    with pytest.raises(WrongUse, match="the seconds that a publish may take"):
        Publisher("nsq://127.0.0.1:1", timeout=timeout)


def test_of_two_kinds_of_brokers_the_second_has_its_share_of_the_time(
    start_beanstalkd: Callable[..., Server], start_nsqd: Callable[..., Server]
) -> None:
    first, second = start_beanstalkd(), start_nsqd()
    with closing(Publisher([f"beanstalkd://{first.address}", f"nsq://{second.address}"], timeout=2.0)) as publisher:
        first.freeze()
        assert timed(lambda: publisher.publish("orders", "x")) < 2.0 + LATE
        assert min(timed(lambda: publisher.publish("orders", "x")) for _ in range(5)) < AT_ONCE


def timed(publish: Callable[[], object]) -> float:
    start = time.monotonic()
    publish()
    return time.monotonic() - start

"""A handler that blocks the hub costs neither a connection nor a lease, as nsqd counts it, and is named."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from framework.engine.guardian import BLOCKED, WORTH_A_WORD, Guardian
from framework.engine.stopping import Stop
from framework.engine.supervisor import Supervisor
from framework.handler import make_spec
from framework.message import Message
from framework.testing.certificates import Authority
from framework.testing.servers import Server, ServerMissing, free_port, real_nsqd
from framework.transports import open_transports
from tests.conftest import missing, starting

pytestmark = pytest.mark.real

BLOCK = float(os.environ.get("BLOCK_SECONDS", "4"))
"""Seconds. Twice the lease and four heartbeats; more than nsqd needs to find out."""
FLAGS = ("--msg-timeout=2s",)
CHANNEL = "guarded"
TOPICS = ("python", "sleep", "scrypt", "packed", "alone", "full", "waiting", "late", "regex")


def in_python(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def in_scrypt(seconds: float) -> None:
    """In C with the GIL released, for most of the time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        hashlib.scrypt(b"x", salt=b"y", n=2**16, r=8, p=1, maxmem=2**28)


BLOCKS = {"python": in_python, "sleep": time.sleep, "scrypt": in_scrypt, "packed": time.sleep}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    try:
        return Authority(tmp_path_factory.mktemp("ca"))
    except ServerMissing as error:
        missing(str(error))
        raise


@pytest.fixture(scope="module")
def servers(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    """An nsqd in the clear and one with TLS, with channels so old that nsqd looks for timeouts in them."""
    pair = authority.sign("nsqd")
    tls = (f"--tls-cert={pair.cert}", f"--tls-key={pair.key}", f"--https-address=127.0.0.1:{free_port()}")
    with starting(lambda *flags: real_nsqd(tmp_path_factory.mktemp("nsqd"), *FLAGS, *flags)) as start:
        found = {"clear": start(), "tls": start(*tls)}
        for server in found.values():
            for topic in TOPICS:
                server.http(f"/topic/create?topic={topic}", b"")
                server.http(f"/channel/create?topic={topic}&channel={CHANNEL}", b"")
        time.sleep(5.2)  # that often does nsqd look for new channels
        yield found


@pytest.fixture(params=["clear", "tls"])  # and "deflate", where it is asked for
def layer(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def nsqd(servers: dict[str, Server], layer: str) -> Server:
    return servers["tls" if layer == "tls" else "clear"]


class Running:
    """A worker of one handler whose messages may wait in its own queue."""

    def __init__(self, url: str, topic: str, function: Callable[[Message], None], **options: Any) -> None:
        transports = open_transports([url])
        spec = make_spec(function, topic, CHANNEL, {"concurrency": 1, "max_in_flight": 20, "timeout": 120, **options})
        self.supervisor = Supervisor([spec], transports, publish=print)
        self.greenlet = gevent.spawn(self.supervisor.run)
        self.until(lambda: self.supervisor.ready)
        self.consumer = self.supervisor._consumers[0]
        self.consumer.flow.credit._concurrency = 1000
        self.ledger = self.supervisor.ledgers[spec.name]

    @property
    def in_flight(self) -> int:
        return sum(len(connection.in_flight) for connection in self.consumer.accounts)

    def until(self, condition: Callable[[], Any], seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert not self.greenlet.dead
            assert time.monotonic() < deadline, "the condition did not become true in time"
            gevent.sleep(0.005)

    def stop(self) -> dict[str, int]:
        self.supervisor.stop()
        self.greenlet.get(timeout=40)
        assert self.ledger.balance(0) == 0
        return self.ledger.as_dict()


@pytest.fixture
def run(nsqd: Server, layer: str, authority: Authority) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def start(topic: str, function: Callable[[Message], None], **options: Any) -> Running:
        how = {"clear": "", "tls": f"&tls=true&tls_ca={authority.cert}", "deflate": "&deflate=true"}[layer]
        started.append(Running(f"nsq://{nsqd.address}?heartbeat=1s{how}", topic, function, **options))
        return started[-1]

    yield start
    for one in started:
        if not one.greenlet.dead:
            one.supervisor.stop(now=True)
            one.greenlet.join(timeout=10)


def publish(server: Server, topic: str, *bodies: bytes) -> None:
    for start in range(0, len(bodies), 20):
        server.http(f"/mpub?topic={topic}", b"\n".join(bodies[start : start + 20]))


def stats(server: Server, topic: str) -> dict[str, Any]:
    return server.channel_stats(topic, CHANNEL)


def warnings(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if text in record.getMessage()]


def blocking(block: Callable[[float], None], worker: list[Running], count: int = 20) -> Callable[[Message], None]:
    """A handler whose first call waits until ``count`` messages are in flight, and then blocks the hub."""

    def function(message: Message) -> None:
        if message.body == b"0":
            worker[0].until(lambda: worker[0].in_flight == count)
            block(BLOCK)

    return function


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layer", "topic"),
    [
        ("clear", "python"), ("clear", "sleep"), pytest.param("clear", "scrypt", marks=pytest.mark.long_run),
        pytest.param("tls", "python", marks=pytest.mark.long_run), ("tls", "sleep"), ("tls", "scrypt"), ("deflate", "packed"),
    ],
    indirect=["layer"],
)  # fmt: skip
def test_a_blocked_hub_loses_no_connection_and_no_message_and_the_handler_is_named(nsqd, run, caplog, topic):
    started: list[Running] = []
    worker = run(topic, blocking(BLOCKS[topic], started))
    started.append(worker)
    connected = stats(nsqd, topic)["clients"][0]["connect_ts"]
    publish(nsqd, topic, *[b"%d" % n for n in range(20)])
    worker.until(lambda: worker.ledger.finished == 20, seconds=BLOCK + 30)
    after = stats(nsqd, topic)
    assert (after["timeout_count"], after["requeue_count"], after["depth"]) == (0, 0, 0)
    assert [client["connect_ts"] for client in after["clients"]] == [connected]
    worker.until(lambda: warnings(caplog, "has blocked the hub"))
    assert worker.stop() == {"received": 20, "finished": 20, "requeued": 0, "dead": 0, "lease_lost": 0}
    (said,) = warnings(caplog, "has blocked the hub")
    assert said.startswith(f"handler {topic}/{CHANNEL} has blocked the hub for 1.")
    assert 'slots="thread" or "process"' in said
    assert "block(BLOCK)" in said


def test_a_hub_that_turns_in_the_middle_of_a_rescue_learns_of_the_rest_of_it_too():
    told = []

    class Connection:
        @property
        def rescuable(self) -> Connection:
            return self

        def rescue(self, now, expired) -> None:
            guardian.report()

        def rescued(self) -> None:
            told.append(self)

    connection = Connection()
    consumer = SimpleNamespace(accounts={connection: None}, running=SimpleNamespace(expired=lambda now: set()))
    guardian = Guardian(SimpleNamespace(stamp=0.0, over=False), [consumer], Stop(0.0), None)
    guardian._rescue(1.0)
    guardian.report()
    assert told == [connection] * 2
    guardian.report()
    assert told == [connection] * 2


def test_a_thread_that_has_ended_before_its_stack_is_looked_at_has_none(caplog: pytest.LogCaptureFixture) -> None:
    """Another's was shown, and in the guardian's own thread, which has few frames, that was an error that ended it."""
    running = SimpleNamespace(computing=False, threads=[0])  # which no thread is
    consumer = SimpleNamespace(spec=SimpleNamespace(name="orders/billing"), accounts={}, running=running)
    guardian = Guardian(SimpleNamespace(stamp=1.0, over=False), [consumer], Stop(0.0), None)
    guardian._tell_of(2 * WORTH_A_WORD, 2 * WORTH_A_WORD, 0.0)
    until = time.monotonic() + 20
    while not (said := [one for one in caplog.messages if "orders/billing" in one]) and time.monotonic() < until:
        time.sleep(0.01)
    assert len(said) == 1
    assert "File" not in said[0]


class Rescued:
    """A connection that notes when it was rescued."""

    def __init__(self) -> None:
        self.times: list[float] = []

    @property
    def rescuable(self) -> Rescued:
        return self

    def rescue(self, now: float, expired: set[Message]) -> None:
        self.times.append(now)

    def rescued(self) -> None:
        """The hub would learn of it."""


class Turning:
    """A hub that turns all the time."""

    over = False

    @property
    def stamp(self) -> float:
        return time.monotonic()


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], Rescued]]:
    """``guarded(turns)``: a connection below a guardian that watches that hub."""
    monkeypatch.setattr("framework.engine.guardian.WORTH_A_WORD", 600.0)
    guardians: list[Guardian] = []

    def start(turns: Any) -> Rescued:
        connection = Rescued()
        consumer = SimpleNamespace(accounts={connection: None}, running=SimpleNamespace(expired=lambda now: set()))
        guardians.append(Guardian(turns, [consumer], Stop(0.0), None))
        guardians[-1].start()
        return connection

    yield start
    for guardian in guardians:
        guardian.stop()


def test_the_connections_of_a_hub_that_stands_still_are_kept_again_and_again(guarded):
    began = time.monotonic()
    connection = guarded(SimpleNamespace(stamp=began, over=False))
    while len(connection.times) < 3:
        assert time.monotonic() < began + 10
        time.sleep(0.01)
    assert all(after - before > BLOCKED for before, after in pairwise([began, *connection.times]))


def test_those_of_a_hub_that_turns_are_left_alone(guarded):
    connection = guarded(Turning())
    time.sleep(4 * BLOCKED)
    assert connection.times == []


def test_who_blocks_the_hub_is_named_with_the_line(broker, caplog):
    def function(message: Message) -> None:
        time.sleep(1.4)  # pytest is not patched

    supervisor = Supervisor([make_spec(function, "orders", "billing", {})], [broker], publish=print)
    greenlet = gevent.spawn(supervisor.run)
    broker.publish("orders", b"x")
    with caplog.at_level(logging.WARNING), gevent.Timeout(20):
        while not broker.finished:
            gevent.sleep(0.01)
    supervisor.stop()
    greenlet.get(timeout=20)
    (said,) = warnings(caplog, "has blocked the hub")
    assert said.startswith("handler orders/billing has blocked the hub for 1.")
    assert "time.sleep(1.4)" in said


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["clear"], indirect=True)
def test_without_the_guardian_the_same_costs_all_of_them(nsqd, run, monkeypatch):
    monkeypatch.setattr(Guardian, "_rescue", lambda self, now: None)
    started: list[Running] = []
    worker = run("alone", blocking(time.sleep, started))
    started.append(worker)
    publish(nsqd, "alone", *[b"%d" % n for n in range(20)])
    worker.until(lambda: worker.ledger.lease_lost > 0, seconds=BLOCK + 30)
    assert stats(nsqd, "alone")["timeout_count"] > 0
    worker.stop()


@pytest.mark.slow
def test_what_was_finished_before_the_block_is_sent_during_it(nsqd, run):
    seen = threading.Event()
    finished: list[int] = []

    def watch() -> None:
        until = time.monotonic() + BLOCK
        while time.monotonic() < until:
            finished.append(stats(nsqd, "waiting")["clients"][0]["finish_count"])
            time.sleep(0.1)
        seen.set()

    def function(message: Message) -> None:
        if message.body == b"0":
            worker.until(lambda: worker.in_flight == 20)
        if message.body == b"10":
            threading.Thread(target=watch).start()
            assert seen.wait(BLOCK + 30)  # blocks the hub: pytest is not patched

    worker = run("waiting", function)
    publish(nsqd, "waiting", *[b"%d" % n for n in range(20)])
    worker.until(lambda: worker.ledger.finished == 20, seconds=BLOCK + 60)
    assert finished[-1] == 10
    assert stats(nsqd, "waiting")["timeout_count"] == 0
    assert worker.stop() == {"received": 20, "finished": 20, "requeued": 0, "dead": 0, "lease_lost": 0}


@pytest.mark.slow
def test_four_hundred_messages_of_a_hundred_kilobytes_that_come_during_the_block_are_kept(nsqd, run, monkeypatch):
    published = threading.Event()

    def publish_all() -> None:
        publish(nsqd, "full", *[b"x" * 100_000] * 400)
        published.set()

    def function(message: Message) -> None:
        if message.body == b"first":
            threading.Thread(target=publish_all).start()
            published.wait(60)
            time.sleep(BLOCK)

    worker = run("full", function, max_in_flight=401)
    (connection,) = worker.consumer.accounts
    monkeypatch.setattr(worker.consumer, "_regrant", lambda *_: None)
    gevent.get_hub().loop.run_callback(connection.grant, 401)
    connected = stats(nsqd, "full")["clients"][0]["connect_ts"]
    publish(nsqd, "full", b"first")
    worker.until(lambda: worker.ledger.finished == 401, seconds=BLOCK + 90)
    after = stats(nsqd, "full")
    assert (after["timeout_count"], after["requeue_count"], after["depth"]) == (0, 0, 0)
    assert [client["connect_ts"] for client in after["clients"]] == [connected]
    assert worker.stop() == {"received": 401, "finished": 401, "requeued": 0, "dead": 0, "lease_lost": 0}


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["clear"], indirect=True)
def test_a_lease_is_not_kept_for_longer_than_the_handler_may_run(nsqd, run):
    def function(message: Message) -> None:
        if message.attempts == 1:
            time.sleep(BLOCK + 2)

    worker = run("late", function, timeout=1, max_in_flight=1)
    publish(nsqd, "late", b"x")
    worker.until(lambda: worker.ledger.finished == 1, seconds=BLOCK + 60)
    assert stats(nsqd, "late")["timeout_count"] == 1
    ledger = worker.stop()
    assert (ledger["received"], ledger["finished"], ledger["lease_lost"]) == (2, 1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["clear"], indirect=True)
@pytest.mark.parametrize("slots", ["greenlet", "thread"])
def test_a_handler_that_holds_the_gil_is_told_to_use_a_process(nsqd, run, caplog, slots):
    def function(message: Message) -> None:
        re.match(r"(a+)+$", "a" * int(message.body) + "b")

    def told_well(words: str) -> bool:
        """The guardian can look only when the GIL is free again, and the call may be over by then."""
        named = words.startswith(f"handler regex/{CHANNEL} has held the GIL for") and "re.match" in words
        return 'slots="process"' in words and (named or slots == "thread")

    worker, letters = run("regex", function, slots=slots), 22
    with caplog.at_level(logging.WARNING):
        for count in range(1, 25):
            publish(nsqd, "regex", b"%d" % letters)
            worker.until(lambda count=count: worker.ledger.finished + worker.ledger.lease_lost >= count)
            told = warnings(caplog, "has held the GIL")
            if any(map(told_well, told)):
                break
            letters += not told  # one more takes twice as long
    assert any(map(told_well, told)), told
    worker.stop()

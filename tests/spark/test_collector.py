"""The embedded collector against a real nsqd, without Spark: it lands a channel, and only then finishes."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from framework.message import Batch, Message
from framework.spark import collector as of_collector
from framework.spark import options, reader
from framework.spark.collector import NAME, Collector
from framework.spool import Spool, segment
from framework.testing.servers import Server, free_port, own_nsqd, running

pytestmark = pytest.mark.real


@pytest.fixture
def collect(tmp_path: Path) -> Iterator[Callable[..., Collector]]:
    """Starts collectors of orders/archive into one spool, and stops them."""
    started: list[Collector] = []

    def start(address: str, **more: str) -> Collector:
        given = {
            "spoolDir": str(tmp_path / "spool"),
            "topic": "orders",
            "channel": "archive",
            "broker" if "://" in address else "nsqdTcpAddresses": address,
            **more,
        }
        collector = Collector(options.stream_read(given))
        started.append(collector)
        collector.start()
        return collector

    yield start
    for collector in started:
        collector.stop()


def publish(nsqd: Server, first: int, last: int) -> None:
    nsqd.http("/mpub?topic=orders", b"\n".join(b"m%d" % n for n in range(first, last)))


def landed(tmp_path: Path) -> Counter[bytes]:
    return Counter(
        body
        for one in segment.listing(tmp_path / "spool" / NAME)
        for body in segment.read(one.path, ["value"])["value"].to_pylist()
    )


def slow_down(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Have each landing take so much longer."""
    land = Spool.land

    def slow(self: Spool, batch: Batch) -> int:
        gevent.sleep(seconds)
        return land(self, batch)

    monkeypatch.setattr(Spool, "land", slow)


def wait_for(condition: Callable[[], bool], collector: Collector, seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not condition():
        collector.check()
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_channel_is_landed_and_finished(nsqd: Server, tmp_path: Path, collect: Callable[..., Collector]) -> None:
    publish(nsqd, 0, 10_000)
    collector = collect(nsqd.address)
    collector.drain_channel()
    assert landed(tmp_path) == Counter(b"m%d" % n for n in range(10_000))
    wait_for(lambda: nsqd.channel_stats("orders", "archive")["in_flight_count"] == 0, collector)
    assert nsqd.channel_stats("orders", "archive")["depth"] == 0
    collector.stop()
    assert collector.counts() == {"received": 10_000, "finished": 10_000, "requeued": 0, "dead": 0, "lease_lost": 0}


def test_what_a_full_spool_does_not_take_stays_at_the_broker_until_there_is_room(
    nsqd: Server, tmp_path: Path, collect: Callable[..., Collector], caplog: pytest.LogCaptureFixture
) -> None:
    publish(nsqd, 0, 10_000)
    collector = collect(nsqd.address, maxSpoolBytes="100000", segmentMaxMessages="500", maxInFlight="500")
    wait_for(lambda: "is full" in caplog.text, collector)
    wait_for(lambda: nsqd.channel_stats("orders", "archive")["in_flight_count"] == 0, collector)
    count = sum(landed(tmp_path).values())
    assert 500 < count < 5000
    stats = nsqd.channel_stats("orders", "archive")
    assert stats["depth"] + stats["deferred_count"] == 10_000 - count
    read: dict[int, Counter[bytes]] = {}

    def query() -> int:
        for one in segment.listing(tmp_path / "spool" / NAME):
            read[one.number] = Counter(segment.read(one.path, ["value"])["value"].to_pylist())
        segment.trim(tmp_path / "spool" / NAME, max(read, default=0) + 1, 0)  # no more than was read
        return sum(rows.total() for rows in read.values())

    wait_for(lambda: query() == 10_000, collector, 60)
    assert sum(read.values(), Counter()) == Counter(b"m%d" % n for n in range(10_000))
    assert caplog.text.count("its messages stay at the broker") == caplog.text.count("has room again") >= 1


def test_a_channel_of_which_nothing_has_come_yet_is_given_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_collector, "_IDLE", 0.3)
    given = {
        "spoolDir": str(tmp_path),
        "topic": "orders",
        "channel": "archive",
        "broker": "nsq://127.0.0.1:1",
        "segmentLinger": "200ms",
    }
    collector: Any = Collector(options.stream_read(given))
    collector._supervisor = SimpleNamespace(ready=True, blocked=0.0, of_consumers=lambda: [])
    began = time.monotonic()
    collector.drain_channel()
    assert time.monotonic() - began >= 0.5


def test_a_channel_counts_as_drained_only_when_nothing_has_come_for_a_while(
    nsqd: Server, tmp_path: Path, collect: Callable[..., Collector]
) -> None:
    """Not when the connection stands, and its few messages wait for a segment to fill."""
    publish(nsqd, 0, 10)
    collector = collect(nsqd.address, segmentLinger="1s")
    collector.drain_channel()
    assert landed(tmp_path) == Counter(b"m%d" % n for n in range(10))


def test_a_slow_disk_is_not_taken_for_the_end_of_a_channel(
    nsqd: Server, tmp_path: Path, collect: Callable[..., Collector], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("framework.spark.collector._IDLE", 0.2)
    slow_down(monkeypatch, 0.5)
    publish(nsqd, 0, 400)
    collector = collect(nsqd.address, segmentMaxMessages="100", segmentLinger="10ms")
    collector.drain_channel()
    assert sum(landed(tmp_path).values()) == 400


def test_a_collector_that_stands_still_is_not_taken_for_the_end_of_a_channel(
    nsqd: Server, tmp_path: Path, collect: Callable[..., Collector], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came meanwhile is there, and nobody has looked."""
    monkeypatch.setattr("framework.spark.collector._IDLE", 0.4)
    monkeypatch.setattr("framework.spark.collector._STALL", 0.2)
    collector: Any = collect(nsqd.address, segmentLinger="10ms")
    wait_for(lambda: collector._supervisor is not None and collector._supervisor.ready, collector)
    asleep = threading.Event()
    collector._supervisor._hub.loop.run_callback_threadsafe(lambda: asleep.set() or time.sleep(1.0))
    assert asleep.wait(10)
    publish(nsqd, 0, 2)
    collector.drain_channel()
    assert landed(tmp_path) == Counter([b"m0", b"m1"])


def test_a_process_that_stood_still_waits_again_for_what_came_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framework.spark.collector._IDLE", 0.3)
    collector: Any = Collector(options.stream_read({
        "spoolDir": str(tmp_path), "topic": "orders", "channel": "archive", "broker": "nsq://127.0.0.1:1",
        "segmentLinger": "10ms",
    }))  # fmt: skip
    collector._supervisor = SimpleNamespace(ready=True, blocked=0.0, of_consumers=lambda: [])
    collector._last_old = collector._looked = time.monotonic() - 5
    assert not collector._drained()
    assert not collector._drained()
    time.sleep(0.35)
    assert collector._drained()


def test_what_has_come_from_before_is_waited_for_also_behind_a_batch_of_newer_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which a slow disk takes for longer than nothing need come."""
    monkeypatch.setattr(of_collector, "_IDLE", 0.1)
    given = {"spoolDir": str(tmp_path), "topic": "orders", "channel": "archive", "broker": "nsq://127.0.0.1:1"}
    collector: Any = Collector(options.stream_read({**given, "segmentLinger": "10ms"}))
    line = SimpleNamespace(node="a:1", in_flight={})
    consumer = SimpleNamespace(accounts=[line])
    collector._supervisor = SimpleNamespace(ready=True, blocked=0.0, of_consumers=lambda: [(consumer, [])])
    line.in_flight = {Message(b"1", time.time_ns() - 10**9, 1, b"x", line): 0.0}
    draining = threading.Thread(target=collector.drain_channel)
    draining.start()
    draining.join(0.5)
    assert draining.is_alive()
    line.in_flight = {Message(b"2", time.time_ns() + 10**9, 1, b"x", line): 0.0}
    draining.join(10)
    assert not draining.is_alive(), "newer ones are waited for"


@pytest.fixture
def off(tmp_path: Path) -> Iterator[Callable[[float], Server]]:
    """``off(3600)``: an nsqd whose clock is an hour ahead."""
    with ExitStack() as stack:

        def start(seconds: float) -> Server:
            server = own_nsqd(tmp_path / "off")
            server.command[1:3] = [str(Path(__file__).parent / "scripts" / "nsqd_with_clock.py"), str(seconds)]
            return stack.enter_context(running(server))

        yield start


def url(nsqd: Server) -> str:
    """Which says where its HTTP is."""
    return f"nsq://{nsqd.address}?http_port={nsqd.http_port}"


@pytest.mark.parametrize("seconds", [3600, -3600], ids=["ahead", "behind"])
def test_what_an_nsqd_held_is_told_by_its_own_clock(
    off: Callable[[float], Server], tmp_path: Path, collect: Callable[..., Collector], monkeypatch: pytest.MonkeyPatch,
    seconds: float,
) -> None:  # fmt: skip
    """All of it is landed, however long that takes, and what comes meanwhile is not waited for."""
    monkeypatch.setattr("framework.spark.collector._IDLE", 0.2)
    slow_down(monkeypatch, 0.3)
    nsqd = off(seconds)
    publish(nsqd, 0, 500)
    ended = threading.Event()
    coming = threading.Thread(target=publish_until, args=(nsqd, ended))
    coming.start()
    draining = threading.Thread(target=collect(url(nsqd), segmentMaxMessages="100", segmentLinger="10ms").drain_channel)
    draining.start()
    draining.join(30)
    ended.set()
    coming.join()
    assert not draining.is_alive()
    assert not {b"m%d" % n for n in range(500)} - landed(tmp_path).keys()


def publish_until(nsqd: Server, ended: threading.Event) -> None:
    number = 1_000_000
    while not ended.wait(0.05):
        publish(nsqd, number, number := number + 1)


def test_an_nsqd_that_does_not_say_what_time_it_is_is_judged_by_our_clock_and_that_is_told(
    nsqd: Server, tmp_path: Path, collect: Callable[..., Collector], caplog: pytest.LogCaptureFixture
) -> None:
    publish(nsqd, 0, 10)
    collect(f"nsq://{nsqd.address}?http_port={free_port()}").drain_channel()
    assert sum(landed(tmp_path).values()) == 10
    (said,) = [record.message for record in caplog.records if record.name == "framework.spark.start"]
    assert said.startswith(f"{nsqd.address} does not say what time it is (nsqd 127.0.0.1:")


def test_a_quiet_channel_is_landed_within_its_linger(nsqd: Server, tmp_path: Path, collect: Callable[..., Collector]) -> None:
    collector = collect(nsqd.address, segmentLinger="50ms")
    collector.drain_channel()
    publish(nsqd, 0, 1)
    wait_for(lambda: sum(landed(tmp_path).values()) == 1, collector, 5)


def test_stopping_gives_the_rest_back_and_loses_nothing(nsqd: Server, tmp_path: Path, collect: Callable[..., Collector]) -> None:
    publish(nsqd, 0, 5_000)
    first = collect(nsqd.address, segmentMaxMessages="100", maxInFlight="500")
    wait_for(lambda: sum(landed(tmp_path).values()) >= 300, first)
    first.stop()
    assert nsqd.channel_stats("orders", "archive")["in_flight_count"] == 0, "nothing waits for its timeout"
    second = collect(nsqd.address)
    second.drain_channel()
    assert landed(tmp_path) == Counter(b"m%d" % n for n in range(5_000))


def test_a_query_collects_until_it_stops(nsqd: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_stop_on_sigterm", lambda: None)  # this process is not Spark's
    monkeypatch.setattr(reader, "_stop_in_peace", lambda: None)
    given = {"spoolDir": str(tmp_path / "spool"), "topic": "orders", "channel": "archive", "nsqdTcpAddresses": nsqd.address}
    source = reader.NsqStreamReader(options.stream_read({**given, "segmentLinger": "100ms"}))
    publish(nsqd, 0, 10)
    start = source.initialOffset()
    until = time.monotonic() + 20
    while source.latestOffset(start, ReadAllAvailable()) == start:
        assert time.monotonic() < until
        time.sleep(0.02)
    source.stop()
    assert "client_count" in nsqd.channel_stats("orders", "archive")
    while nsqd.channel_stats("orders", "archive")["client_count"]:
        assert time.monotonic() < until, "it goes on collecting, and no query reads it"
        time.sleep(0.02)
    assert landed(tmp_path) == Counter(b"m%d" % n for n in range(10))


@pytest.mark.parametrize("ended", [False, True], ids=["stopped", "its driver was killed"])
def test_a_query_that_is_stopped_gives_back_what_is_not_durable(nsqd: Server, tmp_path: Path, ended: bool) -> None:
    publish(nsqd, 0, 10)
    script = Path(__file__).parent / "scripts" / "source_process.py"
    command = [sys.executable, str(script), str(tmp_path / "spool"), nsqd.address]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        until = time.monotonic() + 60
        while nsqd.channel_stats("orders", "archive").get("in_flight_count") != 10:
            assert time.monotonic() < until
            time.sleep(0.02)
        if ended:  # it is to stop by itself then, and whoever stops all that is left of the service may come into the middle
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            assert process.stdout.readline() == b"stopping\n"
        until = time.monotonic() + 60
        while process.poll() is None:
            assert time.monotonic() < until
            process.terminate()  # Spark says so twice, and the second may come while it does what the first made it do
            time.sleep(0.002)
        assert nsqd.channel_stats("orders", "archive")["in_flight_count"] == 0, "nothing waits for its timeout"
        assert nsqd.channel_stats("orders", "archive")["depth"] + sum(landed(tmp_path).values()) == 10
    finally:
        process.kill()
        process.wait()


def test_a_broker_that_is_down_is_waited_for(
    start_nsqd: Callable[..., Server], tmp_path: Path, collect: Callable[..., Collector]
) -> None:
    nsqd = start_nsqd("--mem-queue-size=0")
    publish(nsqd, 0, 100)
    nsqd.stop()
    collector = collect(nsqd.address)
    wait_for(lambda: collector._supervisor is not None, collector)
    nsqd.start()
    wait_for(lambda: sum(landed(tmp_path).values()) == 100, collector)


def test_a_node_that_answers_late_is_waited_for_though_another_has_answered(
    start_nsqd: Callable[..., Server], tmp_path: Path, collect: Callable[..., Collector], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that has just been started, or lies behind a slow name server: it was left to the next run."""
    monkeypatch.setattr("framework.spark.collector._IDLE", 0.2)
    prompt, late = start_nsqd(), start_nsqd()
    publish(prompt, 0, 10)
    publish(late, 10, 20)
    with late.frozen():
        collector = collect(f"nsq://{prompt.address} nsq://{late.address}", segmentLinger="10ms")
        draining = threading.Thread(target=collector.drain_channel)
        draining.start()
        wait_for(lambda: sum(landed(tmp_path).values()) == 10, collector)
        time.sleep(1.0)  # for longer than nothing need come
    draining.join(30)
    assert not draining.is_alive()
    assert landed(tmp_path) == Counter(b"m%d" % n for n in range(20))


def test_a_node_that_does_not_answer_is_not_waited_for_longer_than_a_broker(
    start_nsqd: Callable[..., Server], tmp_path: Path, collect: Callable[..., Collector], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr("framework.spark.collector._IDLE", 0.2)
    monkeypatch.setattr("framework.spark.collector._CONNECT_WAIT", 1.0)
    prompt, silent = start_nsqd(), start_nsqd()
    publish(prompt, 0, 10)
    with silent.frozen():
        collect(f"nsq://{prompt.address} nsq://{silent.address}", segmentLinger="10ms").drain_channel()
    assert sum(landed(tmp_path).values()) == 10
    assert f"{silent.address} has not answered: what it holds is left to the next run" in caplog.text


def test_draining_gives_up_on_a_broker_that_does_not_answer(
    tmp_path: Path, collect: Callable[..., Collector], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("framework.spark.collector._CONNECT_WAIT", 0.5)
    collect(f"127.0.0.1:{free_port()}").drain_channel()
    assert "this run reads what the spool holds already" in caplog.text


def test_a_spool_that_another_process_fills_ends_the_query_with_the_reason(
    nsqd: Server, tmp_path: Path, collect: Callable[..., Collector], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("framework.spark.collector._LOCK_WAIT", 0.2)
    with Spool(tmp_path / "spool", NAME):
        collector = collect(nsqd.address)
        with pytest.raises(Exception, match="Two queries cannot collect into one spoolDir"):
            wait_for(lambda: False, collector, 5)

"""A quota and an age limit for topics by choice: what is too much is refused to its publisher, what is too old is counted."""

from __future__ import annotations

import shutil
import threading
import time
import urllib.error
from collections.abc import Callable
from pathlib import Path

import gevent
import pytest

from framework.nsqd import broker, expiry
from framework.nsqd.broker import Broker
from framework.nsqd.channel import Channel
from framework.nsqd.goflags import BadFlag
from framework.nsqd.journal import QuotaReached
from framework.nsqd.options import parse
from framework.nsqd.retries import Retries
from framework.nsqd.store import Entry, Store
from framework.nsqd.topic import Topic
from framework.testing.servers import Server
from tests.nsqd.conftest import Talk
from tests.nsqd.storing import payload
from tests.nsqd.taking import Taker


class Nsqd:
    """A broker on a folder, and its lines."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.lines: list[str] = []
        self.broker = Broker(
            Store(folder), parse([f"--data-path={folder}", *flags]), lambda level, words: self.lines.append(words)
        )

    def publish(self, topic: Topic, *bodies: bytes, due: int = 0) -> None:
        group = self.broker.publish([(topic, Entry(topic.id, payload(*bodies), len(bodies), due))])
        if group is not None:
            group.wait()


@pytest.fixture
def start(folder: Path) -> Callable[..., Nsqd]:
    return lambda *flags: Nsqd(folder, *flags)


def channel(topic: Topic, name: str = "c") -> Channel:
    made = topic.channel(name)
    topic.settle()
    return made


def wait_until(what: Callable[[], object]) -> None:
    with gevent.Timeout(10):
        while not what():
            gevent.sleep(0.005)


# --- quotas ------------------------------------------------------------------------------------------------------


def test_what_exceeds_the_quota_is_refused_and_finishing_makes_room(start: Callable[..., Nsqd]) -> None:
    nsqd = start("--topic-quota=orders=3")
    topic = nsqd.broker.topic("orders")
    taker = Taker(channel(topic), ready=2)
    nsqd.publish(topic, b"1", b"2")
    nsqd.publish(topic, b"3")
    for _ in range(2):
        with pytest.raises(
            QuotaReached, match=r"^topic 'orders' may have 3 unfinished messages \(--topic-quota\), and has no room$"
        ):
            nsqd.publish(topic, b"4", b"5")
    assert (topic.refused_count, topic.unfinished, topic.message_count) == (4, 3, 3)
    taker.finish()
    nsqd.publish(topic, b"4", b"5")
    nsqd.publish(nsqd.broker.topic("free"), *[b"x"] * 50)
    nsqd.broker.stop()
    again = start().broker
    assert again.topics["orders"].unfinished == 3
    again.stop()


def test_what_is_in_flight_deferred_or_waits_in_the_topic_counts_and_so_does_what_is_not_written_yet(
    start: Callable[..., Nsqd],
) -> None:
    nsqd = start("--topic-quota=*=3")
    topic = nsqd.broker.topic("orders")
    nsqd.publish(topic, b"in the topic")
    with pytest.raises(QuotaReached):
        nsqd.publish(topic, *[b"x"] * 3)
    taker = Taker(channel(topic))
    wait_until(lambda: taker.channel.serve() or taker.leases.messages)
    (message_id,) = taker.leases.messages
    nsqd.publish(topic, b"deferred", due=int(nsqd.broker.clock.now()) + 3_600_000)
    taker.channel.requeue(taker, message_id, 3600)
    assert nsqd.broker.publish([(topic, Entry(topic.id, payload(b"x"), 1))]) is not None  # not on the disk yet
    with pytest.raises(QuotaReached):
        nsqd.broker.publish([(topic, Entry(topic.id, payload(b"x"), 1))])
    nsqd.broker.stop()


def test_a_quota_is_for_ephemeral_topics_too(start: Callable[..., Nsqd]) -> None:
    nsqd = start("--topic-quota=*=3", "--topic-quota=more#ephemeral=4")
    for name, most in (("some#ephemeral", 3), ("more#ephemeral", 4)):
        topic = nsqd.broker.topic(name)
        for _ in range(most):
            nsqd.publish(topic, b"x")
        with pytest.raises(QuotaReached):
            nsqd.publish(topic, b"x")
    nsqd.broker.stop()


def test_publishers_are_told_over_tcp_and_over_http(
    start_embedded: Callable[..., Server], talk: Callable[..., Talk]
) -> None:  # fmt: skip
    server = start_embedded("--topic-quota=orders=2")
    client = talk(server)
    client.send(b"PUB orders\n" + payload(b"1") + b"PUB orders\n" + payload(b"2"))
    assert client.reply(2) == [b"OK", b"OK"]
    client.send(b"PUB orders\n" + payload(b"3"))
    words = "topic 'orders' may have 2 unfinished messages (--topic-quota), and has no room"
    assert client.reply(3)[2] == f"E_PUB_FAILED PUB failed {words}".encode()
    with pytest.raises(urllib.error.HTTPError) as refused:
        server.http("/pub?topic=orders", b"3")
    assert (refused.value.code, words in refused.value.read().decode()) == (503, True)
    assert server.http("/stats?format=json&topic=orders")["topics"][0]["depth"] == 2
    assert server.http("/ping") == "OK"


# --- ages ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def all_so_far_is_old(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """With a limit of an hour, what was published before this is called is too old, and nothing else is."""
    now = [0]
    monkeypatch.setattr(expiry, "_ROUND_SECONDS", 0.05)
    monkeypatch.setattr(expiry.Expiry, "_now", lambda self: now[0])

    def pass_an_hour() -> None:
        now[0] = time.time_ns() + 3600 * 10**9

    return pass_an_hour


def test_what_nobody_reads_goes_by_its_age_from_topics_and_channels_and_is_reported(
    start: Callable[..., Nsqd], all_so_far_is_old: Callable[[], None], folder: Path
) -> None:
    nsqd = start("--topic-max-age=*=1h", "--topic-max-age=kept=2h")
    abandoned, lonely, kept = (nsqd.broker.topic(name) for name in ("abandoned", "lonely", "kept"))
    made = channel(abandoned)
    for topic in (abandoned, lonely, kept):
        nsqd.publish(topic, *[b"old" * 1000] * 500)
        nsqd.publish(topic, *[b"old" * 1000] * 500)
    gevent.sleep(0.2)
    assert made.depth == lonely.depth == 1000
    all_so_far_is_old()
    for topic in (abandoned, lonely):
        nsqd.publish(topic, b"new")
    wait_until(lambda: made.depth == lonely.depth == 1)
    assert (made.expired_count, lonely.expired_count, kept.depth) == (1000, 1000, 1000)
    taker = Taker(made)
    wait_until(lambda: made.serve() or taker.bodies)
    assert taker.bodies == [b"new"]
    taker.finish()
    assert any(line.endswith("messages are dropped, which are older than 3600 s") for line in nsqd.lines)
    nsqd.broker.stop()
    again = Nsqd(folder).broker
    assert [again.topics[name].unfinished for name in ("lonely", "abandoned", "kept")] == [1, 0, 1000]
    again.stop()


def test_what_was_too_old_in_a_paused_topic_does_not_come_when_it_goes_on(
    start: Callable[..., Nsqd], all_so_far_is_old: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "SAVE_SECONDS", 3600.0)
    monkeypatch.setattr(broker, "_RECENT_BYTES", 0)
    nsqd = start("--topic-max-age=orders=1h")
    topic = nsqd.broker.topic("orders")
    taker = Taker(channel(topic))
    topic.pause(True)
    nsqd.publish(topic, b"old", b"old")
    all_so_far_is_old()
    wait_until(lambda: topic.expired_count == 2)
    topic.pause(False)
    nsqd.publish(topic, b"new")
    wait_until(lambda: taker.bodies)
    gevent.sleep(0.1)
    assert taker.bodies == [b"new"]
    assert (topic.unfinished, taker.channel.depth) == (1, 0)


def test_what_is_in_flight_or_deferred_goes_when_it_comes_back(
    start: Callable[..., Nsqd], all_so_far_is_old: Callable[[], None], folder: Path
) -> None:
    nsqd = start("--topic-max-age=orders=1h")
    topic = nsqd.broker.topic("orders")
    taker = Taker(channel(topic), ready=1)
    nsqd.publish(topic, b"in flight")
    wait_until(lambda: taker.channel.in_flight_count)
    nsqd.publish(topic, b"deferred", due=int(nsqd.broker.clock.now()) + 2000)
    all_so_far_is_old()
    gevent.sleep(0.5)
    assert (taker.channel.in_flight_count, len(taker.channel.deferred), taker.channel.expired_count) == (1, 1, 0)
    (message_id,) = taker.leases.messages
    taker.ready = 0
    taker.channel.requeue(taker, message_id, 0)
    wait_until(lambda: taker.channel.expired_count == 2)
    assert topic.unfinished == 0
    nsqd.broker.stop()
    again = Nsqd(folder).broker
    assert again.topics["orders"].unfinished == 0
    again.stop()


def test_thousands_that_are_to_be_tried_again_go_behind_some_that_stay(
    start: Callable[..., Nsqd], all_so_far_is_old: Callable[[], None]
) -> None:
    nsqd = start("--topic-max-age=orders=1h")
    topic = nsqd.broker.topic("orders")
    taker = Taker(channel(topic), ready=9000)
    for _ in range(10):
        nsqd.publish(topic, *[b"old"] * 500)
    wait_until(lambda: taker.channel.in_flight_count == 5000)
    all_so_far_is_old()
    nsqd.publish(topic, *[b"new"] * 3)
    wait_until(lambda: taker.channel.in_flight_count == 5003)
    taker.ready = 0
    for message_id in reversed(list(taker.leases.messages)):  # the new ones first
        assert taker.channel.requeue(taker, message_id, 0) is None
    wait_until(lambda: taker.channel.expired_count == 5000)
    gevent.sleep(0.2)
    assert (taker.channel.expired_count, taker.channel.depth) == (5000, 3)
    assert taker.channel.retries.bytes_in_memory == sum(len(one.body or b"") for one in taker.channel.retries.ready)
    nsqd.broker.stop()


def test_what_comes_back_too_old_goes_though_a_client_waits_for_it(
    start: Callable[..., Nsqd], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """Else a message that always fails, and is requeued at once, would never go."""
    monkeypatch.setattr(expiry, "_ROUND_SECONDS", 0.05)
    monkeypatch.setattr(expiry, "_SAY_SECONDS", 0.0)
    nsqd = start("--topic-max-age=orders=300ms")
    topic = nsqd.broker.topic("orders")
    taker = Taker(channel(topic))
    nsqd.publish(topic, b"requeued")
    nsqd.publish(topic, b"deferred", due=int(nsqd.broker.clock.now()) + 600)
    gevent.sleep(0.45)
    (message_id,) = taker.leases.messages
    taker.channel.requeue(taker, message_id, 0)
    taker.channel.serve()
    wait_until(lambda: not taker.channel.deferred)
    assert (taker.bodies, taker.channel.in_flight_count, taker.channel.expired_count) == ([b"requeued"], 0, 2)
    nsqd.publish(topic, b"new")
    wait_until(lambda: b"new" in taker.bodies)
    wait_until(lambda: sum(int(line.split()[1]) for line in nsqd.lines if " are dropped, " in line) == 2)
    nsqd.broker.stop()
    assert Nsqd(folder).broker.topics["orders"].unfinished == 1


def test_what_was_to_be_tried_again_before_a_restart_goes_after_it(
    start: Callable[..., Nsqd], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it was published, the log alone knows then."""
    nsqd = start()
    topic = nsqd.broker.topic("orders")
    taker = Taker(channel(topic), ready=10)
    nsqd.publish(topic, *[b"x"] * 10)
    assert taker.channel.in_flight_count == 10
    nsqd.broker.stop()
    monkeypatch.setattr(expiry, "_ROUND_SECONDS", 0.05)
    again = start("--topic-max-age=orders=100ms").broker
    found = again.topics["orders"].channels["c"]
    assert len(found.retries.ready) == 10
    wait_until(lambda: found.expired_count == 10)
    assert found.depth == 0
    again.stop()


def test_setting_the_machines_clock_makes_nothing_old(start: Callable[..., Nsqd], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "_ROUND_SECONDS", 0.02)
    nsqd = start("--topic-max-age=orders=1h")
    topic = nsqd.broker.topic("orders")
    made = channel(topic)
    real = time.time_ns
    for years in (-5, 5):
        monkeypatch.setattr(time, "time_ns", lambda years=years: real() + years * 31_536_000 * 10**9)
        nsqd.publish(topic, b"after")
        gevent.sleep(0.2)
        assert (made.expired_count, made.depth) == (0, 1)
        made.empty()
    monkeypatch.undo()
    nsqd.broker.stop()


def test_what_comes_back_at_once_after_the_clock_was_set_back_is_not_old(
    start: Callable[..., Nsqd], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was published later than the last round, and bears an earlier time than that had for old."""
    nsqd = start("--topic-max-age=orders=1h")
    taker = Taker(channel(nsqd.broker.topic("orders")))
    real, looked = time.time_ns, threading.Event()
    older_than = Retries.older_than
    monkeypatch.setattr(Retries, "older_than", lambda self, cutoff: [*older_than(self, cutoff), *(looked.set() or [])])
    wait_until(looked.is_set)  # the next round is a second away
    monkeypatch.setattr(time, "time_ns", lambda: real() - 2 * 3600 * 10**9)
    nsqd.publish(taker.channel.topic, b"after")
    (message_id,) = taker.leases.messages
    taker.channel.requeue(taker, message_id, 0)
    taker.channel.serve()
    assert (taker.bodies, taker.channel.expired_count) == ([b"after", b"after"], 0)
    nsqd.broker.stop()


@pytest.mark.parametrize("restarted", ["", "stopped meanwhile", "killed meanwhile", "and then"])
def test_what_was_published_while_the_clock_was_behind_is_no_older_when_it_is_set_right(
    start: Callable[..., Nsqd], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarted: str
) -> None:
    """As on a machine without a battery for its clock, where nsqd starts before the time is known."""
    monkeypatch.setattr(expiry, "_ROUND_SECONDS", 0.02)
    real = time.time_ns
    Store(folder).close()  # from when the clock was right
    monkeypatch.setattr(time, "time_ns", lambda: real() - 5 * 31_536_000 * 10**9)
    nsqd = start("--topic-max-age=orders=2s")
    channel(nsqd.broker.topic("orders"))
    nsqd.publish(nsqd.broker.topic("orders"), b"a", b"b")
    gevent.sleep(0.1)
    if restarted == "killed meanwhile":
        shutil.copytree(folder, killed := tmp_path / "killed")
        nsqd.broker.stop()
        monkeypatch.undo()
        monkeypatch.setattr(expiry, "_ROUND_SECONDS", 0.02)
        nsqd = Nsqd(killed, "--topic-max-age=orders=2s")
    else:
        if restarted == "stopped meanwhile":
            nsqd.broker.stop()
        monkeypatch.undo()
        monkeypatch.setattr(expiry, "_ROUND_SECONDS", 0.02)
        gevent.sleep(0.1)
        if restarted == "and then":
            nsqd.broker.stop()
        if restarted:
            nsqd = start("--topic-max-age=orders=2s")
    found = nsqd.broker.topics["orders"].channels["c"]
    gevent.sleep(0.5)
    assert (found.expired_count, found.depth) == (0, 2)
    wait_until(lambda: found.expired_count == 2)
    nsqd.broker.stop()


@pytest.mark.parametrize("flag", ["--topic-quota=5", "--topic-quota=a b=5", "--topic-quota=a=0", "--topic-max-age=a=5"])
def test_a_limit_that_cannot_be_is_refused(flag: str) -> None:
    with pytest.raises(BadFlag, match="invalid value"):
        parse([flag])


def test_a_quota_with_a_unit_is_refused_in_a_sentence_that_says_what_to_write() -> None:
    words = "invalid value \"x=1MiB\" for flag -topic-quota: '1MiB' is not a whole number of messages: write digits alone"
    with pytest.raises(BadFlag, match=f"^{words}, such as 100000$"):
        parse(["--topic-quota=x=1MiB"])


@pytest.mark.parametrize("flag", ["max-msg-size", "node-id", "max-tcp-connections", "max-bytes-per-file", "mem-queue-size"])
def test_a_number_with_a_unit_is_refused_without_the_words_of_python(flag: str) -> None:
    with pytest.raises(BadFlag, match=f"for flag -{flag}: '1MiB' is not a whole number: write digits alone, such as 100000$"):
        parse([f"--{flag}=1MiB"])


# --- metrics ---------------------------------------------------------------------------------------------------------


def test_metrics_are_prometheus_text_with_what_stats_say(start_embedded: Callable[..., Server]) -> None:
    server = start_embedded("--topic-quota=orders=3")
    server.http("/topic/create?topic=orders", b"")
    server.http("/channel/create?topic=orders&channel=billing", b"")
    server.http("/mpub?topic=orders", b"one\ntwo\nthree")
    with pytest.raises(urllib.error.HTTPError):
        server.http("/pub?topic=orders", b"four")
    server.http("/channel/pause?topic=orders&channel=billing", b"")
    lines = server.http("/metrics").splitlines()
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}
    named = {line.split()[2] for line in lines if line.startswith("# TYPE ")}
    assert {name.partition("{")[0] for name in values} == named
    assert len(values) == len([line for line in lines if not line.startswith("#")])
    here = '{topic="orders",channel="billing"}'
    assert values["nsqd_up"] == 1
    assert values['nsqd_topic_messages_total{topic="orders"}'] == 3
    assert values['nsqd_topic_bytes_total{topic="orders"}'] == 11
    assert values['nsqd_topic_refused_total{topic="orders"}'] == 1
    assert values['nsqd_topic_unfinished{topic="orders"}'] == 3
    assert (values[f"nsqd_channel_depth{here}"], values[f"nsqd_channel_paused{here}"]) == (3, 1)
    assert (values[f"nsqd_channel_in_flight{here}"], values["nsqd_log_segments"]) == (0, 1)
    assert values["nsqd_log_bytes"] == sum(path.stat().st_size for path in (server.data / "log").iterdir())

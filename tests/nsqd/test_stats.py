"""What is told of an nsqd as JSON and as text, to the digit; that nsqd tells the same, test_differential.py shows."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from framework.nsqd import stats
from framework.nsqd.broker import Broker
from framework.nsqd.options import parse
from framework.nsqd.store import Store
from tests.nsqd.speaking import identify, pub
from tests.nsqd.test_protocol import DEADLINE, Session


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(Store(tmp_path), parse([f"--data-path={tmp_path}"]), lambda level, words: None)
    with gevent.Timeout(DEADLINE):
        yield broker
    broker.stop()


@pytest.fixture
def seen(broker: Broker) -> Iterator[list[Any]]:
    """Two clients: one has published to two topics, the other has one of two messages."""
    publisher, consumer = Session(broker), Session(broker)
    said = identify(client_id="p", hostname="here", user_agent="us/1", feature_negotiation=False)
    assert publisher.say(said) == b"OK"
    for topic, count in (("orders", 2), ("other", 1)):
        for _ in range(count):
            assert publisher.say(pub(topic, b"12345")) == b"OK"
    assert consumer.say(identify(client_id="c", hostname="there", user_agent="us/2", feature_negotiation=False)) == b"OK"
    assert consumer.say(b"SUB orders archive\n") == b"OK"
    consumer.sock.sendall(b"RDY 1\n")
    consumer.messages(1)
    yield [publisher.at, consumer.at]
    for one in (publisher, consumer):
        one.sock.close()
        one.greenlet.join(DEADLINE)


def told(body: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(body[name] for name in names)


def test_who_consumes_is_told_with_the_channel_and_who_publishes_beside_the_topics(broker: Broker, seen: list[Any]) -> None:
    body = stats.stats(broker, seen)
    orders, other = body["topics"]
    assert told(orders, "topic_name", "depth", "message_count", "message_bytes") == ("orders", 0, 2, 10)
    assert told(other, "topic_name", "depth", "channels") == ("other", 1, [])
    (channel,) = orders["channels"]
    assert told(channel, "channel_name", "depth", "in_flight_count", "message_count") == ("archive", 1, 1, 2)
    (consumer,), (publisher,) = channel["clients"], body["producers"]
    assert told(consumer, "client_id", "hostname", "ready_count", "in_flight_count") == ("c", "there", 1, 1)
    assert told(publisher, "client_id", "pub_counts") == ("p", [{"topic": "orders", "count": 2}])
    assert "pub_counts" not in consumer


@pytest.mark.parametrize(("loaded", "ready", "on_disk"), [(0, 0, 10), (3, 2, 5), (10, 0, 0), (9, 3, 0)])
def test_what_is_not_in_memory_is_told_of_a_channel(broker: Broker, loaded: int, ready: int, on_disk: int) -> None:
    backlog, retries = SimpleNamespace(loaded=loaded), SimpleNamespace(ready=[0] * ready)
    counts = dict.fromkeys(("in_flight_count", "message_count", "requeue_count", "timeout_count"), 7)
    channel = SimpleNamespace(
        name="c", depth=10, backlog=backlog, retries=retries, deferred=[], clients=[], paused=False, **counts
    )  # fmt: skip
    body = stats._channel(channel, "", True)  # type: ignore[arg-type]
    assert told(body, "depth", "backend_depth", "deferred_count", "client_count") == (10, on_disk, 0, 0)
    assert told(body, *counts) == (7,) * 4


def test_a_topic_that_is_kept_by_nobody_has_nothing_on_the_disk(broker: Broker) -> None:
    publisher = Session(broker)
    assert publisher.say(pub("t#ephemeral", b"x")) == b"OK"
    (topic,) = stats.stats(broker, [])["topics"]
    assert told(topic, "depth", "backend_depth") == (1, 0)
    publisher.sock.close()
    publisher.greenlet.join(DEADLINE)


def test_who_has_shown_who_it_is_is_told_with_that(broker: Broker, seen: list[Any]) -> None:
    seen[0].permission.state = SimpleNamespace(stats=lambda: {"authed": True, "auth_identity": "me"})
    (publisher,) = stats.stats(broker, seen)["producers"]
    assert told(publisher, "authed", "auth_identity") == (True, "me")


def test_memory_is_told_where_it_was_asked_for(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "memory" not in stats.stats(broker, [], memory=False)
    monkeypatch.setattr(resource, "getrusage", {resource.RUSAGE_SELF: SimpleNamespace(ru_maxrss=7)}.get)
    told = stats.stats(broker, [])["memory"]
    assert told.pop("heap_in_use_bytes") == 7 * 1024
    assert told.pop("gc_total_runs") > 0
    assert set(told.values()) == {0}, "what Go alone has"
    assert len(told) == 7


@pytest.mark.parametrize(("topic", "count"), [("orders", 2), ("other", 1)])
def test_of_who_publishes_what_was_asked_for_is_counted(broker: Broker, seen: list[Any], topic: str, count: int) -> None:
    body = stats.stats(broker, seen, topic)
    assert [one["pub_counts"] for one in body["producers"]] == [[{"topic": topic, "count": count}]]


def test_clients_are_told_only_where_they_were_asked_for(broker: Broker, seen: list[Any]) -> None:
    body = stats.stats(broker, seen, with_clients=False)
    assert body["producers"] is None
    assert [one["clients"] for topic in body["topics"] for one in topic["channels"]] == [None]


def test_of_a_topic_that_is_not_there_nothing_is_told(broker: Broker, seen: list[Any]) -> None:
    body = stats.stats(broker, seen, "none")
    assert (body["topics"], body["producers"]) == (None, None)


def test_a_topic_without_the_channel_is_left_out(broker: Broker, seen: list[Any]) -> None:
    assert [one["topic_name"] for one in stats.stats(broker, seen, channel="archive")["topics"]] == ["orders"]
    assert stats.stats(broker, seen, channel="none")["topics"] == []


def test_people_are_told_it_in_lines(broker: Broker, seen: list[Any]) -> None:
    broker.topics["other"].pause(True)
    broker.topics["orders"].channels["archive"].pause(True)
    lines = stats.text(broker, stats.stats(broker, seen)).splitlines()
    assert re.fullmatch(r"start_time \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", lines[1])
    assert re.fullmatch(r"uptime \d+\.\d{3}s", lines[2])
    assert [line.rstrip() for line in lines[3:]] == [
        "",
        "Health: OK",
        "",
        "Topics:",
        "   [orders         ] depth: 0     be-depth: 0     msgs: 2        e2e%:",
        "   *P [archive                  ] depth: 1     be-depth: 0     inflt: 1    def: 0    re-q: 0     timeout: 0     "
        "msgs: 2        e2e%:",
        "        [V2 there:4999 us/2      ] state: 3 inflt: 1    rdy: 1    fin: 0        re-q: 0        msgs: 1",
        "*P [other          ] depth: 1     be-depth: 1     msgs: 1        e2e%:",
        "",
        "Producers:",
        "   [V2 here:4999 us/1       ] state: 0 inflt: 0    rdy: 0    fin: 0        re-q: 0        msgs: 0",
    ]


def test_people_are_told_that_there_is_nothing(broker: Broker) -> None:
    lines = stats.text(broker, stats.stats(broker, [])).splitlines()
    nothing = ["Health: OK", "", "Topics: None", "", "Producers: None"]
    assert lines[4:] == nothing
    assert stats.text(broker, stats.stats(broker, [], "none")).splitlines()[4:] == nothing


def test_people_are_told_of_no_clients_where_none_were_asked_for(broker: Broker, seen: list[Any]) -> None:
    lines = stats.text(broker, stats.stats(broker, seen, with_clients=False)).splitlines()
    assert "V2" not in "".join(lines)
    assert lines[-1] == "Producers: None"

"""``workers check`` on NATS: what streams and consumers of others would do to a handler is said before anything is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from framework.app import App
from framework.errors import BrokerUnreachable, PublishError, WrongUse
from framework.handler import make_spec
from framework.settings import Settings
from framework.testing.servers import free_port
from framework.testing.workers import call
from framework.transports import open_transports
from framework.transports.nats.judgement import Wish, obstacles
from framework.transports.nats.streams import Stream, StreamConfig, Transform
from framework.transports.nats.urls import Options

from .conftest import until

pytestmark = pytest.mark.real


@pytest.fixture
def check(kit, tmp_path: Path):
    """``check()`` -> exit code and the lines about the handler orders.new/billing."""
    (tmp_path / "shop.py").write_text('from framework import handler\n@handler("orders.new", "billing")\ndef f(m: bytes): ...\n')

    def run(options: str = "") -> tuple[int, str]:
        done = call("check", "shop", "--broker", f"nats://{kit.server.address}{options}", cwd=tmp_path)
        return done.returncode, "\n".join(line for line in done.stdout.splitlines() if not line.startswith("ok    setting"))

    return run


def nothing(message: bytes) -> None: ...


def make(kit, what: str, body: dict) -> None:
    answer = kit.session.ask(f"$JS.API.{what}".encode(), msgspec.json.encode(body), 5.0)
    assert b'"error"' not in answer.body


def stream(kit, **config: object) -> None:
    make(kit, "STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders.>"], **config})


def consumer(kit, name: str = "billing", **config: object) -> None:
    config = {"durable_name": name, "ack_policy": "explicit", "filter_subject": "orders.new", "ack_wait": 30 * 10**9, **config}
    make(kit, f"CONSUMER.DURABLE.CREATE.ORDERS.{name}", {"stream_name": "ORDERS", "config": config})


def test_where_nothing_is_yet_all_is_well_and_nothing_is_made(kit, check):
    code, said = check()
    assert (code, "note" in said) == (0, False)
    assert f"{kit.server.address} nats-server 2.15.1: a lease is 30 s, longer while it is touched" in said
    assert list(kit.api.streams()) == []


def test_limits_that_drop_messages_are_named(kit, check):
    stream(kit, max_age=3600 * 10**9, max_msgs=10, discard="old")
    code, said = check()
    assert code == 0
    assert "note  handler  shop.f (shop.py:2): stream ORDERS drops what is older than 3600 s (max_age), handled or not" in said
    assert "drops the oldest message when it is full (max_msgs=10, discard=old), handled or not" in said


def test_a_stream_that_keeps_all_for_ever_and_one_that_keeps_nothing_for_nobody_are_named(kit, check):
    stream(kit)
    assert "keeps what was handled for ever (retention=limits" in check()[1]
    make(kit, "STREAM.DELETE.ORDERS", {})
    stream(kit, retention="interest", discard="new", max_msgs=10)
    said = check()[1]
    assert "has retention=interest: what comes before a channel's first worker is gone" in said
    assert "drops" not in said


def test_a_consumer_that_ends_deliveries_or_holds_few_is_named(kit, check):
    stream(kit)
    consumer(kit, max_deliver=5, max_ack_pending=7, ack_wait=9 * 10**9)
    code, said = check()
    assert code == 0
    assert "ends after 5 deliveries without a dead letter (max_deliver)" in said
    assert "hold 7 messages (max_ack_pending)" in said
    assert "has a lease of 9 s (ack_wait)" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("?retention=workqueue", "stream ORDERS has retention=limits, and keeps that whatever the broker URL says"),
        ("?max_ack_pending=3000", "stream ORDERS lets all workers together hold 2000 messages (max_ack_pending)"),
        ("?ack_wait=40s", "consumer billing of stream ORDERS has a lease of 30 s (ack_wait), and keeps it whatever"),
    ],
)
def test_what_is_there_and_is_not_as_the_url_says_is_named_and_left_as_it_is(kit, check, options: str, said: str):
    stream(kit, max_age=3600 * 10**9)
    consumer(kit, max_ack_pending=2000)
    made = [kit.api.stream("ORDERS"), kit.api.consumer("ORDERS", "billing")]
    code, lines = check(options)
    assert code == 0
    assert said in lines
    assert [made[0].config, made[1].config] == [kit.api.stream("ORDERS").config, kit.api.consumer("ORDERS", "billing").config]
    assert said not in check("?max_ack_pending=2000")[1]


def test_a_lease_that_is_over_before_it_can_be_touched_is_named(kit, check):
    stream(kit)
    consumer(kit, ack_wait=30 * 10**9, max_deliver=5, backoff=[200_000_000, 10**9])
    assert "has a lease of 0.2 s, which is too short to be kept while a handler runs" in check()[1]


def test_a_consumer_that_cannot_serve_fails_the_check_by_its_difference(kit, check):
    stream(kit)
    consumer(kit, filter_subject="orders.old")
    code, said = check()
    assert code == 2
    assert "FAIL  handler  shop.f (shop.py:2): consumer billing of stream ORDERS is of orders.old and not of orders.new" in said


def test_a_consumer_of_all_that_a_stream_keeps_fails_the_check_where_that_is_more_than_the_topic(kit, check):
    stream(kit)
    consumer(kit, filter_subject="")
    code, said = check()
    assert code == 2
    assert (
        "FAIL  handler  shop.f (shop.py:2): consumer billing of stream ORDERS is of all that the stream keeps (orders.>) "
        "and not of orders.new alone: give it filter_subject=orders.new"
    ) in said
    make(kit, "STREAM.UPDATE.ORDERS", {"name": "ORDERS", "subjects": ["orders.new"]})
    assert check()[0] == 0


def test_a_work_queue_whose_messages_another_consumer_takes_fails_the_check(kit, check):
    stream(kit, retention="workqueue")
    consumer(kit, "shipping")
    code, said = check()
    assert code == 2
    assert "stream ORDERS is a work queue, whose consumer shipping takes orders.new already" in said


def test_a_stream_that_keeps_messages_under_another_name_fails_the_check(kit, check):
    stream(kit, subject_transform={"src": "orders.new", "dest": "orders.changed"})
    code, said = check()
    assert code == 2
    assert "stream ORDERS keeps what comes to orders.new as orders.changed (subject_transform)" in said


@pytest.mark.parametrize(
    ("src", "dest", "kept"),
    [
        ("orders.*", "changed.{{wildcard(1)}}", "changed.new"),
        ("*.*", "$2.$1", "new.orders"),
        ("", "changed.>", "changed.orders.new"),
        ("orders.>", "orders.>", ""),
        ("orders.old", "changed", ""),
        ("orders.*.more", "changed.{{wildcard(1)}}", ""),
    ],
)
def test_a_transform_is_named_where_it_changes_the_topic(src: str, dest: str, kept: str):
    config = StreamConfig("ORDERS", ["orders.>"], subject_transform=Transform(src, dest))
    found = list(obstacles(Stream(config), None, [], Wish("orders.new", Options())))
    assert [f"orders.new as {kept} (" in words for words in found] == ([True] if kept else [])


def test_consumers_that_may_hold_less_than_is_asked_for_fail_the_check(kit, check):
    stream(kit, consumer_limits={"max_ack_pending": 50})
    code, said = check()
    assert code == 2
    assert "stream ORDERS has consumers of max_ack_pending=50 at most (consumer_limits): say that in the broker URL" in said
    assert check("?max_ack_pending=50")[0] == 0


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"mirror": {"name": "other"}}, "it is a mirror, which takes no messages: name another topic"),
        ({"sources": [{"name": "other"}]}, "it does not keep subject orders.new: add that to its subjects"),
    ],
)
def test_a_stream_of_the_topic_s_name_that_does_not_keep_it_fails_the_check(kit, check, config: dict, said: str):
    make(kit, "STREAM.CREATE.other", {"name": "other", "subjects": ["other"]})
    make(kit, "STREAM.CREATE.orders~new", {"name": "orders~new", **config})
    code, lines = check()
    assert (code, "stream orders~new: there is such a stream" in lines, said in lines) == (2, True, True)
    with pytest.raises(PublishError, match=said) as caught:
        kit.producer(kit.open()).publish("orders.new", [b"one"])
    assert caught.value.stored is False


def test_a_stream_that_may_have_no_more_consumers_fails_the_check(kit, check):
    stream(kit, max_consumers=1)
    consumer(kit, "shipping")
    code, said = check()
    assert code == 2
    assert "stream ORDERS has as many consumers as it, or the account, may (max_consumers)" in said


def test_a_consumer_of_priority_groups_fails_the_check(kit, check):
    stream(kit)
    consumer(kit, priority_groups=["a"], priority_policy="overflow")
    code, said = check()
    assert code == 2
    assert "consumer billing of stream ORDERS has priority groups" in said


def test_replicas_at_a_server_that_is_alone_fail_the_check(kit, check):
    code, said = check("?replicas=3")
    assert code == 2
    assert f"nats-server {kit.server.address} is in no cluster, which replicas=3 needs: leave that out" in said


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"pause_until": "2199-01-01T00:00:00Z"}, "is paused (pause_until): nothing is delivered until that is over"),
        ({"inactive_threshold": 4 * 10**9}, "is deleted when no worker pulls for 4 s (inactive_threshold)"),
        ({"mem_storage": True}, "keeps in memory what was handled (mem_storage)"),
        ({"deliver_policy": "last"}, "began with deliver_policy=last: messages from before that are not handled"),
        ({"max_deliver": 1}, "ends after 1 delivery without a dead letter"),
    ],
)
def test_a_consumer_with_an_effect_that_surprises_is_named(kit, check, config: dict, said: str):
    stream(kit)
    consumer(kit, **config)
    code, lines = check()
    assert code == 0
    assert f"consumer billing of stream ORDERS {said}" in lines


def test_a_stream_in_memory_and_few_in_flight_are_named(kit, check):
    code, said = check("?max_ack_pending=1")
    assert (code, "max_ack_pending=1 of the broker URL lets all workers together hold so many" in said) == (0, True)
    stream(kit, storage="memory")
    assert "stream ORDERS keeps messages in memory (storage): a restart of nats-server loses them" in check()[1]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"no_ack": True}, "stream ORDERS answers no publish (no_ack): each ends with stored=None when its time is over"),
        ({"persist_mode": "async"}, "(persist_mode=async): a kill of nats-server loses some"),
        ({"sealed": True}, "stream ORDERS takes no more messages (sealed)"),
        (
            {"discard": "new", "max_msgs_per_subject": 2},
            "stream ORDERS drops the oldest message of a subject (max_msgs_per_subject=2, without discard_new_per_subject)",
        ),
        (
            {"discard": "new", "max_msgs_per_subject": 2, "discard_new_per_subject": True},
            "stream ORDERS is filled by what was handled too, and takes nothing more then (max_msgs_per_subject=2, discard=new)",
        ),
    ],
)
def test_a_stream_whose_word_says_less_than_it_should_is_named(kit, check, config: dict, said: str):
    if "sealed" in config:  # which nobody makes
        stream(kit)
        make(kit, "STREAM.UPDATE.ORDERS", {"name": "ORDERS", "subjects": ["orders.>"], **config})
    else:
        stream(kit, **config)
    code, lines = check()
    assert (code, said in lines) == (0, True)


def test_a_mirror_of_the_topic_s_name_is_no_stream_to_add_subjects_to(kit, tmp_path: Path):
    make(kit, "STREAM.CREATE.other", {"name": "other", "subjects": ["other"]})
    make(kit, "STREAM.CREATE.orders", {"name": "orders", "mirror": {"name": "other"}})
    (tmp_path / "shop.py").write_text('from framework import handler\n@handler("orders", "billing")\ndef f(m: bytes): ...\n')
    done = call("run", "shop", "--broker", f"nats://{kit.server.address}", cwd=tmp_path)
    assert done.returncode == 2
    assert "it is a mirror, which takes no messages: name another topic" in done.stderr


def test_what_a_server_says_too_late_before_the_start_is_wrong_use_as_well(kit, monkeypatch: pytest.MonkeyPatch):
    """On a busy machine a description takes longer than a start waits for it."""
    monkeypatch.setattr("framework.app._DESCRIBE_SECONDS", 0.0)
    make(kit, "STREAM.CREATE.other", {"name": "other", "subjects": ["other"]})
    make(kit, "STREAM.CREATE.orders", {"name": "orders", "mirror": {"name": "other"}})
    app = App([make_spec(nothing, "orders", "billing", {})], Settings(brokers=(f"nats://{kit.server.address}",)))
    with pytest.raises(WrongUse, match="it is a mirror, which takes no messages: name another topic"):
        app.run()


@pytest.mark.parametrize("topics", [[], ["orders"]])
def test_stats_show_a_topic_without_a_channel(kit, tmp_path: Path, topics: list[str]):
    make(kit, "STREAM.CREATE.orders", {"name": "orders", "subjects": ["orders"]})
    done = call("stats", *topics, "--broker", f"nats://{kit.server.address}", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "orders" in done.stdout


def test_servers_of_one_url_that_are_of_two_clusters_are_named(kit, make_kit, tmp_path: Path):
    (tmp_path / "shop.py").write_text('from framework import handler\n@handler("orders.new", "billing")\ndef f(m: bytes): ...\n')
    other = make_kit()

    def check(*addresses: str) -> tuple[int, str]:
        done = call("check", "shop", "--broker", f"nats://{','.join(addresses)}", cwd=tmp_path)
        return done.returncode, done.stdout

    one, two = kit.server.address, other.server.address
    words = f"{two} (no cluster) and {one} (no cluster) keep different streams: give each cluster a broker URL of its own"
    code, said = check(one, two)
    assert (code, words in said) == (2, True), said
    stream(kit)
    stream(other)  # of the same name, and another one
    assert words in check(one, two)[1]
    assert check(one, one.replace("127.0.0.1", "localhost"), "127.0.0.1:1")[0] == 0


def ensured(transport: Any, topic: str) -> bool:
    """False while too few servers of a new cluster are known to its leader."""
    try:
        transport.ensure(topic, ["billing"])
    except BrokerUnreachable:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("version", ["2.9", "2.15"])
def test_servers_of_one_cluster_are_no_strangers(start_nats, version: str):
    ports = [free_port() for _ in range(3)]
    routes = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in ports)
    blocks = [f'cluster {{ name: C1, listen: "127.0.0.1:{port}", routes: [{routes}] }}' for port in ports]
    members = [start_nats(block, version=version) for block in blocks]
    (transport,) = open_transports([f"nats://{','.join(one.address for one in members)}?replicas=3"])
    for topic in ("first", "second"):
        (info,) = until(lambda: transport.describe("any", "billing"), 60.0)  # nothing while nobody leads
        assert info.obstacles == ()
        until(lambda topic=topic: ensured(transport, topic), 60.0)
        transport._found_strangers.clear()
    (lone,) = open_transports([f"nats://{members[0].address}?replicas=1"])
    lone.ensure("lone", ["billing"])
    (info,) = transport.describe("lone", "billing")
    assert any("stream lone has num_replicas=1, and keeps that whatever the broker URL says" in note for note in info.notes)

"""Streams that several clients make in the same moment: all of them use the one that the server keeps."""

from __future__ import annotations

import itertools
import time
from datetime import UTC, datetime, timedelta

import gevent
import msgspec
import pytest

from framework.testing.workers import call
from framework.transports.nats import streams, wire
from framework.transports.nats.dial import dial
from framework.transports.nats.session import Session
from framework.transports.nats.streams import Api, Stream
from framework.transports.nats.urls import Options

from .conftest import until

pytestmark = pytest.mark.real


def test_clients_that_make_one_stream_in_the_same_moment_all_use_the_one_that_is_kept(kit):
    sessions = []
    for _ in range(8):
        with dial(kit.server.address) as line:
            sessions.append(Session(line, 30.0))

    def use(session: Session, topic: str) -> None:
        api = Api(session)
        api.ensure_consumer(api.ensure_stream(topic, Options()), topic, "billing", Options())
        assert b'"seq"' in session.ask(topic.encode(), b"x", 5.0).body

    for number in range(60):
        users = [gevent.spawn(use, session, f"topic-{number}") for session in sessions]
        gevent.joinall(users, timeout=20.0, raise_error=True)
    assert {stream.state.messages for stream in kit.api.streams()} == {8}
    assert {kit.api.consumer(f"topic-{number}", "billing").num_pending for number in range(60)} == {8}
    for session in sessions:
        session.close()


def test_a_new_server_is_not_waited_for(kit, monkeypatch):
    monkeypatch.setattr(streams, "SETTLING", 60.0)
    began = time.monotonic()
    assert kit.api.ensure_stream("orders", Options()) == "orders"
    assert time.monotonic() - began < 30


def test_where_an_old_server_may_keep_either_of_two_streams_it_is_looked_at_until_it_keeps_to_one(monkeypatch):
    """Its answers are played: the moment is too short to be met on purpose."""
    now = datetime.now(UTC)
    looks = itertools.chain([now, now + timedelta(milliseconds=3)], itertools.repeat(now + timedelta(milliseconds=7)))
    seen: list[datetime] = []

    class Old:
        info = wire.Info(version="2.9.10")

    def stream(self: Api, name: str) -> Stream:
        seen.append(next(looks))
        return Stream(created=seen[-1])

    monkeypatch.setattr(streams, "SETTLING", 0.01)
    monkeypatch.setattr(Api, "stream_of", lambda self, topic: topic)
    monkeypatch.setattr(Api, "stream", stream)
    Api(Old()).ensure_stream("orders", Options())
    assert [(at - now).microseconds for at in seen] == [0, 3000, 7000, 7000]


def test_a_topic_without_a_channel_has_what_the_first_one_would_get(kit):
    """As a topic of dead letters; no server answers a question for a consumer without a name."""
    transport = kit.open()
    kit.producer(transport).publish("orders", [b"x", b"y"])
    (kept,) = transport.kept("orders", "").values()
    assert (kept.waiting, kept.in_flight) == (2, 0)


@pytest.mark.parametrize("version", [pytest.param("2.9", marks=pytest.mark.slow), "2.15"])
def test_the_consumer_of_an_ephemeral_channel_goes_when_nobody_uses_it_any_more(make_kit, monkeypatch, version):
    """As that of `workers tail`: nobody else would ever take what it keeps."""
    monkeypatch.setattr(streams, "UNUSED", 1.0)
    kit = make_kit(version=version)
    held = kit.hold(kit.open(), "orders", "tail#ephemeral")
    kit.producer(kit.open()).publish("orders", [b"x"])
    until(lambda: held.taken)
    held.connection.finish(held.taken[0])
    gevent.sleep(3.0)
    assert kit.api.consumers("orders") == ["tail#ephemeral"]
    held.connection.close()
    until(lambda: not kit.api.consumers("orders"))
    kit.hold(kit.open(), "orders", "billing").connection.close()
    gevent.sleep(3.0)
    assert kit.api.consumers("orders") == ["billing"]


def test_what_jetstream_puts_where_the_last_message_was_is_no_message_for_a_handler(kit):
    """The marker comes on the topic's own subject, without a body."""
    config = {"name": "orders", "subjects": ["orders"], "max_age": 10**9, "allow_msg_ttl": True}
    made = msgspec.json.encode({**config, "subject_delete_marker_ttl": 3600 * 10**9})
    assert b'"error"' not in kit.session.ask(b"$JS.API.STREAM.CREATE.orders", made, 5.0).body
    transport = kit.open()
    held = kit.hold(transport)
    kit.producer(transport).publish("orders", [b"one"])
    until(lambda: held.taken)
    held.connection.finish(held.taken[0])
    until(lambda: kit.api.state("orders").last_seq == 2)  # that is the marker
    until(lambda: held.receiver.tally.finished == 2 and not held.connection.in_flight)
    assert [message.body for message in held.taken] == [b"one"]
    until(lambda: kit.api.consumer("orders", "billing").num_ack_pending == 0)


@pytest.mark.parametrize("version", [pytest.param("2.9", marks=pytest.mark.slow), "2.15"])
def test_a_tail_of_a_work_queue_ends_with_one_sentence(make_kit, tmp_path, version):
    kit = make_kit(version=version)
    kit.open("?retention=workqueue").ensure("orders", ["billing"])
    done = call("tail", "orders", "--broker", f"nats://{kit.server.address}", cwd=tmp_path)
    words = "stream orders is a work queue, and another consumer takes these messages already: name its channel"
    assert (done.returncode, words in done.stderr.splitlines()[-1]) == (3, True), done.stderr

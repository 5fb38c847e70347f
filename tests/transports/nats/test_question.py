"""A request on a session is answered, or told that it will not be, whoever reads the socket or closes it."""

from __future__ import annotations

import time

import gevent
import pytest

from framework.errors import BrokerError, BrokerUnreachable
from framework.transports.nats.dial import Way, dial
from framework.transports.nats.publish_link import PublishLink
from framework.transports.nats.session import Session
from framework.transports.nats.urls import Login, Options

pytestmark = pytest.mark.real


def test_an_answer_that_another_greenlet_reads_reaches_the_one_that_asked(kit):
    session = kit.session
    asked = gevent.spawn(kit.api.stream_of, "orders")
    for _ in range(2):  # it asks, and the question is sent
        gevent.sleep(0)
    time.sleep(0.05)  # the answer is in the socket, and the hub has not turned
    session.poll()
    assert asked.get(timeout=5.0) == ""
    assert session.error is None


def test_whoever_waits_for_an_answer_is_told_when_another_greenlet_closes_the_session(kit):
    session = kit.session
    with kit.server.frozen():
        asked = gevent.spawn(kit.api.stream_of, "orders")
        gevent.sleep(0.05)
        session.close()
        with pytest.raises(BrokerUnreachable, match="was closed"):
            asked.get(timeout=2.0)


@pytest.mark.parametrize(
    ("denied", "words"),
    [('publish: { deny: "$JS.API.>" }', "for Publish to"), ('subscribe: { deny: "_INBOX.>" }', "for Subscription to")],
    ids=["ask", "hear the answer"],
)
def test_whoever_may_not_ask_is_told_so_at_once_and_the_session_goes_on(make_kit, denied, words):
    kit = make_kit(f"authorization {{ users: [ {{ user: u, password: p, permissions: {{ {denied} }} }} ] }}")
    with dial(kit.server.address, Way(login=Login(user="u", password="p"))) as line:
        session = Session(line, 30.0)
    began = time.monotonic()
    for _ in range(2):
        with pytest.raises(BrokerError, match=f"Permissions Violation {words}"):
            session.ask(b"$JS.API.INFO", b"", 10.0)
    assert time.monotonic() - began < 5
    session.close()


def test_a_server_that_answers_nothing_is_proven_to_be_away_and_then_back_and_keeps_nothing_of_it(kit):
    link = PublishLink(kit.server.address, kit.session, Options())
    with kit.server.frozen():
        assert isinstance(link.prove(time.monotonic() + 0.2), BrokerUnreachable)
    assert link.prove(time.monotonic() + 10.0) is None
    assert list(kit.api.streams()) == []


def test_greenlets_that_publish_the_first_messages_of_many_topics_at_once_get_all_of_them_stored(kit):
    producer = kit.producer(kit.open())

    def publish(number: int) -> None:
        for count in range(10):
            producer.publish(f"topic-{number}-{count}", [b"x"])
            time.sleep(0.003)  # so long that the next publish looks at the socket itself

    publishers = [gevent.spawn(publish, number) for number in range(8)]
    gevent.joinall(publishers, timeout=20.0)
    assert [repr(one.exception) for one in publishers if not one.successful()] == []
    assert sum(stream.state.messages for stream in kit.api.streams()) == 80


def test_an_answer_about_streams_is_not_heard_as_that_of_a_publish(kit, monkeypatch):
    """Both are numbered from 1, so one inbox for both would mix them up."""
    heard: list[object] = []
    monkeypatch.setattr(PublishLink, "heard", lambda _, messages, at: heard.extend(messages))
    PublishLink(kit.server.address, kit.session, Options())
    assert kit.api.stream_of("orders") == ""
    kit.session.ask(b"$JS.API.INFO", b"", 5.0)  # what came twice has come by now
    assert heard == []

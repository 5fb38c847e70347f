"""Publishing to a real nats-server, beyond the conformance suite: nothing twice, and what a server refuses is said at once."""

from __future__ import annotations

import os
import time

import gevent
import msgspec
import pytest

from framework.errors import BadMessage, BadName, BrokerRefuses, MessageRefused, PublishError, TryLater
from framework.testing.servers import free_port
from framework.transports import failover, open_transports
from framework.transports.nats import publish_link
from framework.transports.nats.outbox import Listening
from framework.transports.nats.sessions import Servers
from framework.transports.nats.streams import Api

from .conftest import until

pytestmark = pytest.mark.real


def kept(transport, topic: str = "orders") -> int:
    return sum(transport.backlog(topic, "billing").values())


def test_a_publish_whose_answer_was_lost_is_sent_again_and_stored_once(kit, start_proxy):
    proxy = start_proxy(kit.server.address)
    (transport,) = open_transports([f"nats://{proxy.address}"])
    producer = kit.producer(transport)
    producer.publish("orders", [b"first"])
    proxy.to_client.swallow()
    asking = gevent.spawn(producer.publish_each, "orders", [b"%d" % number for number in range(5)])
    until(lambda: kept(kit.open()) == 6)
    proxy.restore()
    assert asking.get(timeout=20) == [None] * 5
    assert kept(kit.open()) == 6


def test_what_forked_children_publish_is_stored_as_well_as_what_their_parent_does(kit):
    """Each message has an id of its own: of two with one, the stream would keep the first, and answer that both are stored."""
    producer = kit.producer(kit.open())
    producer.publish("orders", [b"parent"])
    children = []
    for _ in range(2):
        if not (child := os.fork()):
            try:
                producer.publish("orders", [b"child"] * 20, timeout=20.0)
            finally:
                os._exit(0)
        children.append(child)
    producer.publish("orders", [b"parent"] * 20)
    for child in children:
        os.waitpid(child, 0)
    until(lambda: kept(kit.open()) == 61)


def test_where_nobody_says_yet_whether_it_may_be_sent_again_it_is_asked_again(kit, start_proxy, monkeypatch):
    """As while a cluster elects a leader."""
    looks = iter([True, True])

    class Leaderless(Api):
        def stream_of(self, topic: str) -> str:
            if next(looks, False):
                raise TryLater("10008", "JetStream system temporarily unavailable")
            return super().stream_of(topic)

    proxy = start_proxy(kit.server.address)
    (transport,) = open_transports([f"nats://{proxy.address}"])
    producer = kit.producer(transport)
    producer.publish("orders", [b"first"])
    monkeypatch.setattr(publish_link, "Api", Leaderless)
    proxy.to_client.swallow()
    asking = gevent.spawn(producer.publish_each, "orders", [b"second"])
    until(lambda: kept(kit.open()) == 2)
    proxy.restore()
    assert asking.get(timeout=20) == [None]
    assert next(looks, "asked") == "asked"
    assert kept(kit.open()) == 2


def test_what_stays_unknown_is_said_to_be_unknown(kit, start_proxy):
    proxy = start_proxy(kit.server.address)
    (transport,) = open_transports([f"nats://{proxy.address}"])
    producer = kit.producer(transport)
    producer.publish("orders", [b"first"])
    proxy.to_client.swallow()
    began = time.monotonic()
    with pytest.raises(PublishError) as unknown:
        producer.publish("orders", [b"second"], timeout=1.0)
    assert time.monotonic() - began < 15, "the producer's own deadline is 30 s"
    assert unknown.value.stored is None
    assert kept(kit.open()) == 2


class Answering(Listening):
    """Somebody else, who answers ``words`` to whatever is published at a subject."""

    def __init__(self, session, words: bytes) -> None:
        self._session, self._words = session, words

    def heard(self, messages, at: float) -> None:
        for message in messages:
            self._session.publish(message.reply, self._words, b"", b"")

    def lost(self, error: Exception) -> None: ...


@pytest.mark.parametrize("words", [
    b"{}", b'{"ok":true}', b'{"error":{"code":404,"message":"no such order"}}', b"done",
    pytest.param(b'{"x":' + b"[" * 50_000, id="deep"),
])  # fmt: skip
def test_what_another_program_answers_says_nothing_of_what_is_stored(kit, words: bytes):
    """Where no stream keeps the subject nobody else answers, and where one does, either may be first."""
    kit.session.attend(Answering(kit.session, words), [b"orders"])
    kit.session.ask(b"$JS.API.INFO", b"", 5.0)  # the server has read that
    with pytest.raises(PublishError, match="which is no answer of JetStream") as unknown:
        kit.producer(kit.open()).publish("orders", [b"x"], timeout=2.0)
    assert unknown.value.stored is None


@pytest.mark.parametrize("delay", [0.0, 9.0])
def test_a_publish_that_is_not_answered_ends_when_its_time_is_over(kit, delay: float):
    """It was looked at once a second: one with 1.05 s took 2."""
    producer = kit.producer(kit.open())
    producer.publish("orders", [b"x"])
    with kit.server.frozen():
        began = time.monotonic()
        with pytest.raises(PublishError, match=r"within 1\.05 s") as unknown:
            producer.publish("orders", [b"x"], delay=delay, timeout=1.05)
        took = time.monotonic() - began
    assert took < 1.7
    assert unknown.value.stored is None


def test_a_stream_that_remembers_no_id_for_long_is_not_sent_to_again(kit, start_proxy):
    kit.session.ask(b"$JS.API.STREAM.CREATE.S", b'{"name":"S","subjects":["orders"],"duplicate_window":100000000}', 5.0)
    proxy = start_proxy(kit.server.address)
    (transport,) = open_transports([f"nats://{proxy.address}"])
    producer = kit.producer(transport)
    producer.publish("orders", [b"first"])
    proxy.to_client.swallow()
    asking = gevent.spawn(producer.publish_each, "orders", [b"second"])
    until(lambda: kept(kit.open()) == 2)
    gevent.sleep(0.2)
    proxy.restore()
    [error] = asking.get(timeout=20)
    assert error.stored is None
    assert kept(kit.open()) == 2


def test_a_user_who_may_not_publish_there_is_told_so_at_once_in_the_servers_words(make_kit):
    kit = make_kit('authorization { users: [ { user: u, password: p, permissions: { publish: { deny: "secret.>" } } } ] }')
    producer = kit.producer(kit.open(login="u:p@"))
    began = time.monotonic()
    with pytest.raises(PublishError, match='Violation for Publish to "secret\\.plan"') as refused:
        producer.publish("secret.plan", [b"x"], timeout=10.0)
    assert refused.value.stored is False
    assert time.monotonic() - began < 5
    producer.publish("orders", [b"x"])


@pytest.mark.parametrize(
    ("config", "login"),
    [("authorization { user: u, password: 'p w' }", "u:p%20w@"), ("authorization { token: tkn }", "tkn@")],
)
def test_user_and_password_or_a_token_let_us_in_and_others_are_refused_in_a_sentence_without_them(make_kit, config, login):
    kit = make_kit(config)
    transport = kit.open(login=login)
    assert [info.server.split()[0] for info in transport.probe()] == ["nats-server"]
    kit.producer(transport).publish("orders", [b"x"])
    for wrong in ("", "hush@", "u:hush@"):
        with pytest.raises(BrokerRefuses, match="user, password or token") as refused:
            kit.open(login=wrong).probe()
        assert "hush" not in str(refused.value)


def test_a_body_over_what_the_server_takes_is_refused_before_it_is_sent(make_kit):
    kit = make_kit("max_payload: 1000")
    producer = kit.producer(kit.open())
    with pytest.raises(MessageRefused, match="takes 1000 bytes"):
        producer.publish("orders", [b"x" * 1000])
    producer.publish("orders", [b"x" * 900])
    with pytest.raises(BadMessage, match="up to 446 beside the headers"):
        kit.producer(kit.open("?max_payload=500")).publish("orders", [b"x" * 600])


@pytest.mark.parametrize("topic", ["orders..new", ".orders", "_INBOX.me", "orders#ephemeral", "or ders", "orders.*"])
def test_a_topic_that_is_no_subject_is_refused_before_anything_is_dialled(topic):
    (transport,) = open_transports([f"nats://127.0.0.1:{free_port()}"])
    with pytest.raises(BadName):
        transport.producer().publish(topic, [b"x"], timeout=0.1)


@pytest.mark.parametrize("delay", [-1.0, 367 * 86_400.0])
def test_a_delay_out_of_range_is_refused_before_anything_is_dialled(delay):
    (transport,) = open_transports([f"nats://127.0.0.1:{free_port()}"])
    with pytest.raises(BadMessage, match="out of range"):
        transport.producer().publish("orders", [b"x"], delay=delay, timeout=0.1)


def test_a_stream_that_keeps_nothing_for_later_is_named_at_once_with_the_fix(kit):
    """One that was made elsewhere, of the topic alone."""
    config: dict[str, object] = {"name": "ORDERS", "subjects": ["orders"]}
    kit.session.ask(b"$JS.API.STREAM.CREATE.ORDERS", msgspec.json.encode(config), 5.0)
    began = time.monotonic()
    for change, fix in (
        ({"allow_msg_schedules": True}, "let it have allow_msg_schedules"),
        ({"subjects": ["orders", "_at.orders.*"]}, r"does not keep _at\.orders\.\*: add that to its subjects"),
    ):
        with pytest.raises(MessageRefused, match=fix) as refused:
            kit.producer(kit.open()).publish("orders", [b"x"], delay=1.0, timeout=20.0)
        assert refused.value.stored is False
        config |= change
        kit.session.ask(b"$JS.API.STREAM.UPDATE.ORDERS", msgspec.json.encode(config), 5.0)
    assert time.monotonic() - began < 10.0
    kit.producer(kit.open()).publish("orders", [b"x"], delay=1.0, timeout=20.0)
    assert kept(kit.open()) == 1


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"retention": "interest"}, "retention=interest, and drops what"),
        ({"max_age": 10**9}, "older than 1 s .max_age., and this"),
    ],
)
def test_a_delay_for_which_the_stream_does_not_keep_what_it_confirms_is_refused(kit, monkeypatch, config, words: str):
    """Nobody takes what is for later before it is due; and it grows old as any other message."""
    made = {"name": "ORDERS", "subjects": ["orders", "_at.orders.*"], "allow_msg_schedules": True}
    kit.session.ask(b"$JS.API.STREAM.CREATE.ORDERS", msgspec.json.encode(made), 5.0)
    transport = kit.open()
    held, producer = kit.hold(transport), kit.producer(transport)
    producer.publish("orders", [b"x"], delay=0.1)
    until(lambda: held.bodies == [b"x"])
    kit.session.ask(b"$JS.API.STREAM.UPDATE.ORDERS", msgspec.json.encode(made | config), 5.0)
    monkeypatch.setattr(publish_link, "LOOK", 0.0)
    with pytest.raises(MessageRefused, match=words) as refused:
        producer.publish("orders", [b"x"], delay=1.0)
    assert refused.value.stored is False


def test_headers_count_against_what_a_body_may_have(kit):
    producer = kit.producer(kit.open("?max_payload=500"))
    producer.publish("orders", [b"x" * 400])
    with pytest.raises(BadMessage, match="up to 341 beside the headers"):
        producer.publish("orders", [b"x" * 400], headers={"A": "x" * 100})
    producer.publish("orders", [b"x" * 341], headers={"A": "x" * 100})


def test_each_of_several_messages_for_later_comes_when_it_is_due(kit):
    transport = kit.open()
    held = kit.hold(transport)
    began = time.monotonic()
    kit.producer(transport).publish("orders", [b"1", b"2"], delay=1.5)
    until(lambda: len(held.taken) == 2)
    assert time.monotonic() - began > 1.0
    assert sorted(held.bodies) == [b"1", b"2"]


def test_a_stream_that_is_full_and_drops_nothing_refuses_and_takes_again_what_it_has_room_for(kit):
    kit.session.ask(b"$JS.API.STREAM.CREATE.S", b'{"name":"S","subjects":["orders"],"max_msgs":2,"discard":"new"}', 5.0)
    producer = kit.producer(kit.open())
    producer.publish("orders", [b"1", b"2"])
    with pytest.raises(PublishError, match="maximum messages exceeded") as refused:
        producer.publish("orders", [b"3"])
    assert refused.value.stored is False
    kit.session.ask(b"$JS.API.STREAM.PURGE.S", b"", 5.0)
    producer.publish("orders", [b"3"])


def test_the_only_cluster_is_not_dialled_anew_for_each_message_that_it_refuses(kit, monkeypatch):
    """A publisher that tries on had 800 connections a second, each of whose ports its machine kept for a minute."""
    kit.session.ask(b"$JS.API.STREAM.CREATE.S", b'{"name":"S","subjects":["orders"],"max_msgs":1,"discard":"new"}', 5.0)
    dials, dial = [], Servers.dial
    monkeypatch.setattr(failover, "_LOOK_AGAIN", 60.0)
    monkeypatch.setattr(Servers, "dial", lambda self, *args, **how: dials.append(self.node) or dial(self, *args, **how))
    producer = kit.producer(kit.open())
    producer.publish("orders", [b"1"])
    for _ in range(5):
        with pytest.raises(PublishError, match="maximum messages exceeded"):
            producer.publish("orders", [b"2"])
        assert [error.stored for error in producer.publish_each("orders", [b"3", b"4"])] == [False, False]
    kit.session.ask(b"$JS.API.STREAM.PURGE.S", b"", 5.0)
    producer.publish("orders", [b"5"])
    assert len(dials) == 1
    monkeypatch.setattr(failover, "_LOOK_AGAIN", 0.0)  # now and then it is looked whether there is another
    for _ in range(2):
        with pytest.raises(PublishError, match="maximum messages exceeded"):
            producer.publish("orders", [b"6"])
    assert len(dials) == 2


@pytest.mark.parametrize("jetstream", [True, False])
def test_a_cluster_that_stores_nothing_more_is_left_for_another_one(make_kit, jetstream):
    """It is full, or has been started again without JetStream; each publish waited for it until its own time was over."""
    full, other = make_kit(), make_kit()
    if jetstream:
        full.session.ask(b"$JS.API.STREAM.CREATE.S", b'{"name":"S","subjects":["orders"],"max_msgs":1,"discard":"new"}', 5.0)
    other.server.kill()
    (transport,) = open_transports([f"nats://{kit.server.address}" for kit in (full, other)])
    producer = full.producer(transport)
    producer.publish("orders", [b"1"])
    other.server.start()
    if not jetstream:
        full.server.kill()
        configured = full.server.data / "nats.conf"
        configured.write_text("".join(line for line in configured.open() if not line.startswith("jetstream")))
        full.server.start()
    assert producer.publish_each("orders", [b"2", b"3"]) == [None, None]
    producer.publish("orders", [b"4"])
    assert kept(other.open()) == 3


def test_a_key_of_ones_own_drops_doubles_and_several_messages_cannot_share_one(kit):
    transport = kit.open()
    producer = kit.producer(transport)
    for _ in range(2):
        producer.publish("orders", [b"bill 7"], headers={"Nats-Msg-Id": "bill-7"})
    assert kept(transport) == 1
    with pytest.raises(BadMessage, match="publish each by itself"):
        producer.publish("orders", [b"1", b"2"], headers={"Nats-Msg-Id": "bill-8"})


@pytest.mark.slow
def test_a_server_that_keeps_nothing_for_later_says_so_in_one_sentence(make_kit):
    kit = make_kit(version="2.9")
    with pytest.raises(MessageRefused, match=r"delay: nats-server 2.9.10 keeps no publish for later: run 2.12 or newer"):
        kit.producer(kit.open()).publish("orders", [b"x"], delay=5.0)


def test_a_server_without_jetstream_is_named_with_the_fix(make_kit):
    kit = make_kit(jetstream=False)
    with pytest.raises(PublishError, match="start it with --jetstream") as refused:
        kit.producer(kit.open()).publish("orders", [b"x"], timeout=1.0)
    assert refused.value.stored is False


def test_ten_thousand_messages_are_stored_by_a_few_hundred_at_a_time(kit):
    transport = kit.open()
    producer = kit.producer(transport)
    bodies = [b"%d" % number for number in range(10_000)]
    assert producer.publish_each("orders", bodies) == [None] * 10_000
    assert kept(transport) == 10_000

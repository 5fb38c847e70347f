"""What a session and a reader do with what is answered late, to nobody, or about a topic that is not there. Without a server."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from framework.errors import BrokerUnreachable
from framework.transports.rocketmq.administration import QUEUES, make_topics
from framework.transports.rocketmq.connection import PopConnection
from framework.transports.rocketmq.pulling import PullConnection
from framework.transports.rocketmq.routes import NameServers
from framework.transports.rocketmq.session import Session
from framework.transports.rocketmq.wire.codes import PULLED, Request
from framework.transports.rocketmq.wire.errors import TopicMissing
from framework.transports.rocketmq.wire.frames import Frame


@pytest.mark.parametrize("tls", [True, False])
@pytest.mark.parametrize("heard", [True, False])
def test_a_server_that_closes_without_a_word_may_want_tls(tls: bool, heard: bool) -> None:
    session: Any = SimpleNamespace(heard_at=2.0 if heard else 1.0, _made_at=1.0, _options=SimpleNamespace(tls=tls), _broken=str)
    assert ("tls" in Session._hung_up(session)) is (not heard and not tls)  # type: ignore[operator]


def test_what_is_answered_to_one_that_has_left_is_passed_over_and_to_others_not() -> None:
    owners = [SimpleNamespace(subscription=SimpleNamespace(group="g"), name=name) for name in "ab"]
    gone, stays = (Hashed(**vars(one)) for one in owners)
    session: Any = SimpleNamespace(
        _owners={gone: None, stays: None}, _dirty={gone: None}, _outbox=SimpleNamespace(forget=lambda _: None),
        _pending={number: SimpleNamespace(owner=owner) for number, owner in enumerate([gone, stays, gone])},
        _of_group={"g": {gone: None, stays: None}},
    )  # fmt: skip
    Session.leave(session, gone)
    assert (list(session._pending), list(session._owners), list(session._of_group["g"])) == ([1], [stays], [stays])


def test_when_a_session_ends_all_are_told_what_is_sent_was_counted_before_and_nothing_is_left() -> None:
    told: list[Any] = []
    error = BrokerUnreachable("away")
    owners = {Hashed(lost=lambda why, name=name: told.append((name, why))): None for name in "ab"}
    session: Any = SimpleNamespace(
        _outbox=SimpleNamespace(tell=lambda: told.append("sent")), _owners=owners, _of_group={"g": dict(owners)},
        _pending={7: SimpleNamespace(then=lambda why, _: told.append((7, why)))},
    )  # fmt: skip
    Session._ended(session, error)
    assert told == ["sent", ("a", error), ("b", error), (7, error)]
    assert (session._owners, session._pending, session._of_group) == ({}, {}, {})


class Hashed(SimpleNamespace):
    __hash__ = object.__hash__


def test_a_topic_that_is_not_there_has_no_masters_and_is_no_error() -> None:
    class Asking(NameServers):
        def _ask(self, *_: Any) -> Any:
            raise TopicMissing("none of that name")

    assert Asking([], None).route("t") == {}  # type: ignore[arg-type]


def test_only_what_may_be_read_are_queues_to_read_and_where_a_topic_is_read() -> None:
    queues = [{"brokerName": f"b{perm}", "perm": perm, "readQueueNums": 2, "writeQueueNums": 3} for perm in (0, 2, 4, 6)]
    brokers = [{"brokerName": f"b{perm}", "brokerAddrs": {"0": f"127.0.0.1:1091{perm}"}} for perm in (0, 2, 4, 6)]

    class Answered(NameServers):
        def _ask(self, code: int, fields: dict[str, str], kind: Any) -> Any:
            return msgspec.convert({"queueDatas": queues, "brokerDatas": brokers}, kind)

    names = Answered([], None)  # type: ignore[arg-type]
    assert [(one.broker, one.number) for one in names.queues("t")] == [("b4", 0), ("b4", 1), ("b6", 0), ("b6", 1)]
    assert names.readers("t") == {"b4", "b6"}
    assert {name: one.queues for name, one in names.route("t").items()} == {"b2": 3, "b4": 3, "b6": 3}


def test_a_cluster_that_is_not_known_is_named_beside_those_that_are() -> None:
    """It was said that there is no broker at all."""
    brokers = {name: {"brokerName": name, "brokerAddrs": {"0": "127.0.0.1:10911"}, "cluster": f"c{name}"} for name in "ab"}

    class Answered(NameServers):
        def _ask(self, code: int, fields: dict[str, str], kind: Any) -> Any:
            return msgspec.convert({"brokerAddrTable": brokers}, kind)

    names = Answered([], None)  # type: ignore[arg-type]
    assert names.masters_of("cb").keys() == {"b"}
    with pytest.raises(BrokerUnreachable, match="no broker of the cluster other, but of ca, cb: is cluster= right"):
        names.masters_of("other")


@pytest.mark.parametrize("topics", [["t"], ["t", "%RETRY%g"]])
def test_a_topic_is_made_to_be_read_and_written(topics: list[str]) -> None:
    asked: list[dict[str, Any]] = []

    def ask(code: int, fields: dict[str, str], body: bytes = b"", *_: Any) -> None:
        if code == Request.GET_TOPIC_CONFIG:
            if fields["topic"] not in [one["topicName"] for one in asked]:
                raise TopicMissing("none of that name")
            return
        said = msgspec.json.decode(body)["topicConfigList"] if body else [{**fields, "topicName": fields["topic"]}]
        asked.extend(said)

    assert make_topics(SimpleNamespace(ask=ask), topics) == {}  # type: ignore[arg-type]
    assert [(one["topicName"], int(one["perm"])) for one in asked] == [(topic, 6) for topic in topics]
    assert [int(one["readQueueNums"]) for one in asked] == [QUEUES, 1][: len(topics)]


def test_only_the_hubs_own_thread_asks_the_session_for_a_turn() -> None:
    """A settlement in the hub's place is said there, or when the hub turns again."""
    asked: list[int] = []
    one: Any = SimpleNamespace(
        _spoken=False, _thread=threading.get_ident(),
        _session=SimpleNamespace(wants_to_speak=lambda _: asked.append(threading.get_ident())),
    )  # fmt: skip
    elsewhere = threading.Thread(target=PopConnection._speak, args=(one,))
    elsewhere.start()
    elsewhere.join(60)
    assert (asked, one._spoken) == ([], False)
    PopConnection._speak(one)
    PopConnection._speak(one)
    assert (asked, one._spoken) == ([threading.get_ident()], True)


@pytest.mark.parametrize("done", [5, 0, None])
def test_a_pull_that_said_how_far_all_is_done_has_told_it_when_it_is_answered(done: int | None) -> None:
    """Another one leaves what is being told as it is."""
    settled: list[Any] = []
    reading: Any = SimpleNamespace(asking=True, more=True, telling=True, told=3, leaving=True, next=7)
    reader: Any = SimpleNamespace(_closed=False, _draining=True, _closing=False, _settled=settled.append, _speak=lambda: None)
    PullConnection._answered(reader, reading, (7, 1, done), Frame(next(iter(PULLED))), 1.0)
    assert (reading.telling, reading.told, settled) == ((True, 3, []) if done is None else (False, done, [reading]))

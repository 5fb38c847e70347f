"""What many handlers without messages ask RocketMQ, and what ticks for them: all of it is counted, whatever the load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import gevent
import pytest

from framework.engine.ledger import Ledger
from framework.testing.conformance.receiver import Held
from framework.transports import open_transports
from framework.transports.rocketmq import routes
from framework.transports.rocketmq.wire.codes import Answer, Request
from framework.transports.rocketmq.wire.frames import RESPONSE, Frame, encode
from tests.transports.rocketmq.canned import NAME, Canned
from tests.transports.rocketmq.kit import until

MANY = 20


@pytest.fixture
def server() -> Iterator[Canned]:
    made = Canned(0)
    yield made
    made.close()


@pytest.fixture
def transport(server: Canned) -> Iterator[Any]:
    (made,) = open_transports([f"rocketmq://{server.address}?mode=pull"])
    made.start(gevent.get_hub())
    yield made
    made.close()


def test_a_handler_by_pull_that_has_a_grant_has_no_timer_of_its_own(server: Canned, transport: Any) -> None:
    held = Held(lambda receiver: transport.connect(NAME, server.topic, "billing", receiver))
    connection: Any = held.connection
    assert connection._timer.active  # nothing is granted yet: others may have its queues soon
    held.grant(10)
    until(lambda: not connection._timer.active)
    held.grant(0)
    assert connection._timer.active
    held.connection.close()
    until(lambda: held.receiver.closings)


def test_the_routes_of_many_topics_are_asked_for_again_only_where_a_broker_has_come_or_gone(
    server: Canned, transport: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(routes, "monotonic", lambda: now[0])
    monkeypatch.setattr(transport._servers._brokers, "_fresh", 0.0)

    def asked() -> Counter[int]:
        before = Counter(server.asked)
        for _ in range(MANY):
            assert transport.discover(server.topic, "billing") == {NAME}
        return server.asked - before

    assert asked()[Request.GET_ROUTEINFO_BY_TOPIC] == 1
    now[0] += routes.OLDEST - 1
    assert asked()[Request.GET_ROUTEINFO_BY_TOPIC] == 0
    now[0] += 2  # it is too old
    assert asked()[Request.GET_ROUTEINFO_BY_TOPIC] == 1
    now[0] += 1
    server.others = {"late": {"brokerName": "late", "brokerAddrs": {"0": "127.0.0.1:1"}, "cluster": "c"}}
    assert asked()[Request.GET_ROUTEINFO_BY_TOPIC] == 1
    now[0] += 1
    server.refuses = {Request.GET_BROKER_CLUSTER_INFO}  # whoever does not say it is asked for each topic
    assert asked()[Request.GET_ROUTEINFO_BY_TOPIC] == MANY


def test_one_question_in_a_while_says_whether_the_brokers_of_all_topics_are_there(server: Canned, transport: Any) -> None:
    before = Counter(server.asked)
    for _ in range(MANY):
        transport.discover(server.topic, "billing")
    assert (server.asked - before)[Request.GET_BROKER_CLUSTER_INFO] == 1


@pytest.mark.parametrize("mode", ["pop", "pull"])
def test_a_connection_ends_where_its_broker_says_that_it_is_about_to_stop(server: Canned, mode: str) -> None:
    (transport,) = open_transports([f"rocketmq://{server.address}?mode={mode}&poll=200ms"])
    held = Held(lambda receiver: transport.connect(NAME, server.topic, "billing", receiver))
    answer = server._answer

    def leaves(asked: Frame) -> bytes:
        going = asked.code in (Request.POP_MESSAGE, Request.PULL_MESSAGE)
        return encode(Frame(Answer.GO_AWAY, asked.opaque, flag=RESPONSE)) if going else answer(asked)

    server._answer = leaves  # type: ignore[method-assign]
    held.grant(10)
    until(lambda: held.receiver.closings)
    transport.close()
    assert held.tally.balance(0) == Ledger().balance(0)


def test_what_waits_at_its_broker_is_looked_at_only_where_an_answer_may_be_overdue(server: Canned, transport: Any) -> None:
    held = Held(lambda receiver: transport.connect(NAME, server.topic, "billing", receiver))
    held.grant(10)
    session: Any = held.connection.rescuable
    until(lambda: len(session._pending) >= 5)  # its PULLs
    looks = 0

    class Counted(dict[int, Any]):
        def items(self) -> Any:
            nonlocal looks
            looks += 1
            return super().items()

    session._pending = Counted(session._pending)
    gevent.sleep(2.0)
    assert looks <= 1
    answers: list[Any] = []
    session.call(Request.POP_MESSAGE, {"maxMsgNums": "1"}, lambda answer, at: answers.append(answer))  # one more that waits
    session._pending[max(session._pending)].due = session._soonest = 0.0
    until(lambda: answers, 5.0)
    assert "does not answer" in str(answers[0])
    held.connection.close()
    until(lambda: held.receiver.closings)


def test_a_topic_that_nobody_may_read_is_asked_for_each_time_until_somebody_may(
    server: Canned, transport: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    permission = [0]
    route = server._route
    monkeypatch.setattr(
        server, "_route", lambda topic: (*route(topic)[:2], route(topic)[2].replace(b'"perm": 6', b'"perm": %d' % permission[0]))
    )
    assert transport.discover(server.topic, "billing") == set()
    permission[0] = 6
    assert transport.discover(server.topic, "billing") == {NAME}


def test_queues_are_asked_for_more_also_while_nothing_that_came_is_settled(server: Canned, transport: Any) -> None:
    """What may come counts as in flight until it is opened: an answer with less than was asked for makes room again."""
    server.messages = 2
    held = Held(lambda receiver: transport.connect(NAME, server.topic, "billing", receiver))
    held.grant(20)
    until(lambda: len(held.taken) == 8)
    readings = held.connection.readings.values()  # type: ignore[attr-defined]
    until(lambda: all(reading.asking for reading in readings), 5.0)
    for message in held.taken:
        held.connection.finish(message)
    held.connection.close()
    until(lambda: held.receiver.closings)

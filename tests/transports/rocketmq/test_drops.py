"""A group with retryQueueNums=0: by PULL its broker drops what is sent back, and answers that all is well."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import pytest

from framework.errors import NegotiationRefused
from framework.testing.conformance.receiver import StrictReceiver
from framework.transports import open_transports
from framework.transports.rocketmq import administration
from framework.transports.rocketmq.session import Session
from framework.transports.rocketmq.wire.codes import Answer, Request
from framework.transports.rocketmq.wire.frames import Frame
from tests.transports.rocketmq.canned import NAME, Canned
from tests.transports.rocketmq.kit import Kit, until

WORDS = "drops what is requeued of group"


class Set(Canned):
    """Its groups are set up as ``queues`` says: group -> retryQueueNums."""

    def __init__(self) -> None:
        super().__init__(0)
        self.queues: dict[str, int] = {}

    def _said(self, asked: Frame) -> tuple[int, Mapping[str, str], bytes] | None:
        if asked.code != Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG:
            return super()._said(asked)
        table = {group: {"groupName": group, "retryQueueNums": count} for group, count in self.queues.items()}
        return Answer.SUCCESS, {}, json.dumps({"subscriptionGroupTable": table}).encode()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Set]:
    monkeypatch.setattr(administration, "groups_of", lambda *_: [])
    made = Set()
    yield made
    made.close()


@pytest.mark.parametrize(("mode", "queues", "refused"), [("pull", 0, True), ("pull", 1, False), ("pop", 0, False)])
def test_a_handler_is_refused_whose_requeues_would_be_lost(mode: str, queues: int, refused: bool, server: Set) -> None:
    """By PULL 40 of 40 messages that asked for a retry were lost, and counted as requeued. By POP all come again."""
    group = f"{server.topic}|billing" if mode == "pull" else "billing"
    server.queues = {group: queues, "another": 0}
    (transport,) = open_transports([f"rocketmq://{server.address}?mode={mode}"])
    (info,) = transport.describe(server.topic, "billing")
    assert [f"{WORDS} {group} (retryQueueNums=0)" in words for words in info.obstacles] == [True] * refused
    if refused:
        with pytest.raises(NegotiationRefused, match=WORDS):
            transport.connect(NAME, server.topic, "billing", StrictReceiver())
    transport.close()


def test_who_may_not_see_how_groups_are_set_up_is_served(server: Set) -> None:
    server.refuses = [Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG]
    (transport,) = open_transports([f"rocketmq://{server.address}?mode=pull"])
    assert [info.obstacles for info in transport.describe(server.topic, "billing")] == [()]
    transport.close()


def set_up(session: Session, group: str, queues: int) -> None:
    settings = {"groupName": group, "consumeEnable": True, "retryQueueNums": queues, "retryMaxTimes": 0}
    session.ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps(settings).encode())


@pytest.mark.real
@pytest.mark.slow
def test_a_real_broker_says_so_of_its_groups_and_makes_none_where_it_is_asked(kit: Kit) -> None:
    """Its retryMaxTimes, of which ours says nothing, is for others."""
    transport, group = kit.open("&mode=pull"), f"{kit.topic_there}|billing"
    transport.ensure(kit.topic, ["billing"])
    with transport._sessions.use(kit.server.broker.address) as session:
        set_up(session, group, 0)
        with pytest.raises(NegotiationRefused, match=WORDS):
            kit.hold(transport)
        (info,) = transport.describe(kit.topic, "billing")
        assert [WORDS in words for words in info.obstacles] == [True]
        assert [info.obstacles for info in transport.describe(kit.topic, "mail")] == [()]
        known = session.ask(Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}).body
        assert f"{kit.topic_there}|mail".encode() not in known
        set_up(session, group, 1)
    kit.publish(b"again")
    held = kit.hold(kit.open("&mode=pull"))
    until(lambda: held.taken)
    held.connection.requeue(held.taken[0], 0.0)
    until(lambda: len(held.taken) == 2)
    held.connection.finish(held.taken[1])
    until(held.balanced)

"""A queue that has places which its broker cannot read. Asked for one of them, it names as the next place what lies in the
next file of its log, and passes over all between. What can be read is handled. Here with a broker whose answers are made up."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pytest

from framework.testing.conformance.receiver import Held
from framework.transports import open_transports
from framework.transports.rocketmq import holes
from framework.transports.rocketmq.wire.codes import Answer, Request
from framework.transports.rocketmq.wire.frames import RESPONSE, Frame, encode
from tests.transports.rocketmq.canned import NAME, QUEUES, Canned
from tests.transports.rocketmq.kit import until
from tests.transports.rocketmq.test_ahead import settle_at_once

EACH, NEXT_FILE = 300, 250
"""Messages of each queue, and the first of them that lies in the next file of the log."""


class Holed(Canned):
    """Its answers are those of DefaultMessageStore.getMessage. ``blank``: the places that it cannot read."""

    def __init__(self, blank: Collection[int], least: int = 0) -> None:
        super().__init__(EACH)
        self._blank, self._least = blank, least

    def _answer(self, asked: Frame) -> bytes:
        said = self._said(asked)
        if said is None:
            return b""
        code, fields, body = said
        remark = "MESSAGE_WAS_REMOVING" if code == Answer.PULL_RETRY_IMMEDIATELY else ""
        return encode(Frame(code, asked.opaque, fields, body, RESPONSE, remark))

    def _pulled(self, asked: Mapping[str, str]) -> tuple[int, Mapping[str, str], bytes] | None:
        if int(asked["sysFlag"]) & 1:
            self._commit(asked)
        queue, at, most = (int(asked[name]) for name in ("queueId", "queueOffset", "maxMsgNums"))
        if at >= EACH or asked["topic"].startswith("%RETRY%"):
            return None
        found, skips = list[int](), False
        while at < EACH and len(found) < most:
            skips = skips or at in self._blank
            if at not in self._blank and (not skips or at >= NEXT_FILE):
                found.append(at)
            at += 1
        fields = {"nextBeginOffset": str(at), "minOffset": str(self._least), "maxOffset": str(EACH)}
        body = b"".join(self._stored(asked["topic"], queue, place, 1) for place in found)
        return Answer.SUCCESS if found else Answer.PULL_RETRY_IMMEDIATELY, fields, body


@pytest.fixture
def closing() -> Iterator[list[Any]]:
    found: list[Any] = []
    yield found
    for one in reversed(found):
        one.close()


def held_by(server: Canned, closing: list[Any], grant: int) -> Held:
    (transport,) = open_transports([f"rocketmq://{server.address}?mode=pull&poll=200ms"])
    one = Held(lambda receiver: transport.connect(NAME, server.topic, "billing", receiver))
    closing.extend([server, transport, one.connection])
    settle_at_once(one)
    one.grant(grant)
    return one


@pytest.mark.parametrize("grant", [1000, 7])
@pytest.mark.parametrize(
    "blank",
    [
        range(100), range(NEXT_FILE), range(40, 60), [0, *range(5, 90, 3)], [EACH - 1], range(200, EACH), [20, *range(255, 270)],
        range(EACH),
    ],
    ids=["the front", "one file of the log", "the middle", "many", "the last", "the end", "two", "all"],
)  # fmt: skip
def test_each_that_can_be_read_comes_once(
    blank: Collection[int], grant: int, closing: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holes, "AT_ONCE", 16)
    monkeypatch.setattr(holes, "STEP", 64)
    server = Holed(blank)
    held = held_by(server, closing, grant)
    until(lambda: server.committed == dict.fromkeys(range(QUEUES), EACH))
    there = sorted(place * QUEUES + queue for place in range(EACH) if place not in blank for queue in range(QUEUES))
    assert sorted(int(message.id, 16) for message in held.taken) == there


def test_what_has_expired_is_not_looked_for(closing: list[Any]) -> None:
    server = Holed(range(200), least=200)
    held_by(server, closing, 1000)
    until(lambda: server.committed == dict.fromkeys(range(QUEUES), EACH))
    assert server.asked[Request.PULL_MESSAGE] < 100

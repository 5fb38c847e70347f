"""What a session and a reader do with what is answered late, to nobody, or about a topic that is not there. Without a server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from framework.transports.rocketmq.pulling import PullConnection
from framework.transports.rocketmq.routes import NameServers
from framework.transports.rocketmq.session import Session
from framework.transports.rocketmq.wire.codes import PULLED
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


class Hashed(SimpleNamespace):
    __hash__ = object.__hash__


def test_a_topic_that_is_not_there_has_no_masters_and_is_no_error() -> None:
    class Asking(NameServers):
        def _ask(self, *_: Any) -> Any:
            raise TopicMissing("none of that name")

    assert Asking([], None).route("t") == {}  # type: ignore[arg-type]


@pytest.mark.parametrize("done", [5, 0, None])
def test_a_pull_that_said_how_far_all_is_done_has_told_it_when_it_is_answered(done: int | None) -> None:
    """Another one leaves what is being told as it is."""
    settled: list[Any] = []
    reading: Any = SimpleNamespace(asking=True, more=True, telling=True, told=3, leaving=True, next=7)
    reader: Any = SimpleNamespace(_closed=False, _draining=True, _closing=False, _settled=settled.append, _speak=lambda: None)
    PullConnection._answered(reader, reading, (7, 1, done), Frame(next(iter(PULLED))), 1.0)
    assert (reading.telling, reading.told, settled) == ((True, 3, []) if done is None else (False, done, [reading]))

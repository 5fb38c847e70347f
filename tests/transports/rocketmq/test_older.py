"""A real RocketMQ 4.9, which has no POP and no timers: it is read by PULL, `check` says so, and delays are kept by levels."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from framework.errors import NegotiationRefused, PublishError
from framework.testing.rocketmq import OLDER, RocketMQ
from tests.transports.rocketmq.kit import Kit, started, until

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.at_length]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    yield from started(tmp_path_factory.mktemp("older"), version=OLDER)


@pytest.fixture
def kit(server: RocketMQ) -> Iterator[Kit]:
    made = Kit(server)
    yield made
    made.close()


def test_check_says_that_it_is_read_by_pull(kit: Kit) -> None:
    (info,) = kit.open().probe()
    assert info.server == f"RocketMQ {OLDER} by PULL"
    assert info.obstacles == ()
    assert "is read by PULL: a message has no lease" in info.notes[0]
    assert info.limits.max_defer == 7200.0
    (info,) = kit.open("&mode=pop").probe()
    assert f"is RocketMQ {OLDER}, which has no POP: leave mode=pop out" in info.obstacles[0]


def test_pop_is_refused_there(kit: Kit) -> None:
    with pytest.raises(NegotiationRefused, match="which has no POP"):
        kit.hold(kit.open("&mode=pop"))


@pytest.mark.parametrize("at_once", [1, 100], ids=["one by one", "in batches"])
def test_what_is_published_is_handled_once_and_requeued_after_a_level(kit: Kit, at_once: int) -> None:
    held = kit.hold(kit.open(), grant=200)
    sent = [b"%d" % number for number in range(100)]
    for at in range(0, 100, at_once):
        kit.publish(*sent[at : at + at_once], headers={"TAGS": "new", "empty": ""})
    until(lambda: len(held.taken) == 100)
    assert sorted(held.bodies) == sorted(sent)
    assert {(one.headers["TAGS"], one.headers["empty"]) for one in held.taken} == {("new", "")}
    held.connection.requeue(held.taken[0], 0.0)
    for message in held.taken[1:]:
        held.connection.finish(message)
    until(lambda: len(held.taken) == 101)
    assert (held.taken[100].body, held.taken[100].attempts) == (held.taken[0].body, 2)
    held.connection.finish(held.taken[100])
    until(held.balanced)
    until(lambda: sum(kit.open().backlog(kit.topic, "billing").values()) == 0)


def test_a_publish_is_delayed_by_a_level(kit: Kit) -> None:
    held = kit.hold(kit.open())
    began = time.monotonic()
    kit.publish(b"later", delay=2.0)
    until(lambda: held.taken)
    assert 4.9 <= time.monotonic() - began < 15.0
    held.connection.finish(held.taken[0])
    with pytest.raises(PublishError, match="keeps a delay of 7200 s at most"):
        kit.publish(b"too late", delay=8000.0)


def test_what_is_given_up_is_in_its_own_queue_where_that_is_asked_for(kit: Kit) -> None:
    held = kit.hold(kit.open("&dlq=true"))
    kit.publish(b"poison")
    until(lambda: held.taken)
    held.connection.terminate(held.taken[0])  # type: ignore[attr-defined]
    until(lambda: held.tally.finished == 1)
    until(lambda: kit.open()._servers.route(f"%DLQ%{kit.topic_there}|billing"))


def test_a_topic_that_somebody_has_closed_stays_closed_and_as_it_is(kit: Kit) -> None:
    kit.closed_stays_closed()

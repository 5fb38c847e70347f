"""Readers by PULL on a real RocketMQ: queues shared by members, handed over drained, offsets committed, delays by levels."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from typing import Any

import gevent
import pytest

from framework.message import Message
from framework.testing.conformance.receiver import Held
from framework.transports.rocketmq.membership import BALANCE
from framework.transports.rocketmq.queues import Place
from tests.transports.rocketmq.kit import Kit, until

pytestmark = [pytest.mark.real, pytest.mark.slow]
PULL = "&mode=pull"
HANDED_ON = 3 * BALANCE
"""Seconds within which queues change hands. It takes a moment, but where a member is told of a change before it can see it, as on
a broker that has too much to do, it looks again only after ``BALANCE``: the 20 s that tests wait for anything else."""


def queues(held: Held) -> set[Place]:
    connection: Any = held.connection
    return {place for place in connection.readings if "%RETRY%" not in place.topic}


def finish_all(held: Held) -> None:
    for message in list(held.connection.in_flight):
        held.connection.finish(message)


def test_members_own_each_queue_once_and_those_of_one_that_leaves_go_to_the_others(kit: Kit) -> None:
    first = kit.hold(kit.open(PULL))
    until(lambda: len(queues(first)) == 4, HANDED_ON)
    second, third = kit.hold(kit.open(PULL)), kit.hold(kit.open(PULL))
    held = [first, second, third]
    until(lambda: sorted(len(queues(one)) for one in held) == [1, 1, 2], HANDED_ON)
    assert len(queues(first) | queues(second) | queues(third)) == 4
    second.connection.drain()
    until(lambda: sorted(len(queues(one)) for one in (first, third)) == [2, 2], HANDED_ON)
    third.connection.close()
    until(lambda: len(queues(first)) == 4, HANDED_ON)


def test_a_queue_that_goes_to_another_is_drained_first_so_nothing_comes_twice(kit: Kit) -> None:
    kit.spread(*(b"%d" % number for number in range(40)))
    first = kit.hold(kit.open(PULL), grant=40)
    until(lambda: len(first.taken) == 40)
    second = kit.hold(kit.open(PULL), grant=100)
    gevent.sleep(1.0)  # it has been told by then that two queues are its own
    assert (queues(second), second.taken) == (set(), [])
    finish_all(first)
    until(lambda: len(queues(second)) == 2)
    kit.spread(*(b"later %d" % number for number in range(40)))
    until(lambda: len(first.taken) + len(second.taken) == 80)
    assert max(Counter(first.bodies + second.bodies).values()) == 1
    for held in (first, second):
        finish_all(held)


def test_a_member_that_is_granted_nothing_leaves_its_queues_to_others(kit: Kit) -> None:
    first = kit.hold(kit.open(PULL))
    until(lambda: len(queues(first)) == 4, HANDED_ON)
    second = kit.hold(kit.open(PULL))
    first.grant(0)
    until(lambda: len(queues(second)) == 4, HANDED_ON)
    first.grant(5)
    until(lambda: len(queues(first)) == len(queues(second)) == 2, HANDED_ON)


def test_what_was_settled_out_of_order_does_not_come_again_after_a_close(kit: Kit) -> None:
    kit.spread(*(b"%d" % number for number in range(12)))
    first = kit.hold(kit.open(PULL), grant=12)
    until(lambda: len(first.taken) == 12)
    finished = first.taken[1::2]
    for message in finished:
        first.connection.finish(message)
    first.connection.close()
    until(lambda: first.receiver.closings)
    second = kit.hold(kit.open(PULL), grant=20)
    until(lambda: len(second.taken) == 6)
    gevent.sleep(0.3)
    assert sorted(second.bodies) == sorted({b"%d" % n for n in range(12)} - {message.body for message in finished})
    finish_all(second)


def test_the_next_messages_are_asked_for_before_those_that_came_are_handled(kit: Kit) -> None:
    """Else a broker has nothing to do while handlers run."""
    transport = kit.open(PULL)
    transport.ensure(kit.topic, ["billing"])
    kit.publish(*(b"%d" % number for number in range(100)))  # in one queue
    held = kit.hold(transport, grant=0)
    connection: Any = held.connection
    asked: list[bool] = []
    take = held.receiver.deliver

    def handled(by: Any, batch: list[Message]) -> None:
        asked.extend(reading.asking for reading in connection.readings.values() if reading.more)
        take(by, batch)
        for message in batch:
            by.finish(message)

    held.receiver.deliver = handled  # type: ignore[method-assign]
    held.grant(500)
    until(lambda: len(held.taken) == 100, HANDED_ON)
    until(held.balanced)
    assert len(asked) >= 3
    assert all(asked)


def test_what_is_requeued_comes_after_the_level_of_its_delay_with_one_more_attempt_and_its_headers(kit: Kit) -> None:
    held = kit.hold(kit.open(PULL))
    kit.publish(b"again", headers={"KEYS": "k1", "trace": "t"})
    until(lambda: held.taken)
    began = time.monotonic()
    held.connection.requeue(held.taken[0], 2.0)
    until(lambda: len(held.taken) == 2)
    assert time.monotonic() - began >= 4.9  # the next level
    first, second = held.taken
    assert (second.headers, second.id, second.timestamp, second.attempts) == (first.headers, first.id, first.timestamp, 2)
    held.connection.finish(second)
    until(held.balanced)
    until(lambda: sum(kit.open(PULL).backlog(kit.topic, "billing").values()) == 0)


def test_only_messages_with_a_tag_that_was_asked_for_come(kit: Kit) -> None:
    held = kit.hold(kit.open(f"{PULL}&tags=Aa||old"))
    for tag in ("Aa", "BB", "other", "old"):  # the first two have one hash, which is what a broker compares
        kit.publish(tag.encode(), headers={"TAGS": tag})
    until(lambda: len(held.taken) == 2)
    gevent.sleep(0.3)
    assert sorted(held.bodies) == [b"Aa", b"old"]
    finish_all(held)


def test_the_queues_of_a_member_that_was_killed_are_read_by_another_at_once(kit: Kit) -> None:
    transport = kit.open(PULL)
    transport.ensure(kit.topic, [])
    kit.spread(*(b"%d" % number for number in range(20)))
    code = f"""
from framework import Message, handler
@handler({kit.topic!r}, "billing", concurrency=50)
def bill(message: Message) -> None:
    print(message.body.decode(), flush=True)
    import gevent; gevent.sleep(1000)
"""
    script = kit.server.data / f"{kit.topic.replace('.', '_').replace('-', '_')}.py"
    script.write_text(code)
    url = f"rocketmq://{kit.server.address}?poll=200ms{PULL}"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(script.parent), *filter(None, sys.path)])}
    run = [sys.executable, "-m", "framework.cli", "run", script.stem, "--broker", url]
    worker = subprocess.Popen(run, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert worker.stdout is not None
        for _ in range(20):
            assert worker.stdout.readline()
    finally:
        worker.kill()
        worker.communicate()
    held = kit.hold(transport, grant=40)
    until(lambda: len(set(held.bodies)) == 20)
    finish_all(held)


def test_check_says_which_mode_is_used(kit: Kit) -> None:
    (by_pop,) = kit.open().probe()
    (by_pull,) = kit.open(PULL).probe()
    assert by_pop.server.endswith(" by POP")
    assert by_pull.server.endswith(" by PULL")
    assert "is read by PULL: a message has no lease" in by_pull.notes[0]


def test_check_says_that_a_channel_begins_again_where_it_was_read_by_the_other_mode(kit: Kit) -> None:
    def said(options: str) -> bool:
        return any("begins again" in note for info in kit.open(options).describe(kit.topic, "billing") for note in info.notes)

    assert not said("")
    held = kit.hold(kit.open(PULL))
    kit.publish(b"one")
    until(lambda: held.taken)
    finish_all(held)
    until(lambda: said(""), 30.0)
    assert not said(PULL)
    by_pop = kit.hold(kit.open())
    until(lambda: by_pop.taken)
    by_pop.connection.finish(by_pop.taken[0])
    until(lambda: not said(""), 30.0)

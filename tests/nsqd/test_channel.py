"""A channel without sockets: whom it gives what waits, and how much at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import gevent
import pytest

from framework.nsqd.broker import Broker
from framework.nsqd.channel import Channel
from framework.nsqd.options import parse
from framework.nsqd.store import Entry, Store
from framework.nsqd.topic import Topic
from tests.nsqd.storing import payload
from tests.nsqd.taking import Taker


@pytest.fixture
def topic(folder: Path) -> Iterator[Topic]:
    broker = Broker(Store(folder), parse([f"--data-path={folder}"]), lambda level, words: None)
    yield broker.topic("t")
    broker.stop()


def channel(topic: Topic, name: str = "c") -> Channel:
    made = topic.channel(name)
    topic.broker.settle(topic)
    return made


def publish(topic: Topic, count: int) -> None:
    group = topic.broker.publish([(topic, Entry(topic.id, payload(*(b"%d" % at for at in range(count))), count))])
    assert group is not None
    group.wait()


def wait_until(what: Callable[[], bool]) -> None:
    with gevent.Timeout(10):
        while not what():
            gevent.sleep(0.002)


def test_more_than_one_turns_worth_comes_without_a_word_of_the_client(topic: Topic) -> None:
    """A client with a large RDY may say nothing more until it has all of it."""
    taker = Taker(channel(topic), ready=20_000)
    publish(topic, 9_000)
    wait_until(lambda: len(taker.bodies) == 9_000)


def test_what_is_given_back_is_shared_like_what_is_new(topic: Topic) -> None:
    one = channel(topic)
    first, second = Taker(one, ready=10), Taker(one, ready=0)
    publish(topic, 10)
    wait_until(lambda: len(first.bodies) == 10)
    ids = list(first.leases.messages)
    first.ready = 0
    for message_id in ids:
        assert one.requeue(first, message_id, 0) is None
    first.ready = second.ready = 10
    one.serve()
    assert (len(first.leases.messages), len(second.leases.messages)) == (5, 5)


def test_what_waited_in_a_topic_goes_to_channels_on_the_disk_and_in_memory(topic: Topic) -> None:
    takers = [Taker(channel(topic, name), ready=100) for name in ("c", "d#ephemeral")]
    topic.pause(True)
    publish(topic, 7)
    gevent.sleep(0.05)
    assert [len(one.bodies) for one in takers] == [0, 0]
    topic.pause(False)
    wait_until(lambda: [len(one.bodies) for one in takers] == [7, 7])
    assert [one.channel.depth for one in takers] == [0, 0]

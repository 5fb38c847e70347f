"""How topics are made that many ask for at once: together, and each with its own refusal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import gevent
import pytest

from framework.errors import BrokerUnreachable, FrameworkError
from framework.transports.rocketmq.topics import MOST, TopicMaker


class Broker:
    """Takes a moment for each request."""

    def __init__(self, *refused: str) -> None:
        self.refused, self.away = refused, False
        self.asked: list[list[str]] = []

    def __call__(self, topics: Sequence[str]) -> Mapping[str, FrameworkError]:
        self.asked.append(list(topics))
        gevent.sleep(0.01)
        if self.away:
            raise BrokerUnreachable("away")
        return {topic: BrokerUnreachable(f"{topic} is refused") for topic in topics if topic in self.refused}


def all_made(maker: TopicMaker, topics: Sequence[str]) -> dict[str, FrameworkError | None]:
    made = {topic: gevent.spawn(lambda topic=topic: maker.make(topic)) for topic in topics}
    gevent.joinall(list(made.values()), timeout=10.0)
    return {topic: one.exception for topic, one in made.items()}


@pytest.mark.filterwarnings("ignore")
def test_topics_that_are_asked_for_while_some_are_made_are_made_together_and_each_once() -> None:
    broker = Broker()
    topics = [f"t{number}" for number in range(5 * MOST // 2)]
    assert set(all_made(TopicMaker(broker), topics).values()) == {None}
    assert sorted(topic for asked in broker.asked for topic in asked) == sorted(topics)
    assert len(broker.asked) <= 5
    assert max(map(len, broker.asked)) <= MOST


def test_who_asks_for_one_that_is_refused_is_told_and_nobody_else() -> None:
    found = all_made(TopicMaker(Broker("t3")), [f"t{number}" for number in range(6)])
    assert {topic: str(error) for topic, error in found.items() if error} == {"t3": "t3 is refused"}


def test_what_is_true_of_all_is_told_to_each_and_the_next_one_asks_again() -> None:
    broker = Broker()
    maker, broker.away = TopicMaker(broker), True
    assert {str(error) for error in all_made(maker, ["a", "b", "c"]).values()} == {"away"}
    broker.away = False
    maker.make("a")

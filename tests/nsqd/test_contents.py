"""What a topic of a data folder still holds, and what is left of it once some of it is elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from framework.nsqd.contents import TopicContents, contents
from framework.nsqd.store import Store, TopicSave
from framework.nsqd.store.state import Retry
from tests.nsqd.storing import TOPIC, declared, publish, saved


def left(topic: TopicContents) -> list[bytes]:
    return [message.body for message in topic.messages()]


@pytest.fixture
def tried(folder: Path) -> int:
    """A folder with five messages, of which the channel was given three and has finished the second. Their first number."""
    store = Store(folder)
    store.append([declared(TOPIC, "c")])
    (batch,) = publish(store, b"a", b"b", b"c", b"d", b"e")
    first = batch.first
    store.save([TopicSave(TOPIC, batch.end)], [saved(first + 3, put={first: Retry(0, 1), first + 2: Retry(0, 1)})])
    store.close()
    return first


@pytest.mark.parametrize(
    ("moved", "rest"),
    [
        (0, [b"c", b"d", b"e"]),
        (1, [b"c", b"d", b"e"]),
        (2, [b"d", b"e"]),
        (3, [b"e"]),
        (4, []),
    ],
)
def test_what_is_elsewhere_is_finished_here_also_after_a_start(folder: Path, tried: int, moved: int, rest: list[bytes]) -> None:
    store = Store(folder)
    (topic,) = contents(store)
    assert left(topic) == [b"a", b"c", b"d", b"e"]
    topic.moved(tried + moved)
    assert left(topic) == rest
    store.close()
    again = Store(folder)
    assert [left(one) for one in contents(again)] == [rest]
    again.close()


def test_nothing_is_unreadable_before_it_was_looked_for(folder: Path, tried: int) -> None:
    store = Store(folder)
    (topic,) = contents(store)
    assert topic.unreadable == 0
    store.close()


def test_what_is_deferred_is_due_by_the_wall_clock_and_all_else_at_once(
    folder: Path, tried: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Store(folder)
    before.save([], [saved(tried + 3, put={tried + 2: Retry(7_000, 1)})])
    before.close()
    store = Store(folder)
    monkeypatch.setattr(store.clock, "wall", lambda due: due + 500.9)
    (topic,) = contents(store)
    assert [(one.body, one.due) for one in topic.messages()] == [(b"a", 0), (b"c", 7_500), (b"d", 0), (b"e", 0)]
    store.close()

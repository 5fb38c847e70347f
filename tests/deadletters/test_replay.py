"""What becomes of letters that are replayed when not all of them can be, on the broker in memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from framework.deadletters import Replay, Selection, Sweep, find
from framework.errors import PublishError, WrongUse
from framework.transports import open_transports
from framework.transports.memory import MemoryBroker, add, forget

TOPIC = "orders.billing.dead"
_numbers = itertools.count()
Make = Callable[..., bytes]


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    made = MemoryBroker(f"replay-{next(_numbers)}")
    add(made)
    yield made
    forget(made.name)


@pytest.fixture
def put(broker: MemoryBroker) -> Callable[..., Sweep]:
    """``put(letter, letter)``: stores them, and sweeps their topic."""

    def store(*letters: bytes) -> Sweep:
        broker.store(TOPIC, letters, 0.0, None)
        [topic] = find(open_transports([broker.url]))
        return Sweep(topic)

    return store


def test_each_letter_that_no_broker_takes_is_counted_and_the_first_says_why(
    put: Callable[..., Sweep], broker: MemoryBroker, letter: Make
) -> None:
    numbers = [1, 10**13, 2, 10**14, 3]
    with put(*map(letter, numbers)) as sweep:
        broker.max_size = 10
        replay = Replay(sweep)
        assert list(replay.run(sweep.chosen(Selection()))) == [3]
    assert (replay.replayed, replay.failed) == (3, 2)
    assert "message 1 of 1 has 19 bytes" in replay.why_failed
    assert broker.waiting("orders") == [b"body 1", b"body 2", b"body 3"]
    assert len(broker.waiting(TOPIC)) == 2


def test_a_publish_that_fails_ends_it_and_what_is_stored_is_taken_all_the_same(
    put: Callable[..., Sweep], broker: MemoryBroker, letter: Make, monkeypatch: Any
) -> None:
    with put(*map(letter, range(4))) as sweep:
        broker.refuse_publishes(2)
        replay = Replay(sweep)
        closed: list[bool] = []
        monkeypatch.setattr(replay._producer, "close", lambda: closed.append(True))
        with pytest.raises(PublishError, match="refused the publish"):
            list(replay.run(sweep.chosen(Selection())))
        assert (replay.replayed, replay.failed, closed) == (2, 0, [True])
    assert broker.waiting("orders") == [b"body 2", b"body 3"]
    assert len(broker.waiting(TOPIC)) == 2


@pytest.mark.parametrize("all_channels", [False, True])
def test_whose_channels_a_topic_has_is_asked_once_for_each_topic(
    put: Callable[..., Sweep], letter: Make, monkeypatch: Any, all_channels: bool
) -> None:
    with put(*(letter(n, topic=topic, channel="billing") for n, topic in enumerate("abaab"))) as sweep:
        asked: list[str] = []
        monkeypatch.setattr(sweep.topic.transport, "channels", lambda topic: asked.append(topic) or set())
        replay = Replay(sweep, all_channels=all_channels)
        list(replay.run(sweep.chosen(Selection())))
    assert (sorted(asked), replay.targets) == ([] if all_channels else ["a", "b"], {"a", "b"})


@pytest.mark.parametrize(
    ("to", "there", "refused"),
    [
        ("", {"billing"}, False),
        ("", {"billing", "audit"}, True),
        ("", {"audit"}, True),
        ("", set(), False),
        ("elsewhere", {"audit"}, False),
        ("elsewhere", {"audit", "billing"}, True),
        ("elsewhere", set(), False),
    ],
)
def test_a_topic_of_which_others_would_get_it_as_well_is_refused(  # noqa: PLR0917
    put: Callable[..., Sweep], letter: Make, monkeypatch: Any, to: str, there: set[str], refused: bool
) -> None:
    """Of its own topic any channel but the letter's own; of another topic all but one."""
    with put(letter(1)) as sweep:
        monkeypatch.setattr(sweep.topic.transport, "channels", lambda topic: there)
        replay = Replay(sweep, to=to or None)
        if refused:
            with pytest.raises(WrongUse, match="goes to all of its channels"):
                list(replay.run(sweep.chosen(Selection())))
        else:
            list(replay.run(sweep.chosen(Selection())))
    assert replay.replayed == int(not refused)

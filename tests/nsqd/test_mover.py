"""The steps in which one topic moves to another nsqd, and what moving it would mean: on paper."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from framework.nsqd import drain as drains
from framework.nsqd.drain import Mover, NotDrained, plan
from framework.nsqd.drain import Target as Real


def message(seq: int, *channels: str, body: bytes = b"x", due: float = 0.0) -> Any:
    """Without channels: it waits in the topic."""
    return SimpleNamespace(seq=seq, channels=set(channels), in_topic=not channels, body=body, due=due)


class Topic:
    name = "t"

    def __init__(self, *messages: Any, channels: tuple[str, ...] = ("a", "b"), paused: bool = False) -> None:
        self.channels = set(channels)
        self.paused = paused
        self.paused_channels = {"b"}
        self.said: list[Any] = []
        self._messages = messages

    def messages(self) -> Any:
        return iter(self._messages)

    def moved(self, seq: int) -> None:
        self.said.append(("moved", seq))


class Target:
    """Another nsqd, which has some channels, and gives a new topic some."""

    name, max_size, max_delay = "other", 10, 100.0

    def __init__(self, said: list[Any], *, has: tuple[str, ...] = (), gives: tuple[str, ...] = (), paused: bool = False) -> None:
        self.said, self.there, self.gives, self.paused = said, set(has), set(gives), paused

    def channels(self, _topic: str) -> set[str]:
        return set(self.there)

    def topic(self, _topic: str) -> Any:
        return SimpleNamespace(paused=self.paused)

    def make(self, _topic: str, channels: Any = (), *, paused: Any = ()) -> None:
        self.there |= self.gives | set(channels)
        if channels:
            self.said.append(("make", sorted(channels), sorted(set(paused) & set(channels))))

    def publish(self, _topic: str, messages: list[Any]) -> None:
        self.said.append(("publish", [one.seq for one in messages]))

    def wait_until_handed_over(self, _topic: str) -> None:
        self.said.append("handed over")

    def pause(self, _topic: str) -> None:
        self.said.append("pause")


def move(topic: Topic, target: Target, *, all_channels: bool = False) -> list[Any]:
    target.said = topic.said
    advanced: list[int] = []
    Mover(SimpleNamespace(advance=advanced.append), topic, target, all_channels).run()  # type: ignore[arg-type]
    assert sum(advanced) == len(list(topic.messages()))
    return topic.said


def test_each_channel_is_made_before_the_first_message_that_it_gets_and_after_all_that_it_does_not() -> None:
    topic = Topic(message(1, "a"), message(2, "a"), message(3, "a", "b"), channels=("a", "b", "empty"))
    assert move(topic, Target([])) == [
        "handed over", ("make", ["a"], []),
        ("publish", [1, 2]), ("moved", 2), "handed over", ("make", ["b"], ["b"]),
        ("publish", [3]), ("moved", 3), "handed over", ("make", ["empty"], []),
    ]  # fmt: skip


def test_what_waits_in_a_paused_topic_is_published_when_the_other_is_paused_as_well_and_together() -> None:
    topic = Topic(message(1, "a", "b"), message(2), message(3), message(4), paused=True)
    assert move(topic, Target([])) == [
        "handed over", ("make", ["a", "b"], ["b"]), ("publish", [1]), ("moved", 1), "handed over", "pause",
        ("publish", [2, 3, 4]), ("moved", 4),
    ]  # fmt: skip
    topic = Topic(message(2), message(3), paused=True)
    said = move(topic, Target([], has=("a", "b"), paused=True))  # as an earlier run left it
    assert said == [("make", ["a", "b"], ["b"]), ("publish", [2, 3]), ("moved", 3)]


def test_a_paused_topic_in_which_nothing_waits_is_paused_in_the_end() -> None:
    assert move(Topic(message(1, "a", "b"), paused=True), Target([]))[-2:] == ["handed over", "pause"]
    assert "pause" not in move(Topic(message(1, "a", "b")), Target([]))
    assert "pause" not in move(Topic(message(1), message(2), channels=()), Target([]))


def test_messages_go_in_groups_by_number_and_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drains, "TOGETHER", 3)
    monkeypatch.setattr(drains, "_BYTES", 10)
    sizes = (1, 1, 1, 9, 1, 9, 0, 1, 1)
    topic = Topic(*(message(n, "a", body=b"x" * size) for n, size in enumerate(sizes)), channels=("a",))
    assert [one[1] for one in move(topic, Target([])) if one[0] == "publish"] == [[0, 1, 2], [3, 4], [5, 6, 7], [8]]


def test_channels_that_the_other_gives_a_new_topic_end_it_unless_all_shall_have_all() -> None:
    with pytest.raises(NotDrained, match="gave it the channels elsewhere"):
        move(Topic(message(1, "a")), Target([], gives=("elsewhere",)))
    assert ("publish", [1]) in move(Topic(message(1, "a")), Target([], gives=("elsewhere",)), all_channels=True)


def test_what_moving_a_topic_means_is_counted_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drains, "time", SimpleNamespace(time=lambda: 1_000.0))
    topic: Any = Topic(
        message(1, "a", body=b"x" * 10), message(2, "a", body=b"x" * 11, due=1_100_000.0), message(3, "a", "b", due=1_100_001.0),
        message(4, "a"),
    )  # fmt: skip
    found = plan(topic, Target([]))  # type: ignore[arg-type]
    assert (found.count, found.cut_short, found.too_large, found.largest) == (4, 1, 1, 11)
    assert (found.repeated, found.repeated_for) == (1, {"b"})
    found = plan(topic, Target([], has=("c",)))  # type: ignore[arg-type]
    assert (found.repeated, found.repeated_for) == (4, {"b", "c"})
    alone: Any = Topic(message(1), message(2), channels=())
    assert plan(alone, Target([], has=("c",))).repeated == 0  # type: ignore[arg-type]


class Watch:
    """Ten seconds pass by each sleep."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic

    def sleep(self, _seconds: float) -> None:
        self.now += 10


@pytest.mark.parametrize(("depths", "seconds", "given_up"), [
    ([0], 0, False), ([2, 0], 10, False), ([4, 3, 2, 1, 0], 40, False), ([5, 4, 3, 2, 1], 40, True),
])  # fmt: skip
def test_the_other_has_half_a_minute_to_hand_over_what_it_was_given(
    monkeypatch: pytest.MonkeyPatch, depths: list[int], seconds: float, given_up: bool
) -> None:
    watch, looks = Watch(), iter(depths)
    monkeypatch.setattr(drains, "time", watch)
    monkeypatch.setattr(drains, "gevent", watch)
    target: Any = SimpleNamespace(name="other", topic=lambda _: SimpleNamespace(depth=next(looks), channels=["c"], paused=False))
    if given_up:
        with pytest.raises(NotDrained, match=r"other keeps messages of topic 't' from its channels \(look at its log\)"):
            Real.wait_until_handed_over(target, "t")
    else:
        Real.wait_until_handed_over(target, "t")
    assert watch.now == 1_000.0 + seconds


def test_a_topic_without_channels_hands_nothing_over() -> None:
    target: Any = SimpleNamespace(topic=lambda _: SimpleNamespace(depth=5, channels=[], paused=False))
    Real.wait_until_handed_over(target, "t")


def test_what_is_due_goes_together_and_the_rest_one_by_one_each_as_late_as_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drains, "time", Watch())
    sent: list[Any] = []
    producer = SimpleNamespace(publish=lambda topic, bodies, delay=0.0: sent.append((topic, bodies, delay)))
    target: Any = SimpleNamespace(_producer=producer, max_delay=60.0)
    due = {b"a": 0.0, b"b": 1_000_000.0, b"c": 1_000_001.0, b"d": 1_059_000.0, b"e": 1_061_000.0}
    Real.publish(target, "t", [message(n, "c", body=body, due=when) for n, (body, when) in enumerate(due.items())])
    assert sent[0] == ("t", [b"a", b"b"], 0.0)
    assert sorted(sent[1:]) == [("t", [b"c"], 0.001), ("t", [b"d"], 59.0), ("t", [b"e"], 60.0)]
    Real.publish(target, "t", [message(9, "c", body=b"z", due=1_000_500.0)])
    assert sent[4:] == [("t", [b"z"], 0.5)]

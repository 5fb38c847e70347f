"""How many letters a sweep asks each node for, which leases it keeps, and which topics are found: without a broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from gevent import GreenletExit

from framework.deadletters import Selection, Sweep, find, replay, sweep
from framework.deadletters.replay import Replay, _together
from framework.deadletters.topics import DeadTopic
from framework.errors import AlreadySettled, BrokerUnreachable, SomeUnreachable
from framework.message import Message
from framework.transports.contract import TOUCH_AT

NAME = "orders.billing.dead"


class Line:
    topic, channel = NAME, "dead"

    def __init__(self, node: str, most: int, *, lease: float = 60.0, max_lease: float = 900.0) -> None:
        self.node = node
        self.limits = SimpleNamespace(max_grant=most, lease=lease, max_lease=max_lease, goodbye=0.0)
        self.granted = 0
        self.in_flight: dict[Any, float] = {}
        self.touched: list[Any] = []

    def grant(self, number: int) -> None:
        self.granted = number

    def touch(self, message: Any) -> None:
        if message == "settled":
            raise AlreadySettled("gone")
        self.touched.append(message)


class Case:
    """A sweep over nodes with so many letters each, whose connections may hold ``most``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, nodes: dict[str, int], *, most: int = 100, window: int = 10) -> None:
        monkeypatch.setattr(sweep, "WINDOW", window)
        self.most, self.lines, self.refuse = most, list[Line](), False
        transport: Any = SimpleNamespace(connect=self._connect)
        self.sweep = Sweep(DeadTopic(NAME, transport, "dead", nodes))

    def _connect(self, node: str, _topic: str, _channel: str, _receiver: Any) -> Any:
        if self.refuse:
            raise BrokerUnreachable("no more")
        self.lines.append(Line(node, self.most))
        return self.lines[-1]

    @property
    def granted(self) -> list[tuple[str, int]]:
        return [(one.node, one.granted) for one in self.lines]

    def come(self, line: Line, count: int) -> None:
        batch = [Message(b"%d" % number, 0, 1, b"", line) for number in range(len(line.in_flight), len(line.in_flight) + count)]
        line.in_flight |= dict.fromkeys(batch, 0.0)
        self.sweep.deliver(line, batch)  # type: ignore[arg-type]


def test_each_node_that_has_letters_is_asked_for_a_window_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch, {"a": 25, "b": 0, "c": 4})
    case.sweep._connect()
    assert case.granted == [("a", 10), ("c", 4)]
    case.come(case.lines[0], 10)
    case.sweep._grant()
    assert case.granted == [("a", 10), ("c", 4)]  # none of it was looked at
    for _ in range(3):
        message = case.sweep._arrived.popleft()
        case.sweep._waiting[message.node] -= 1
        case.sweep.seen += 1
        case.sweep._met[message.node] += 1
    case.sweep._grant()
    assert case.granted == [("a", 13), ("c", 4)]


def test_no_more_is_asked_for_than_is_wanted_or_can_be_held(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch, {"a": 25})
    case.sweep._want = 3
    case.sweep._connect()
    assert case.granted == [("a", 3)]
    monkeypatch.setattr(sweep, "MOST_HELD", 7)
    case = Case(monkeypatch, {"a": 25})
    case.sweep._connect()
    assert case.granted == [("a", 7)]
    assert not case.sweep.cut_short
    case.come(case.lines[0], 6)
    case.sweep._grant()
    assert not case.sweep.cut_short
    case.come(case.lines[0], 1)
    case.sweep._grant()
    assert case.sweep.cut_short.startswith("only the first 0 were looked at")


def test_a_connection_that_holds_all_it_may_is_followed_by_another_or_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch, {"a": 25}, most=4)
    case.sweep._connect()
    assert case.granted == [("a", 4)]
    case.come(case.lines[0], 3)
    case.sweep._grant()
    assert case.granted == [("a", 4)]
    case.come(case.lines[0], 1)
    case.sweep._waiting["a"] = 0
    case.sweep._grant()
    assert case.granted == [("a", 4), ("a", 4)]
    case.come(case.lines[1], 2)
    case.sweep._waiting["a"] = 0
    case.sweep._grant()
    assert len(case.lines) == 2  # the newest has room
    case.come(case.lines[1], 2)
    case.sweep._waiting["a"] = 0
    case.refuse = True
    case.sweep._grant()
    assert len(case.lines) == 2
    assert "no more can be held at once (no more)" in case.sweep.cut_short


def test_a_connection_more_is_of_the_node_whose_others_are_full(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch, {"a": 25, "b": 2, "c": 2}, most=4)
    case.sweep._connect()
    case.come(case.lines[0], 4)
    case.sweep._waiting["a"] = 0
    case.sweep._grant()
    assert case.granted == [("a", 4), ("b", 2), ("c", 2), ("a", 4)]


def test_a_limit_alone_asks_for_so_many_and_with_anything_else_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    for selection, wanted in (
        (Selection(limit=3), 3), (Selection(limit=99), 25), (Selection(limit=3, reason="odd"), 25), (Selection(), 25),
    ):  # fmt: skip
        case = Case(monkeypatch, {"a": 25}, window=100)
        monkeypatch.setattr(case.sweep, "_wait", lambda: False)
        assert list(case.sweep.chosen(selection)) == []
        assert case.granted == [("a", wanted)]
    case = Case(monkeypatch, {"a": 0})
    assert list(case.sweep.chosen(Selection())) == []
    assert case.lines == []


def test_what_is_in_hand_is_touched_after_a_part_of_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch, {"a": 1})
    monkeypatch.setattr(sweep, "time", SimpleNamespace(monotonic=lambda: 1_000.0))
    line = Line("a", 10, lease=60.0)
    line.in_flight = {"old": 900.0, "settled": 901.0, "due": 1_000.0 - 60.0 * TOUCH_AT, "young": 990.0, "odd": 1.0}
    case.sweep._touch(line)  # type: ignore[arg-type]
    assert line.touched == ["old", "due"]
    useless = Line("a", 10, lease=60.0, max_lease=60.0)
    useless.in_flight = {"old": 1.0}
    case.sweep._touch(useless)  # type: ignore[arg-type]
    assert useless.touched == []


def test_all_that_is_in_hand_is_looked_at_ten_times_a_lease_and_ten_times_a_second_at_the_least(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Case(monkeypatch, {"a": 1, "b": 1})
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            case.sweep._open += [Line("a", 10, lease=60.0), Line("b", 10, lease=0.5)]  # type: ignore[list-item]
            for one in case.sweep._open:
                one.in_flight[f"of {one.node}"] = -1_000.0  # type: ignore[index]
        if len(pauses) == 4:
            raise GreenletExit

    monkeypatch.setattr(sweep.gevent, "sleep", sleep)
    with pytest.raises(GreenletExit):
        case.sweep._touch_for_ever()
    assert pauses == [0.1, 0.1, 0.05, 0.05]
    assert [one.touched for one in case.sweep._open] == [["of a"] * 2, ["of b"] * 2]  # type: ignore[attr-defined]


def test_what_the_broker_may_still_have_of_what_was_taken_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch, {"a": 3})
    line = Line("a", 10)
    line.finish = lambda _: None  # type: ignore[attr-defined]
    for number in range(3):
        case.sweep.take(SimpleNamespace(message=Message(b"%d" % number, 0, 1, b"", line)))  # type: ignore[arg-type]
    assert case.sweep.left_behind == 3
    case.sweep.tally.finished = 2
    assert case.sweep.left_behind == 1
    case.sweep.tally.finished = 5  # some came twice
    assert case.sweep.left_behind == 0


# --- topics


class Transport:
    """Its topics' letters by channel and node."""

    def __init__(self, letters: dict[str, dict[str, dict[str, int]]], *, fan_out: bool = True, down: str = "") -> None:
        self.capabilities = SimpleNamespace(fan_out=fan_out)
        self._letters, self._down = letters, down

    def _answer(self, answers: Any) -> Any:
        if self._down:
            raise SomeUnreachable("some are down", {self._down}, answers)
        return answers

    def topics(self) -> set[str]:
        return self._answer(set(self._letters))  # type: ignore[no-any-return]

    def channels(self, name: str) -> set[str]:
        return self._answer(set(self._letters[name]))  # type: ignore[no-any-return]

    def backlog(self, name: str, channel: str) -> dict[str, int]:
        return self._answer(self._letters[name].get(channel, {}))  # type: ignore[no-any-return]


def found(*transports: Transport, **more: Any) -> list[tuple[str, str, int]]:
    return [(one.name, one.channel, one.count) for one in find(transports, **more)]  # type: ignore[arg-type]


def test_dead_letter_topics_are_found_with_the_channel_that_has_the_letters() -> None:
    letters = {
        "b.dead": {"dead": {"n": 3, "m": 0}, "other": {"n": 9}},
        "a.dead": {"dead": {"n": 0}, "y": {"n": 0}, "z": {"n": 4, "m": 0}},
        "c.dead": {"y": {"n": 0}},
        "orders": {"dead": {"n": 7}},
    }
    assert found(Transport(letters)) == [("a.dead", "z", 4), ("b.dead", "dead", 3), ("c.dead", "dead", 0)]
    assert found(Transport(letters, fan_out=False))[0] == ("a.dead", "dead", 0)
    assert found(Transport(letters), wanted={"orders", "unknown"}) == [("orders", "dead", 7)]
    assert found(Transport(letters), wanted={"b.dead"}, channel="other") == [("b.dead", "other", 9)]
    assert found(Transport(letters), wanted=[]) == []
    assert len(found(Transport(letters), Transport(letters))) == 6


def test_a_count_is_definite_unless_it_was_said_that_some_may_be_down() -> None:
    letters = {"a.dead": {"dead": {"n": 1}}}
    with pytest.raises(SomeUnreachable):
        found(Transport(letters, down="m"))
    absent: list[SomeUnreachable] = []
    assert found(Transport(letters, down="m"), absent=absent.append) == [("a.dead", "dead", 1)]
    assert [one.down for one in absent] == [{"m"}] * 2


@pytest.mark.parametrize(("carries", "given"), [(True, {"headers": {"a": "b"}}), (False, {})])
def test_headers_go_along_where_the_broker_carries_any(carries: bool, given: dict[str, Any]) -> None:
    transport: Any = SimpleNamespace(capabilities=SimpleNamespace(headers=carries), producer=lambda: None)
    replay = Replay(SimpleNamespace(topic=SimpleNamespace(transport=transport)))  # type: ignore[arg-type]
    assert replay._with({"a": "b"}) == given
    assert replay._with({}) == {}


def test_so_many_letters_go_together_and_of_large_ones_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "TOGETHER", 3)
    monkeypatch.setattr(replay, "CHUNK_BYTES", 10)

    def sizes(*each: int) -> list[int]:
        letters: Any = [SimpleNamespace(body=b"x" * size) for size in each]
        return [len(some) for some in _together(letters)]

    assert sizes() == []
    assert sizes(1, 1, 1, 1) == [3, 1]
    assert sizes(5, 5, 1, 1) == [3, 1]
    assert sizes(11, 1, 9, 2) == [1, 3]
    assert sizes(6, 6, 1) == [2, 1]


def test_the_end_waits_for_a_time_that_is_over_once(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch, {"a": 1})
    now, waits = [1_000.0], list[float]()

    def wait(seconds: float) -> None:
        waits.append(seconds)
        now[0] += 1.0

    monkeypatch.setattr(sweep, "time", SimpleNamespace(monotonic=lambda: now[0]))
    case.sweep._changed = SimpleNamespace(clear=lambda: None, wait=wait)  # type: ignore[assignment]
    case.sweep._until(lambda: False)
    longest = sweep.CLOSING + sweep.GOODBYE
    assert waits == [longest - number for number in range(round(longest))]
    waits.clear()
    case.sweep._until(lambda: len(waits) == 1)
    assert len(waits) == 1

"""What is too old, by which clock, and how often it is said: on paper."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from framework.nsqd import expiry
from framework.nsqd.expiry import Expiry
from framework.nsqd.pertopic import PerTopic


class Case:
    """Topics of which what is older than 10 s goes. The store's clock says 1,000,000 ms, and the wall clock the same."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall = 1_000 * 10**9
        self.clock = SimpleNamespace(now=lambda: self.ours, set_ahead=lambda: self.set_ahead)
        self.ours, self.set_ahead, self.at = 1_000_000.0, 0, 5.0  # the machine has just been started
        self.lines: list[str] = []
        self.saves = 0
        self.naps: list[float] = []
        monkeypatch.setattr(expiry, "time", SimpleNamespace(monotonic=lambda: self.at, time_ns=lambda: self.wall))
        monkeypatch.setattr(expiry, "gevent", SimpleNamespace(sleep=self._sleep))
        port: Any = SimpleNamespace(clock=self.clock, log=lambda level, words: self.lines.append(words))
        self.expiry = Expiry({}, PerTopic([("t", 10.0)]), port, self._save)

    def _save(self) -> None:
        self.saves += 1

    def _sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.at += seconds

    def topic(self, *found: int, ephemeral: bool = False, channels: Any = ()) -> Any:
        left = [*found, 0]
        named = {str(number): one for number, one in enumerate(channels)}
        return SimpleNamespace(name="t", ephemeral=ephemeral, channels=named, expire=lambda cutoff: left.pop(0))


class Channel:
    """A channel of which so many expire, one look after another."""

    def __init__(self, *found: int, loaded: int = 1, waiting: int = 0, ready: Any = ()) -> None:
        self._found = list(found)
        self._loaded = loaded
        self.expired_count = 0
        self.fetched = 0
        self.backlog = SimpleNamespace(waiting=waiting)
        self.retries = SimpleNamespace(ready=list(ready))

    def expire(self, _cutoff: int) -> int:
        count = self._found.pop(0) if self._found else 0
        self.expired_count += count
        return count

    def loaded(self) -> int:
        return self._loaded

    def fetch(self) -> None:
        self.fetched += 1


def test_what_is_older_than_its_age_by_the_clock_that_is_behind_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch)
    assert case.expiry._cutoff(10.0) == 990 * 10**9
    case.wall += 10**12
    assert case.expiry._cutoff(10.0) == 990 * 10**9
    case.wall = 900 * 10**9
    assert case.expiry._cutoff(10.0) == 890 * 10**9


def test_nothing_is_old_for_its_age_after_the_clock_was_set_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch)
    case.set_ahead = 990_001
    assert case.expiry._cutoff(10.0) == 0
    case.set_ahead = 990_000
    assert case.expiry._cutoff(10.0) == 990 * 10**9


@pytest.mark.parametrize("ephemeral", [True, False])
def test_a_topic_is_looked_at_until_nothing_in_it_is_old_and_saved_each_time(
    monkeypatch: pytest.MonkeyPatch, ephemeral: bool
) -> None:
    case = Case(monkeypatch)
    case.expiry._expire(case.topic(3, 2, ephemeral=ephemeral, channels=[Channel(4), Channel(1)]), 10.0)
    assert case.expiry._unsaid == {"t": 10}
    assert case.saves == (0 if ephemeral else 2)
    case.expiry._expire(case.topic(1), 10.0)
    assert case.expiry._unsaid == {"t": 11}
    quiet = Case(monkeypatch)
    quiet.expiry._expire(quiet.topic(channels=[Channel()]), 10.0)
    assert quiet.expiry._unsaid == {}
    quiet.set_ahead = 1_000_000
    quiet.expiry._expire(quiet.topic(5), 10.0)
    assert quiet.expiry._unsaid == {}


def test_a_channel_is_looked_at_while_more_of_it_comes_from_the_log_and_for_no_longer_than_a_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Case(monkeypatch)
    assert case.expiry._expire_channel(Channel(2, 3, 0), 10.0) == 5  # type: ignore[arg-type]
    assert len(case.naps) == 2
    case.naps.clear()
    assert case.expiry._expire_channel(Channel(loaded=0, waiting=0), 10.0) == 0  # type: ignore[arg-type]
    assert case.naps == []
    case.expiry._expire_channel(Channel(loaded=0, waiting=5), 10.0)  # type: ignore[arg-type]
    assert sum(case.naps) == pytest.approx(expiry._ROUND_SECONDS, abs=2 * expiry._READ_SECONDS)


def test_what_came_back_too_old_between_two_rounds_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    case, channel = Case(monkeypatch), Channel(2)
    assert case.expiry._expire_channel(channel, 10.0) == 2  # type: ignore[arg-type]
    channel.expired_count += 3
    assert case.expiry._expire_channel(channel, 10.0) == 3  # type: ignore[arg-type]
    assert case.expiry._expire_channel(channel, 10.0) == 0  # type: ignore[arg-type]


def test_when_a_message_was_published_is_asked_of_the_log_where_it_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch)
    for ready, fetched in (([], 0), ([5], 0), ([0], 1), ([0, 5], 1), ([5, 0], 0)):
        channel = Channel(ready=[SimpleNamespace(ts=ts) for ts in ready])
        case.expiry._expire_channel(channel, 10.0)  # type: ignore[arg-type]
        assert channel.fetched == fetched


def test_how_many_were_dropped_is_said_once_a_minute_and_not_where_there_were_none(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch)
    case.expiry._say()
    assert case.lines == []
    case.expiry._unsaid["t"] = 7
    case.expiry._say()
    assert case.lines == ["TOPIC(t): 7 messages are dropped, which are older than 10 s"]
    assert case.expiry._unsaid == {}
    case.expiry._unsaid["t"] = 2
    case.at += expiry._SAY_SECONDS
    case.expiry._say()
    assert len(case.lines) == 1
    case.at += 1
    case.expiry._say()
    assert "2 messages" in case.lines[1]


def test_only_topics_that_are_there_and_have_an_age_are_looked_at_and_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    case, looked = Case(monkeypatch), list[str]()
    topics = {
        "t": SimpleNamespace(name="t", deleted=False),
        "gone": SimpleNamespace(name="gone", deleted=True),
        "ageless": SimpleNamespace(name="ageless", deleted=False),
    }
    ages = PerTopic([("t", 10.0), ("gone", 10.0)])
    all_ages: Any = SimpleNamespace(clock=case.clock, log=lambda *_: None)
    expiring = Expiry(topics, ages, all_ages, case._save)  # type: ignore[arg-type]
    monkeypatch.setattr(expiring, "_expire", lambda topic, age: looked.append(f"{topic.name} {age:g}"))

    def nap(_seconds: float) -> None:
        if len(looked) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(expiry, "gevent", SimpleNamespace(sleep=nap))
    with pytest.raises(KeyboardInterrupt):
        expiring.run()
    assert looked == ["t 10"] * 2

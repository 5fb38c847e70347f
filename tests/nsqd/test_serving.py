"""Quotas of topics, and the rounds in which a channel delivers: on paper."""

from __future__ import annotations

from typing import Any

import pytest

from framework.nsqd import serving as servings
from framework.nsqd.journal import Group, QuotaReached
from framework.nsqd.pertopic import PerTopic
from framework.nsqd.quotas import Quotas
from framework.nsqd.serving import Serving
from framework.nsqd.store import Entry
from tests.nsqd.test_topic import Case, Port


def test_a_topic_takes_as_much_as_it_may_have_with_what_is_under_way() -> None:
    case, free = Case(), Case("free")
    quotas = Quotas(PerTopic([("t", 5)]))
    entries: Any = [(case.topic, Entry(1, b"", 2)), (free.topic, Entry(2, b"", 99)), (case.topic, Entry(1, b"", 1))]
    quotas.check(entries)
    group = Group()
    quotas.taken(group, entries)
    quotas.check([(case.topic, Entry(1, b"", 2))])
    with pytest.raises(QuotaReached, match="may have 5 unfinished"):
        quotas.check([(case.topic, Entry(1, b"", 3)), (free.topic, Entry(2, b"", 1))])
    assert (case.topic.refused_count, free.topic.refused_count) == (3, 1)
    group.end(None)  # now they are counted where they wait
    quotas.check([(case.topic, Entry(1, b"", 5))])
    case.publish(b"x")
    with pytest.raises(QuotaReached):
        quotas.check([(case.topic, Entry(1, b"", 5))])
    assert bool(quotas)
    assert not Quotas(PerTopic([]))


def test_rounds_go_on_until_nothing_is_left_or_the_turn_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    soon: list[Any] = []
    monkeypatch.setattr(servings.slices, "soon", soon.append)
    monkeypatch.setattr(servings, "TURN", 10)
    port, served, sent = Port(), list[bool](), [4, 5, 0]
    serving: Serving = Serving(lambda: served.append(True), lambda: sent.pop(0), port.health, "nothing was delivered")
    serving.rounds()
    assert (sent, soon) == ([], [])
    sent += [4, 6, 3]
    serving.rounds()
    serving.soon()
    assert (sent, len(soon)) == ([3], 1)  # the rest in a turn of its own, once
    soon[0]()
    assert served == [True]
    serving.soon()
    assert len(soon) == 2


def test_a_round_that_fails_is_reported_and_the_next_one_is_made() -> None:
    port, results = Port(), [ValueError("odd"), None]

    def one_round() -> int:
        if (error := results.pop(0)) is not None:
            raise error
        serving.rounds()  # from within: nothing
        return 0

    serving: Serving = Serving(lambda: None, one_round, port.health, "nothing was delivered")
    serving.rounds()
    assert port.failures == ["odd"]
    serving.rounds()
    assert results == []


def test_who_asks_for_rounds_in_the_middle_of_one_gets_none_within_it() -> None:
    """As a client does whose connection is closed while it is sent something."""
    port, deep = Port(), list[int]()

    def one_round() -> int:
        deep.append(1)
        assert len(deep) < 5
        serving.rounds()
        return 0

    serving: Serving = Serving(lambda: None, one_round, port.health, "nothing was delivered")
    serving.rounds()
    serving.rounds()
    assert len(deep) == 2

"""The metrics as text: what prometheus_client would have written, and written so that others are served meanwhile."""

from __future__ import annotations

import gevent
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.parser import text_string_to_metric_families as parsed

from framework.admin import exposition, fresh
from framework.admin.backlog import Backlog
from framework.admin.figures import BY, Figures
from framework.admin.fresh import Slices
from framework.engine.ledger import OUTCOMES
from framework.engine.times import RUNNING
from tests.admin.test_snapshot import row, snapshot

ODD = 'a"b\\c\nd}e,f="g"/h'


class NotAsked(Backlog):
    def refresh(self, channels: object) -> None: ...


def figures(*rows: object) -> Figures:
    return Figures(lambda: snapshot(*rows), NotAsked(list))  # type: ignore[arg-type]


def test_it_is_what_prometheus_client_writes_whatever_a_topic_is_called() -> None:
    bounds, counts = (0.005, 10.0), [3, 0, 2]
    histogram = HistogramMetricFamily("took_seconds", "How long.", labels=("topic",))
    histogram.add_metric([ODD], [("0.005", 3.0), ("10", 3.0), ("+Inf", 5.0)], 7.5)
    counter = CounterMetricFamily("came", "How many.", labels=("topic",))
    counter.add_metric([ODD], 12)

    class Both:
        def collect(self) -> object:
            return [histogram, counter]

    registry = CollectorRegistry()
    registry.register(Both())  # type: ignore[arg-type]
    of = exposition.labels(("topic",), (ODD,))
    text = (
        exposition.head("took_seconds", "histogram", "How long.")
        + exposition.histogram("took_seconds", of, exposition.bounds(bounds), counts, 7.5)
        + exposition.head("came_total", "counter", "How many.")
        + exposition.sample("came_total", of, 12)
    )
    assert list(parsed(text)) == list(parsed(generate_latest(registry).decode()))


def test_all_of_a_handler_is_there_and_adds_up() -> None:
    calls = [0, 2] + [0] * (len(RUNNING) - 1)
    busy = row(ODD, counts={"received": 12, **dict.fromkeys(OUTCOMES, 1), "finished": 5}, calls=8, slow=calls, published={"x": 4})
    text = figures(busy, row("idle/one", calls=0, pause={"by": "operator", "processes": 1})).text()
    found = {
        (one.name, *[one.labels[name] for name in ("handler", "outcome", "le") if name in one.labels]): one.value
        for family in parsed(text) for one in family.samples
    }  # fmt: skip
    ended = [found["messaging_client_consumed_messages_total", ODD, one] for one in OUTCOMES]
    assert ended == [5, 1, 1, 1, 1]
    assert found["messaging_client_received_messages_total", ODD] == 12
    assert found["messaging_client_in_flight_messages", ODD] == 3
    assert found["messaging_client_sent_messages_total", ODD] == 4
    assert found["messaging_process_duration_seconds_bucket", ODD, "0.005"] == 6
    assert found["messaging_process_duration_seconds_bucket", ODD, "+Inf"] == 8
    assert found["messaging_process_duration_seconds_count", ODD] == 8
    assert found["messaging_process_duration_seconds_sum", ODD] == 1.5
    assert (found["messaging_client_paused", ODD], found["messaging_client_paused", "idle/one"]) == (0, 1)
    assert ("messaging_process_duration_seconds_count", "idle/one") not in found
    labels = {tuple(one.labels) for family in parsed(text) for one in family.samples if one.labels}
    assert labels == {BY, (*BY, "outcome"), (*BY, "le"), ("handler", "topic")}


def test_topics_beyond_a_hundred_are_one() -> None:
    text = figures(row(published={f"{number:03}": 1 for number in range(150)})).text()
    [sent] = [family for family in parsed(text) if family.name == "messaging_client_sent_messages"]
    found = {one.labels["topic"]: one.value for one in sent.samples}
    assert found == {f"{number:03}": 1 for number in range(100)} | {"other": 50}


def test_others_are_served_while_many_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh, "SLICE", 0.0)
    monkeypatch.setattr(fresh, "BREATH", 0.0)
    turns: list[int] = []

    def another() -> None:
        while True:
            turns.append(1)
            gevent.sleep(0)

    beside = gevent.spawn(another)
    figures(*(row(f"t{number}/c") for number in range(50))).text(Slices())
    beside.kill()
    assert len(turns) >= 50 * 10

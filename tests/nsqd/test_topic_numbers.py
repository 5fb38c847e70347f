"""A topic's number is its own: two topics with one number would be one topic after a restart."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from framework.nsqd.broker import Broker
from framework.nsqd.options import parse
from framework.nsqd.store import Entry, Store
from tests.nsqd.storing import everything, payload


def test_no_topic_gets_a_number_that_another_has_or_had(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter([5, 5, 0, 6, 6, 5, 7])
    monkeypatch.setattr(secrets, "randbits", lambda bits: next(drawn))
    broker = Broker(Store(folder), parse([f"--data-path={folder}"]), lambda level, words: None)
    try:
        for name in ("a", "b"):
            topic = broker.topic(name)
            topic.settle()
            group = broker.publish([(topic, Entry(topic.id, payload(name.encode()), 1))])
            assert group is not None
            group.wait()
        broker.delete_topic("a")
        assert (broker.topics["b"].id, broker.topic("c").id) == (6, 7)
        broker.topics["c"].settle()
    finally:
        broker.stop()
    (folder / "index.db").unlink()
    again = Store(folder)
    assert {topic.name: everything(again, topic.id) for topic in again.topics.values()} == {"b": [b"b"], "c": []}
    again.close()

"""What must disappear: what was emptied, and the rows of what is finished; also where the save that should say so failed."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest

from framework.nsqd.broker import Broker
from framework.nsqd.options import Options
from framework.nsqd.store import Entry, Store
from framework.testing.servers import Server
from tests.nsqd.speaking import bodies, eventually, fin, mpub, pub, sized

Talks = Callable[..., Any]
FINISHED = -1
"""The due time of a row that says: finished before the cursor came to it."""


def rows(server: Server) -> list[tuple[int, ...]]:
    """(number, due, attempts) of what the index keeps besides the cursors."""
    with sqlite3.connect(f"file:{server.data / 'index.db'}?mode=ro", uri=True, timeout=10) as index:
        return index.execute("select seq, due, attempts from later order by seq").fetchall()


@pytest.mark.parametrize("delay", [0, 60_000])
def test_an_emptied_channel_forgets_what_was_given_back(ours: Server, talk: Talks, delay: int) -> None:
    client = talk(ours)
    client.send(b"SUB emptied c\nRDY 3\n" + pub("emptied", b"1", b"2", b"3"))
    ids = [message_id for message_id, _, _ in client.get(3)]
    client.send(b"RDY 0\n" + b"".join(b"REQ %b %d\n" % (one, delay) for one in ids))
    counted = "deferred_count" if delay else "depth"
    assert eventually(lambda: ours.channel_stats("emptied", "c")[counted] == 3 and len(rows(ours)) == 3)
    ours.http("/channel/empty?topic=emptied&channel=c", b"")
    for _ in range(2):
        stats = ours.channel_stats("emptied", "c")
        assert (stats["depth"], stats["deferred_count"], stats["in_flight_count"]) == (0, 0, 0)
        assert rows(ours) == []
        ours.kill()
        ours.start()
    again = talk(ours)
    again.send(b"SUB emptied c\nRDY 5\n" + pub("emptied", b"new"))
    again.get(1)
    again.send(b"PUB emptied\n" + sized(b"newer"))
    again.get(2)
    assert sorted(bodies(again)) == [b"new", b"newer"]


def test_rows_of_what_was_given_back_go_when_it_is_finished(ours: Server, talk: Talks) -> None:
    client = talk(ours)
    client.send(b"SUB tidy c\nRDY 20\n" + mpub("tidy", *[b"%d" % at for at in range(20)]))
    first = [message_id for message_id, _, _ in client.get(20)]
    client.send(b"RDY 0\n" + b"".join(b"REQ " + one + b" 0\n" for one in first))
    assert eventually(lambda: len(rows(ours)) == 20)
    client.forget()
    client.send(b"RDY 20\n")
    client.send(fin(*[message_id for message_id, _, _ in client.get(20)]))
    assert eventually(lambda: rows(ours) == []), rows(ours)


def finished_ahead(server: Server, talk: Talks) -> Any:
    """A client that has finished a deferred message before the cursor came to it: the index has a row that says so."""
    client = talk(server)
    client.send(b"SUB ahead c\n" + pub("ahead", *[b"%d" % at for at in range(5)]) + b"DPUB ahead 300\n" + sized(b"due"))
    client.reply(7)
    assert eventually(lambda: server.channel_stats("ahead", "c")["depth"] == 6), "it is not due"
    client.send(b"RDY 1\n")
    while bodies(client)[-1:] != [b"due"]:
        count = len(client.messages)
        if count:
            client.send(fin(client.messages[-1][0]))
        client.get(count + 1)
    assert len(client.messages) < 6, "it came last, which shows nothing"
    client.send(b"RDY 0\n" + fin(client.messages[-1][0]))
    assert eventually(lambda: [due for _, due, _ in rows(server)] == [FINISHED]), rows(server)
    return client


def test_the_row_of_what_was_finished_ahead_of_the_cursor_goes_when_the_cursor_has_passed(
    start_embedded: Callable[..., Server], talk: Talks
) -> None:
    server = start_embedded("--mem-queue-size=1")  # what is due comes behind one other, not behind all
    client = finished_ahead(server, talk)
    client.send(b"RDY 5\n")
    client.get(6)
    client.send(fin(*[message_id for message_id, _, _ in client.messages[-5:]]))
    assert eventually(lambda: rows(server) == []), rows(server)
    assert sorted(bodies(client)) == [b"0", b"1", b"2", b"3", b"4", b"due"]


@pytest.mark.parametrize("ended", [Server.stop, Server.kill], ids=["a stop", "a kill"])
def test_the_row_of_what_was_finished_ahead_of_the_cursor_goes_also_after_a_restart(
    start_embedded: Callable[..., Server], talk: Talks, ended: Callable[[Server], object]
) -> None:
    server = start_embedded("--mem-queue-size=1")
    before = bodies(finished_ahead(server, talk))
    ended(server)
    server.start()
    client = talk(server)
    client.send(b"SUB ahead c\nRDY 5\n")
    client.get(6 - len(before))
    client.send(fin(*[message_id for message_id, _, _ in client.messages]))
    assert eventually(lambda: rows(server) == []), rows(server)
    assert sorted(before + bodies(client)) == [b"0", b"1", b"2", b"3", b"4", b"due"]


# --- the step after a save that failed ----------------------------------------------------------------------------------


@pytest.fixture
def fallible(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Broker, list[str]]]:
    """A broker whose saves fail as long as there is something in the list."""
    failing: list[str] = []
    store = Store(folder)
    save = store.save

    def may_fail(*arguments: Any, **more: Any) -> Any:
        if failing:
            raise OSError(28, failing[0])
        return save(*arguments, **more)

    monkeypatch.setattr(store, "save", may_fail)
    broker = Broker(store, Options(), lambda level, words: None)
    yield broker, failing
    failing.clear()
    if not broker._stopped:
        broker.stop()


def publish(broker: Broker, name: str, *bodies_: bytes) -> None:
    topic = broker.topic(name)
    topic.settle()
    payload = b"".join(struct.pack(">i", len(body)) + body for body in bodies_)
    group = broker.publish([(topic, Entry(topic.id, payload, len(bodies_)))])
    assert group is not None
    group.wait()


def test_an_emptied_topic_whose_save_failed_is_emptied_with_the_next(folder: Path, fallible: tuple[Broker, list[str]]) -> None:
    broker, failing = fallible
    topic = broker.topic("hollow")
    topic.channel("c")
    topic.pause(True)
    publish(broker, "hollow", b"1", b"2", b"3")
    broker.save()
    failing.append("no space")
    topic.empty()
    gevent.sleep(0.3)  # several rounds of the saver
    failing.clear()
    publish(broker, "hollow", b"4")
    assert _eventually(lambda: not broker.changed), "nobody saves any more"
    broker.stop()
    reopened = Store(folder)
    try:
        (state,) = reopened.topics.values()
        (channel,) = state.channels.values()
        assert (state.depth, channel.waiting) == (1, 0), "what was emptied has come back"
    finally:
        reopened.close()


def test_an_emptied_topic_whose_save_failed_is_emptied_although_nothing_else_happens(
    folder: Path, fallible: tuple[Broker, list[str]]
) -> None:
    broker, failing = fallible
    topic = broker.topic("hollow")
    publish(broker, "hollow", b"1", b"2", b"3")
    broker.save()
    failing.append("no space")
    topic.empty()
    gevent.sleep(0.3)  # several rounds of the saver
    failing.clear()
    broker.stop()
    reopened = Store(folder)
    try:
        (state,) = reopened.topics.values()
        assert state.depth == 0, "what was emptied has come back"
    finally:
        reopened.close()


def test_what_a_channel_finished_while_saves_failed_stays_finished(folder: Path, fallible: tuple[Broker, list[str]]) -> None:
    broker, failing = fallible
    topic = broker.topic("orders")
    channel = topic.channel("c")
    publish(broker, "orders", b"1", b"2", b"3")
    client = _Client(channel)
    channel.subscribe(client)
    channel.serve()
    assert len(client.leases.messages) == 3
    one, two, three = list(client.leases.messages)
    for each in (one, two, three):
        assert channel.requeue(client, each, 3600) is None
    broker.save()
    failing.append("no space")
    for _, _, message in list(channel.deferred)[:2]:
        channel.retries.ready.append(message)
    channel.deferred[:] = channel.deferred[2:]
    channel.serve()
    for each in list(client.leases.messages):
        assert channel.finish(client, each) is None
    gevent.sleep(0.3)
    failing.clear()
    assert _eventually(lambda: not broker.changed), "nobody saves any more"
    broker.stop()
    reopened = Store(folder)
    try:
        (state,) = reopened.topics.values()
        (kept,) = state.channels.values()
        assert len(kept.retries) == 1
    finally:
        reopened.close()


class _Client:
    """A consumer that takes all."""

    sample_rate = 0

    def __init__(self, channel: Any) -> None:
        self.leases = channel.new_leases(60.0)

    def room(self) -> int:
        return 100

    def send(self, frames: list[bytes], count: int) -> None:
        pass

    def sampled(self) -> bool:
        return True

    def close(self, reason: str) -> None:
        pass


def _eventually(done: Callable[[], bool]) -> bool:
    with gevent.Timeout(10, False):
        while not done():
            gevent.sleep(0.02)
    return done()

"""What is published goes to the storage in groups, with declarations before it; a stop leaves nothing behind. On paper."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from framework.nsqd import journal
from framework.nsqd.health import Health
from framework.nsqd.journal import Journal, NotStored
from framework.nsqd.store import Declaration, Declare, Entry
from tests.nsqd.storing import payload


class Paper:
    """A storage. ``written`` has each group; ``refuses`` is what the next writes raise."""

    def __init__(self) -> None:
        self.written: list[list[Any]] = []
        self.refuses: list[Exception] = []
        self.tried: list[int] = []
        """How many bytes, at each look whether there is room again."""

    def append(self, entries: list[Any]) -> list[Any]:
        if self.refuses:
            raise self.refuses.pop(0)
        self.written.append(list(entries))
        return [one for one in entries if isinstance(one, Entry)]

    def try_to_write(self, size: int) -> None:
        self.tried.append(size)
        if self.refuses:
            raise self.refuses.pop(0)


class Desk:
    def __init__(self) -> None:
        self.paper = Paper()
        self.committed: list[Any] = []
        self.said: list[str] = []
        self.health = Health(lambda level, words: self.said.append(words), Path("/data"))
        self.journal = Journal(self.paper, self.committed.append, self.health)  # type: ignore[arg-type]

    def topic(self, number: int) -> Any:
        return SimpleNamespace(id=number, declaration=lambda: Declaration(f"t{number}"), declared=None)


@pytest.fixture
def desk() -> Iterator[Desk]:
    with gevent.Timeout(10):
        yield Desk()


def entry(topic: int, body: bytes = b"x") -> Entry:
    return Entry(topic, payload(body), 1)


def test_what_comes_together_is_written_together_with_its_declarations_first(desk: Desk) -> None:
    groups = [desk.journal.add([entry(1)]), desk.journal.add([entry(2), entry(1)])]
    desk.journal.take(SimpleNamespace(topic=desk.topic(2)))  # type: ignore[arg-type]
    assert groups[0] is groups[1]
    groups[0].wait()
    assert desk.paper.written == [[Declare(2, Declaration("t2")), entry(1), entry(2), entry(1)]]
    assert desk.committed == [[entry(1), entry(2), entry(1)]]
    desk.journal.stop()


def test_each_is_written_without_anything_else_that_asks_for_it(desk: Desk) -> None:
    topic = desk.topic(1)
    desk.journal.take(SimpleNamespace(topic=topic))  # type: ignore[arg-type]
    topic.declared.wait()
    desk.journal.add([entry(1)]).wait()
    assert desk.paper.written == [[Declare(1, Declaration("t1"))], [entry(1)]]
    assert desk.said == []
    desk.journal.stop()


def test_a_stop_writes_what_is_there(desk: Desk) -> None:
    group = desk.journal.add([entry(1)])
    desk.journal.stop()
    assert desk.paper.written == [[entry(1)]]
    assert desk.committed == [[entry(1)]]
    group.wait()


def test_a_stop_writes_also_what_came_while_a_write_was_under_way(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    write, groups = desk.paper.append, list[journal.Group]()

    def slow(entries: list[Any]) -> list[Any]:
        if not groups:
            groups.append(desk.journal.add([entry(2)]))
            desk.journal._stopping = True  # as by a stop in this very moment
        return write(entries)

    monkeypatch.setattr(desk.paper, "append", slow)
    desk.journal.add([entry(1)])
    desk.journal.stop()
    assert desk.paper.written == [[entry(1)], [entry(2)]]
    groups[0].wait()


def test_a_stop_with_nothing_to_write_ends_as_well(desk: Desk) -> None:
    desk.journal.stop()
    assert (desk.paper.written, desk.said) == ([], [])


def test_a_stop_declares_what_is_to_be_declared(desk: Desk) -> None:
    topic = desk.topic(1)
    desk.journal.take(SimpleNamespace(topic=topic))  # type: ignore[arg-type]
    desk.journal.stop()
    assert desk.paper.written == [[Declare(1, Declaration("t1"))]]
    topic.declared.wait()


def test_a_write_that_was_broken_off_is_told_to_all_who_wait_for_it(desk: Desk) -> None:
    def broken_off(*_: object) -> None:
        raise gevent.GreenletExit

    desk.journal._committed = broken_off
    topic = desk.topic(1)
    desk.journal.take(SimpleNamespace(topic=topic))  # type: ignore[arg-type]
    published = desk.journal.add([entry(1)])
    for group in (published, topic.declared):
        with pytest.raises(NotStored, match="the write was not finished"):
            group.wait()


def test_what_could_not_be_declared_is_tried_again_until_it_is(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "RETRY_SECONDS", 0.002)
    desk.paper.refuses = [OSError(28, "No space left on device")] * 3
    topic = desk.topic(1)
    desk.journal.take(SimpleNamespace(topic=topic))  # type: ignore[arg-type]
    with pytest.raises(NotStored, match="No space left"):
        topic.declared.wait()
    assert desk.health.wrong
    while not desk.paper.written:
        gevent.sleep(0.002)
    gevent.sleep(0.03)
    assert desk.paper.written == [[Declare(1, Declaration("t1"))]]
    assert (desk.paper.tried, desk.health.wrong) == ([], "")
    desk.journal.stop()
    assert desk.journal._thread._pool.size == 0


def test_whether_there_is_room_again_is_looked_at_until_there_is(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not where nothing was refused."""
    monkeypatch.setattr(journal, "RETRY_SECONDS", 0.002)
    desk.journal.add([entry(1)]).wait()
    gevent.sleep(0.03)
    assert desk.paper.tried == []
    full = OSError(28, "No space left on device")
    desk.paper.refuses = [full, full, full]
    with pytest.raises(NotStored):
        desk.journal.add([entry(1, b"12345678")]).wait()
    size = len(payload(b"12345678"))
    while len(desk.paper.tried) < 3:
        assert desk.health.wrong
        gevent.sleep(0.002)
    gevent.sleep(0.03)
    assert (desk.paper.tried, desk.health.wrong) == ([size] * 3, "")
    desk.journal.stop()


def test_what_the_disk_refuses_is_told_to_its_publishers_and_declared_alone(desk: Desk) -> None:
    desk.paper.refuses = [OSError(28, "No space left on device")]
    topic = desk.topic(1)
    desk.journal.take(SimpleNamespace(topic=topic))  # type: ignore[arg-type]
    group = desk.journal.add([entry(1)])
    with pytest.raises(Exception, match="No space left"):
        group.wait()
    topic.declared.wait()
    assert desk.paper.written == [[Declare(1, Declaration("t1"))]]
    desk.journal.add([entry(1)]).wait()
    assert desk.paper.written[1:] == [[entry(1)]], "what is declared once is not declared again"
    desk.journal.stop()

"""What waits to be published: durable, in order, gone when a broker has it, and held up by nothing but the broker."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from framework import BadMessage, PublishError
from framework.testing.servers import Server
from workers.api_requests.stream import outbox as room
from workers.api_requests.stream.outbox import Letter, Outbox, Sender


def bodies(outbox: Outbox) -> list[str]:
    return [letter.body for letter in outbox.waiting()]


class TestTheOutbox:
    def test_keeps_what_it_is_given_in_order_whoever_looks(self, tmp_path: Path) -> None:
        Outbox(tmp_path / "o").put({"b": "1", "a": "2"})
        Outbox(tmp_path / "o").put({"c": "3"})
        assert bodies(Outbox(tmp_path / "o")) == ["1", "2", "3"]
        assert Outbox(tmp_path / "o").count() == 3

    def test_who_makes_the_file_while_another_does_waits_for_it(self, tmp_path: Path) -> None:
        """Where it is no write-ahead log yet, and somebody writes: SQLite says at once that it is locked."""
        with closing(sqlite3.connect(tmp_path / "o", isolation_level=None)) as other:
            other.execute("begin immediate")
            putting = threading.Thread(target=Outbox(tmp_path / "o").put, args=({"a": "1"},))
            putting.start()
            putting.join(0.2)
            assert putting.is_alive()
            other.execute("commit")
            putting.join(20)
        assert bodies(Outbox(tmp_path / "o")) == ["1"]

    def test_of_one_name_only_the_newest_waits(self, tmp_path: Path) -> None:
        outbox = Outbox(tmp_path / "o")
        for body in ("1", "2"):
            outbox.put({"a": body, "b": "b"})
        assert bodies(outbox) == ["2", "b"]

    def test_what_was_sent_goes_and_what_was_put_meanwhile_stays(self, tmp_path: Path) -> None:
        outbox = Outbox(tmp_path / "o")
        outbox.put({"a": "1", "b": "2"})
        sent = outbox.waiting()
        outbox.put({"a": "3"})
        outbox.remove(sent)
        assert bodies(Outbox(tmp_path / "o")) == ["3"]


class Broker:
    """As much of a publisher as a sender asks for; does what it is told, and keeps what it took."""

    def __init__(self) -> None:
        self.took: list[str] = []
        self.error: Exception | None = None
        self.too_large = ""
        self.tries = 0
        self.meanwhile: Callable[[], None] = lambda: None
        self.closed = threading.Event()

    def publish_many(self, topic: str, payloads: Sequence[str]) -> int:
        self.tries += 1
        if self.error is not None:
            raise self.error
        if self.too_large in payloads:
            raise BadMessage(f"{self.too_large} is over the maximum")
        self.took += payloads
        self.meanwhile()
        return len(payloads)

    def close(self) -> None:
        self.closed.set()


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def sender(tmp_path: Path, broker: Any, said: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Sender]:
    monkeypatch.setattr(room, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(room, "_AT_ONCE", 2)
    sender = Sender(Outbox(tmp_path / "o"), broker, "suspects", said.append)
    yield sender
    sender.stop()


def wait_for(condition: Callable[[], Any]) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


class TestTheSender:
    def test_publishes_what_an_earlier_run_left_and_what_comes(self, tmp_path: Path, sender: Sender, broker: Broker) -> None:
        Outbox(tmp_path / "o").put({name: name for name in "abcde"})
        sender.start()
        assert sender.flush(20)
        sender.put({"f": "f"})
        assert sender.flush(20)
        assert broker.took == [*"abcdef"]

    @pytest.mark.parametrize("error", [PublishError("no nsqd took it"), sqlite3.OperationalError("disk I/O error")])
    def test_what_fails_waits_and_is_said_once(
        self, tmp_path: Path, sender: Sender, broker: Broker, said: list[str], error: Exception
    ) -> None:
        broker.error = error
        sender.start()
        sender.put({"a": "1"})
        wait_for(lambda: broker.tries >= 3)
        sender.put({"b": "2"})
        assert not sender.flush(0)
        assert bodies(Outbox(tmp_path / "o")) == ["1", "2"]
        assert said == [f"suspects waits to be published, and is tried again: {error}"]
        assert sender.trouble == str(error)
        broker.error = None
        assert sender.flush(20)
        assert broker.took == ["1", "2"]
        wait_for(lambda: said[1:] == ["suspects is published again"])
        assert sender.trouble == ""

    def test_what_the_broker_may_have_stored_is_published_again(self, tmp_path: Path, sender: Sender, broker: Broker) -> None:
        removing = Outbox.remove
        crashed: list[list[Letter]] = []

        def crash(self: Outbox, letters: list[Letter]) -> None:
            if not crashed:
                crashed.append(letters)
                raise OSError("killed here")
            removing(self, letters)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Outbox, "remove", crash)
            sender.start()
            sender.put({"a": "1"})
            assert sender.flush(20)
        assert broker.took == ["1", "1"]

    def test_what_is_put_while_others_are_published_is_published_too(
        self, tmp_path: Path, sender: Sender, broker: Broker
    ) -> None:
        def put_once() -> None:
            broker.meanwhile = lambda: None
            Outbox(tmp_path / "o").put({"a": "2", "b": "3"})

        broker.meanwhile = put_once
        sender.start()
        sender.put({"a": "1"})
        assert sender.flush(20)
        assert broker.took == ["1", "2", "3"]

    def test_what_the_broker_refuses_for_good_holds_up_nothing_else(
        self, tmp_path: Path, sender: Sender, broker: Broker, said: list[str]
    ) -> None:
        broker.too_large = "b"
        Outbox(tmp_path / "o").put({name: name for name in "abcde"})
        sender.start()
        wait_for(lambda: sorted(broker.took) == [*"acde"])
        wait_for(lambda: bodies(Outbox(tmp_path / "o")) == ["b"])
        wait_for(lambda: sender.trouble == "b is over the maximum")
        sender.put({"f": "f"})
        wait_for(lambda: broker.took[-1] == "f")
        assert said == ["suspects waits to be published, and is tried again: b is over the maximum"]
        broker.too_large = ""
        assert sender.flush(20)

    def test_it_goes_on_although_nobody_reads_what_it_says(self, tmp_path: Path, broker: Any) -> None:
        def nobody(_: str) -> None:
            raise BrokenPipeError

        sender = Sender(Outbox(tmp_path / "o"), broker, "suspects", nobody)
        broker.error = PublishError("down")
        sender.start()
        sender.put({"a": "1"})
        wait_for(lambda: broker.tries)
        broker.error = None
        assert sender.flush(20)
        assert broker.took == ["1"]
        sender.stop()

    def test_it_waits_longer_and_longer_between_tries(self, sender: Sender, broker: Broker) -> None:
        pauses: list[float] = []

        class Stopping(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                pauses.append(timeout or 0.0)
                return super().wait(0.001)

        sender._stopping = Stopping()
        broker.error = PublishError("down")
        sender.start()
        sender.put({"a": "1"})
        wait_for(lambda: len(pauses) >= 15)
        assert pauses[:4] == [0.01, 0.02, 0.04, 0.08]
        assert max(pauses) == 10.0

    def test_stops_while_it_waits(self, sender: Sender, broker: Broker) -> None:
        broker.error = PublishError("down")
        sender.start()
        sender.put({"a": "1"})
        wait_for(lambda: broker.tries)
        sender.stop()
        assert broker.closed.wait(5)
        tries = broker.tries
        sender.put({"b": "2"})
        assert broker.tries == tries
        assert not sender.flush(5, given_up=lambda: True), "nobody waits who has given up"


@pytest.mark.real
def test_suspects_reach_a_real_nsqd(nsqd: Server, tmp_path: Path) -> None:
    from framework import Publisher

    nsqd.http("/topic/create?topic=spam_suspects", b"")
    nsqd.http("/channel/create?topic=spam_suspects&channel=blocklist", b"")
    sender = Sender(Outbox(tmp_path / "o"), Publisher(f"nsq://{nsqd.address}"), "spam_suspects", pytest.fail)
    sender.start()
    sender.put({str(n): f"suspect {n}" for n in range(1200)})
    assert sender.flush(20)
    sender.stop()
    assert nsqd.channel_stats("spam_suspects", "blocklist")["depth"] == 1200

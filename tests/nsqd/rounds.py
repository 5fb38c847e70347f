"""A broker of the embedded nsqd on a folder, without sockets, whose rounds of saving a test makes."""

from __future__ import annotations

import shutil
import sqlite3
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gevent
import pytest
from gevent.event import Event

from framework.nsqd import broker as brokers
from framework.nsqd import journal
from framework.nsqd.broker import Broker
from framework.nsqd.channel import Channel
from framework.nsqd.lease import Leases
from framework.nsqd.options import parse
from framework.nsqd.store import Entry, Store
from framework.nsqd.topic import Topic


class Taker:
    """A client that takes what it is given."""

    sample_rate = 0

    def __init__(self, channel: Channel, ready: int = 1000) -> None:
        self.channel = channel
        self.leases: Leases = channel.new_leases(60)
        self.ready = ready
        channel.subscribe(self)
        channel.serve()

    def room(self) -> int:
        return self.ready - len(self.leases.messages)

    def send(self, frames: list[bytes], count: int) -> None:
        pass

    def sampled(self) -> bool:
        return True

    def close(self, reason: str) -> None:
        self.channel.unsubscribe(self)

    def ids(self, count: int) -> list[bytes]:
        """Of the messages in flight, once they are ``count``."""
        wait_until(lambda: len(self.leases.messages) >= count)
        return list(self.leases.messages)


def wait_until(what: Callable[[], Any], seconds: float = 10.0) -> None:
    with gevent.Timeout(seconds):
        while not what():
            gevent.sleep(0.002)


def bodies(*some: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(one)) + one for one in some)


def publish(broker: Broker, topic: Topic, count: int = 1) -> None:
    group = broker.publish([(topic, Entry(topic.id, bodies(*(b"%d" % at for at in range(count))), count))])
    if group is not None:
        group.wait()


def channel(topic: Topic, name: str = "c") -> Channel:
    made = topic.channel(name)
    topic.settle()
    return made


class Nsqd:
    """A broker on a folder. Rounds of saving are made by the test alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self.store = Store(folder)
        self.broker = Broker(self.store, parse([f"--data-path={folder}"]), lambda level, words: self.lines.append(words))

    def killed(self) -> Nsqd:
        """Another, on what a kill -9 would leave now."""
        copy = self.folder.with_name(self.folder.name + "-killed")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.folder, copy)
        return Nsqd(copy)

    def waiting(self, topic: str, name: str = "c") -> int:
        """How many messages the channel, or else the topic, has."""
        found = self.broker.topics[topic].channels.get(name)
        return found.depth + found.in_flight_count + len(found.deferred) if found else self.broker.topics[topic].depth


@contextmanager
def held(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The journal writes nothing meanwhile."""
    go, real = Event(), broker.journal._thread.do

    def do(*arguments: Any) -> Any:
        go.wait()
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(broker.journal._thread, "do", do)
        yield
    go.set()


def refusing(monkeypatch: pytest.MonkeyPatch, opened: Store) -> None:
    """Its index takes no transaction any more."""

    def full(**options: Any) -> Any:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(opened.index, "transaction", full)


def starter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Nsqd]:
    """For a fixture: makes one on the same folder at each call. It saves when the test asks for it."""
    monkeypatch.setattr(brokers, "SAVE_SECONDS", 3600.0)
    monkeypatch.setattr(journal, "RETRY_SECONDS", 0.01)
    return lambda: Nsqd(tmp_path / "data")

"""How often a session with many subscribers says who subscribes: not once for each of them, each time with all of them."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import gevent
import msgspec
import pytest

from framework.transports.rocketmq import urls
from framework.transports.rocketmq.heartbeat import Subscription
from framework.transports.rocketmq.session import SHOWN, Session
from framework.transports.rocketmq.wire.codes import Request
from framework.transports.rocketmq.wire.frames import Decoder, Frame


class Reader:
    """``owner.Owner``."""

    shown, has_queues = True, False

    def __init__(self, number: int, group: str = "") -> None:
        self.subscription = Subscription(f"t{number}", group or f"g{number}", "", pulls=True)

    def turn(self) -> None: ...

    def collect(self) -> None: ...

    def lost(self, error: Exception) -> None: ...


@pytest.fixture
def ends() -> Iterator[tuple[Session, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    read = urls.read(["rocketmq://names:9876"])
    sock: Any = ours
    session = Session("names:9876", sock, read.options, read.secrets, "me")
    yield session, theirs
    session.close()
    theirs.close()


def heartbeats(theirs: socket.socket, seconds: float) -> list[Frame]:
    decoder, found, until = Decoder(), list[Frame](), time.monotonic() + seconds
    while time.monotonic() < until:
        gevent.sleep(0.01)
        try:
            found += decoder.feed(theirs.recv(1 << 20))
        except BlockingIOError:
            continue
    return [frame for frame in found if frame.code == Request.HEART_BEAT]


def groups(frame: Frame) -> set[str]:
    return {one["groupName"] for one in msgspec.json.decode(frame.body)["consumerDataSet"]}


def test_many_who_come_at_once_are_shown_by_one_heartbeat(ends: tuple[Session, socket.socket]) -> None:
    session, theirs = ends
    readers: list[Any] = [Reader(number) for number in range(200)]
    for reader in readers:
        session.attach(reader)
        gevent.sleep(0)
    (beat,) = heartbeats(theirs, SHOWN + 0.5)
    assert groups(beat) == {f"g{number}" for number in range(200)}


def test_who_joins_a_group_need_not_name_those_of_others(ends: tuple[Session, socket.socket]) -> None:
    session, _ = ends
    readers: list[Any] = [Reader(1), Reader(2, "shared"), Reader(3, "shared")]
    for reader in readers:
        session.attach(reader)
    said = msgspec.json.decode(session.heartbeat_of("shared"))
    (consumer,) = said["consumerDataSet"]
    assert consumer["groupName"] == "shared"
    assert {one["topic"] for one in consumer["subscriptionDataSet"]} == {"t2", "t3", "%RETRY%shared"}

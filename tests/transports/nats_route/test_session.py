"""A session on routes that only write down what is said: whose loss it wants to know of, and what it does in the hub's place."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from framework.transports.nats import wire
from framework.transports.nats.route_wire import Routed, RouteDecoder
from framework.transports.nats_route.door import Door
from framework.transports.nats_route.route import Route
from framework.transports.nats_route.session import RouteSession

INBOX = b"_R_.peer.1"


class Paper:
    """A route."""

    server, error, proven = "n1", None, 0.0

    def __init__(self) -> None:
        self.said: list[bytes] = []
        self.pings: list[Callable[[bool], None]] = []
        self.stashed: list[Any] = []

    def say(self, data: bytes) -> None:
        self.said.append(data)

    def ping(self, then: Any = None, *, proves: bool = False) -> None:
        self.pings.append(then)

    def say_in_its_place(self, data: bytes, now: float, then: Any) -> None:
        self.said.append(data)
        self.pings.append(then)


class Owner:
    """Whoever subscribes: it has something to say once, and is told what became of it."""

    def __init__(self, acks: int = 0, naks: int = 0) -> None:
        self.acks, self.naks, self.owner = acks, naks, self
        self.heard: list[bytes] = []
        self.ends: list[str] = []

    def turn(self) -> None: ...

    def collect(self) -> tuple[bytes, Any]:
        return b"data", self

    def keep(self, heard: list[wire.Msg], now: float, expired: object) -> tuple[bytes, Any]:
        self.heard += [one.body for one in heard]
        return b"touch", None

    def resumed(self) -> None:
        self.ends.append("resumed")

    def sent(self) -> None:
        self.ends.append("sent")

    def lost(self, *_: object) -> None:
        self.ends.append("lost")


@pytest.fixture
def open_one() -> Iterator[Callable[[Owner], tuple[RouteSession, Paper]]]:
    made: list[RouteSession] = []

    def start(owner: Owner) -> tuple[RouteSession, Paper]:
        paper = Paper()
        peer: Any = SimpleNamespace(
            node="n1", account=b"$G", servers=[paper], leader=lambda _: paper, enlist=lambda _: INBOX, strike=lambda _: None,
            wants_to_turn=lambda _: None, call_soon=lambda work, *more: work(*more),
        )  # fmt: skip
        made.append(RouteSession(peer, b"$JS.API.CONSUMER.MSG.NEXT.s.c"))
        made[-1].sid(owner)
        return made[-1], paper

    yield start
    for one in made:
        one.close()


@pytest.mark.parametrize(("acks", "naks"), [(1, 0), (0, 1), (2, 3)])
@pytest.mark.parametrize("read", [True, False])
def test_what_settles_is_counted_when_the_server_has_read_it_and_is_lost_when_it_is_gone(
    acks: int, naks: int, read: bool, open_one: Any
) -> None:
    owner = Owner(acks, naks)
    session, paper = open_one(owner)
    session.wants_to_speak(owner)
    session.turn()
    assert (paper.said, len(paper.pings), owner.ends) == ([b"data"], 1, [])
    paper.pings[0](read)
    assert owner.ends == ["sent" if read else "lost"]


def test_nobody_waits_for_what_settles_nothing(open_one: Any) -> None:
    owner = Owner()
    session, paper = open_one(owner)
    session.wants_to_speak(owner)
    session.turn()
    assert (paper.said, paper.pings, owner.ends) == ([b"data"], [], ["sent"])


def test_a_proof_is_asked_for_once(open_one: Any) -> None:
    owner = Owner()
    session, paper = open_one(owner)
    asked = []
    for proves in (True, False, False, True):
        if proves:
            session.prove()
        session.wants_to_speak(owner)
        session.turn()
        asked.append(len(paper.pings))
    assert asked == [1, 1, 1, 2]


def test_in_the_hubs_place_its_own_messages_are_kept_whatever_else_has_come(open_one: Any) -> None:
    owner = Owner()
    session, paper = open_one(owner)
    paper.stashed = [
        wire.Word.PONG,
        Routed(b"$G", INBOX + b".1", b"r", (), b"", b"ours"),
        Routed(b"$G", b"_R_.peer.2.1", b"r", (), b"", b"another's"),
        wire.Err("odd"),
    ]
    session.rescue(1.0, ())
    assert (owner.heard, paper.said) == ([b"ours"], [b"touch"])
    session.resumed()
    session.resumed()
    assert owner.ends == ["resumed"]


def test_whose_routes_they_are_hears_once_that_the_hub_turns_again() -> None:
    heard: list[str] = []
    owner: Any = SimpleNamespace(
        heard=lambda route, events: heard.append("events"), resumed=lambda: heard.append("resumed"),
        schedule=lambda: None, ended=lambda *_: None,
    )  # fmt: skip
    here, there = socket.socketpair()
    here.setblocking(False)
    line: Any = SimpleNamespace(
        server="n1", info=None, events=[], decoder=RouteDecoder(), release=lambda: here
    )  # fmt: skip
    route = Route(line, owner, 60.0)
    there.sendall(b"RS+ $G orders\r\n")
    route.rescue(1.0, ())
    assert heard == []
    route.rescued()
    route.rescued()
    assert heard == ["resumed", "events"]
    route.end(ConnectionError("over"))  # type: ignore[arg-type]
    there.close()


def test_who_listens_nowhere_names_no_port() -> None:
    nowhere = Door("", lambda *_: None)
    assert nowhere.address[1] == 0
    somewhere = Door("127.0.0.1:0", lambda *_: None)
    assert somewhere.address[1] > 0
    somewhere.open()
    gevent.sleep(0)
    for door in (nowhere, somewhere):
        door.close()

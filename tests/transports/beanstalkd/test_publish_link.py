"""One publishing connection whose server does not answer: each publisher waits for as long as it said, and is told what is so."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gevent
import pytest

from framework.errors import BrokerUnreachable, PublishError
from framework.transports.beanstalkd import publish_link, wire
from framework.transports.beanstalkd.hub_socket import HubSocket
from framework.transports.beanstalkd.publish_link import PublishLink
from framework.transports.publish_link import NotStored

LONG = 60.0


class Slow:
    """A server that answers as many puts as it was told to, and what else it is asked."""

    def __init__(self) -> None:
        self.answers = 0
        self.sock: Any = None

    def __call__(self, sock: Any) -> None:
        self.sock = sock
        stream = sock.makefile("rb")
        while line := stream.readline():
            if line.startswith(b"put "):
                stream.read(int(line.split()[4]) + 2)
                if not self.answers:
                    continue
                self.answers -= 1
                sock.sendall(b"INSERTED 1\r\n")
            else:
                sock.sendall(b"USING orders\r\n")


@pytest.fixture
def server() -> Slow:
    return Slow()


@pytest.fixture
def link(server: Slow, listening: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> PublishLink:
    """Its regular look is a minute away: what is found out before is looked for."""
    monkeypatch.setattr(publish_link, "_TICK", LONG)
    return PublishLink.to(listening(server), timeout=5)


def put(link: PublishLink, seconds: float, body: bytes = b"x") -> Any:
    """A publisher in a greenlet."""
    return gevent.spawn(link.ask, ("orders", wire.put(body)), time.monotonic() + seconds)


def test_each_publisher_waits_for_as_long_as_it_said_whoever_else_waits(link: PublishLink, monkeypatch: Any) -> None:
    monkeypatch.setattr(publish_link, "_DOUBT", LONG)
    first, last, between = put(link, 0.1), put(link, 0.5), put(link, 0.3)
    with gevent.Timeout(20):
        for one, others in ((first, 2), (between, 1), (last, 0)):
            answer = one.get()
            assert (type(answer), answer.stored) == (PublishError, None)
            assert "gave no answer for 0." in str(answer)
            assert sum(not each.ready() for each in (first, last, between)) == others
    assert link.error is None
    with gevent.Timeout(20):  # a look that is over keeps off no other
        assert put(link, 0.1).get().stored is None
    link.close()


def test_an_answer_that_comes_too_late_is_nobody_elses(link: PublishLink, server: Slow, monkeypatch: Any) -> None:
    monkeypatch.setattr(publish_link, "_DOUBT", LONG)
    assert put(link, 0.1).get(timeout=20).stored is None
    waiting = put(link, LONG)
    gevent.sleep(0.01)
    server.sock.sendall(b"OUT_OF_MEMORY\r\n")
    gevent.sleep(0.05)
    assert not waiting.ready()
    server.sock.sendall(b"INSERTED 2\r\n")
    assert waiting.get(timeout=20) is None


def test_one_that_is_silent_while_nobody_waits_any_more_is_left(link: PublishLink, monkeypatch: Any) -> None:
    monkeypatch.setattr(publish_link, "_DOUBT", 0.1)
    told: list[int] = []
    link.silent = lambda: told.append(1)
    assert link.usable()
    answer = put(link, 0.2).get(timeout=20)
    assert (type(answer), answer.stored) == (PublishError, None)
    assert "gave no answer for 0." in str(link.error)
    assert told == [1]
    assert not link.usable()
    assert isinstance(put(link, 5.0).get(timeout=20), NotStored)


def test_while_one_still_waits_a_silent_one_is_doubted_and_trusted_again_with_its_next_word(
    link: PublishLink, server: Slow, monkeypatch: Any
) -> None:
    monkeypatch.setattr(publish_link, "_DOUBT", 0.1)
    first, last = put(link, 0.2), put(link, LONG)
    assert first.get(timeout=20).stored is None
    assert link.error is None
    assert not link.usable()
    server.sock.sendall(b"INSERTED 1\r\nINSERTED 2\r\n")
    assert last.get(timeout=20) is None
    assert link.usable()
    link.close()


def test_what_the_socket_has_not_taken_when_its_publisher_is_told_is_never_sent(link: PublishLink, monkeypatch: Any) -> None:
    """It is not stored for certain then, although another still waits."""
    monkeypatch.setattr(publish_link, "_DOUBT", 0.1)
    monkeypatch.setattr(HubSocket, "send", lambda *_: None)
    first, last = put(link, 0.2), put(link, LONG)
    for one in (first, last):
        assert isinstance(one.get(timeout=20), NotStored)
    assert isinstance(link.error, BrokerUnreachable)


def test_closed_while_some_wait_it_tells_them_once(link: PublishLink) -> None:
    waiting = put(link, LONG)
    gevent.sleep(0.01)
    for _ in range(2):
        link.close()
    answer = waiting.get(timeout=20)
    assert (type(answer), answer.stored) == (PublishError, None)
    assert "the producer was closed" in str(answer)

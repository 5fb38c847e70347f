"""After nsqd has refused to settle a message its count of what is in flight may be wrong: the connection is made anew."""

from __future__ import annotations

import gevent
import pytest

from framework.errors import BrokerUnreachable
from framework.transports.nsq import connection as module
from framework.transports.nsq import wire
from tests.transports.nsq.bad_peer import IDS, Peer, fake, greeted

__all__ = ["fake"]
pytestmark = pytest.mark.real
REFUSED = b"E_FIN_FAILED FIN %b failed ID not in flight" % IDS[1]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RENEWAL", 0.01)


class Script:
    """A peer that refuses, and writes down what it is told."""

    def __init__(self, *messages: bytes) -> None:
        self._messages = messages
        self.lines: list[bytes] = []

    def __call__(self, peer: Peer) -> None:
        if self._messages:
            peer.messages(*self._messages)
        peer.refuse(REFUSED)
        while line := peer.line():
            self.lines.append(line)
            if line == wire.CLS:
                peer.respond(wire.CLOSE_WAIT)


def test_it_ends_as_soon_as_nothing_is_in_flight(fake, subscribe, tools):
    script, receiver = Script(IDS[0]), tools.Recorder()
    connection = subscribe(fake(greeted(script)), receiver)
    connection.grant(1)
    [message] = tools.until(lambda: receiver.messages)
    tools.until(lambda: receiver.losses)
    gevent.sleep(0.05)
    assert (wire.CLS in script.lines, receiver.ends) == (False, [])
    connection.finish(message)
    [error] = tools.until(lambda: receiver.ends)
    assert isinstance(error, BrokerUnreachable)
    assert "subscribing anew" in str(error)
    tools.until(lambda: script.lines[-1:] == [wire.CLS])


def test_one_that_is_drained_anyway_is_left_to_whoever_drains_it(fake, subscribe, tools):
    script, receiver = Script(), tools.Recorder()
    receiver.lost = lambda connection, *_, **__: connection.drain()
    subscribe(fake(greeted(script)), receiver)
    tools.until(lambda: receiver.drained_calls)
    gevent.sleep(0.05)
    assert (script.lines, receiver.drained_calls, receiver.ends) == ([wire.rdy(0), wire.CLS], 1, [])

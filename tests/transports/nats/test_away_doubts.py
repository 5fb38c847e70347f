"""A connection to JetStream whose socket broke: nothing is settled before it is known which stream and consumer are there now."""

from __future__ import annotations

import time
from contextlib import suppress

import gevent.event

from framework.errors import AlreadySettled

from .conftest import until
from .holding import BOTH, holding


@BOTH
def test_what_runs_is_not_settled_at_a_stream_that_was_made_anew(make_kit, version):
    """Its sequences begin at 1 again: an old ACK would settle a new message that somebody else handles."""
    kit = make_kit("", version=version)
    held = holding(kit, kit.open(), 3)
    made_anew, dial = gevent.event.Event(), held.connection._renew
    held.connection._renew = lambda: made_anew.wait() and dial()
    kit.server.stop()
    until(lambda: held.connection._away is not None)
    (kit.server.data / "jetstream").rename(kit.server.data / "elsewhere")
    kit.server.start()
    transport = kit.open("?ack_wait=5s")  # 2.9 may take one for delivered that it has not sent
    rival = holding(kit, transport, 3)
    held.connection.finish(held.taken[0])
    made_anew.set()
    until(lambda: held.receiver.closings == 1)
    assert (held.tally.lease_lost, held.tally.finished) == (3, 0)
    rival.connection.close()
    again = kit.hold(transport, grant=10)
    until(lambda: len(again.taken) == 3)


def test_what_is_settled_is_said_when_the_consumer_has_been_seen_again_and_not_after_its_lease(kit, monkeypatch):
    held = holding(kit, kit.open("?ack_wait=2s"), 2)
    held.connection._changes.doubt_consumer()
    held.connection.finish(held.taken[0])
    until(lambda: held.tally.finished == 1)
    monkeypatch.setattr(type(held.connection._changes), "look_when_due", lambda self, now: None)
    held.connection._changes.doubt_consumer()
    held.connection.finish(held.taken[1])
    until(lambda: held.receiver.closings == 1, 5.0)
    assert (held.tally.finished, held.tally.lease_lost) == (1, 1)


def test_a_lease_ends_while_nobody_says_which_consumer_is_there_however_often_it_is_touched(kit, monkeypatch):
    """A touch waits then, and an answer to a PING says nothing of it."""
    held = holding(kit, kit.open("?ack_wait=2s"), 1)
    monkeypatch.setattr(type(held.connection._changes), "look_when_due", lambda self, now: None)
    held.connection._changes.doubt_consumer()
    began = time.monotonic()
    while not held.receiver.lost_messages and time.monotonic() - began < 4.0:
        with suppress(AlreadySettled):
            held.connection.touch(held.taken[0])
        held.connection._session.ping()
        gevent.sleep(0.1)
    assert held.tally.lease_lost == 1
    assert time.monotonic() - began < 2.5


def test_a_lease_goes_on_from_when_the_consumer_has_been_seen_again(kit):
    held = holding(kit, kit.open("?ack_wait=2s"), 1)
    gevent.sleep(1.0)
    held.connection._changes.doubt_consumer()
    held.connection.touch(held.taken[0])
    until(lambda: held.connection._changes.sure)
    gevent.sleep(1.5)
    held.connection.finish(held.taken[0])
    until(lambda: held.tally.finished == 1)
    assert held.tally.lease_lost == 0


def test_nothing_more_is_asked_for_while_what_is_handled_cannot_be_settled(kit, monkeypatch):
    """All of it would be in flight for the server, whatever was granted, and come again: 2,108 of 8,340 messages did."""
    held = holding(kit, kit.open("?ack_wait=20s"), 2)
    with monkeypatch.context() as patch:
        patch.setattr(type(held.connection._changes), "look_when_due", lambda self, now: None)
        kit.server.stop()
        until(lambda: held.connection._away is not None)
        kit.server.start()
        until(lambda: held.connection._away is None)
        for message in list(held.taken):
            held.connection.finish(message)
        kit.producer(kit.open()).publish("orders", [b"%d" % n for n in range(5)])
        gevent.sleep(1.0)
        assert (len(held.taken), held.connection.exposed, held.tally.finished) == (2, 2, 0)
    held.connection._changes.suspect()
    until(lambda: len(held.taken) == 4)
    assert held.tally.finished == 2

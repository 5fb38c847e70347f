"""A server that comes back with an older store gives the numbers of what it has delivered to other messages."""

from __future__ import annotations

import shutil

import gevent.event
import pytest

from framework.errors import BrokerUnreachable

from .conftest import until
from .holding import BOTH, holding, left


def finished(kit, count):
    """So many messages are handled and forgotten by a work queue."""
    first = holding(kit, kit.open("?retention=workqueue"), count)
    for message in first.taken:
        first.connection.finish(message)
    until(lambda: left(kit, kit.open()) == 0)
    first.connection.close()
    until(lambda: first.receiver.closings)


def copied(kit):
    """The store as it is now."""
    kit.server.stop()
    shutil.copytree(kit.server.data / "jetstream", kit.server.data / "backup")
    kit.server.start()


def put_back(kit):
    kit.server.stop()
    shutil.rmtree(kit.server.data / "jetstream")
    (kit.server.data / "backup").rename(kit.server.data / "jetstream")
    kit.server.start()


@BOTH
@pytest.mark.parametrize("state", ["running", "finished", "given back"])
def test_what_was_delivered_from_a_newer_store_is_not_settled_at_an_older_one(make_kit, version, state):
    """As from a backup, or after a power cut: the consumer is the one that it was, and the numbers are those of new messages."""
    kit = make_kit("", version=version)
    first = holding(kit, kit.open(), 2)
    for message in first.taken:
        first.connection.finish(message)
    until(lambda: left(kit, kit.open()) == 0)
    first.connection.close()
    until(lambda: first.receiver.closings)
    kit.server.stop()
    shutil.copytree(kit.server.data / "jetstream", kit.server.data / "backup")
    kit.server.start()
    held = holding(kit, kit.open(), 3)
    back, dial = gevent.event.Event(), held.connection._renew
    held.connection._renew = lambda: back.wait() and dial()
    if state == "given back":
        for message in held.taken:
            held.connection.requeue(message, 60.0)
        held.connection._session.end(BrokerUnreachable("it broke"))
    kit.server.stop()
    until(lambda: held.connection._away is not None)
    shutil.rmtree(kit.server.data / "jetstream")
    (kit.server.data / "backup").rename(kit.server.data / "jetstream")
    kit.server.start()
    rival = holding(kit, kit.open(), 3)
    for message in held.taken:
        if state == "finished":
            held.connection.finish(message)
    back.set()
    until(lambda: held.receiver.closings == 1)
    assert (held.tally.lease_lost, held.tally.finished) == (3, 0)
    assert [message.id for message in rival.taken] == [message.id for message in held.taken]
    rival.connection.close()
    again = kit.hold(kit.open(), grant=10)
    until(lambda: len(again.taken) == 3)


def test_what_a_stream_has_dropped_meanwhile_keeps_nobody_from_settling_the_rest(kit):
    transport = kit.open()
    held = holding(kit, transport, 3)
    back, dial = gevent.event.Event(), held.connection._renew
    held.connection._renew = lambda: back.wait() and dial()
    held.connection._session.end(BrokerUnreachable("it broke"))
    kit.session.ask(b"$JS.API.STREAM.MSG.DELETE.orders", b'{"seq": 3}', 5.0)
    kit.session.ask(b"$JS.API.STREAM.PURGE.orders", b'{"seq": 2}', 5.0)
    back.set()
    for message in held.taken:
        held.connection.finish(message)
    until(lambda: held.tally.finished == 3)
    until(lambda: left(kit, transport) == 0)
    assert (held.tally.lease_lost, held.receiver.closings) == (0, 0)


def test_what_a_work_queue_has_forgotten_since_it_was_handled_keeps_nobody_from_settling_the_rest(kit, monkeypatch):
    transport = kit.open("?retention=workqueue")
    held = holding(kit, transport, 30)
    monkeypatch.setattr(held.connection._session, "_ponged", lambda: None)
    for message in held.taken[2:]:
        held.connection.finish(message)
    until(lambda: kit.api.consumer("orders", "billing").num_ack_pending == 2)
    held.connection._session.end(BrokerUnreachable("it broke"))
    assert held.tally.finished == 0
    for message in held.taken[:2]:
        held.connection.finish(message)
    until(lambda: held.tally.finished == 30)
    assert (held.tally.lease_lost, held.receiver.closings) == (0, 0)
    until(lambda: left(kit, transport) == 0)


@BOTH
def test_an_older_store_is_known_by_any_number_that_it_has_given_to_another_message(make_kit, version):
    """Others have settled the newest ones by now: a work queue has forgotten these, and they tell nothing."""
    kit = make_kit("", version=version)
    finished(kit, 2)
    copied(kit)
    held = holding(kit, kit.open("?retention=workqueue"), 20)
    back, dial = gevent.event.Event(), held.connection._renew
    held.connection._renew = lambda: back.wait() and dial()
    put_back(kit)
    until(lambda: held.connection._away is not None)
    rival = holding(kit, kit.open("?retention=workqueue"), 20)
    for message in rival.taken[3:]:
        rival.connection.finish(message)
    until(lambda: left(kit, kit.open()) == 3)
    for message in held.taken[::2]:
        held.connection.finish(message)
    back.set()
    until(lambda: held.receiver.closings == 1)
    assert (held.tally.lease_lost, held.tally.finished) == (20, 0)
    assert left(kit, kit.open()) == 3
    assert [message.id for message in rival.taken[:3]] == [message.id for message in held.taken[:3]]

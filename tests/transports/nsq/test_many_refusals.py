"""Thousands of refusals at once, as after a pause of the process: what they cost the hub."""

from __future__ import annotations

from framework.transports.nsq import wire
from tests.transports.nsq.bad_peer import Peer, fake, greeted, stay

__all__ = ["fake"]


def test_many_refused_touches_are_not_each_looked_for_among_all(fake, subscribe, tools):
    """After a pause thousands are refused at once, and a look at all for each keeps the hub until the next leases are over."""
    ids = [b"%016d" % n for n in range(2000)]
    refusals = [wire.encode_frame(wire.FRAME_ERROR, b"E_TOUCH_FAILED TOUCH %b failed ID not in flight" % one) for one in ids]

    def refuse(peer: Peer) -> None:
        peer.messages(*ids, *ids[:2])
        assert peer.line().startswith(b"TOUCH")
        peer.sock.sendall(b"".join(refusals[::-1]))
        stay(peer)

    class Counted(dict):
        looks = 0

        def __iter__(self):
            Counted.looks += 1
            return super().__iter__()

    receiver = tools.Recorder()
    connection = subscribe(fake(greeted(refuse)), receiver)
    connection.grant(2500)
    tools.until(lambda: len(receiver.messages) == 2002)
    connection.in_flight = Counted(connection.in_flight)
    connection.touch(receiver.messages[5])
    tools.until(lambda: len(connection.in_flight) == 2)
    assert list(connection.in_flight) == receiver.messages[2000:], "of two deliveries the older is meant"
    assert receiver.tally.lease_lost == 2000
    assert Counted.looks < 20, "one for each read, and the two of this test"

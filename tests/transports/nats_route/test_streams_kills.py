"""The server that leads is killed while it is told what was handled: nothing is lost, and only what was in flight comes twice."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import gevent
import pytest

from framework.message import Message
from framework.testing import servers

from .conftest import peer_of, until
from .streams import Streams, end
from .workers import Worker

pytestmark = [pytest.mark.real, pytest.mark.slow]
COUNT = 3000
ASKED = b"$JS.API.CONSUMER.MSG.NEXT.orders.billing"


@pytest.mark.timeout(300)
def test_a_leader_that_is_killed_before_it_has_read_what_was_settled_costs_nothing_but_what_was_in_flight(tmp_path: Path):
    """It stands still first, so that ACKs are on the wire and nobody reads them. Both leaders, that of the consumer first."""
    made = Streams(tmp_path)
    with ExitStack() as stack:
        for server in made.servers:
            stack.enter_context(servers.running(server))
        stack.callback(made.close)
        transport, seen = made.open("&ack_wait=60s"), Counter[bytes]()
        until(lambda: transport.describe("any", "billing"))  # a new cluster has its first leader

        def handle(message: Message) -> None:
            gevent.sleep(0.005)
            seen[message.body] += 1

        worker = Worker(transport, handle, concurrency=20)
        worker.transport.producer().publish_each("orders", [b"%d" % number for number in range(COUNT)], timeout=60.0)
        sessions, in_flight = peer_of(transport).sessions, 0
        for share, leads in enumerate((lambda: sessions.leader(ASKED), lambda: next(iter(sessions.takers(b"orders")), None)), 1):
            until(lambda share=share: len(seen) > share * COUNT // 4, 60.0)
            name = until(leads).info.server_name
            doomed = next(one for one in made.servers if name == f"test-{one.tcp_port}")
            doomed.freeze()
            before = seen.total()
            until(lambda before=before: seen.total() > before + 20, 60.0)  # or the next leader brings them
            in_flight += worker.ledger.received - worker.ledger.finished
            doomed.kill()
            doomed.start()
        until(lambda: len(seen) == COUNT, 60.0)
        # what was in flight may come again as late as its lease ends
        until(lambda: transport.backlog("orders", "billing") == {peer_of(transport).node: 0}, 90.0)
        doubles = seen.total() - COUNT
        books = worker.stop()
        print(f"in flight {in_flight}, twice {doubles}, {books}")
        assert 40 <= in_flight
        assert doubles <= in_flight
        assert books.lost == 0
        assert books.finished == seen.total() - books.lease_lost


def test_what_the_next_leader_was_not_told_does_not_count_as_finished_when_the_last_one_goes_on(tmp_path: Path):
    """It stands still, another is elected, and what it has not read is nothing to it by then; yet it answers a PING."""
    made = Streams(tmp_path)
    with ExitStack() as stack:
        for server in made.servers:
            stack.enter_context(servers.running(server))
        stack.callback(made.close)
        transport = made.open("&ack_wait=60s")
        until(lambda: transport.describe("any", "billing"))
        transport.producer().publish("orders", [b"%d" % number for number in range(4)])
        held = made.hold(transport, "orders")
        until(lambda: len(held.taken) == 4)
        sessions = peer_of(transport).sessions
        frozen = next(one for one in made.servers if sessions.leader(ASKED).info.server_name == f"test-{one.tcp_port}")
        frozen.freeze()
        for message in held.taken:
            held.connection.finish(message)
        until(lambda: (now := sessions.leader(ASKED)) and now.info.server_name != f"test-{frozen.tcp_port}", 60.0)
        frozen.thaw()
        until(lambda: held.tally.finished == 4, 30.0)
        until(lambda: transport.backlog("orders", "billing") == {peer_of(transport).node: 0}, 10.0)
        assert (held.tally.lease_lost, held.receiver.closings, len(held.taken)) == (0, 0, 4)
        end(held)

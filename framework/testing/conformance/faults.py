"""Faults: the broker ends and comes back, and the network between is cut, slow, in pieces or silent. Nothing is lost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

import gevent
import pytest
from gevent.event import Event

from framework.errors import BrokerUnreachable, PublishError
from framework.message import Message
from framework.publisher import Publisher
from framework.testing.conformance.bench import Bench, Cases, Target, Worker, bodies
from framework.testing.conformance.subject import Subject
from framework.testing.proxies import Lanes, Proxies

IN_FLIGHT = 40
NOTICED = 10
"""Seconds within which a broker, too, notices that a connection is dead."""


class Faults(Cases):
    """What can happen to a broker and to the way there."""

    # -- the broker

    def test_a_broker_that_ends_in_the_middle_and_comes_back_loses_none(self, bench: Bench) -> None:
        seen, worker = _busy(bench, on=bench.brief)
        bench.until(lambda: len(seen) > 60)
        bench.down(bench.brief)
        bench.until(lambda: not any(connection.in_flight for connection in worker.connections))
        assert len(seen) < 600
        bench.up(bench.brief)
        # how many of them twice is the broker's to say: it may have forgotten that they were finished
        _all_handled(bench, seen, worker)

    def test_a_broker_that_was_away_is_used_again(self, bench: Bench) -> None:
        seen: list[bytes] = []
        worker = bench.ready(lambda message: seen.append(message.body))
        bench.down(bench.node)
        gevent.sleep(0.1)
        bench.up(bench.node)
        bench.publish(*bodies(10))
        bench.until(lambda: worker.ledger.finished == 10)
        assert sorted(seen) == sorted(bodies(10))

    def test_what_was_confirmed_is_there_when_the_broker_has_come_back(self, bench: Bench) -> None:
        bench.publish(*bodies(500))
        bench.down(bench.node)
        bench.up(bench.node)
        seen: set[bytes] = set()
        worker = bench.work(lambda message: seen.add(message.body))
        bench.until(lambda: seen == set(bodies(500)))
        bench.until(lambda: worker.ledger.finished >= 500)

    def test_a_node_that_is_down_does_not_pause_the_other(self, bench: Bench) -> None:
        nodes, seen = [bench.node, bench.other()], list[bytes]()
        worker = bench.ready(lambda message: seen.append(message.body), on=nodes)
        bench.down(nodes[0])
        bench.publish(*bodies(50), on=nodes[1])
        bench.until(lambda: len(seen) == 50)
        bench.up(nodes[0])
        bench.publish(*bodies(50, "later"), on=nodes[0])
        bench.until(lambda: worker.ledger.finished == 100)

    def test_a_broker_that_is_not_up_yet_is_waited_for(self, bench: Bench) -> None:
        proxy, url = bench.proxy(bench.node)
        proxy.refuse()
        bench.publish(b"x")
        worker = bench.work(lambda message: None, on=url)
        bench.stays(lambda: not worker.greenlet.dead and not worker.ready, 0.3)
        proxy.restore()
        bench.until(lambda: worker.ledger.finished == 1)

    def test_a_broker_that_never_answers_ends_the_worker_at_its_deadline(self, bench: Bench) -> None:
        proxy, url = bench.proxy(bench.node)
        proxy.refuse()
        worker = bench.work(lambda message: None, on=url, settings={"connect_deadline": 0.3})
        worker.greenlet.join(timeout=20)
        with pytest.raises(BrokerUnreachable, match="check its URL"):
            worker.greenlet.get(block=False)
        worker.check_books()
        bench.workers.remove(worker)  # its end was no accident

    # -- the network

    def test_a_connection_cut_in_the_middle_loses_none(self, bench: Bench) -> None:
        url, cut = _cuttable(bench)
        seen, worker = _busy(bench, on=url)
        bench.until(lambda: len(seen) > 100)
        assert cut() != 0, "there was nothing to cut"
        _all_handled_once_but_for_those_in_flight(bench, seen, worker, cuts=1)

    def test_connections_cut_again_and_again_lose_none(self, bench: Bench) -> None:
        url, cut = _cuttable(bench)
        seen, worker = _busy(bench, on=url)
        for number in range(1, 6):
            bench.until(lambda number=number: len(seen) > number * 80)  # type: ignore[misc]
            cut()
        _all_handled_once_but_for_those_in_flight(bench, seen, worker, cuts=5)

    def test_cuts_in_the_middle_of_what_the_broker_sends_lose_none(self, bench: Bench) -> None:
        proxy, url = bench.proxy(bench.brief)
        seen, worker = _busy(bench, on=url)
        _cut_while_busy(bench, proxy, proxy.to_client, seen, [1, 37, 1001])
        _all_handled_once_but_for_those_in_flight(bench, seen, worker, cuts=3)

    def test_cuts_in_the_middle_of_what_the_worker_sends_lose_none(self, bench: Bench) -> None:
        proxy, url = bench.proxy(bench.brief)
        seen, worker = _busy(bench, on=url)
        _cut_while_busy(bench, proxy, proxy.to_server, seen, [1, 13, 301])
        _all_handled_once_but_for_those_in_flight(bench, seen, worker, cuts=3)

    def test_a_cut_during_the_handshake_is_only_another_attempt(self, bench: Bench) -> None:
        proxy, url = bench.proxy(bench.node)
        proxy.to_client.cut_after(2)
        worker = bench.ready(lambda message: None, on=url)
        bench.publish(b"x")
        bench.until(lambda: worker.ledger.finished == 1)

    def test_a_slow_network_only_takes_longer(self, bench: Bench) -> None:
        proxy, url = bench.proxy(bench.node)
        proxy.delay(0.01)
        seen: Counter[bytes] = Counter()
        worker = bench.work(lambda message: seen.update([message.body]), on=url)
        bench.publish(*bodies(50))
        bench.until(lambda: worker.ledger.finished == 50)
        bench.publisher(url).publish(bench.topic, b"there and back")
        bench.until(lambda: worker.ledger.finished == 51)
        assert worker.stop().lease_lost == 0

    def test_a_network_that_brings_a_byte_at_a_time_changes_nothing(self, bench: Bench) -> None:
        proxy, url = bench.proxy(bench.node)
        proxy.trickle()
        seen: list[bytes] = []
        worker = bench.work(lambda message: seen.append(message.body), on=url)
        sent = [bytes(range(256)), b"\r\n" * 10, *bodies(20)]
        publisher = bench.publisher(url)
        for body in sent:
            publisher.publish(bench.topic, body)
        bench.until(lambda: worker.ledger.finished == len(sent))
        assert sorted(seen) == sorted(sent)

    @pytest.mark.slow
    def test_a_connection_whose_peer_fell_silent_is_given_up_and_made_anew(self, bench: Bench, subject: Subject) -> None:
        if not subject.silence:
            pytest.skip("this broker says nothing of silence")
        proxy, url = bench.proxy(bench.brief, watchful=True)
        worker = bench.ready(lambda message: None, on=url)
        proxy.swallow()
        began = time.monotonic()
        bench.until(lambda: not any(connection.granted for connection in worker.connections))
        assert time.monotonic() - began < subject.silence + 10
        proxy.restore()
        if bench.capabilities.stores:
            bench.publish(b"x", on=bench.brief)
            bench.until(lambda: worker.ledger.finished == 1)
            return
        # Until the broker has noticed as well, it may send a message where nobody reads any more, and nobody keeps it.
        for _ in range(NOTICED * 5):
            bench.publish(b"x", on=bench.brief)
            gevent.sleep(0.2)
            if worker.ledger.finished:
                break
        bench.until(lambda: worker.ledger.finished >= 1)

    # -- publishing meanwhile

    def test_a_full_broker_refuses_what_it_cannot_store_and_goes_on_with_what_it_has(
        self, bench: Bench, subject: Subject
    ) -> None:
        if not subject.fills:
            pytest.skip("this broker is never full, as far as the suite can make it")
        node, gate, seen = bench.other(), Event(), list[bytes]()

        def handle(message: Message) -> None:
            gate.wait()
            seen.append(message.body)

        worker = bench.ready(handle, on=node, concurrency=20)
        bench.publish(*bodies(20), on=node)
        bench.until(lambda: worker.ledger.received == 20)
        publisher = bench.publisher(node)
        node.full(True)
        try:
            with pytest.raises(PublishError):
                publisher.publish(bench.topic, b"too much")
            gate.set()
            bench.until(lambda: worker.ledger.finished == 20)
        finally:
            node.full(False)
        bench.until(lambda: _taken(publisher, bench.topic, b"there is room"))
        bench.until(lambda: worker.ledger.finished == 21)
        assert sorted(seen) == sorted([*bodies(20), b"there is room"])
        assert worker.stop().lease_lost == 0

    def test_a_publish_whose_answer_is_lost_is_not_said_to_be_refused(self, bench: Bench, subject: Subject) -> None:
        proxy, url = bench.proxy(bench.node)
        publisher = bench.publisher(url)
        publisher.publish(bench.topic, b"first")
        proxy.to_client.swallow()
        asking = gevent.spawn(publisher.publish, bench.topic, b"second")
        bench.until(lambda: bench.left() == 2)
        proxy.restore()
        asking.join(timeout=60)
        if subject.drops_doubles:
            asking.get(block=False)
            assert bench.left() == 2
            return
        with pytest.raises(PublishError) as unknown:
            asking.get(block=False)
        assert unknown.value.stored is None

    def test_what_a_publisher_was_told_is_stored_is_there_whatever_is_cut(self, bench: Bench) -> None:
        proxy, url = bench.proxy(bench.node)
        publisher = bench.publisher(url)
        confirmed: list[bytes] = []
        unknown: list[PublishError] = []

        def talk() -> None:
            for body in bodies(150):
                try:
                    publisher.publish(bench.topic, body)
                    confirmed.append(body)
                except PublishError as error:
                    unknown.append(error)
                gevent.sleep(0.001)

        talking = gevent.spawn(talk)
        for number in (20, 50, 90):
            bench.until(lambda number=number: len(confirmed) > number or talking.dead)  # type: ignore[misc]
            proxy.cut(reset=True)
        bench.until(lambda: talking.dead)
        talking.get()
        assert len(confirmed) > 140
        assert [error for error in unknown if error.stored is not None] == []
        seen: set[bytes] = set()
        worker = bench.work(lambda message: seen.add(message.body))
        bench.until(lambda: seen >= set(confirmed))
        bench.until(lambda: worker.ledger.finished >= len(confirmed))


def _taken(publisher: Publisher, topic: str, body: bytes) -> bool:
    """A broker may look only now and then whether there is room again."""
    return publisher.publish_each(topic, [body]) == [None]


def _busy(bench: Bench, *, on: Target) -> tuple[Counter[bytes], Worker]:
    """A worker with 600 messages to handle, five milliseconds each, ten at a time; and what it has handled."""
    seen: Counter[bytes] = Counter()

    def handle(message: Message) -> None:
        gevent.sleep(0.005)
        seen[message.body] += 1

    worker = bench.ready(handle, on=on, concurrency=10, max_in_flight=IN_FLIGHT)
    bench.publish(*bodies(600), on=bench.brief)
    return seen, worker


def _all_handled(bench: Bench, seen: Counter[bytes], worker: Worker) -> None:
    bench.until(lambda: len(seen) == 600)
    bench.until(lambda: bench.left(bench.brief) == 0)
    assert set(seen) == set(bodies(600))
    ledger = worker.stop()
    assert ledger.finished + (0 if bench.subject.counts_what_was_sent else ledger.lease_lost) >= 600


def _all_handled_once_but_for_those_in_flight(bench: Bench, seen: Counter[bytes], worker: Worker, *, cuts: int) -> None:
    """A connection may outlive a cut of what it runs on."""
    _all_handled(bench, seen, worker)
    assert sum(seen.values()) <= 600 + IN_FLIGHT * max(len(worker.connections), 1 + cuts)


def _cut_while_busy(bench: Bench, proxy: Proxies, lane: Lanes, seen: Counter[bytes], counts: Sequence[int]) -> None:
    """Cut after each of ``counts`` bytes in one direction; the next one when the worker is back."""
    for number, count in enumerate(counts, 1):
        bench.until(lambda number=number: len(seen) > number * 100)  # type: ignore[misc]
        before = proxy.cuts
        lane.cut_after(count)
        bench.until(lambda before=before: proxy.cuts > before)  # type: ignore[misc]


def _cuttable(bench: Bench) -> tuple[Target, Callable[[], object]]:
    """Where to connect, and what cuts all connections there."""
    if not bench.brief.address:
        return bench.brief, bench.brief.cut
    proxy, url = bench.proxy(bench.brief)
    return url, proxy.cut

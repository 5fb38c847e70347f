"""Leases: kept as long as a call may run, and no longer; lost ones come again and are counted. On nodes with short ones."""

from __future__ import annotations

import time

import gevent
import pytest
from gevent.event import Event

from framework.engine import backoff
from framework.errors import HandlerTimeout
from framework.message import Message
from framework.testing.conformance.bench import Bench, bodies
from framework.testing.conformance.contract import Rivals
from framework.testing.conformance.subject import Subject


class Leases(Rivals):
    """What happens to a message while it is being handled."""

    @pytest.mark.slow
    def test_a_call_longer_than_two_leases_keeps_its_message_and_so_do_those_that_wait(
        self, bench: Bench, subject: Subject
    ) -> None:
        if not bench.capabilities.touch:  # asked now: it may start a node of its own, and the hub stands still meanwhile
            pytest.skip("this broker's leases cannot be prolonged")
        seen: list[bytes] = []

        def handle(message: Message) -> None:
            seen.append(message.body)
            gevent.sleep(2.2 * subject.brief)

        worker = bench.work(handle, on=bench.brief, concurrency=2)
        bench.publish(*bodies(4), on=bench.brief)
        bench.until(lambda: worker.ledger.finished == 4)
        assert sorted(seen) == sorted(bodies(4))
        assert worker.stop().lease_lost == 0

    @pytest.mark.slow
    def test_a_call_that_computes_for_longer_than_its_lease_costs_no_message_where_connections_can_be_rescued(
        self, bench: Bench, subject: Subject
    ) -> None:
        seen: list[bytes] = []

        def handle(message: Message) -> None:
            end = time.monotonic() + (0 if seen else 1.5 * subject.brief)
            seen.append(message.body)
            while time.monotonic() < end:  # the hub stands still
                pass

        worker = bench.ready(handle, on=bench.brief, concurrency=1)
        if not all(connection.rescuable for connection in worker.connections):
            pytest.skip("this broker's connections cannot be rescued")
        bench.publish(*bodies(4), on=bench.brief)
        bench.until(lambda: worker.ledger.finished == 4)
        assert sorted(seen) == sorted(bodies(4))
        assert worker.stop().lease_lost == 0

    @pytest.mark.slow
    def test_a_call_that_outlives_its_timeout_loses_its_message_which_comes_again_and_is_counted(
        self, bench: Bench, subject: Subject
    ) -> None:
        calls, over = 0, Event()

        def stubborn(message: Message) -> None:
            nonlocal calls
            calls += 1
            while calls == 1 and not over.is_set():
                try:
                    over.wait()
                except HandlerTimeout:
                    pass

        worker = bench.work(stubborn, on=bench.brief, timeout=subject.brief / 2, concurrency=2)
        bench.publish(b"x", on=bench.brief)
        bench.until(lambda: calls == 2)
        over.set()
        bench.until(lambda: worker.ledger.finished == 1)
        ledger = worker.stop()
        assert (ledger.received, ledger.finished, ledger.requeued + ledger.lease_lost) == (2, 1, 1)

    @pytest.mark.slow
    def test_leases_that_run_out_unheard_are_lost_counted_and_their_messages_come_again(
        self, bench: Bench, subject: Subject
    ) -> None:
        if not subject.ends_unheard_leases:
            pytest.skip("this broker does not promise to end a lease while it hears nothing")
        proxy, url = bench.proxy(bench.brief)
        gate, seen = Event(), []

        def handle(message: Message) -> None:
            seen.append(message.body)
            gate.wait()

        worker = bench.ready(handle, on=url, concurrency=3, max_in_flight=3)
        bench.publish(*bodies(3), on=bench.brief)
        bench.until(lambda: len(seen) == 3)
        proxy.hold()  # as a network that is gone for a while
        elsewhere: list[bytes] = []
        other = bench.work(lambda message: elsewhere.append(message.body), on=bench.brief)
        bench.until(lambda: sorted(elsewhere) == sorted(bodies(3)))
        gate.set()
        proxy.restore()
        bench.until(lambda: worker.ledger.lease_lost >= 3)
        assert other.stop().finished >= 3

    def test_a_handler_past_its_timeout_is_interrupted_and_its_message_comes_again(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(backoff, "RETRY_BASE", 0.0)
        calls: list[str] = []

        def handle(message: Message) -> None:
            if not calls:
                try:
                    Event().wait()
                except HandlerTimeout:
                    calls.append("interrupted")
                    raise
            calls.append("handled")

        worker = bench.work(handle, timeout=0.3)
        bench.publish(b"x")
        bench.until(lambda: worker.ledger.finished == 1)
        assert calls == ["interrupted", "handled"]
        assert worker.stop().requeued == 1

    def test_a_timeout_that_no_lease_can_carry_is_refused_at_start(self, bench: Bench) -> None:
        transport = bench.open()
        limits = transport.probe()[0].limits
        longest = limits.max_lease if bench.capabilities.touch else limits.lease
        assert bench.refused(bench.spec(print, timeout=longest)) == []
        if longest == float("inf"):
            return
        (words,) = bench.refused(bench.spec(print, timeout=longest + 1))
        assert f"timeout={longest + 1:g}" in words

"""Crashes: a worker process is killed, kills itself, or is told to stop, and whatever it held is handled by another."""

from __future__ import annotations

import pytest

from framework.testing.conformance.bench import Bench, Cases, bodies
from framework.testing.worker_process import MAX_ATTEMPTS, PUBLISHED


class Crashes(Cases):
    """What a process can die of."""

    @pytest.mark.slow
    def test_a_worker_killed_in_the_middle_loses_none(self, bench: Bench) -> None:
        sent = bodies(1500)
        first = bench.process(bench.brief)
        bench.publish(*sent, on=bench.brief)
        bench.until(lambda: len(first.handled()) > 150)
        first.kill()
        assert len({body for _, body in first.handled()}) < 1500
        second = bench.process(bench.brief)
        bench.until(lambda: len({body for _, body in second.handled()}) == 1500)
        assert {body for _, body in second.handled()} == set(sent)
        bench.until(lambda: bench.left(bench.brief) == 0)
        second.terminate()

    @pytest.mark.slow
    def test_a_worker_told_to_stop_in_the_middle_finishes_or_gives_back_all_and_nothing_is_handled_twice(
        self, bench: Bench
    ) -> None:
        sent = bodies(1000)
        first = bench.process(bench.node)
        bench.publish(*sent)
        bench.until(lambda: len(first.handled()) > 150)
        ledger = first.terminate()
        handled = len(first.handled())
        assert (ledger["finished"], ledger["lease_lost"]) == (handled, 0)
        assert handled < 1000
        bench.until(lambda: bench.left() == 1000 - handled)
        second = bench.process(bench.node)
        bench.until(lambda: len(second.handled()) >= 1000)
        second.terminate()
        assert sorted(body for _, body in second.handled()) == sorted(sent)

    @pytest.mark.slow
    def test_a_message_that_kills_every_worker_is_counted_and_ends_as_a_dead_letter(self, bench: Bench) -> None:
        if not bench.capabilities.attempts:
            pytest.skip("this broker does not count deliveries")
        letters = bench.dead_letters(on=bench.brief)
        bench.publish(b"killer", on=bench.brief)
        killed = 0
        while not (one := bench.process(bench.brief, "die")).survives(lambda: letters):
            killed += 1
            assert killed <= MAX_ATTEMPTS
        assert letters == [b"killer"]
        attempts = [attempts for attempts, _ in one.handled()]
        assert attempts == sorted(set(attempts))
        assert attempts[-1] <= MAX_ATTEMPTS
        assert killed == len(attempts) > 1
        assert one.terminate()["dead"] == 1

    def test_what_a_publish_returned_for_is_there_though_the_publisher_was_killed_in_that_moment(self, bench: Bench) -> None:
        publisher = bench.process(bench.node, "publish")
        bench.until(publisher.ended)
        assert len(publisher.handled()) == PUBLISHED
        seen: list[bytes] = []
        worker = bench.work(lambda message: seen.append(message.body))
        bench.until(lambda: worker.ledger.finished >= PUBLISHED)
        assert sorted(seen) == sorted(bodies(PUBLISHED))

    def test_a_worker_that_can_open_no_socket_for_a_while_goes_on_when_it_can(self, bench: Bench) -> None:
        proxy, url = bench.proxy(bench.brief)
        worker = bench.process(url, "starve")
        bench.publish(*bodies(400), on=bench.brief)
        bench.until(lambda: len(worker.handled()) > 20)
        proxy.cut()
        bench.until(lambda: len({body for _, body in worker.handled()}) == 400)
        bench.until(lambda: bench.left(bench.brief) == 0)
        worker.terminate()

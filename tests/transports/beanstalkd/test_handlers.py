"""Handlers on real beanstalkds: the same functions as on NSQ, and every job accounted for, as the server itself counts it."""

from __future__ import annotations

from collections import Counter

import pytest

from .conftest import spec, tube_stats, url

pytestmark = pytest.mark.real


def finished(count: int) -> dict[str, int]:
    return {"received": count, "finished": count, "requeued": 0, "dead": 0, "lease_lost": 0}


def test_every_job_is_handled_once_and_deleted(start_beanstalkd, run):
    server = start_beanstalkd("-F")
    seen = Counter()
    worker = run(url(server), spec(lambda message: seen.update([message.body]), max_in_flight=1000))
    bodies = [b"%d" % i for i in range(5000)]
    worker.producer.publish("orders", bodies)
    worker.until(lambda: len(seen) == 5000)
    assert worker.stop() == finished(5000)
    assert set(seen) == set(bodies)
    assert set(seen.values()) == {1}
    assert tube_stats(server) == {}  # a tube that is empty and that nobody watches is gone

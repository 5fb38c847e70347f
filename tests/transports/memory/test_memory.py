"""The memory transport under the whole engine: what is published is handled, and a fault costs a delivery, never a message."""

from __future__ import annotations


def test_what_is_published_is_handled_and_finished(run, publish):
    seen = []
    worker = run(lambda message: seen.append((message.body, message.attempts)))
    publish("orders", b"one", b"two")
    worker.until(lambda: len(seen) == 2)
    assert worker.stop() == {"received": 2, "finished": 2, "requeued": 0, "dead": 0, "lease_lost": 0}
    assert seen == [(b"one", 1), (b"two", 1)]

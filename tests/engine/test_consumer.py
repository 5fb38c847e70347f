"""The loop: what is received is dispatched, and settled by its outcome."""

from __future__ import annotations

import gevent

from framework.errors import Reject, Retry


def test_every_message_is_handled_once_and_finished(broker, run):
    seen = []
    worker = run(lambda message: seen.append(message.body))
    bodies = [b"%d" % i for i in range(1000)]
    broker.publish("orders", *bodies)
    worker.until(lambda: len(broker.finished) == 1000)
    assert seen == bodies
    assert worker.stop() == {"received": 1000, "finished": 1000, "requeued": 0, "dead": 0, "lease_lost": 0}

"""A span for each publish inside a traced piece of work, and headers by which the consumer's trace goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from uuid import uuid4

import sentry_sdk

from framework import published

ID = "messaging-message-id"
"""The header with the id of a message that is traced: the broker's own is not known to the publisher on every broker."""
ORIGIN = "auto.queue.nsq_workers"


@contextmanager
def traced(topic: str, bodies: Sequence[bytes], *, carried: bool, answers: published.Answers) -> Iterator[Mapping[str, str]]:
    """``published.Tracer``. Outside of spans, as for dead letters, it does nothing."""
    if sentry_sdk.get_current_span() is None:
        yield {}
        return
    with sentry_sdk.start_span(op="queue.publish", name=topic, origin=ORIGIN) as span:
        headers = {}
        span.set_data("messaging.destination.name", topic)
        span.set_data("messaging.message.body.size", sum(map(len, bodies)))
        if len(bodies) == 1:
            headers[ID] = uuid4().hex
            span.set_data("messaging.message.id", headers[ID])
        else:
            span.set_data("messaging.batch.message_count", len(bodies))
        if carried:
            headers |= dict(sentry_sdk.get_current_scope().iter_trace_propagation_headers())
        yield headers if carried else {}

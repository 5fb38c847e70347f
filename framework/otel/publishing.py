"""A span and metrics for each publish, and headers by which the consumer's spans lead back to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter

from opentelemetry import propagate, trace
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer

from framework import published
from framework.otel import conventions as names
from framework.otel.conventions import Attributes, Metrics
from framework.otel.options import Options


class Sending:
    """``published.Tracer``. ``outer``: another one, which is around it."""

    def __init__(self, options: Options, tracer: Tracer, metrics: Metrics, outer: published.Tracer | None) -> None:
        self._options = options
        self._tracer = tracer
        self._metrics = metrics
        self._outer = outer

    @contextmanager
    def __call__(
        self, topic: str, bodies: Sequence[bytes], *, carried: bool, answers: published.Answers
    ) -> Iterator[Mapping[str, str]]:
        if self._outer is None:
            with self._send(topic, bodies, carried=carried, answers=answers) as headers:
                yield headers
            return
        with (
            self._outer(topic, bodies, carried=carried, answers=answers) as theirs,
            self._send(topic, bodies, carried=carried, answers=answers) as ours,
        ):
            yield {**theirs, **ours}

    @contextmanager
    def _send(
        self, topic: str, bodies: Sequence[bytes], *, carried: bool, answers: published.Answers
    ) -> Iterator[Mapping[str, str]]:
        count = len(bodies)
        known = {**names.named(names.SEND, self._options.system, topic), **names.server(self._options.node)}
        more: Attributes = {names.CLIENT: names.client_id()}
        if count > 1:
            more[names.COUNT] = count
        elif self._options.sizes and bodies:
            more[names.SIZE] = len(bodies[0])
        span = self._tracer.start_span(f"{names.SEND} {topic}", kind=SpanKind.PRODUCER, attributes={**known, **more})
        headers: dict[str, str] = {}
        began = perf_counter()
        refused: BaseException | None = None
        try:
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                if carried:
                    propagate.inject(headers)
                yield headers
        except BaseException as error:
            refused = error
            raise
        finally:
            failed = [refused] * count if refused is not None else [one for one in answers if one is not None]
            self._count(known, count, failed, perf_counter() - began)
            if failed:
                span.set_attribute(names.ERROR, names.kind_of(failed[0]))
                span.set_status(Status(StatusCode.ERROR))
            span.end()

    def _count(self, known: Attributes, count: int, failed: Sequence[BaseException], seconds: float) -> None:
        how = {**known, names.ERROR: names.kind_of(failed[0])} if failed else known
        self._metrics.operation.record(seconds, how)
        if len(failed) < count:
            self._metrics.sent.add(count - len(failed), known)
        if failed:
            self._metrics.sent.add(len(failed), how)

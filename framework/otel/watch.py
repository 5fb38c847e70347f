"""What is around each call while OpenTelemetry is on: a span of its own, its link to the publish, and the metrics of the call."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from time import perf_counter, time
from typing import Any

import msgspec
from opentelemetry import propagate, trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer

from framework.errors import Skip
from framework.handler import HandlerSpec
from framework.hooks import Ending, Finished, Observer
from framework.message import Batch, Message
from framework.middleware.policy import compile_policy, is_marked
from framework.middleware.retry import describe, is_for_the_process
from framework.observe.logging import encodable, scrub
from framework.otel import conventions as names
from framework.otel import providers
from framework.otel.conventions import Attributes, Metrics
from framework.otel.options import Options

SEEN = "_otel_seen"
"""On an exception: the span of its call has it, be that in another process."""
LATE = "lease_lost"
"""``error.type`` of a call that returned when its message was this worker's no more."""
CONVERSATION = "correlation-id"
"""The header that is ``messaging.message.conversation_id``."""


class Watch(Observer):
    """That of one handler."""

    def __init__(self, spec: HandlerSpec, options: Options, tracer: Tracer, metrics: Metrics) -> None:
        self._spec = spec
        self._options = options
        self._tracer = tracer
        self._metrics = metrics
        self._means = compile_policy(spec)
        self._name = f"{names.PROCESS} {spec.topic}"
        self._known: Attributes = {
            **names.named(names.PROCESS, options.system, spec.topic),
            names.SUBSCRIPTION: spec.channel,
            names.GROUP: spec.channel,
        }

    def elsewhere(self) -> tuple[str, bytes]:
        return "framework.otel", msgspec.msgpack.encode(self._options)

    def start(self) -> None:
        """Here, and not where the providers are made: threads do not live on in a forked child."""
        providers.begin()

    # -- where the handler runs

    def around(self, job: Any, call: Any, /) -> None:
        messages = _messages_of(job)
        span, context = self._begin(messages, None)
        token = attach(trace.set_span_in_context(span, context))
        began, failed = perf_counter(), None
        try:
            call()
        except BaseException as error:
            failed = error
            raise
        finally:
            detach(token)
            self._judge(span, job, failed, perf_counter() - began)
            span.end()

    def _begin(self, messages: Sequence[Message], start: int | None) -> tuple[Span, Context]:
        """The span, and the context that it is made in: nothing of the call before, nor of what the app had around its start."""
        links, context = [], Context()
        if len(messages) == 1:
            context = _sent_with(messages[0])
        if not (self._options.parent and len(messages) == 1):
            links = [Link(one) for one in self._producers(messages)]
            context = _without_span(context)
        span = self._tracer.start_span(
            self._name, context=context, kind=SpanKind.CONSUMER, attributes=self._about(messages), links=links, start_time=start
        )
        return span, context

    def _producers(self, messages: Sequence[Message]) -> list[trace.SpanContext]:
        """Each once: a request may have stored many of the messages."""
        found = {}
        for message in messages:
            if message.headers:
                sent = trace.get_current_span(_sent_with(message)).get_span_context()
                if sent.is_valid:
                    found[sent.trace_id, sent.span_id] = sent
        return list(found.values())

    def _about(self, messages: Sequence[Message]) -> Attributes:
        first = messages[0]
        about = {**self._known, names.CLIENT: names.client_id(), **names.server(first.node)}
        if self._spec.batch:
            about[names.COUNT] = len(messages)
        else:
            about[names.MESSAGE] = encodable(first.id.decode(errors="replace"))
            if self._options.sizes:
                about[names.SIZE] = len(first.body)
            if CONVERSATION in first.headers:
                about[names.CONVERSATION] = first.headers[CONVERSATION]
        return about

    def _judge(self, span: Span, job: Any, failed: BaseException | None, seconds: float) -> None:
        messages = _messages_of(job)
        where = {**self._known, **names.server(messages[0].node)}
        with suppress(Exception):  # an app's exception may fail when it is looked at
            kind = self._kind(messages, failed)
            self._count(job, messages, kind, where, seconds)
            if kind:
                span.set_attribute(names.ERROR, kind)
                _tell(span, failed, kind)
            if failed is not None:
                setattr(failed, SEEN, True)

    def _kind(self, messages: Sequence[Message], failed: BaseException | None) -> str:
        """``error.type`` of the call; empty where it has none."""
        if failed is None:
            return LATE if all(message.lease_lost for message in messages) else ""
        return "" if isinstance(self._means(failed), Skip) else names.kind_of(failed)

    def _count(self, job: Any, messages: Sequence[Message], kind: str, where: Attributes, seconds: float) -> None:
        self._metrics.process.record(seconds, {**where, names.ERROR: kind} if kind else where)
        kinds: Counter[str] = Counter({kind: len(messages)})
        if isinstance(job, Batch) and not kind:
            for message, error in job.outcomes.items():
                if message in messages and not isinstance(self._means(error), Skip):
                    kinds[names.kind_of(error)] += 1
                    kinds[kind] -= 1
        for one, count in kinds.items():
            if count:
                self._metrics.consumed.add(count, {**where, names.ERROR: one} if one else where)

    # -- in the worker

    def missed(self, job: Any, error: BaseException, /) -> None:
        """A slot process that ended in the middle of the call, or was ended, has told nothing of it."""
        if self._spec.slots != "process" or is_marked(error, SEEN) or is_for_the_process(error):
            return
        messages = _messages_of(job)
        ran = min(max(0.0, self._spec.timeout - messages[0].seconds_left), self._spec.timeout)
        now = time()
        span, _ = self._begin(messages, int((now - ran) * 1e9))
        self._judge(span, job, error, ran)
        span.end(int(now * 1e9))


class WatchAll(Watch):
    """With spans of receiving and settling, which the engine does for many messages at once: they have no length."""

    def received(self, messages: Sequence[Message], /) -> None:
        links = [Link(one) for one in self._producers(messages)]
        self._say(names.RECEIVE, names.RECEIVE, messages[0].node, [one.id for one in messages], links)

    def ended(self, message: Message, outcome: Ending, began: float, /) -> None:
        if outcome in ("finished", "requeued", "dead"):  # else there was nothing to settle
            self._say(names.SETTLE, "requeue" if outcome == "requeued" else "finish", message.node, [message.id])

    def finished(self, run: Finished, /) -> None:
        self._say(names.SETTLE, "finish", run.node, run.ids)

    def _say(self, kind: str, operation: str, node: str, ids: Sequence[bytes], links: Sequence[Link] = ()) -> None:
        topic, channel = self._spec.topic, self._spec.channel
        about = {
            **names.named(kind, self._options.system, topic, operation), **names.server(node),
            names.SUBSCRIPTION: channel, names.GROUP: channel, names.CLIENT: names.client_id(),
        }  # fmt: skip
        if len(ids) > 1:
            about[names.COUNT] = len(ids)
        else:
            about[names.MESSAGE] = encodable(ids[0].decode(errors="replace"))
        name = f"{operation} {topic}"
        self._tracer.start_span(name, context=Context(), kind=SpanKind.CLIENT, attributes=about, links=links).end()


def _messages_of(job: Any) -> Sequence[Message]:
    if isinstance(job, Batch):
        return job.messages
    return [job] if isinstance(job, Message) else list(job)


def _sent_with(message: Message) -> Context:
    """What came in the headers of a message: the span of its publish, and baggage. Names in headers are of no case."""
    if not message.headers:
        return Context()
    return propagate.extract({name.lower(): value for name, value in message.headers.items()}, context=Context())


def _without_span(context: Context) -> Context:
    return trace.set_span_in_context(trace.INVALID_SPAN, context) if context else context


def _tell(span: Span, failed: BaseException | None, kind: str) -> None:
    """The exception as an event, without the users and passwords of URLs."""
    if failed is None:
        span.set_status(Status(StatusCode.ERROR))
        return
    words = scrub(describe(failed))
    trace_ = scrub(encodable("".join(traceback.format_exception(failed))))
    span.add_event("exception", {"exception.type": kind, "exception.message": words, "exception.stacktrace": trace_})
    span.set_status(Status(StatusCode.ERROR, words))

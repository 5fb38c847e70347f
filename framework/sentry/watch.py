"""What is around each call while Sentry is on: a scope and a trace of its own, and an event for a failure, once, by policy."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import sentry_sdk
from sentry_sdk.utils import event_from_exception

from framework.errors import Backoff, HandlerTimeout, Reject, Retry, Skip
from framework.handler import HandlerSpec
from framework.hooks import Ending, Observer
from framework.message import Batch, Message
from framework.middleware.dead_letter import dies_of_time, unanswered
from framework.middleware.outcome import UNLIMITED
from framework.middleware.policy import compile_policy, is_marked
from framework.middleware.retry import is_for_the_process, is_last
from framework.middleware.strays import is_stray
from framework.sentry.options import Options
from framework.sentry.publishing import ID, ORIGIN

OP = "queue.process"
SEEN = "_sentry_seen"
"""On an exception: it was judged where it was raised, be that another process."""
BODY = 4096
"""Characters of a body that an event carries."""


class Watch(Observer):
    """That of one handler."""

    def __init__(self, spec: HandlerSpec, options: Options) -> None:
        self._spec = spec
        self._options = options
        self._means = compile_policy(spec)
        self._limit = spec.max_attempts or UNLIMITED

    def elsewhere(self) -> tuple[str, bytes]:
        return "framework.sentry", msgspec.msgpack.encode(self._options)

    # -- where the handler runs

    def around(self, job: Any, call: Any, /) -> None:
        messages = job.messages if isinstance(job, Batch) else [job]
        failed: BaseException | None = None
        with self._scope(messages), self._trace(messages) as spans:
            try:
                call()
            except BaseException as error:
                failed = error
                for span in spans:
                    span.set_status("ok" if isinstance(error, Skip) else "internal_error")
                if not is_for_the_process(error):
                    self._judge(messages, error)
            if isinstance(job, Batch) and job.outcomes:
                self._judge_some(job)
        if failed is not None:
            raise failed

    @contextmanager
    def _scope(self, messages: Sequence[Message]) -> Any:
        """Without the breadcrumbs of the scope that it is made from: those are of the worker's start, or of nobody."""
        first = messages[0]
        with sentry_sdk.isolation_scope() as scope:
            scope.clear_breadcrumbs()
            scope.set_transaction_name(self._spec.name, source="task")
            tags = {"handler": self._spec.name, "topic": self._spec.topic, "channel": self._spec.channel}
            about: dict[str, Any] = {"node": first.node, "published": first.published.isoformat()}
            if len(messages) == 1:
                tags["id"] = first.id.decode(errors="replace")
                about["size"] = len(first.body)
            else:
                tags["messages"] = str(len(messages))
            tags["attempts"] = str(max(message.attempts for message in messages))
            scope.set_tags(tags)
            if self._options.bodies and len(messages) == 1:
                about["body"] = first.body[:BODY].decode(errors="backslashreplace")
            scope.set_context("message", about)
            yield scope

    @contextmanager
    def _trace(self, messages: Sequence[Message]) -> Any:
        headers = dict(messages[0].headers) if len(messages) == 1 else {}
        name = self._spec.name
        transaction = sentry_sdk.continue_trace(headers, op="queue.task", name=name, source="task", origin=ORIGIN)
        with (
            sentry_sdk.start_transaction(transaction),
            sentry_sdk.start_span(op=OP, name=name, origin=ORIGIN) as span,
        ):
            transaction.set_status("ok")
            span.set_status("ok")
            for key, value in self._data(messages).items():
                span.set_data(key, value)
            yield transaction, span

    def _data(self, messages: Sequence[Message]) -> dict[str, Any]:
        """Sentry's Queues module reads these; latency in milliseconds."""
        first = messages[0]
        data: dict[str, Any] = {
            "messaging.destination.name": self._spec.topic,
            "messaging.message.body.size": sum(len(message.body) for message in messages),
            "messaging.message.retry.count": max(message.attempts for message in messages) - 1,
            "messaging.message.receive.latency": max(0.0, time.time() * 1e3 - first.timestamp / 1e6),
        }
        if len(messages) == 1:
            data["messaging.message.id"] = first.headers.get(ID) or first.id.decode(errors="replace")
        else:
            data["messaging.batch.message_count"] = len(messages)
        if self._options.system:
            data["messaging.system"] = self._options.system
        return data

    # -- in the worker

    def missed(self, job: Any, error: BaseException, /) -> None:
        """The call ran out of its time, or its process died: what was raised there has been judged there."""
        if not is_marked(error, SEEN) and not is_for_the_process(error):
            messages = job.messages if isinstance(job, Batch) else [job] if isinstance(job, Message) else list(job)
            with self._scope(messages):
                self._judge(messages, error)

    def after(self, message: Message, outcome: Ending, /) -> None:
        if outcome == "dead" and message.attempts > self._limit:  # it was given up before its call, by no exception
            with self._scope([message]) as scope:
                scope.fingerprint = [self._spec.name, "no answer"]
                sentry_sdk.capture_message(unanswered(self._spec), level="error")

    # -- what is an event

    def _judge(self, messages: Sequence[Message], error: BaseException) -> None:
        with suppress(Exception):  # an app's exception may fail when it is looked at
            setattr(error, SEEN, True)
        with suppress(Exception):
            if self._is_event(messages, error):
                self._capture(error)

    def _judge_some(self, batch: Batch[Any]) -> None:
        """One event for all that fail by the same kind of exception: a batch may hold thousands."""
        kinds: dict[type, tuple[list[Message], BaseException]] = {}
        for message, error in batch.outcomes.items():
            kinds.setdefault(type(error), ([], error))[0].append(message)
        for messages, failed in kinds.values():
            with sentry_sdk.new_scope() as scope:
                scope.set_tag("messages", str(len(messages)))
                scope.set_tag("id", messages[0].id.decode(errors="replace"))
                self._judge(messages, failed)

    def _is_event(self, messages: Sequence[Message], error: BaseException) -> bool:
        """As the policies will decide: what is asked for is no failure, and what was given back is not this call's any more."""
        meant, first = self._means(error), messages[0]
        if isinstance(meant, Skip) or all(message.settled for message in messages) or is_stray(first, self._spec.timeout, error):
            return False
        if isinstance(meant, Retry) and not meant.count:
            return False
        dies_late = isinstance(meant, HandlerTimeout) and any(dies_of_time(message, self._spec) for message in messages)
        if isinstance(meant, Reject) or dies_late or any(is_last(message, self._limit) for message in messages):
            return True
        return self._options.events == "each" and not isinstance(meant, Retry | Backoff)

    def _capture(self, error: BaseException) -> None:
        """Grouped by handler and class: the words of an error often name one order, one customer."""
        kind = type(error)
        event, hint = event_from_exception(
            error, client_options=sentry_sdk.get_client().options, mechanism={"type": "nsq-workers", "handled": False}
        )
        with sentry_sdk.new_scope() as scope:
            scope.fingerprint = [self._spec.name, f"{kind.__module__}.{kind.__qualname__}"]
            scope.capture_event(event, hint=hint)

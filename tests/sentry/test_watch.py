"""The watch of one handler around calls: what its events and transactions say, with the SDK, without a worker or an endpoint."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.transport import Transport

from framework import sentry
from framework.errors import HandlerTimeout, Reject, Skip
from framework.handler import make_spec
from framework.message import Batch, Message
from framework.sentry.options import Options
from framework.sentry.watch import Watch
from framework.transports.contract import Limits

TRACE = "0af7651916cd43dd8448eb211c80319c"
_SUBSCRIPTION = SimpleNamespace(topic="orders", channel="billing", node="a:4150", limits=Limits(60.0, 900.0, 2500), in_flight={})


@pytest.fixture
def items() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """(kind, content) of all that would be sent: "event" or "transaction"."""
    found: list[tuple[str, dict[str, Any]]] = []

    class Kept(Transport):
        def capture_envelope(self, envelope: Any) -> None:
            found.extend((item.type, item.payload.json) for item in envelope.items)

    before = sentry_sdk.get_global_scope().client
    with sentry_sdk.isolation_scope():
        sentry_sdk.init(
            dsn="http://key@127.0.0.1:1/1",
            transport=Kept,
            traces_sample_rate=1.0,
            default_integrations=False,
            auto_enabling_integrations=False,
        )
        try:
            yield found
        finally:
            sentry_sdk.get_global_scope().set_client(before)


def message(number: int = 1, trace: str = "", attempts: int = 5, timestamp: int = 1_700_000_000_000_000_000) -> Message:
    headers = {"sentry-trace": f"{trace}-b7ad6b7169203331-1"} if trace else {}
    made = Message(b"%016d" % number, timestamp, attempts, b"body", _SUBSCRIPTION, headers)
    _SUBSCRIPTION.in_flight[made] = 0.0
    return made


def watch(**options: Any) -> Watch:
    return Watch(make_spec(lambda one: None, "orders", "billing", {"max_attempts": 5, **options}), Options())


def called(one: Watch, job: Any, error: BaseException | None = None) -> None:
    def call() -> None:
        if error is not None:
            raise error

    if error is None:
        one.around(job, call)
        return
    with pytest.raises(type(error)) as caught:
        one.around(job, call)
    assert caught.value is error


@pytest.mark.parametrize(
    ("error", "status"), [(None, "ok"), (Skip("done before"), "ok"), (OSError("disk full"), "internal_error")]
)
def test_a_transaction_says_how_its_call_ended(error: BaseException | None, status: str, items: list[Any]) -> None:
    called(watch(), message(), error)
    (transaction,) = [content for kind, content in items if kind == "transaction"]
    assert transaction["contexts"]["trace"]["status"] == status
    assert [span["status"] for span in transaction["spans"]] == [status]


@pytest.mark.parametrize("count", [1, 2])
def test_a_message_goes_on_with_the_trace_of_its_publisher_and_a_batch_has_one_of_its_own(count: int, items: list[Any]) -> None:
    """The messages of a batch may have many."""
    sent = [message(number, TRACE) for number in range(count)]
    called(watch(), sent[0] if count == 1 else Batch(sent))
    (transaction,) = [content for kind, content in items if kind == "transaction"]
    assert (transaction["contexts"]["trace"]["trace_id"] == TRACE) == (count == 1)


def test_an_event_has_the_breadcrumbs_of_its_call_and_of_no_other(items: list[Any]) -> None:
    sentry_sdk.add_breadcrumb(message="at the start of the worker")
    for number in (1, 2):

        def call(number: int = number) -> None:
            sentry_sdk.add_breadcrumb(message=f"call {number}")
            raise OSError("disk full")

        with pytest.raises(OSError, match="disk full"):
            watch().around(message(number), call)
    crumbs = [[one["message"] for one in content["breadcrumbs"]["values"]] for kind, content in items if kind == "event"]
    assert crumbs == [["call 1"], ["call 2"]]


def test_of_a_batch_each_kind_of_failure_is_one_event(items: list[Any]) -> None:
    batch = Batch([message(number) for number in range(5)])
    for one, error in zip(batch.messages, [OSError("a"), OSError("b"), ValueError("c"), ValueError("d")], strict=False):
        batch.fail(one, error)
    called(watch(), batch)
    events = [content for kind, content in items if kind == "event"]
    told = [(one["exception"]["values"][-1]["type"], one["tags"]["messages"], one["tags"]["id"]) for one in events]
    assert sorted(told) == [("OSError", "2", f"{0:016}"), ("ValueError", "2", f"{2:016}")]


@pytest.mark.parametrize(
    ("attempts", "error", "events"),
    [
        (4, OSError("disk full"), 0),
        (5, OSError("disk full"), 1),
        (4, HandlerTimeout("too long"), 0),
        (5, HandlerTimeout("too long"), 1),
        (1, Reject("no such order"), 1),
    ],
)
def test_where_only_what_dies_is_an_event_it_is_the_last_attempt(
    attempts: int, error: BaseException, events: int, items: list[Any]
) -> None:
    one = Watch(make_spec(lambda text: None, "orders", "billing", {"max_attempts": 5}), Options(events="dead"))
    called(one, message(attempts=attempts), error)
    assert [kind for kind, _ in items].count("event") == events


@pytest.mark.parametrize(("traces", "rate"), [(0.25, 0.25), (1.0, 1.0), (0.0, None)])
def test_the_part_that_is_traced_is_what_was_asked_for(
    traces: float, rate: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None: not even what its publisher has traced."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(sentry_sdk, "init", lambda **options: given.update(options))
    sentry._init(Options(dsn="http://key@127.0.0.1:1/1", traces=traces, bodies=True))
    assert (given["traces_sample_rate"], given["include_local_variables"]) == (rate, True)


@pytest.mark.parametrize(("published", "least", "most"), [(-2.0, 2000.0, 120_000.0), (3600.0, 0.0, 0.0)])
def test_a_transaction_says_how_long_its_message_has_waited(
    published: float, least: float, most: float, items: list[Any]
) -> None:
    """Milliseconds; none where the clock of who published it is ahead. Of a batch it is the first one."""
    first = message(timestamp=int((time.time() + published) * 1e9))
    for job in (first, Batch([first, message(2, timestamp=int((time.time() - 1000.0) * 1e9))])):
        items.clear()
        called(watch(), job)
        (transaction,) = [content for kind, content in items if kind == "transaction"]
        (span,) = transaction["spans"]
        assert least <= span["data"]["messaging.message.receive.latency"] <= most

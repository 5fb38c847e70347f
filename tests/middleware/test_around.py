"""An app's middleware around a call: its order, and that no message is finished, lost or handled twice by its mistakes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gevent
import pytest

from framework import Batch, HandlerTimeout, Message, Middleware, Reject, Retry, Skip, UndecodablePayload
from framework.handler import make_spec
from framework.middleware import compile_call, compile_chain
from framework.middleware.outcome import DEAD, Requeue
from tests.middleware.test_chain import SUBSCRIPTION

Around = Callable[[Any, Callable[[], None]], None]


class Step(Middleware):
    """``around`` as a function."""

    def __init__(self, around: Around) -> None:
        self._around = around

    def around(self, job: Any, call: Callable[[], None]) -> None:
        self._around(job, call)


def message(body: bytes = b"1") -> Message:
    return Message(b"0123456789abcdef", 1_700_000_000_000_000_000, 1, body, SUBSCRIPTION)


def chain(function: Any, *around: Around, **options: Any) -> Any:
    spec = make_spec(function, "orders", "billing", {"middleware": [Step(one) for one in around], **options})
    return compile_chain(spec, publish=lambda topic, body: None, delay=lambda attempts: 10.0)


def noting(name: str, notes: list[str]) -> Around:
    def around(job: Any, call: Callable[[], None]) -> None:
        notes.append(f"{name} in")
        try:
            call()
        finally:
            notes.append(f"{name} out")

    return around


def test_the_first_is_the_outermost_and_bodies_are_decoded_within() -> None:
    notes: list[str] = []

    def handle(body: str) -> None:
        notes.append(body)

    def of_messages(job: Message, call: Callable[[], None]) -> None:
        notes.append(type(job).__name__)
        call()

    assert chain(handle, noting("first", notes), noting("second", notes), of_messages)(message(b"text")) is None
    assert notes == ["first in", "second in", "Message", "text", "second out", "first out"]


def test_without_any_the_call_is_the_function_itself() -> None:
    def handle(message: Message) -> None: ...

    assert compile_call(make_spec(handle, "orders", "billing")) is handle


def test_what_the_handler_raises_passes_through_all_of_them_and_counts_as_its_failure() -> None:
    notes: list[str] = []

    def handle(message: Message) -> None:
        raise Retry(delay=7)

    assert chain(handle, noting("first", notes), noting("second", notes))(message()) == Requeue(7)
    assert notes == ["first in", "second in", "second out", "first out"]


def test_a_middleware_may_say_what_a_failure_means() -> None:
    def handle(message: Message) -> None:
        raise KeyError("customer")

    def around(job: Message, call: Callable[[], None]) -> None:
        try:
            call()
        except KeyError as error:
            raise Reject("no such customer") from error

    assert chain(handle, around)(message()) is DEAD
    assert chain(handle, lambda job, call: call(), policy={KeyError: Reject})(message()) is DEAD


def handled(*around: Around, fails: BaseException | None = None) -> tuple[Any, int]:
    """The outcome of a message, and how often its handler was called."""
    calls = []

    def handle(message: Message) -> None:
        calls.append(message)
        if fails is not None:
            raise fails

    return chain(handle, *around)(message()), len(calls)


def swallow(job: Message, call: Callable[[], None]) -> None:
    try:
        call()
    except BaseException:
        return


def call_twice(job: Message, call: Callable[[], None]) -> None:
    call()
    call()


def fail_before(job: Message, call: Callable[[], None]) -> None:
    raise OSError("no database")


def fail_after(job: Message, call: Callable[[], None]) -> None:
    call()
    raise OSError("no commit")


def skip(job: Message, call: Callable[[], None]) -> None:
    raise Skip("seen before")


@pytest.mark.parametrize(("around", "times"), [(lambda job, call: None, 0), (fail_before, 0), (fail_after, 1), (call_twice, 1)])
def test_a_middleware_that_fails_or_forgets_the_call_has_its_message_delivered_again(around: Around, times: int) -> None:
    assert handled(around) == (Requeue(10.0), times)


@pytest.mark.parametrize("error", [ValueError("x"), HandlerTimeout("x"), SystemExit(1), Retry("x"), gevent.GreenletExit()])
def test_what_the_handler_raised_cannot_be_swallowed(error: BaseException) -> None:
    assert handled(swallow, fails=error) == (Requeue(10.0), 1)
    assert handled(lambda job, call: call(), swallow, lambda job, call: call(), fails=error) == (Requeue(10.0), 1)


def test_a_call_that_is_still_running_when_its_middleware_returns_is_not_taken_for_done() -> None:
    done = []

    def handle(message: Message) -> None:
        gevent.sleep(0.01)
        done.append(message)

    def leave(job: Message, call: Callable[[], None]) -> None:
        gevent.spawn(call)
        gevent.sleep(0)

    assert chain(handle, leave)(message()) == Requeue(10.0)
    assert not done


def test_a_call_that_is_kept_for_later_is_not_made() -> None:
    kept: list[Callable[[], None]] = []
    assert handled(lambda job, call: kept.append(call)) == (Requeue(10.0), 0)
    with pytest.raises(Exception, match="may make its call\\(\\) once, before its around\\(\\) returns"):
        kept[0]()


def test_skipping_finishes_a_message_without_its_handler_whatever_the_policy_says() -> None:
    assert handled(skip) == (None, 0)
    assert handled(lambda job, call: call(), skip) == (None, 0)
    assert chain(lambda message: None, skip, policy={Exception: Reject})(message()) is None


def test_a_handler_may_skip_too_also_after_some_work() -> None:
    assert handled(fails=Skip("done by another")) == (None, 1)
    assert handled(swallow, fails=Skip("done by another")) == (None, 1)


class Held:
    """What a handler has in hand."""


def test_an_exception_leaves_no_circle_behind() -> None:
    """Its frames hold the message, and whatever the handler had: they go at once, not at the next collection."""
    seen: list[weakref.ref[Held]] = []

    def fail(message: Message) -> None:
        held = Held()
        seen.append(weakref.ref(held))
        raise ZeroDivisionError

    steps = [Step(lambda job, call: call()), Step(swallow)]
    call = compile_call(make_spec(fail, "orders", "billing", {"middleware": steps}))
    gc.disable()
    try:
        with suppress(ZeroDivisionError):
            call(message())
        assert seen[0]() is None
    finally:
        gc.enable()


# -- batches


def batch_of(*bodies: bytes) -> list[Message]:
    return [message(body) for body in bodies]


def test_a_batch_is_wrapped_as_a_whole_and_fails_as_a_whole() -> None:
    sizes = []

    def handle(batch: Batch) -> None: ...

    def around(job: Batch, call: Callable[[], None]) -> None:
        sizes.append(len(job))
        call()
        raise OSError("no commit")

    some = batch_of(b"1", b"2")
    assert chain(handle, around, batch=10)(some) == dict.fromkeys(some, Requeue(10.0))
    assert sizes == [2]


def only_new(job: Batch, call: Callable[[], None]) -> None:
    for one in job:
        if one.body == b"0":
            job.skip(one)
        elif one.body == b"-1":
            job.fail(one, Reject("negative"))
    call()


@pytest.mark.parametrize("annotation", [Batch, list, list[bytes], Batch[bytes]])
def test_the_handler_of_a_batch_gets_only_what_its_middleware_left_to_it(annotation: Any) -> None:
    got: list[Any] = []

    def handle(batch: Any) -> None:
        got.extend(one.body if isinstance(one, Message) else one for one in batch)

    handle.__annotations__["batch"] = annotation
    some = batch_of(b"1", b"0", b"-1", b"2")
    assert list(chain(handle, only_new, batch=10)(some).values()) == [None, None, DEAD, None]
    assert got == [b"1", b"2"]


def test_a_batch_of_which_nothing_is_left_is_finished_without_a_call() -> None:
    calls: list[Batch] = []

    def handle(batch: Batch) -> None:
        calls.append(batch)

    some = batch_of(b"0", b"0")
    assert chain(handle, only_new, batch=10)(some) == dict.fromkeys(some)
    assert chain(handle, skip, batch=10)(some) == dict.fromkeys(some)
    assert not calls


def test_what_cannot_be_decoded_fails_within_the_middleware() -> None:
    seen = []

    def handle(text: str) -> None: ...

    def around(job: Message, call: Callable[[], None]) -> None:
        try:
            call()
        except UndecodablePayload as error:
            seen.append(error)
            raise

    assert chain(handle, around)(message(b"\xff")) is DEAD
    assert seen

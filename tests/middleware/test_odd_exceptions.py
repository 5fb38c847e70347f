"""Exceptions that fail themselves when they are looked at, and what is raised that is none: each is its message's alone."""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from framework.errors import Backoff, Reject, Retry, WrongUse
from framework.handler import HandlerSpec
from framework.message import Batch, Message
from framework.middleware import compile_chain
from framework.middleware.outcome import Dead, Fault, Requeue
from framework.transports.contract import Limits

LIMITS = Limits(60.0, 900.0, 2500)


class Everything:
    def __contains__(self, _: object) -> bool:
        return True


HERE = SimpleNamespace(topic="orders", channel="billing", node="a:4150", in_flight=Everything(), limits=LIMITS)


def message(attempts: int = 1) -> Message:
    return Message(b"0123456789abcdef", 1_700_000_000_000_000_000, attempts, b"body", HERE)


class NeitherTrueNorFalse(Exception):
    def __bool__(self) -> bool:
        raise ValueError("odd")


class EqualToNothing(Exception):
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise ValueError("odd")


class False_(Exception):
    def __len__(self) -> int:
        return 0


class Exits(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in ("__name__", "__qualname__", "__module__"):
            raise RuntimeError("odd")
        return super().__getattribute__(name)


class Nameless(Exception, metaclass=Meta):
    pass


class Caused(Exception):
    def __init__(self) -> None:
        self.__cause__ = Nameless()


def outcome(chain: Any, job: Any) -> Any:
    """What the chain returns. It raises none of these exceptions: pytest could not show it, and would end all tests."""
    try:
        return chain(job)
    except BaseException as error:
        return f"raised {type.__getattribute__(type(error), '__name__')}"


ODD = [NeitherTrueNorFalse, EqualToNothing, False_, Exits, Nameless, Caused]


class Room(list[bytes]):
    """Letters."""

    def chain(self, function: Callable[[Any], None], **options: Any) -> Any:
        spec = HandlerSpec(
            "orders", "billing", function, None, concurrency=1, max_in_flight=10, timeout=60.0, max_attempts=3,
            **{"batch": 0, "linger": 0.0, **options},
        )  # fmt: skip
        return compile_chain(spec, publish=lambda topic, body: self.append(body), delay=lambda attempts: 10.0 * attempts)

    @property
    def reasons(self) -> list[str]:
        return [json.loads(letter.partition(b"\n")[0])["reason"] for letter in self]


@pytest.fixture
def room() -> Room:
    return Room()


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: type.__getattribute__(odd, "__name__"))
def test_it_is_delivered_again_and_given_up_as_any_other(odd: type[Exception], room: Room, caplog: Any) -> None:
    def handle(_: Message) -> None:
        raise odd

    chain = room.chain(handle)
    with caplog.at_level(logging.ERROR):
        assert outcome(chain, message(2)) == Requeue(20.0)
        assert outcome(chain, message(3)) == Dead()
    name = type.__getattribute__(odd, "__name__")
    [reason] = room.reasons
    assert name in reason
    assert sum(name in record.getMessage() for record in caplog.records) == 2


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("odd", ODD, ids=lambda odd: type.__getattribute__(odd, "__name__"))
def test_so_it_is_in_a_batch(odd: type[Exception], raises: bool, room: Room) -> None:
    def handle(batch: Batch) -> None:
        if raises:
            raise odd
        batch.fail(batch[1], odd())
        batch.fail(batch[2], odd())

    good, bad, last = message(), message(2), message(3)
    outcomes = outcome(room.chain(handle, batch=3), [good, bad, last])
    assert outcomes == {good: Requeue(10.0) if raises else None, bad: Requeue(20.0), last: Dead()}
    assert all(type.__getattribute__(odd, "__name__") in reason for reason in room.reasons)


class Quiet(Retry):
    def __init__(self) -> None: ...


class Down(Backoff):
    def __init__(self) -> None: ...


class No(Reject):
    def __init__(self) -> None: ...


@pytest.mark.parametrize(
    ("error", "outcome", "fault"),
    [(Quiet, Requeue(10.0), Fault.NONE), (Down, Requeue(10.0), Fault.DEPENDENCY), (No, Dead(), Fault.NONE)],
)
def test_a_subclass_whose_init_calls_no_other_means_what_its_base_means(
    error: type[Exception], outcome: Requeue | Dead, fault: Fault, room: Room
) -> None:
    def handle(_: Message) -> None:
        raise error

    found = room.chain(handle)(message())
    assert found == outcome
    assert found.fault is fault


@pytest.mark.parametrize("delay", [10**400, float("inf"), float("nan"), -1, "5"])
@pytest.mark.parametrize("kind", [Retry, Backoff])
def test_what_is_no_number_of_seconds_is_refused(kind: Any, delay: Any) -> None:
    with pytest.raises(WrongUse, match="is a number of seconds"):
        kind(delay=delay)


def test_a_class_of_exceptions_fails_an_item_as_an_exception_does(room: Room) -> None:
    def handle(batch: Batch) -> None:
        batch.fail(batch[0], Reject)
        batch.fail(batch[1], ValueError)

    one, two, three = message(), message(3), message()
    assert room.chain(handle, batch=3)([one, two, three]) == {one: Dead(), two: Dead(), three: None}
    assert sorted(room.reasons) == ["Reject", "ValueError"]


@pytest.mark.parametrize("none", ["no card", None, 5, int, object()])
def test_what_is_no_exception_fails_no_item(none: Any) -> None:
    batch = Batch([message()])
    with pytest.raises(WrongUse, match="that is no exception: give one"):
        batch.fail(batch[0], none)
    assert not batch.outcomes


@pytest.fixture
def signals_handled() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, lambda *_: None)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("signals_handled")
@pytest.mark.parametrize("batch", [0, 1])
def test_where_signals_are_handled_a_keyboard_interrupt_is_the_handlers_own(batch: int, room: Room) -> None:
    """Of a child process, for example. It would end one worker after the other."""

    def handle(_: Any) -> None:
        raise KeyboardInterrupt

    chain = room.chain(handle, batch=batch)
    one = message(3)
    assert (chain([one])[one] if batch else chain(one)) == Dead()
    assert room.reasons == ["KeyboardInterrupt"]

"""Dedupe around calls: what was handled is skipped, what failed is not, and two calls of one key are never under way at once."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gevent
import pytest

from framework import Batch, Dedupe, HandlerTimeout, Message, Reject, Retry, Skip
from framework.dedupe import dedupe as module
from framework.errors import BadHandler, WrongUse
from framework.handler import make_spec
from framework.headers import Headers
from framework.message import calls_of
from framework.middleware import compile_chain
from framework.middleware.envelope import Header, opened
from framework.middleware.later import LaterTopic
from framework.middleware.outcome import DEAD, DEFERRED, Deferred, Fault, Requeue
from framework.transports.contract import Limits

AGAIN = DEFERRED
"""Of a message whose key another call has."""


class Origin:
    """As much of a connection as a message is asked for."""

    limits = Limits(60.0, 900.0, 2500)

    def __init__(self, channel: str = "billing", *, node: str = "a:4150", lasting_ids: bool = False) -> None:
        self.topic, self.channel, self.node, self.lasting_ids = "orders", channel, node, lasting_ids
        self.in_flight: dict[Message, float] = {}


HERE = Origin()


def message(number: int = 1, key: str = "", *, origin: Origin = HERE, at: int = 1, name: str = "idempotency-key") -> Message:
    headers = {"headers": {name: key}} if key else {}
    made = Message(b"%016x" % number, at, 1, b"%d" % number, origin, **headers)
    origin.in_flight[made] = 0.0
    return made


class Handler:
    """Notes what it is called with; raises, or does, what ``does`` says."""

    def __init__(self, dedupe: Dedupe, **options: Any) -> None:
        self.called: list[bytes] = []
        self.does: Callable[[Any], None] = lambda job: None

        def one(message: Message) -> None:
            self.called.append(message.body)
            self.does(message)

        def many(batch: Batch) -> None:
            self.called += [one.body for one in batch]
            self.does(batch)

        spec = make_spec(many if "batch" in options else one, "orders", "billing", {"middleware": [dedupe], **options})
        self.put_off: list[Header] = []

        def defer(topic: str, body: bytes, seconds: float, headers: Headers) -> None:
            header, _ = opened(Message(b"0", 1, 1, body, HERE)) or pytest.fail(f"{body!r} is no envelope")
            self.put_off.append(header)

        self.later = LaterTopic(spec, defer)
        self.chain: Any = compile_chain(spec, publish=lambda topic, body: None, delay=lambda attempts: 10.0, later=self.later)

    def raises(self, error: BaseException | None) -> Handler:
        def does(job: Any) -> None:
            if error is not None:
                raise error

        self.does = does
        return self


@pytest.fixture(params=["memory", "file"])
def dedupe(request: pytest.FixtureRequest, tmp_path: Path) -> Dedupe:
    return Dedupe() if request.param == "memory" else Dedupe(tmp_path / "seen.sqlite")


def test_a_message_that_was_handled_is_finished_without_its_handler(dedupe: Dedupe) -> None:
    handler = Handler(dedupe)
    assert [handler.chain(message(number)) for number in (1, 2, 1)] == [None, None, None]
    assert handler.called == [b"1", b"2"]


def test_a_key_in_the_header_goes_before_the_id(dedupe: Dedupe) -> None:
    handler = Handler(dedupe)
    sent = [message(1, "order-7"), message(2, "order-7"), message(3, "order-8"), message(4, "order-8", name="Idempotency-Key")]
    assert [handler.chain(one) for one in sent] == [None] * 4
    assert handler.called == [b"1", b"3"]
    other = Handler(Dedupe(header="Order"))
    for one in (message(1, "a", name="order"), message(2, "a", name="order"), message(3, "a")):
        other.chain(one)
    assert other.called == [b"1", b"3"]


def test_another_channel_node_or_time_is_another_message(dedupe: Dedupe) -> None:
    handler = Handler(dedupe)
    for origin in (HERE, Origin("audit"), Origin(node="b:4150")):
        handler.chain(message(1, origin=origin))
        handler.chain(message(1, origin=origin, at=2))  # an nsqd whose clock was set back gives ids out again
    assert len(handler.called) == 6
    for channel in ("billing", "audit"):
        handler.chain(message(1, "order-7", origin=Origin(channel)))
    assert len(handler.called) == 8, "one store may serve the handlers of several channels"
    lasting = Origin("tube", lasting_ids=True)
    for at in (1, 2):
        handler.chain(message(1, origin=lasting, at=at))
    assert len(handler.called) == 9, "where ids last, the time may differ from delivery to delivery"


@pytest.mark.parametrize("error", [KeyError("x"), Retry(delay=1), Reject("bad"), HandlerTimeout("too long")])
def test_a_call_that_failed_is_not_remembered(dedupe: Dedupe, error: BaseException) -> None:
    handler = Handler(dedupe)
    first = handler.raises(error).chain(message(1))
    assert first is DEAD or isinstance(first, Requeue)
    assert handler.raises(None).chain(message(1)) is None
    assert handler.chain(message(1)) is None
    assert handler.called == [b"1", b"1"]


def test_what_its_handler_skips_is_finished_and_so_it_is_remembered(dedupe: Dedupe) -> None:
    handler = Handler(dedupe).raises(Skip())
    assert [handler.chain(message(1)) for _ in range(2)] == [None, None]
    assert handler.called == [b"1"]


def test_of_two_deliveries_at_the_same_time_the_second_comes_again_and_costs_no_attempt(dedupe: Dedupe) -> None:
    handler = Handler(dedupe)
    inner: list[Any] = []
    handler.does = lambda job: inner.append(handler.chain(message(2, "order-7")))
    assert handler.chain(message(1, "order-7")) is None
    assert inner == [AGAIN]
    assert handler.called == [b"1"]
    assert handler.chain(message(2, "order-7")) is None
    assert handler.called == [b"1"]


def test_of_a_batch_each_message_is_skipped_claimed_or_remembered_by_itself(dedupe: Dedupe) -> None:
    handler = Handler(dedupe, batch=10)
    assert set(handler.chain([message(1), message(2)]).values()) == {None}

    def judge(batch: Batch) -> None:
        batch.fail(batch[0], KeyError("x"))
        batch.skip(batch.messages[1])

    handler.does = judge
    three, four, five = message(3), message(4), message(5)
    outcomes = handler.chain([message(1), three, four, five])
    assert handler.called == [b"1", b"2", b"3", b"4", b"5"]
    assert isinstance(outcomes[three], Requeue)
    assert (outcomes[four], outcomes[five]) == (None, None)
    handler.does = lambda batch: None
    handler.chain([message(number) for number in range(1, 6)])
    assert handler.called[5:] == [b"3"], "only what had failed is handled again"


def test_of_two_messages_with_one_key_in_a_batch_the_second_comes_again(dedupe: Dedupe) -> None:
    handler = Handler(dedupe, batch=10)
    first, second = message(1, "order-7"), message(2, "order-7")
    assert handler.chain([first, second]) == {first: None, second: AGAIN}
    assert handler.chain([second]) == {second: None}
    assert handler.called == [b"1"]


def test_a_batch_that_fails_as_a_whole_is_not_remembered(dedupe: Dedupe) -> None:
    handler = Handler(dedupe, batch=10).raises(KeyError("x"))
    handler.chain([message(1), message(2)])
    handler.raises(None).chain([message(1), message(2)])
    handler.chain([message(1), message(2)])
    assert handler.called == [b"1", b"2"] * 2


class Store:
    """A store of an app's own, which fails as it is told to."""

    def __init__(self, *fails: str, answer: list[Any] | None = None) -> None:
        self.fails = fails
        self.answer = answer
        self.heard: list[tuple[str, list[str], float | None]] = []

    def claim(self, keys: Sequence[str], token: str, seconds: float) -> list[Any]:
        return self._hear("claim", keys, seconds, ["new"] * len(keys) if self.answer is None else self.answer)

    def done(self, keys: Sequence[str], token: str) -> None:
        self._hear("done", keys, None, [])

    def release(self, keys: Sequence[str], token: str) -> None:
        self._hear("release", keys, None, [])

    def _hear(self, verb: str, keys: Sequence[str], seconds: float | None, answer: list[Any]) -> list[Any]:
        self.heard.append((verb, list(keys), seconds))
        if verb in self.fails:
            raise ConnectionError("the store is down")
        return answer


def test_of_a_batch_what_was_handled_is_finished_and_what_another_call_has_comes_again() -> None:
    store = Store(answer=["done", "claimed", "new", "new"])
    handler, some = Handler(Dedupe(store), batch=10), [message(number) for number in range(4)]
    handler.does = lambda batch: batch.fail(batch.messages[1], KeyError("x"))
    outcomes = handler.chain(some)
    assert (outcomes[some[0]], outcomes[some[1]], outcomes[some[2]]) == (None, AGAIN, None)
    assert isinstance(outcomes[some[3]], Requeue)
    assert handler.called == [b"2", b"3"]
    assert [(verb, [key[-18:-2] for key in keys]) for verb, keys, _ in store.heard] == [
        ("claim", [f"{number:016x}" for number in range(4)]), ("done", [f"{2:016x}"]), ("release", [f"{3:016x}"])
    ]  # fmt: skip


@pytest.mark.parametrize("batch", [False, True])
def test_a_store_that_is_down_before_the_call_uses_up_no_attempt_and_its_handler_pauses(
    caplog: pytest.LogCaptureFixture, batch: bool
) -> None:
    """Or what came while it was down would be given up without having been run."""
    handler, one = Handler(Dedupe(Store("claim")), max_attempts=1, **({"batch": 2} if batch else {})), message(1)
    outcome = handler.chain([one])[one] if batch else handler.chain(one)
    assert isinstance(outcome, Deferred)
    assert outcome.fault is Fault.DEPENDENCY
    assert [header.attempts for header in handler.put_off] == [0]
    assert handler.called == []
    assert "Dedupe: claim of 1 keys (orders/billing id a:4150 0000000000000001 1) failed: ConnectionError: the st" in caplog.text


@pytest.mark.parametrize("answer", [[b"new"], ["New"], ["new", "new"], []])
def test_a_store_that_gives_no_answer_of_the_three_is_named(answer: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    """An answer of bytes would be taken for a claim of another call, for ever."""
    store = Store(answer=answer)
    handler = Handler(Dedupe(store))
    assert isinstance(handler.chain(message(1)), Deferred)
    assert handler.called == []
    assert "its claim() is to answer" in caplog.text
    assert [verb for verb, *_ in store.heard] == ["claim", "release"]


def test_keys_that_are_no_utf_8_are_kept_apart_and_harm_no_other(dedupe: Dedupe) -> None:
    """NATS shows bytes that are none as surrogates. SQLite takes none, and so it took nothing of those in one transaction."""
    handler = Handler(dedupe)
    given = ["a\udcff", "a\udcfe", "a\\udcff", "\ud800", "a", "a\x00", "\N{SNOWMAN}", "x" * 1_000_000]
    slots = [gevent.spawn(handler.chain, message(number, key)) for number, key in enumerate(given)]
    gevent.joinall(slots, timeout=20, raise_error=True)
    assert sorted(handler.called) == [b"%d" % number for number in range(len(given))]
    for number, key in enumerate(given):
        assert handler.chain(message(100 + number, key)) is None
    assert len(handler.called) == len(given)


def test_what_a_store_fails_by_after_the_call_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    store = Store("done")
    handler = Handler(Dedupe(store))
    assert handler.chain(message(1)) is None
    assert handler.called == [b"1"]
    assert "Dedupe: done of 1 keys (orders/billing id a:4150 0000000000000001 1) failed" in caplog.text
    assert [verb for verb, *_ in store.heard] == ["claim", "done"]


def test_a_time_limit_that_ends_the_wait_for_a_note_fails_no_call_that_has_returned() -> None:
    """Its message came again, certainly, because a note was slow that another message may never need."""

    class Slow(Store):
        def done(self, keys: Sequence[str], token: str) -> None:
            super().done(keys, token)
            raise HandlerTimeout("too long")

    store = Slow()
    handler = Handler(Dedupe(store))
    assert handler.chain(message(1)) is None
    assert [verb for verb, *_ in store.heard] == ["claim", "done"]


def test_a_claim_lasts_a_little_longer_than_the_call_may(monkeypatch: pytest.MonkeyPatch) -> None:
    class Calls:
        def ends_at(self, message: Message) -> float:
            return 1000.0

    store, origin = Store(), Origin()
    calls_of[origin] = Calls()  # type: ignore[assignment]
    monkeypatch.setattr("framework.message.monotonic", lambda: 960.0)
    Handler(Dedupe(store)).chain(message(1, "k", origin=origin))
    Handler(Dedupe(store)).chain(message(1, "k"))
    assert [seconds for verb, _, seconds in store.heard if verb == "claim"] == [40.0 + module.MARGIN, module.UNKNOWN]
    assert store.heard[0][1] == ["orders/billing key k"]


def test_a_store_that_fails_is_named_and_costs_no_attempt() -> None:
    assert str(module.StoreFails("no disk")) == "no disk"
    assert module.StoreFails().count is False


def test_a_claim_whose_answer_was_not_waited_for_is_released() -> None:
    class Slow(Store):
        def claim(self, keys: Sequence[str], token: str, seconds: float) -> list[Any]:
            super().claim(keys, token, seconds)
            raise HandlerTimeout("too long")

    store = Slow()
    Handler(Dedupe(store)).chain(message(1))
    assert [verb for verb, *_ in store.heard] == ["claim", "release"]


def test_what_cannot_be_is_refused_where_it_is_written(tmp_path: Path) -> None:
    for wrong, words in (
        (lambda: Dedupe(age=0), "age=0"),
        (lambda: Dedupe(age=True), "age=True"),
        *((lambda most=most: Dedupe(most=most), f"most={most!r}): give a whole number") for most in (0, True, 1.5, "10")),
        *((lambda age=age: Dedupe(age=age), f"age={age!r}): give seconds") for age in (0, "1", float("inf"), float("nan"))),
        (lambda: Dedupe(wait=-1), "wait=-1"),
        *((lambda header=header: Dedupe(header=header), f"header={header!r}): give the name") for header in ("", " ", 3, b"id")),
        (lambda: Dedupe(""), "path of a file"),
        (lambda: Dedupe(tmp_path / "x", most=5), "keys in memory"),
        (lambda: Dedupe(Store), "write Store()"),
        (lambda: Dedupe(object()), "has no claim"),
        (lambda: Dedupe(Store(), age=5), "its own matter"),
    ):  # fmt: skip
        with pytest.raises(BadHandler, match=re.escape(words)):
            wrong()
    with pytest.raises(WrongUse, match=r"nowhere.*unable to open database file: give a file of its own that may be wri"):
        Dedupe(tmp_path / "nowhere" / "seen.sqlite").start()
    (tmp_path / "text").write_text("no database " * 100)
    with pytest.raises(WrongUse, match="file is not a database"):
        Dedupe(tmp_path / "text").start()


def test_a_handler_waits_for_the_disk_and_its_hub_does_not(tmp_path: Path) -> None:
    dedupe = Dedupe(tmp_path / "seen.sqlite")
    dedupe.start()
    handler = Handler(dedupe)
    other = sqlite3.connect(tmp_path / "seen.sqlite", isolation_level=None)
    other.execute("begin immediate")
    slots = [gevent.spawn(handler.chain, message(number)) for number in range(50)]
    turns = 0
    for _ in range(20):
        gevent.sleep(0.01)
        turns += 1
    assert (turns, handler.called) == (20, [])
    other.execute("commit")
    gevent.joinall(slots, timeout=10, raise_error=True)
    assert sorted(handler.called, key=int) == [b"%d" % number for number in range(50)]
    dedupe.stop()

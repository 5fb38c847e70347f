"""What becomes of a call's messages: what their connection is told, who hears of it, and what counts against the handler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from framework.engine.breaker import Breaker
from framework.engine.credit import Credit
from framework.engine.elsewhere import Elsewhere
from framework.engine.endings import Endings
from framework.engine.ledger import Ledger
from framework.engine.settlement import Settlement, give_back
from framework.errors import AlreadySettled
from framework.handler import make_spec
from framework.message import Message
from framework.middleware.outcome import DEAD, DEFERRED, Dead, Deferred, Fault, Outcome, Requeue, Told

FAILED = Requeue(2.0, Fault.MESSAGE)
DOWN = Requeue(3.0, Fault.DEPENDENCY)
POISON = Dead(Fault.MESSAGE)


class Line:
    """A connection. Of ``late`` messages the lease is gone; of ``gone`` ones the broker has none to give back."""

    node, topic = "a:1", "orders"

    def __init__(self, ledger: Ledger) -> None:
        self.said: list[tuple[Any, ...]] = []
        self._ledger = ledger

    def finish(self, message: Message) -> None:
        self._say("finish", message)

    def requeue(self, message: Message, delay: float) -> None:
        self._say("requeue", message, delay)
        if message.body == b"gone":
            self._ledger.lost += 1

    def _say(self, verb: str, message: Message, *more: float) -> None:
        if message.body == b"late":
            raise AlreadySettled("gone")
        self.said.append((verb, message.id, *more))


class TerminatingLine(Line):
    def terminate(self, message: Message) -> None:
        self._say("terminate", message)


class Case:
    """A settlement, and what all who hear of it were told."""

    def __init__(self, line: Callable[[Ledger], Line] = Line, *, watched: bool = False) -> None:
        self.ledger = Ledger()
        self.line = line(self.ledger)
        self.heeded: list[tuple[bytes, Any]] = []
        self.uncounted: list[bytes] = []
        self.ended: list[tuple[bytes, bytes, str, float]] = []
        self.together: list[tuple[list[bytes], float]] = []
        self.told: list[tuple[bytes, str, bool]] = []
        self.breaker = Breaker("bill", Credit(10, 1), lambda: 0, batches=True, longest=None)
        self.settlement = Settlement(
            self.ledger, Elsewhere(self.ledger), self.breaker, lambda message, said: self.heeded.append((message.id, said)),
            Watching(self) if watched else None, uncounted=lambda message: self.uncounted.append(message.id),
        )  # fmt: skip

    def message(self, name: bytes, body: bytes = b"", attempts: int = 1) -> Message:
        return Message(name, 0, attempts, body, self.line)

    def telling(self, outcome: Outcome, known: bytes) -> Told:
        def tell(message: Message, ending: str) -> None:
            self.told.append((message.id, ending, self.settlement.telling))

        return Told(outcome, self.message(known), tell)


class Watching(Endings):
    """Notes what observers would be told."""

    def __init__(self, case: Case) -> None:
        def bill(message: Message) -> None: ...

        super().__init__(make_spec(bill, "orders", "billing"))
        self._case = case

    def ended(self, came: Message, known: Message, outcome: Any, began: float) -> None:
        self._case.ended.append((came.id, known.id, outcome, began))

    def together(self, messages: list[Message], began: float) -> None:
        self._case.together.append(([one.id for one in messages], began))


@pytest.mark.parametrize(
    ("outcome", "body", "ending", "heeded"),
    [
        (None, b"", "finished", False),
        (None, b"late", "lease_lost", False),
        (FAILED, b"", "requeued", True),
        (FAILED, b"late", "lease_lost", True),
        (FAILED, b"gone", "lost", True),
        (Requeue(1.0), b"", "requeued", True),
        (DEFERRED, b"", "requeued", True),
        (Deferred(Fault.MESSAGE), b"late", "lease_lost", True),
        (DEAD, b"", "dead", False),  # it was unreadable, or had no attempt left: no call failed
        (POISON, b"", "dead", True),
        (POISON, b"late", "lease_lost", False),  # it comes again, and is counted then
    ],
)
@pytest.mark.parametrize("told", [True, False])
def test_a_message_ends_as_its_outcome_says_unless_its_lease_was_lost(
    outcome: Outcome, body: bytes, ending: str, heeded: bool, told: bool
) -> None:
    case = Case(watched=True)
    case.settlement.settle(case.message(b"1", body), case.telling(outcome, b"known") if told else outcome, 5.0)
    assert case.ended == [(b"1", b"known" if told else b"1", ending, 5.0)]
    assert case.heeded == ([(b"1", outcome)] if heeded else [])
    assert case.told == ([(b"known", ending, True)] if told else [])
    assert not case.settlement.telling
    assert case.ledger.dead == (ending == "dead")
    assert case.ledger.requeued == (isinstance(outcome, Deferred) and ending == "requeued")  # a connection counts the others
    assert case.settlement.batches == 0


def test_what_no_call_has_ended_is_not_counted_against_the_handler_and_no_observer_hears_of_it() -> None:
    case = Case(watched=True)
    case.settlement.settle(case.message(b"1"), FAILED, heed=False)
    assert case.line.said == [("requeue", b"1", 2.0)]
    assert (case.heeded, case.ended) == ([], [])


def test_what_used_up_no_attempt_is_said_of_such_messages_alone() -> None:
    case = Case()
    case.settlement.settle(case.message(b"1"), Requeue(1.0))
    case.settlement.settle(case.message(b"2"), Requeue(1.0, counts=False))
    assert case.uncounted == [b"2"]


@pytest.mark.parametrize(("line", "verb"), [(Line, "finish"), (TerminatingLine, "terminate")])
def test_a_dead_letters_message_is_ended_for_good_where_the_broker_knows_such_an_end(line: Any, verb: str) -> None:
    case = Case(line)
    case.settlement.settle(case.message(b"1"), POISON)
    case.settlement.settle(case.message(b"2"), None)
    case.settlement.settle(case.message(b"3"), DEFERRED)
    assert case.line.said == [(verb, b"1"), ("finish", b"2"), ("finish", b"3")]
    case.settlement.settle(case.message(b"4", b"late"), POISON)
    assert case.ledger.dead == 1


def test_all_of_a_batch_is_settled_before_anybody_hears_of_it() -> None:
    case = Case(watched=True)
    outcomes: dict[Message, Any] = {
        case.message(b"1"): None,
        case.message(b"2", b"late"): None,
        case.message(b"3"): case.telling(None, b"known 3"),
        case.message(b"4"): FAILED,
        case.message(b"5"): None,
        case.message(b"6"): case.telling(FAILED, b"known 6"),
    }
    case.settlement.settle(list(outcomes), outcomes, 7.0)
    assert case.together == [([b"1", b"5"], 7.0)]
    assert case.ended == [
        (b"2", b"2", "lease_lost", 7.0),
        (b"3", b"known 3", "finished", 7.0),
        (b"4", b"4", "requeued", 7.0),
        (b"6", b"known 6", "requeued", 7.0),
    ]
    assert case.told == [(b"known 3", "finished", True), (b"known 6", "requeued", True)]
    assert not case.settlement.telling
    assert case.settlement.batches == 1


def test_of_what_no_call_has_ended_no_observer_hears_in_batches_either() -> None:
    case = Case(watched=True)
    case.settlement.settle([], {case.message(b"1"): None, case.message(b"2"): FAILED})
    assert (case.together, case.ended) == ([], [])


def test_a_handler_without_observers_tells_nobody() -> None:
    case = Case()
    case.settlement.settle(case.message(b"1"), None, 7.0)
    case.settlement.settle([], {case.message(b"2"): None, case.message(b"3"): FAILED}, 7.0)
    assert case.line.said == [("finish", b"1"), ("finish", b"2"), ("requeue", b"3", 2.0)]


@pytest.mark.parametrize(
    ("outcomes", "worst"),
    [
        ([(None, 1), (None, 1)], None),
        ([(FAILED, 1), (None, 1)], None),  # half of it: its own fault
        ([(FAILED, 3), (FAILED, 2), (None, 1)], 1),
        ([(Requeue(1.0), 1), (Requeue(1.0), 1)], None),  # asked for by the handler
        ([(FAILED, 1), (DOWN, 4), (None, 1), (None, 1)], 1),
        ([(FAILED, 1), (FAILED, 1), (DOWN, 4)], 2),
        ([(POISON, 5), (FAILED, 4)], 1),
    ],
)
def test_a_batch_is_one_call_that_failed_where_most_of_it_did_or_its_dependency_is_down(outcomes: Any, worst: int | None) -> None:
    case = Case()
    batch = {case.message(b"%d" % number, attempts=one[1]): one[0] for number, one in enumerate(outcomes)}
    case.settlement.settle(list(batch), batch)
    assert case.heeded == ([] if worst is None else [(b"%d" % worst, outcomes[worst][0])])
    assert case.breaker.calls_well == (worst is None)


def test_a_middleware_that_fails_when_it_is_told_is_through_with_it() -> None:
    case = Case()

    def tell(_message: Message, _ending: str) -> None:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        case.settlement.settle(case.message(b"1"), Told(None, case.message(b"1"), tell))
    assert not case.settlement.telling


def test_what_is_given_back_comes_at_once_and_what_is_settled_already_holds_up_nothing() -> None:
    case = Case()
    give_back([case.message(b"1", b"late"), case.message(b"2")])
    assert case.line.said == [("requeue", b"2", 0.0)]

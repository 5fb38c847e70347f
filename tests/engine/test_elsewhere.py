"""A dead letter's finish that is refused: the message is one whose lease was lost, and nothing else is counted for it."""

from __future__ import annotations

from typing import Any

import pytest

from framework.engine.elsewhere import REMEMBERED, Elsewhere
from framework.engine.ledger import Ledger
from framework.message import Message


def message(number: int, connection: Any) -> Message:
    return Message(b"%016d" % number, 0, 1, b"x", connection)


@pytest.mark.parametrize(("dead", "counted"), [(True, {"dead": 1}), (False, {"requeued": 1})])
def test_its_finish_belongs_to_how_it_ended(dead: bool, counted: dict[str, int]) -> None:
    ledger, connection = Ledger(received=1), object()
    Elsewhere(ledger).finished(message(1, connection), dead=dead)
    ledger.finished += 1  # the connection has sent it
    assert ledger == Ledger(received=1, **counted)


@pytest.mark.parametrize("dead", [True, False])
def test_a_refused_finish_makes_it_a_lost_lease_and_nothing_else(dead: bool) -> None:
    ledger, connection = Ledger(received=1), object()
    elsewhere = Elsewhere(ledger)
    elsewhere.finished(message(1, connection), dead=dead)
    ledger.lease_lost += 1  # the connection: sent, and taken back
    elsewhere.refused(connection, b"%016d" % 1)
    assert ledger == Ledger(received=1, lease_lost=1)
    elsewhere.refused(connection, b"%016d" % 1)  # said once
    assert ledger == Ledger(received=1, lease_lost=1)


def test_what_is_refused_of_others_changes_nothing() -> None:
    ledger, connection = Ledger(received=1), object()
    elsewhere = Elsewhere(ledger)
    elsewhere.finished(message(1, connection), dead=True)
    elsewhere.refused(connection, b"%016d" % 2)
    elsewhere.refused(object(), b"%016d" % 1)
    elsewhere.closed(connection)
    elsewhere.refused(connection, b"%016d" % 1)
    assert ledger == Ledger(received=1, dead=1, finished=-1)


def test_the_oldest_is_forgotten_when_there_are_many() -> None:
    ledger, connection = Ledger(), object()
    elsewhere = Elsewhere(ledger)
    for number in range(REMEMBERED + 1):
        elsewhere.finished(message(number, connection), dead=True)
    elsewhere.refused(connection, b"%016d" % 0)
    assert ledger.dead == REMEMBERED + 1
    elsewhere.refused(connection, b"%016d" % 1)
    assert ledger.dead == REMEMBERED

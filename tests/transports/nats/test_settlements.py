"""What a connection has settled, from the moment when it is said until a server is known to have read it. No server is needed."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from framework.transports.nats.commands import OF_CLIENTS
from framework.transports.nats.publish_link import Command, PublishRun
from framework.transports.nats.settlements import Settlements
from framework.transports.publish_link import InDoubt
from framework.transports.session_link import DOUBT

REPLIES = [b"$JS.ACK.orders.billing.1.%d.1.1700000000000000000.0" % number for number in range(3)]


class Said:
    """Settlements, and the session that they are said on."""

    def __init__(self) -> None:
        self.session: Any = SimpleNamespace(relays=False, commands=OF_CLIENTS, heeded=0.0)
        self.tally: Any = SimpleNamespace(finished=0, requeued=0, lease_lost=0)
        self.settlements = Settlements(self.session, self.tally)

    def say(self) -> Any:
        _, mark = self.settlements.said(None, self.settlements.take())  # type: ignore[arg-type]
        return mark

    def read_all(self) -> None:
        self.session.heeded = time.monotonic() + 1.0

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.tally.finished, self.tally.requeued, self.tally.lease_lost


def test_what_a_server_has_read_is_settled_and_is_not_said_again() -> None:
    said = Said()
    said.settlements.acks.append(REPLIES[0])
    mark = said.say()
    assert (said.settlements.settled, said.settlements.finishing(), said.counts) == (False, [REPLIES[0]], (0, 0, 0))
    mark.sent()
    assert (said.settlements.settled, said.settlements.finishing(), said.counts) == (False, [REPLIES[0]], (1, 0, 0))
    said.read_all()
    assert (said.settlements.settled, said.settlements.finishing(), said.settlements.unheard()) == (True, [], 0.0)
    said.settlements.recall([])
    assert (len(said.settlements), said.counts) == (0, (1, 0, 0))


def test_what_was_handed_over_and_not_read_is_said_to_the_next_and_counted_once() -> None:
    said = Said()
    said.settlements.acks.append(REPLIES[0])
    said.settlements.terminate(REPLIES[1])
    said.say().sent()
    assert said.counts == (2, 0, 0)
    said.settlements.recall([])
    assert (said.settlements.finishing(), said.counts) == (REPLIES[:2], (0, 0, 0))
    said.say().sent()
    assert said.counts == (2, 0, 0)


@pytest.mark.parametrize(("delay", "finishes"), [(0.0, True), (0.0, False), (5.0, False)])
def test_what_nobody_can_have_read_is_said_once_to_the_next(delay: float, finishes: bool) -> None:
    """A message that is given back at once is not waited for, so nobody remembers that it was said."""
    said = Said()
    if finishes:
        said.settlements.acks.append(REPLIES[0])
    said.settlements.give_back(REPLIES[1], delay, time.monotonic() + 60.0)
    said.say().lost()
    acks = [REPLIES[0]] if finishes else []
    assert said.settlements.finishing() == acks
    again = said.settlements.given_back()
    assert (again, said.counts) == ([REPLIES[1]] if delay else [], (0, 0, 0 if delay else 1))
    if len(said.settlements):
        said.say().sent()
    assert said.counts == (len(acks), len(again), 1 - len(again))
    said.read_all()
    assert said.settlements.settled


def test_an_answer_is_waited_for_until_it_is_in_doubt_and_then_asked_where_it_went() -> None:
    given_up: list[int] = []
    link: Any = SimpleNamespace(
        node="a:4222",
        obstacle=lambda command: None,
        send=lambda run, number, command: number + 7,
        look=lambda since: None,
        astray=lambda token, command: command.topic == "moved",
        give_up=given_up.append,
    )
    run = PublishRun(link, [Command(topic, b"x", b"", b"body") for topic in ("moved", "orders")], 60.0)
    run._fill()
    sent = list(run._under_way.items())
    now = max(since for _, (_, since) in sent)
    run._look_at(sent, now + DOUBT / 2)
    assert (run._answers, given_up) == ({}, [])
    run._look_at(sent, now + DOUBT)
    assert (list(run._answers), given_up) == ([0], [7])
    assert isinstance(run._answers[0], InDoubt)
    assert "keeps its subject no more" in str(run._answers[0])


def test_touches_of_a_long_call_are_not_kept_while_no_message_tells_that_the_leader_is_there() -> None:
    said = Said()
    said.session.relays = True
    said.settlements.carry_over(said.session)
    said.settlements.acks.append(REPLIES[0])
    said.say().sent()
    said.settlements.touch(REPLIES[1])
    for _ in range(100):
        said.settlements.touch(REPLIES[1])
        said.say().sent()
        said.read_all()
    assert len(said.settlements._unread) <= 2
    said.settlements.say_again()
    assert said.settlements.finishing() == [REPLIES[0]]  # what finishes is kept: the leader may have gone before it was told

"""What a message costs a worker by POP and by PULL, in calls of Python, which no load of the machine changes."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import gevent
import pytest

from framework.engine.supervisor import Supervisor
from framework.handler import make_spec
from framework.message import Message
from framework.transports import open_transports
from framework.transports.rocketmq.wire.codes import Request
from tests.transports.rocketmq.canned import QUEUES, Canned

MESSAGES = 8000
ASKS = {"pop": Request.POP_MESSAGE, "pull": Request.PULL_MESSAGE}


def calls_of(mode: str) -> tuple[Counter[str], int]:
    """The calls while so many messages are handled, by file and function; and how many answers brought them."""
    server = Canned(MESSAGES if mode == "pop" else MESSAGES // QUEUES)
    calls: Counter[str] = Counter()

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and "/framework/" in frame.f_code.co_filename:
            calls[f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_code.co_name}"] += 1

    def nothing(message: Message) -> None:
        pass

    spec = make_spec(nothing, server.topic, "bench", {"concurrency": 50, "max_in_flight": 2500}, locals())
    (transport,) = open_transports([f"rocketmq://{server.address}?mode={mode}&poll=100ms"])
    supervisor = Supervisor([spec], [transport], publish=lambda *_, **__: None)

    def watch() -> None:
        while server.handled < MESSAGES:
            gevent.sleep(0.01)
        sys.setprofile(None)
        supervisor.stop()

    watching = gevent.spawn(watch)
    sys.setprofile(note)
    try:
        with gevent.Timeout(60):
            supervisor.run()
    finally:
        sys.setprofile(None)
        watching.kill()
        transport.close()
        server.close()
    return calls, server.asked[ASKS[mode]]


@pytest.mark.parametrize(("mode", "most"), [("pop", 63), ("pull", 58)])
def test_a_message_costs_two_calls_and_an_answer_or_a_packet_few(mode: str, most: int) -> None:
    """How many messages come in one answer, and how much goes in one packet, is another thing: on a busy machine it is less."""
    calls, answers = calls_of(mode)
    of_each = {name: count for name, count in calls.items() if count >= MESSAGES}
    others = calls.total() - sum(of_each.values())
    assert 1 < sum(of_each.values()) / MESSAGES <= 2, of_each
    assert others / (answers + calls["shared_session.py:_flush"]) <= most, calls.most_common(40)

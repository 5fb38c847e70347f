"""A question that many ask at once is asked once, and again when its answer has aged or there was none."""

from __future__ import annotations

import gevent
import pytest

from framework.errors import BrokerUnreachable
from framework.transports.recent import Recent


def test_whoever_asks_meanwhile_and_shortly_after_has_the_same_answer() -> None:
    asked: list[int] = []

    def ask() -> int:
        asked.append(len(asked))
        gevent.sleep(0.05)
        return asked[-1]

    recent = Recent(ask, fresh=0.2)
    some = [gevent.spawn(recent) for _ in range(50)]
    gevent.joinall(some)
    assert {one.get() for one in some} == {0}
    assert (recent(), asked) == (0, [0])
    gevent.sleep(0.25)
    assert recent() == 1


def test_a_question_that_failed_is_asked_again() -> None:
    answers = iter([BrokerUnreachable("nobody"), "here"])

    def ask() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    recent = Recent(ask)
    with pytest.raises(BrokerUnreachable):
        recent()
    assert recent() == "here"

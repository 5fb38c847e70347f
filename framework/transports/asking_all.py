"""Asks every node of a broker at once, and says of all of them together what came of it. It knows no protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias, TypeVar

import gevent

from framework.errors import REFUSALS, BrokerRefuses, BrokerUnreachable, FrameworkError, SomeUnreachable, TryLater, words_of

T = TypeVar("T")
U = TypeVar("U")

Answers: TypeAlias = Mapping[str, T | FrameworkError]
"""Node -> its answer, or why there is none."""


def ask_each(nodes: Iterable[str], ask: Callable[[str], T]) -> dict[str, T | FrameworkError]:
    """What ``ask(node)`` returns of each, or the FrameworkError that it raises; all are asked at once."""
    asked = {node: gevent.spawn(_answer, ask, node) for node in nodes}
    gevent.joinall(list(asked.values()))
    return {node: one.get() for node, one in asked.items()}


def _answer(ask: Callable[[str], T], node: str) -> T | FrameworkError:
    try:
        return ask(node)
    except FrameworkError as error:
        return error


def answered(answers: Answers[T]) -> dict[str, T]:
    """Those of the nodes that answered."""
    return {node: answer for node, answer in answers.items() if not isinstance(answer, FrameworkError)}


def all_answered(answers: Answers[T]) -> dict[str, T]:
    """Raises BrokerUnreachable naming the nodes that gave no answer, with the reason of each."""
    failures = _failures(answers)
    if failures:
        raise BrokerUnreachable(_words(failures))
    return answered(answers)


def made_of_all(answers: Answers[T], made: Callable[[Mapping[str, T]], U]) -> U:
    """``made`` of the answers of all. Raises as ``all_answered``, and SomeUnreachable where those that gave none are down."""
    failures, there = _failures(answers), answered(answers)
    if failures and there and all(_is_down(error) for error in failures.values()):
        raise SomeUnreachable(_words(failures), failures, made(there))
    return made(all_answered(answers))


def all_admitted(answers: Answers[T]) -> dict[str, T]:
    """As ``made_of_all``; raises BrokerRefuses where a node rejects the credentials or options of its URL."""
    failures = _failures(answers)
    if any(isinstance(error, REFUSALS) for error in failures.values()):
        raise BrokerRefuses(_words(failures))
    return made_of_all(answers, dict)


def _is_down(error: FrameworkError) -> bool:
    """Nothing can be stored on its node either."""
    return isinstance(error, BrokerUnreachable | TryLater) and not isinstance(error, REFUSALS)


def _failures(answers: Answers[T]) -> dict[str, FrameworkError]:
    return {node: answer for node, answer in answers.items() if isinstance(answer, FrameworkError)}


def _words(failures: Mapping[str, FrameworkError]) -> str:
    return "; ".join(map(words_of, failures, failures.values()))

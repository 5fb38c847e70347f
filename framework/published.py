"""Counts the messages that each handler has stored by publishing. The counter is in a context variable. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Protocol, TypeAlias

from gevent import monkey

Answers: TypeAlias = Sequence[BaseException | None]
"""Of a request whose messages may be refused one by one, when it is over: None for each that is stored. Else it stays empty."""


class Tracer(Protocol):
    """What tells a tracing system of the messages that are published."""

    def __call__(
        self, topic: str, bodies: Sequence[bytes], *, carried: bool, answers: Answers
    ) -> AbstractContextManager[Mapping[str, str]]:
        """Around one request. Gives headers that are to come with its messages; none where they are not ``carried``."""


tally: ContextVar[Counter[str] | None] = ContextVar("published", default=None)
"""Topic -> messages, of the handler on whose behalf this code runs; None outside of handlers."""
tracer: Tracer | None = None
"""What is around each publish; None, which costs a look, where nobody traces."""
_lock = monkey.get_original("_thread", "allocate_lock")()  # native threads may share a tally, and no greenlet waits under it


def count(topic: str, messages: int) -> None:
    """``messages`` have been stored on ``topic``."""
    mine = tally.get()
    if mine is not None:
        with _lock:
            mine[topic] += messages


def take() -> dict[str, int]:
    """What has been counted here since the last call, for a process that reports to another."""
    mine = tally.get()
    if not mine:
        return {}
    with _lock:
        taken = dict(mine)
        mine.clear()
    return taken


def add(counts: Mapping[str, int]) -> None:
    """What another process has taken."""
    for topic, messages in counts.items():
        count(topic, messages)

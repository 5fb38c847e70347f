"""Which call of a handler a log record belongs to: asked when a record is made, so that a message costs nothing for it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Protocol

from greenlet import getcurrent  # type: ignore[import-untyped]


class Site(Protocol):
    """Where calls are made: a slot, which has one after the other, or one call in a thread or a slot process."""

    name: str
    """The handler's."""
    job: Any
    """Its Message, or the messages of its batch; None between two calls."""
    greenlet: Any
    """In which its calls are made; None: whatever runs in this context is of this one call."""

    @property
    def known_as(self) -> Callable[[Any], Any]:
        """What the handler knows one of its messages as: what comes in an envelope has an id of its own."""


def itself(message: Any) -> Any:
    """``Site.known_as`` where nothing comes in an envelope."""
    return message


_GENERATIONS = 3
site: ContextVar[Site | None] = ContextVar("call", default=None)
"""Of the code that runs."""


def current() -> dict[str, Any] | None:
    """The handler, topic and channel, id, attempt and node of the call that this code runs in; None outside of calls.

    In a greenlet that a handler has started, only the handler: it may outlive the call, and its slot has another message then."""
    me = getcurrent()
    here = site.get() or _of_spawner(me)
    if here is None:
        return None
    topic, _, channel = here.name.partition("/")
    found: dict[str, Any] = {"handler": here.name, "topic": topic, "channel": channel}
    job = here.job
    if job is None or (here.greenlet is not None and here.greenlet is not me):
        return found
    messages = getattr(job, "messages", job)
    came = messages[0] if isinstance(messages, list | tuple) else messages
    first = here.known_as(came)
    found |= {"id": first.id.decode(errors="replace"), "attempt": first.attempts, "node": first.node}
    if came is not messages:
        found["messages"] = len(messages)
    return found


def _of_spawner(me: Any) -> Site | None:
    """gevent's greenlets begin with an empty context; they know who has spawned them."""
    for _ in range(_GENERATIONS):
        spawner = getattr(me, "spawning_greenlet", None)
        me = spawner() if spawner is not None else None
        context = getattr(me, "gr_context", None)
        if context is not None and (found := context.get(site)) is not None:
            return found  # type: ignore[no-any-return]
    return None


def bind_records() -> None:
    """Have each log record of this process know its call, as ``record.call``. Once is enough."""
    made = logging.getLogRecordFactory()
    if not getattr(made, "binds_calls", False):
        logging.setLogRecordFactory(_binding(made))


def _binding(made: Callable[..., logging.LogRecord]) -> Callable[..., logging.LogRecord]:
    def make(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = made(*args, **kwargs)
        if (about := current()) is not None:
            record.call = about
        return record

    make.binds_calls = True  # type: ignore[attr-defined]
    return make

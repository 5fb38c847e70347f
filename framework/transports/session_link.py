"""What publishes over a session that several greenlets share, each command answered by itself: NATS and RocketMQ.

It knows neither's commands. Whether to try again, and where, is the ``Failover``'s affair.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from time import monotonic
from typing import Any, Generic, Protocol, TypeVar

import gevent
from gevent.hub import Waiter, get_hub

from framework.errors import BrokerUnreachable, FrameworkError
from framework.hubs import call_on_hub
from framework.transports.publish_link import InDoubt, NotStored, another

DOUBT = 1.0
"""Seconds without a word, while an answer is owed, after which nothing more is sent there."""
_IDLE = 0.001  # seconds after which a look at the socket comes before trusting it: one recv
_LATE = 0.002  # seconds that a look comes after what it is to see: a timer may be that much too early
_TURN = 0.001  # seconds, in which another hub may tell of what it has read


class Lasting(Protocol):
    """The session, as all such links use it."""

    leaving: bool

    @property
    def error(self) -> FrameworkError | Exception | None:
        """Why it has ended."""

    @property
    def heard_at(self) -> float:
        """When something was read last (monotonic)."""

    def poll(self) -> None: ...

    def end(self, error: FrameworkError) -> None: ...

    def shut(self) -> None: ...

    def fileno(self) -> int: ...


class Named(Protocol):
    """A command."""

    @property
    def topic(self) -> str: ...


class NoPlace(NotStored):
    """There is nothing yet that keeps what is published to the topic."""


_C = TypeVar("_C", bound=Named)
_S = TypeVar("_S", bound=Lasting)


class SessionLink(Generic[_C, _S]):
    """Most of ``publish_link.PublishLink``; ``prove`` is the subclass's."""

    def __init__(self, node: str, session: _S) -> None:
        self.node = node
        self.silent: Callable[[], None] = _nothing
        self.elsewhere: Callable[[], bool] = another
        self._session = session
        self._doubted = 0.0
        self._refusing = False
        """It did not store what it was sent, and said so: another node may."""

    # --- what a subclass does ------------------------------------------------------------------------------

    def _run(self, commands: Sequence[_C], timeout: float) -> list[Exception | None]:
        """Send them all, and wait for their answers: NoPlace where their topic is to be made."""
        raise NotImplementedError

    def _make(self, topics: Collection[str], timeout: float) -> Exception | None:
        """Have something keep what is published to ``topics``; else why that could not be."""
        raise NotImplementedError

    @property
    def _owes(self) -> bool:
        """An answer is to come."""
        raise NotImplementedError

    # --- publish_link.PublishLink --------------------------------------------------------------------------

    def ask(self, command: _C, until: float) -> Exception | None:
        return self.ask_each([command], until - monotonic())[0]

    def ask_each(self, commands: Sequence[_C], timeout: float) -> list[Exception | None]:
        answers = self._answers(commands, timeout)
        if answers.count(None) < len(answers):
            self._leave_if_refused(answers)
        return answers

    def _answers(self, commands: Sequence[_C], timeout: float) -> list[Exception | None]:
        answers = self._run(commands, timeout)
        missing = [i for i, answer in enumerate(answers) if isinstance(answer, NoPlace)]
        if missing:
            failure = self._make({commands[i].topic for i in missing}, timeout)
            again = [failure] * len(missing) if failure else self._run([commands[i] for i in missing], timeout)
            for i, answer in zip(missing, again, strict=True):
                answers[i] = answer
        return answers

    def _leave_if_refused(self, answers: Sequence[Exception | None]) -> None:
        """What comes next goes to another node, if there is one; this session ends with the last answer that it owes."""
        if any(isinstance(answer, NotStored) and not isinstance(answer, InDoubt) for answer in answers):
            self._refusing = self._refusing or self.elsewhere()
        if self._refusing and not self._owes:
            self._session.end(BrokerUnreachable(f"{self.node} stores nothing now"))

    def usable(self) -> bool:
        session = self._session
        silent = monotonic() - session.heard_at
        if session.error is None and silent > _IDLE:
            if not self._owes:
                session.poll()
            elif silent > DOUBT:  # the hub was blocked, perhaps; and answers are given on the hub only
                gevent.sleep(_TURN)
                call_on_hub(session.poll)
        return session.error is None and not (session.leaving or self._refusing) and self._doubted <= session.heard_at

    def look(self, since: float) -> None:
        """An answer is owed ``since`` then: whether the server is silent."""
        now = monotonic()
        if now - max(self._session.heard_at, since) >= DOUBT:
            self._doubted = now
            self.silent()

    def close(self) -> None:
        self._session.end(BrokerUnreachable("the producer was closed"))

    def shut(self) -> None:
        self._session.shut()

    def fileno(self) -> int:
        return self._session.fileno()


class Run(Generic[_C]):
    """Several messages of one greenlet: each answer makes room for the next one, and the last one wakes it."""

    def __init__(self, commands: Sequence[_C], timeout: float) -> None:
        self._commands = commands
        self._timeout = timeout
        self._answers: dict[int, Exception | None] = {}
        self._under_way: dict[int, tuple[int, float]] = {}
        """Number of a message -> that of its question, and since when its answer is owed; the oldest first."""
        self._next = 0
        self._over = False
        self._waiter: Waiter[None] = Waiter()

    def _fill(self) -> None:
        """Send the next ones, as many as may be under way."""
        raise NotImplementedError

    def _look_at(self, under_way: list[tuple[int, tuple[int, float]]], now: float) -> None:
        """Answers that do not come; there is one at least."""
        raise NotImplementedError

    def _give_up(self, question: int) -> None:
        """Its answer is not waited for any more."""
        raise NotImplementedError

    def wait(self) -> list[Exception | None]:
        timeout = max(self._timeout, 0.001)
        look = timeout / math.ceil(timeout / DOUBT) + _LATE  # one of them is when the time is over: nobody waits for longer
        timer: Any = get_hub().loop.timer(look, look)
        try:
            self._fill()
            if len(self._answers) < len(self._commands):
                timer.start(self._look)
                self._waiter.get()
        finally:
            timer.close()
            self._over = True
            for question, _ in self._under_way.values():
                self._give_up(question)
        return [self._answers[number] for number in range(len(self._commands))]

    def _look(self) -> None:
        if self._under_way and not self._over:
            self._look_at(list(self._under_way.items()), monotonic())


def _nothing() -> None:
    """Nobody has asked to be told."""

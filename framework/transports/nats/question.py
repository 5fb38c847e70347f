"""A request on a session and its answer: what JetStream's administration is asked by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gevent.hub import Waiter, get_hub

from framework.errors import AccessDenied, BrokerError, BrokerUnreachable
from framework.transports.nats import wire
from framework.transports.nats.outbox import Listening, Owner

ANSWERS = "answers come there, let this user subscribe to _INBOX.>"
"""What to do where our user may not hear what is answered."""

TIMEOUT = 5.0
"""Seconds that a server may take. A missing consumer answers nothing at all on 2.9, nor does a cluster without a leader."""


class Asked(Protocol):
    """The session, as a question uses it."""

    inbox: bytes

    @property
    def error(self) -> Exception | None: ...

    @property
    def server(self) -> str: ...

    def sid(self, owner: Owner) -> int: ...

    def request(self, sid: int, to: bytes, body: bytes) -> None:
        """Publish it, to be answered on ``sid``."""

    def settles(self, answer: wire.Msg) -> bool:
        """Else another may come, which says more."""

    def withdraw(self, sid: int) -> None:
        """Nobody waits for that answer any more."""


class Telling(Asked, Protocol):
    """The session, as one uses it who only wants to know whether something may be said."""

    def say(self, command: bytes) -> None: ...

    def ping(self, then: Callable[[], None] | None = None) -> None: ...


def ask(session: Asked, to: bytes, body: bytes, timeout: float) -> wire.Msg:
    """Publish a request and wait for its answer; blocks its greenlet. Raises BrokerUnreachable, AccessDenied, BrokerError."""
    question = Question(session, to)
    try:
        return question.wait(to, body, timeout)
    finally:
        question.end()


def objection(session: Telling, subject: bytes, command: bytes, timeout: float = TIMEOUT) -> str:
    """What the server says against ``command``, which is about ``subject``, by when it has read that; empty: nothing. Blocks its
    greenlet. Raises BrokerUnreachable."""
    question = Question(session, subject)
    try:
        question.tell(session, command, timeout)
    except BrokerError as error:
        return f"{error.code} {error.words}".strip()  # its fix is for him who had to be answered
    finally:
        question.end()
    return ""


class Question(Listening):
    """A request of one greenlet, and the inbox of its answer."""

    def __init__(self, session: Asked, to: bytes) -> None:
        self._session = session
        self._to = to
        self._waiter: Waiter[wire.Msg | Exception] = Waiter()
        self._over = False
        self._meanwhile: wire.Msg | None = None
        """The answer of one who could not know."""
        self._sid = session.sid(self)
        self._inbox = b"%b.%d" % (session.inbox, self._sid)

    def wait(self, to: bytes, body: bytes, timeout: float) -> wire.Msg:
        return self._await(lambda: self._session.request(self._sid, to, body), timeout)

    def tell(self, session: Telling, command: bytes, timeout: float) -> None:
        """Say it, and wait until the server has read it. Raises BrokerError where it may not be said, BrokerUnreachable."""
        read = wire.Msg(self._inbox, self._sid, b"", b"", b"")
        session.say(command)
        self._await(lambda: session.ping(lambda: self._answer(read)), timeout)

    def _await(self, send: Callable[[], None], timeout: float) -> wire.Msg:
        session = self._session
        if session.error is not None:
            raise session.error
        send()
        slow = BrokerUnreachable(f"nats-server {session.server} gave no answer to {self._to.decode()} for {timeout:g} s")
        alarm = get_hub().loop.timer(timeout)
        alarm.start(lambda: self._answer(self._meanwhile or slow))
        try:
            answer: wire.Msg | Exception = self._waiter.get()
        finally:
            alarm.close()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def end(self) -> None:
        self._over = True
        self._session.withdraw(self._sid)

    def _answer(self, answer: wire.Msg | Exception) -> None:
        """From any greenlet: a publisher may read what came for another, and who closes a session tells all who wait on it."""
        if not self._over:
            self._over = True
            get_hub().loop.run_callback(self._waiter.switch, answer)  # a Waiter is switched to from the hub only

    def heard(self, messages: list[wire.Msg], at: float) -> None:
        for message in messages:
            if self._session.settles(message):
                self._answer(message)
                return
            self._meanwhile = message

    def refused(self, words: str) -> bool:
        """No time mends it, so it is no plain BrokerError: a worker would go on trying until its deadline."""
        to = self._to.decode()
        if f'"{self._inbox.decode()}"' in words:
            fix = ANSWERS
        elif f'"{to}"' in words:
            fix = f"let this user publish to {'$JS.API.>' if to.startswith('$JS.API.') else to}"
        else:
            return False
        self._answer(AccessDenied(words, fatal=False, fix=fix))
        return True

    def lost(self, error: Exception) -> None:
        self._answer(BrokerUnreachable(str(error)))

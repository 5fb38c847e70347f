"""A request on a session and its answer, for which a greenlet waits: what name servers and brokers are asked beside messages."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Protocol

from gevent.hub import Waiter, get_hub

from framework.errors import BrokerUnreachable, FrameworkError
from framework.transports.rocketmq.wire.codes import Answer, Request
from framework.transports.rocketmq.wire.errors import error_of
from framework.transports.rocketmq.wire.frames import Frame


class Asked(Protocol):
    """The session, as a question uses it."""

    server: str

    def call(
        self, code: int, fields: dict[str, str], then: Callable[[Frame | FrameworkError, float], None], *, body: bytes = b""
    ) -> int: ...

    def give_up(self, number: int) -> None: ...


class Question:
    """One request of one greenlet."""

    def __init__(self, session: Asked, code: int, fields: dict[str, str], body: bytes) -> None:
        self._session = session
        self._name = Request(code).name
        self._waiter: Waiter[Frame | FrameworkError] = Waiter()
        self._over = False
        self._number = session.call(code, fields, self._answer, body=body)

    def wait(self, timeout: float, *, also: Container[int] = ()) -> Frame:
        """``also``: codes of answers that are no errors here. Raises BrokerUnreachable, RocketError."""
        slow = BrokerUnreachable(f"RocketMQ at {self._session.server} gave no answer to {self._name} for {timeout:g} s")
        alarm = get_hub().loop.timer(timeout)
        alarm.start(self._answer, slow, 0.0)
        try:
            found: Frame | FrameworkError = self._waiter.get()
        finally:
            self._over = True
            alarm.close()
            self._session.give_up(self._number)
        if isinstance(found, FrameworkError):
            raise found
        if found.code != Answer.SUCCESS and found.code not in also:
            raise error_of(found)
        return found

    def _answer(self, found: Frame | FrameworkError, at: float) -> None:
        """From any greenlet: who closes a session tells all who wait on it."""
        if not self._over:
            self._over = True
            get_hub().loop.run_callback(self._waiter.switch, found)  # a Waiter is switched to from the hub only
